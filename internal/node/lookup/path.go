package lookup

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// PathIn is a file or directory in a revision. The empty path is the root. The path of a directory may end in a slash.
type PathIn struct{ Revision, Path string }

// treeEntry is an entry of a tree. The zero ID means that it does not exist.
type treeEntry struct {
	id   git.ObjectID
	mode uint32
}

// find finds the entry of a path.
func (c *operation) find(in PathIn) (treeEntry, error) {
	root, err := c.treeOf(in.Revision)
	if err != nil {
		return treeEntry{}, err
	}
	if err := checkPath(in.Path); err != nil {
		return treeEntry{}, err
	}
	e := treeEntry{root, pack.ModeTree}
	for rest := in.Path; rest != "" && !e.id.IsZero(); {
		var name string
		var below bool
		name, rest, below = strings.Cut(rest, "/")
		if e, err = c.child(e, name, below); err != nil {
			return treeEntry{}, err
		}
	}
	if e.id.IsZero() {
		return e, fault.New(fault.NotFound, "revision %.200q has no path %q", in.Revision, fault.Short(in.Path))
	}
	return e, nil
}

func checkPath(path string) error {
	if len(path) > maxPath {
		return fault.New(fault.Invalid, "a path of %d bytes is longer than %d", len(path), maxPath)
	}
	return nil
}

// child finds a name in a directory. It returns the zero entry if in is not a directory. If slash is set, the entry
// must be a directory too.
func (c *operation) child(in treeEntry, name string, slash bool) (found treeEntry, err error) {
	if in.mode != pack.ModeTree {
		return treeEntry{}, nil
	}
	data, err := c.tree(in.id)
	if err != nil {
		return treeEntry{}, err
	}
	defer c.drop(int64(len(data)))
	for rest := data; len(rest) > 0; {
		mode, n, id, next, err := pack.CutEntry(rest, c.repo.Format)
		if err != nil {
			return treeEntry{}, damagedTree(in.id, err)
		}
		if string(n) == name {
			if slash && mode != pack.ModeTree {
				return treeEntry{}, nil
			}
			return treeEntry{id, mode}, nil
		}
		rest = next
	}
	return treeEntry{}, nil
}

// tree reads a tree.
func (c *operation) tree(id git.ObjectID) ([]byte, error) {
	return c.read(id, git.Tree, maxObject)
}

func damagedTree(id git.ObjectID, err error) error {
	return fault.Wrap(fault.Corrupt, "tree "+id.String()+" is damaged", err)
}

// pathMemo finds one path in many trees, and caches the results.
type pathMemo struct {
	c     *operation
	names []string
	slash bool // the path ends in a slash
	known map[pathKey]treeEntry
}

type pathKey struct {
	tree  git.ObjectID
	depth int
}

// maxMemo is the maximum number of cached entries of a pathMemo, about 150 bytes each.
const maxMemo = 1 << 14

func newPathMemo(c *operation, path string) *pathMemo {
	trimmed := strings.TrimSuffix(path, "/")
	return &pathMemo{c: c, names: strings.Split(trimmed, "/"), slash: trimmed != path,
		known: make(map[pathKey]treeEntry)}
}

// same reports whether two trees have the same entry at the path. The zero ID is the empty tree.
func (m *pathMemo) same(a, b git.ObjectID) (bool, error) {
	if a == b {
		return true, nil
	}
	in, err := m.at(a, 0)
	if err != nil {
		return false, err
	}
	other, err := m.at(b, 0)
	return in == other, err
}

func (m *pathMemo) at(tree git.ObjectID, depth int) (treeEntry, error) {
	if tree.IsZero() {
		return treeEntry{}, nil
	}
	key := pathKey{tree, depth}
	if e, ok := m.known[key]; ok {
		return e, nil
	}
	last := depth == len(m.names)-1
	e, err := m.c.child(treeEntry{tree, pack.ModeTree}, m.names[depth], !last || m.slash)
	if err == nil && !last {
		e, err = m.at(e.id, depth+1)
	}
	if err != nil {
		return treeEntry{}, err
	}
	m.put(key, e)
	return e, nil
}

func (m *pathMemo) put(key pathKey, e treeEntry) {
	if len(m.known) >= maxMemo {
		clear(m.known)
	}
	m.known[key] = e
}
