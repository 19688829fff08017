package refs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// node is the known state of a file or directory below refs/, or of HEAD. Only the holder of the Store's turn may use
// nodes. Their entries are immutable and shared with Snapshots.
type node struct {
	path     string // absolute, with a NUL at its end
	id       identity
	entry    *refEntry // a file's content; nil for a directory
	children []*node   // a directory's, sorted by name
	settled  bool      // the content cannot have changed without a change of id
}

// refEntry is one loose ref.
type refEntry struct {
	name git.RefName // a part of the node's path
	content
	to *Ref // in a Snapshot: what a symbolic ref resolves to (see resolve), or the ref with its peeled object; nil: none
}

// name returns the last path component of a node, given its directory.
func (n *node) name(dir *node) string { return n.path[len(dir.path) : len(n.path)-1] }

// scan is one scan of the loose refs. It updates the nodes in place. After an error they are unchanged or newer, and
// Store.dirty is set if a new Snapshot is needed.
type scan struct {
	*Store
	now int64 // a time before the scan began, in nanoseconds since 1970
}

// looseRefs scans HEAD and refs/, and both refs/ directories for a linked worktree.
func (l scan) looseRefs() error {
	id, err := l.stat(l.head.path, false)
	if err != nil {
		return err
	}
	if _, err := l.file(l.head, id); err != nil {
		return err
	}
	if l.head.entry == nil || !l.head.entry.isHead() {
		return fault.New(fault.NotFound, "the repository is gone, or its HEAD is damaged")
	}
	if id, err = l.stat(l.root.path, true); err != nil {
		return err
	}
	ok := id.kind == directory
	if ok {
		ok, err = l.directory(l.root, id)
	}
	if err == nil && !ok {
		return fault.Wrap(fault.NotFound, "the repository is gone", fmt.Errorf("no directory %q",
			l.root.path[:len(l.root.path)-1]))
	}
	if err == nil && l.own != nil {
		err = l.ownRefs()
	}
	return err
}

// ownRefs scans the refs of a linked worktree itself. There may be none.
func (l scan) ownRefs() error {
	id, err := l.stat(l.own.path, true)
	if err != nil {
		return err
	}
	ok := id.kind == directory
	if ok {
		if ok, err = l.directory(l.own, id); err != nil {
			return err
		}
	}
	if !ok {
		l.forget(l.own)
		l.own.children, l.own.settled = nil, false
	}
	return nil
}

// isOwn reports whether a directory below refs/ belongs to each worktree alone (gitrepository-layout(5), "refs").
func isOwn(name string) bool { return name == "bisect" || name == "worktree" || name == "rewritten" }

// node scans one path below refs/. It returns false if the path does not exist any more.
func (l scan) node(n *node) (bool, error) {
	id, err := l.stat(n.path, false)
	switch {
	case err != nil:
		return false, err
	case id.kind == missing:
		return false, nil
	case id.kind == directory:
		if n.entry != nil { // it was a file
			n.entry, n.settled, l.dirty = nil, false, true
		}
		return l.directory(n, id)
	}
	if n.children != nil { // it was a directory
		l.forget(n)
		n.children, n.settled = nil, false
	}
	return l.file(n, id)
}

// forget records that the refs at and below a node do not exist any more.
func (l scan) forget(n *node) {
	if n.entry != nil {
		l.dirty = true
	}
	for _, child := range n.children {
		l.forget(child)
	}
}

// directory scans a directory whose identity is id. It returns false if the directory is gone.
func (l scan) directory(n *node, id identity) (bool, error) {
	if !n.settled || id != n.id {
		return l.list(n, id)
	}
	for i := 0; i < len(n.children); {
		ok, err := l.node(n.children[i])
		if err != nil {
			return false, err
		}
		if ok {
			i++
			continue
		}
		l.forget(n.children[i])
		n.children = slices.Delete(n.children, i, i+1)
		n.settled = false
	}
	return true, nil
}

// maxListings is the maximum number of listings of a directory that changes during them. The last one has all names
// that existed throughout.
const maxListings = 3

// list reads the names in a directory and scans each of them.
func (l scan) list(n *node, id identity) (bool, error) {
	n.settled = false
	follow := n == l.root || n == l.own
	if follow {
		if err := l.contained(n.path); err != nil {
			return false, err
		}
	}
	if n == l.root {
		l.checkFormat = true
	}
	var names []string
	for range maxListings {
		var err error
		names, err = readNames(n.path, follow)
		if gone(err) || errors.Is(err, unix.ELOOP) {
			return false, nil
		}
		if err != nil {
			return false, ioError("listing", n.path, err)
		}
		after, err := l.stat(n.path, follow)
		if err != nil {
			return false, err
		}
		if after == id {
			break
		}
		if after.kind != directory {
			return false, nil
		}
		id = after
	}
	slices.Sort(names)
	children, err := l.merge(n, names)
	if err != nil {
		return false, err
	}
	n.children, n.id, n.settled = children, id, id.settled(l.now)
	return true, nil
}

// merge combines the known nodes of a directory with its current names.
func (l scan) merge(n *node, names []string) ([]*node, error) {
	children := make([]*node, 0, len(names))
	known := n.children
	keep := func(child *node) error {
		ok, err := l.node(child)
		if err == nil && ok {
			children = append(children, child)
		} else if err == nil {
			l.forget(child)
		}
		return err
	}
	for _, name := range names {
		// A known name that is not listed is checked too. If a listing races with a rename onto
		// that name, some file systems leave it out.
		for len(known) > 0 && known[0].name(n) < name {
			if err := keep(known[0]); err != nil {
				return nil, err
			}
			known = known[1:]
		}
		var child *node
		if len(known) > 0 && known[0].name(n) == name {
			child, known = known[0], known[1:]
		} else if child = l.newNode(n, name); child == nil {
			continue
		}
		if err := keep(child); err != nil {
			return nil, err
		}
	}
	for _, child := range known {
		if err := keep(child); err != nil {
			return nil, err
		}
	}
	return children, nil
}

// newNode creates a node for a name in a directory; nil if no ref can have that name.
func (l scan) newNode(dir *node, name string) *node {
	if name[0] == '.' || strings.HasSuffix(name, ".lock") {
		return nil
	}
	path := dir.path[:len(dir.path)-1] + "/" + name + "\x00"
	// The name may be that of a directory, which may end in a dot.
	if full := string(l.refName(path)); !git.IsSafeRefName(full) && !git.IsSafeRefName(full+"/x") {
		return nil
	}
	if l.own != nil && (dir == l.root && isOwn(name) || dir == l.own && !isOwn(name)) {
		return nil
	}
	return &node{path: path}
}

// refName returns the part of a node's path that is the name of the ref.
func (l scan) refName(path string) git.RefName {
	root := l.root.path
	if l.own != nil && strings.HasPrefix(path, l.own.path[:len(l.own.path)-1]+"/") {
		root = l.own.path
	}
	return git.RefName(path[len(root)-len("refs\x00") : len(path)-1])
}

// file scans a file whose identity is id. It returns false if the file is gone.
func (l scan) file(n *node, id identity) (bool, error) {
	if n.settled && id == n.id {
		return id.kind != missing, nil
	}
	got, id, err := l.read(n, id)
	if err != nil {
		return false, err
	}
	if n == l.head {
		l.checkFormat = true
	} else if id.kind == missing {
		return false, nil
	}
	n.id, n.settled = id, id.settled(l.now)
	name := git.HEAD
	if n != l.head {
		if name = l.refName(n.path); !git.IsSafeRefName(string(name)) { // valid only for a directory
			got = content{}
		}
	}
	if n.entry != nil && n.entry.content == got {
		return id.kind != missing, nil
	}
	if got.kind <= odd && id.kind != missing {
		l.metrics.broken.Inc()
	}
	n.entry, l.dirty = &refEntry{name: name, content: got}, true
	return id.kind != missing, nil
}

// maxReads is the maximum number of scans of a path whose kind of file changes before it is read.
const maxReads = 5

// read reads the file at a node's path, and returns its identity when it was read.
func (l scan) read(n *node, id identity) (content, identity, error) {
	for range maxReads {
		switch id.kind {
		case regular:
			got, id, err := l.readFile(n.path)
			switch {
			case err == nil && id.kind == regular:
				return got, id, nil
			case errors.Is(err, fs.ErrPermission): // like in git, it counts as broken
				return content{}, id, nil
			case err != nil && !gone(err) && !errors.Is(err, unix.ELOOP):
				return content{}, id, ioError("reading", n.path, err)
			}
		case symlink:
			text, err := os.Readlink(n.path[:len(n.path)-1])
			switch {
			case err == nil:
				return parseSymlink(text), id, nil
			case !gone(err) && !errors.Is(err, unix.EINVAL):
				return content{}, id, ioError("reading", n.path, err)
			}
		default: // missing, a directory in HEAD's place, a device
			return content{}, id, nil
		}
		var err error
		if id, err = l.stat(n.path, false); err != nil {
			return content{}, id, err
		}
		if id.kind == directory && n != l.head {
			return content{}, identity{}, nil // not a file any more: the refs in it are newer than this scan
		}
	}
	return content{}, identity{kind: special}, nil
}

// readFile reads the beginning of a regular file. It does not follow links or wait for pipes.
func (l scan) readFile(path string) (content, identity, error) {
	var fd int
	err := ignoringEINTR(func() (err error) {
		fd, err = unix.Open(path[:len(path)-1], unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return content{}, identity{}, err
	}
	defer unix.Close(fd)
	id, err := l.fstat(fd)
	if err != nil || id.kind != regular {
		return content{}, id, err
	}
	var buf [looseLimit]byte // on the stack, because most of the many stores are idle
	n := 0
	for n < len(buf) {
		var m int
		err := ignoringEINTR(func() (err error) { m, err = unix.Read(fd, buf[n:]); return err })
		if err != nil {
			return content{}, id, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return parseLoose(buf[:n], l.format), id, nil
}

func readNames(path string, follow bool) ([]string, error) {
	flags := os.O_RDONLY | unix.O_DIRECTORY
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	f, err := os.OpenFile(path[:len(path)-1], flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// appendEntries appends the loose refs at and below a node.
func (n *node) appendEntries(to []*refEntry) []*refEntry {
	if n.entry != nil {
		return append(to, n.entry)
	}
	for _, child := range n.children {
		to = child.appendEntries(to)
	}
	return to
}
