package lookup

import (
	"context"
	"encoding/base64"
	"encoding/binary"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	usualPage    = 1000
	maxPage      = 10_000
	maxPageBytes = 1 << 20 // bytes of paths at which a page is full
)

// TreeRequest requests the entries of a directory.
type TreeRequest struct {
	In        PathIn
	Recursive bool   // list all files below it, at any depth, but not the directories
	Sizes     bool   // with the sizes of files; NotFound if one is missing
	PageSize  int    // maximum number of entries, up to 10,000; 0: 1,000
	Token     string // TreePage.Next of the previous page; In is then ignored
}

// TreePage is a part of a directory. It may have fewer entries than requested, even none. It is the last page only if
// Next is empty.
type TreePage struct {
	ID      git.ObjectID // of the directory
	Entries []TreeEntry
	Next    string // empty: this is the last page
}

// TreeEntry is a name in a directory.
type TreeEntry struct {
	Path []byte // below the directory
	Mode uint32
	ID   git.ObjectID
	Size int64 // of a file, if requested
}

// Type returns the type of the entry's object. A submodule is a commit of another repository.
func (e TreeEntry) Type() git.ObjectType {
	switch e.Mode {
	case pack.ModeTree:
		return git.Tree
	case pack.ModeGitlink:
		return git.Commit
	}
	return git.Blob
}

// Tree lists a page of a directory, in git's order. All pages are of the same tree, even if the revision changes.
func (l *Reader) Tree(ctx context.Context, r *repo.Repo, q TreeRequest) (TreePage, error) {
	if q.PageSize < 0 {
		return TreePage{}, fault.New(fault.Invalid, "the page size %d is less than 0", q.PageSize)
	}
	if q.PageSize == 0 {
		q.PageSize = usualPage
	}
	c, err := l.begin(ctx, r)
	if err != nil {
		return TreePage{}, err
	}
	defer c.end()
	t := &lister{operation: c, recursive: q.Recursive}
	if q.Token != "" {
		if t.root, err = t.resume(q.Token); err != nil {
			return TreePage{}, err
		}
	} else {
		e, err := c.find(q.In)
		if err != nil {
			return TreePage{}, err
		}
		if e.mode != pack.ModeTree {
			return TreePage{}, fault.New(fault.Invalid, "path %q is not a directory", fault.Short(q.In.Path))
		}
		t.root = e.id
		if err := t.enter(e.id, 0); err != nil {
			return TreePage{}, err
		}
	}
	page := TreePage{ID: t.root}
	if page.Entries, err = t.list(min(q.PageSize, maxPage)); err != nil {
		return TreePage{}, err
	}
	page.Next = t.token()
	for i := range page.Entries {
		if e := &page.Entries[i]; q.Sizes && e.Type() == git.Blob {
			if _, e.Size, err = r.Objects.Header(e.ID); err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return TreePage{}, err
			}
		}
	}
	return page, nil
}

// lister lists a directory, and those below it if it is recursive.
type lister struct {
	*operation
	recursive bool
	root      git.ObjectID
	stack     []open // the directory, and those below it down to the current one
	path      []byte // of the current directory, with a slash at its end
	trees     int    // entered directories
}

// open is a directory that is being listed.
type open struct {
	id     git.ObjectID
	data   []byte
	rest   []byte // remaining entries of data
	next   uint64 // number of the first of these
	prefix int    // length of lister.path without the directory
}

// enter makes a directory the current one. prefix is the length of the path without it.
func (t *lister) enter(id git.ObjectID, prefix int) error {
	if len(t.stack) == t.bounds.depth {
		return fault.New(fault.Invalid, "directories are nested more than %d deep, at %q", t.bounds.depth,
			fault.Short(t.path))
	}
	data, err := t.tree(id)
	if err != nil {
		return err
	}
	t.trees++
	t.stack = append(t.stack, open{id: id, data: data, rest: data, prefix: prefix})
	return nil
}

// leave returns to the directory above.
func (t *lister) leave() {
	top := t.stack[len(t.stack)-1]
	t.path = t.path[:top.prefix]
	t.drop(int64(len(top.data)))
	t.stack = t.stack[:len(t.stack)-1]
}

// cut removes and returns the next entry of the current directory.
func (t *lister) cut() (mode uint32, name []byte, id git.ObjectID, err error) {
	top := &t.stack[len(t.stack)-1]
	mode, name, id, rest, err := pack.CutEntry(top.rest, t.repo.Format)
	if err != nil {
		return 0, nil, id, damagedTree(top.id, err)
	}
	top.rest = rest
	top.next++
	return mode, name, id, nil
}

// list returns the next entries, up to the limits of a page. It leaves directories at their end.
func (t *lister) list(limit int) ([]TreeEntry, error) {
	var entries []TreeEntry
	var paths []byte
	for len(t.stack) > 0 {
		if len(t.stack[len(t.stack)-1].rest) == 0 {
			t.leave()
			continue
		}
		if len(entries) == limit || len(paths) >= maxPageBytes || t.trees > t.bounds.pageTrees {
			break
		}
		mode, name, id, err := t.cut()
		if err != nil {
			return nil, err
		}
		if len(t.path)+len(name) > maxPageBytes {
			return nil, fault.New(fault.Invalid, "a path is longer than %d bytes: %q", maxPageBytes, fault.Short(t.path))
		}
		if t.recursive && mode == pack.ModeTree {
			if err := t.down(name, id); err != nil {
				return nil, err
			}
			continue
		}
		start := len(paths) // one buffer for all; earlier slices stay valid when it grows
		paths = append(append(paths, t.path...), name...)
		entries = append(entries, TreeEntry{Path: paths[start:len(paths):len(paths)], Mode: mode, ID: id})
	}
	return entries, nil
}

func (t *lister) down(name []byte, id git.ObjectID) error {
	prefix := len(t.path)
	t.path = append(append(t.path, name...), '/')
	return t.enter(id, prefix)
}

// A token is the base64url encoding of a version, 1 for a recursive listing, and the raw ID of the tree. For each
// directory on the current path the number of finished entries follows, as uvarint.
const tokenVersion = 1

var errToken = fault.New(fault.Invalid, "bad page token; begin with the first page")

// token returns the position of the listing. It is empty at the end.
func (t *lister) token() string {
	if len(t.stack) == 0 {
		return ""
	}
	b := []byte{tokenVersion, 0}
	if t.recursive {
		b[1] = 1
	}
	b = append(b, t.root.Raw()...)
	for _, o := range t.stack {
		b = binary.AppendUvarint(b, o.next)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// resume restores the position of a token, which is not trusted.
func (t *lister) resume(token string) (root git.ObjectID, err error) {
	if len(token) > 16*t.bounds.depth {
		return root, errToken
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	size := t.repo.Format.Size()
	if err != nil || len(b) <= 2+size || b[0] != tokenVersion || b[1] > 1 {
		return root, errToken
	}
	if t.recursive != (b[1] == 1) {
		return root, fault.New(fault.Invalid,
			"the page token is of another listing: recursive must be the same for all pages")
	}
	root = git.RawObjectID(b[2 : 2+size])
	typ, _, err := t.repo.Objects.Header(root)
	if err == nil && typ != git.Tree {
		err = errToken
	}
	if err != nil {
		return root, err
	}
	e, prefix := treeEntry{root, pack.ModeTree}, 0
	for b = b[2+size:]; len(b) > 0; {
		done, n := binary.Uvarint(b)
		if n <= 0 || e.mode != pack.ModeTree || len(t.stack) > 0 && !t.recursive {
			return root, errToken
		}
		b = b[n:]
		if err := t.enter(e.id, prefix); err != nil {
			return root, err
		}
		prefix = len(t.path)
		if e, err = t.skip(done, len(b) > 0); err != nil {
			return root, err
		}
	}
	t.trees = 0
	return root, nil
}

// skip skips the entries of earlier pages and returns the last of them. If entered is set, the position is inside that
// entry.
func (t *lister) skip(done uint64, entered bool) (e treeEntry, err error) {
	var name []byte
	for range done {
		if len(t.stack[len(t.stack)-1].rest) == 0 {
			return e, errToken
		}
		if e.mode, name, e.id, err = t.cut(); err != nil {
			return e, err
		}
	}
	if entered {
		if len(t.path)+len(name) > maxPageBytes {
			return e, errToken
		}
		t.path = append(append(t.path, name...), '/')
	}
	return e, nil
}
