package lookup

import (
	"bytes"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// differ compares two trees.
type differ struct {
	*operation
	// each is called with each difference. A missing side is zero. The path is valid only during the call.
	each   func(path []byte, old, new treeEntry) error
	path   []byte
	opened int // trees
}

// side is a tree on one side of a comparison, with its current entry.
type side struct {
	tree git.ObjectID
	data []byte
	rest []byte

	treeEntry
	name []byte // nil: at the end
}

func (d *differ) open(tree git.ObjectID) (s side, err error) {
	s.tree = tree
	if tree.IsZero() {
		return s, nil
	}
	if d.opened++; d.opened > d.bounds.diffTrees {
		return s, fault.New(fault.Invalid, "more than %d directories had to be compared; compare smaller parts",
			d.bounds.diffTrees)
	}
	if s.data, err = d.tree(tree); err != nil {
		return s, err
	}
	s.rest = s.data
	return s, d.next(&s)
}

func (d *differ) next(s *side) (err error) {
	if len(s.rest) == 0 {
		s.treeEntry, s.name = treeEntry{}, nil
		return nil
	}
	if s.mode, s.name, s.id, s.rest, err = pack.CutEntry(s.rest, d.repo.Format); err != nil {
		return damagedTree(s.tree, err)
	}
	return nil
}

// trees compares two trees. The zero ID is the empty tree. A directory and a file of the same name are two names.
func (d *differ) trees(old, new git.ObjectID, depth int) error {
	if old == new {
		return nil
	}
	if depth == d.bounds.depth {
		return fault.New(fault.Invalid, "directories are nested more than %d deep, at %q", d.bounds.depth,
			fault.Short(d.path))
	}
	a, err := d.open(old)
	if err != nil {
		return err
	}
	defer func() { d.drop(int64(len(a.data))) }()
	b, err := d.open(new)
	if err != nil {
		return err
	}
	defer func() { d.drop(int64(len(b.data))) }()
	return d.pairs(&a, &b, func(name []byte, from, to treeEntry) error { return d.pair(name, from, to, depth) })
}

// pairs calls fn with the entries of each name that differ, and maybe with equal ones. A missing entry is zero.
func (d *differ) pairs(a, b *side, fn func(name []byte, old, new treeEntry) error) error {
	for a.name != nil || b.name != nil {
		order := compareEntries(a, b)
		var from, to treeEntry
		name := a.name
		if order <= 0 {
			from = a.treeEntry
		}
		if order >= 0 {
			to, name = b.treeEntry, b.name
		}
		if err := fn(name, from, to); err != nil {
			return err
		}
		if order == 0 {
			skipEqual(a, b, d.repo.Format.Size())
		}
		if order <= 0 {
			if err := d.next(a); err != nil {
				return err
			}
		}
		if order >= 0 {
			if err := d.next(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// skipEqual skips the next entries that are the same on both sides. size is that of a raw object ID.
func skipEqual(a, b *side, size int) {
	const step = 64
	x, y, equal := a.rest, b.rest, 0
	for limit := min(len(x), len(y)); equal < limit; {
		if equal+step <= limit && bytes.Equal(x[equal:equal+step], y[equal:equal+step]) {
			equal += step
		} else if x[equal] == y[equal] {
			equal++
		} else {
			break
		}
	}
	for {
		end := bytes.IndexByte(a.rest[:equal], 0) + 1 + size
		if end <= size || end > equal {
			return
		}
		a.rest, b.rest, equal = a.rest[end:], b.rest[end:], equal-end
	}
}

// compareEntries compares names in the order of trees, in which the names of directories end in a slash. The end of a
// side comes last.
func compareEntries(a, b *side) int {
	switch {
	case a.name == nil:
		return 1
	case b.name == nil:
		return -1
	}
	n := min(len(a.name), len(b.name))
	if order := bytes.Compare(a.name[:n], b.name[:n]); order != 0 {
		return order
	}
	after := func(s *side) int {
		switch {
		case len(s.name) > n:
			return int(s.name[n])
		case s.mode == pack.ModeTree:
			return '/'
		}
		return 0
	}
	if x, y := after(a), after(b); x != y {
		return x - y
	}
	return len(a.name) - len(b.name) // not 0 only for invalid names
}

// pair compares the entries of one name on both sides. A missing entry is zero.
func (d *differ) pair(name []byte, old, new treeEntry, depth int) error {
	if old == new {
		return nil
	}
	prefix := len(d.path)
	if prefix+len(name) > maxPageBytes {
		return fault.New(fault.Invalid, "a path is longer than %d bytes: %q", maxPageBytes, fault.Short(d.path))
	}
	d.path = append(d.path, name...)
	defer func() { d.path = d.path[:prefix] }()
	if old.mode == pack.ModeTree || new.mode == pack.ModeTree {
		d.path = append(d.path, '/')
		return d.trees(old.id, new.id, depth+1)
	}
	return d.each(d.path, old, new)
}
