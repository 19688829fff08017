package merge

import (
	"bytes"
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Sides of a three-way merge, and masks of them.
const (
	base = iota
	ours
	theirs

	inBase, inOurs, inTheirs = 1 << base, 1 << ours, 1 << theirs
	inAll                    = inBase | inOurs | inTheirs
)

// maxDepth is the maximum number of nested directories (git's core.maxTreeDepth).
const maxDepth = 2048

// treeMerge merges trees where the result is certain without reading files:
//
//   - No path is changed by both sides, except in the same way.
//   - No file is where another side has a directory.
//   - No rename can matter. A side that deletes paths and adds paths may have renamed. That matters only to paths that
//     the other side has changed or deleted as well, and to paths that it has added, if a whole directory is gone.
//
// It reads only directories that differ. Trees that git would write in another way are not certain.
type treeMerge struct {
	ctx  context.Context
	view *view
	// attributes has the .gitattributes of our side in the visited directories, by the directory with a final slash.
	attributes map[string]git.ObjectID

	made                [][]byte // new trees
	uncertain           bool
	adds, deletes, gone [3]bool // by side; gone: it has deleted a directory
	same                bool    // both sides have added or deleted a path in the same way
}

// merge returns the merged tree. isCertain is false if git has to merge.
func (m *treeMerge) merge(trees [3]git.ObjectID) (tree git.ObjectID, isCertain bool, err error) {
	tree, err = m.directory("", trees, 0)
	for side := ours; side <= theirs; side++ {
		other := ours + theirs - side
		if m.adds[side] && m.deletes[side] && (m.same || m.gone[side] && m.adds[other]) {
			m.uncertain = true
		}
	}
	if err != nil || m.uncertain {
		return git.ObjectID{}, false, err
	}
	if tree.IsZero() {
		tree = m.view.add(git.Tree, nil)
	}
	for _, data := range m.made {
		m.view.add(git.Tree, data)
	}
	return tree, true, nil
}

// cursor is a position in a tree.
type cursor struct {
	data, rest []byte
	entry      []byte // the current entry; nil: the end
	name       []byte
	mode       uint32
	id         git.ObjectID
}

// canonicalModes are the modes that git writes.
var canonicalModes = map[uint32]string{pack.ModeTree: "40000 ", pack.ModeFile: "100644 ",
	pack.ModeExecutable: "100755 ", pack.ModeSymlink: "120000 ", pack.ModeGitlink: "160000 "}

// next moves to the next entry. ordinary reports whether git would write it in the same way.
func (c *cursor) next(format git.ObjectFormat) (ordinary bool, err error) {
	before, wasTree := c.name, c.mode == pack.ModeTree
	if c.entry = nil; len(c.rest) == 0 {
		return true, nil
	}
	data := c.rest
	if c.mode, c.name, c.id, c.rest, err = pack.CutEntry(data, format); err != nil {
		return false, fault.Wrap(fault.Corrupt, "a tree is damaged", err)
	}
	c.entry = data[:len(data)-len(c.rest)]
	mode, isKnown := canonicalModes[c.mode]
	return isKnown && bytes.HasPrefix(c.entry, []byte(mode)) && c.id != emptyTree(format) &&
		(before == nil || compareNames(before, wasTree, c.name, c.mode == pack.ModeTree) < 0), nil
}

// nextIs moves to the next entry if it is the current one of another tree, whose entry before had the same name.
func (c *cursor) nextIs(other *cursor) bool {
	if other.entry == nil || !bytes.HasPrefix(c.rest, other.entry) {
		return false
	}
	n := len(other.entry)
	c.entry, c.rest, c.name, c.mode, c.id = c.rest[:n], c.rest[n:], other.name, other.mode, other.id
	return true
}

// compareNames compares names in the order of trees, in which the names of directories end in a slash.
func compareNames(a []byte, aTree bool, b []byte, bTree bool) int {
	n := min(len(a), len(b))
	if order := bytes.Compare(a[:n], b[:n]); order != 0 {
		return order
	}
	after := func(name []byte, isTree bool) int {
		switch {
		case len(name) > n:
			return int(name[n])
		case isTree:
			return '/'
		}
		return 0
	}
	return after(a, aTree) - after(b, bTree)
}

// hasDirectory reports whether the rest of the tree has a directory with the name of a file. Only names that begin with
// it can be before it.
func (c *cursor) hasDirectory(name []byte, format git.ObjectFormat) bool {
	for at := *c; at.entry != nil && bytes.HasPrefix(at.name, name); {
		if len(at.name) == len(name) {
			return true
		}
		if _, err := at.next(format); err != nil {
			return true
		}
	}
	return false
}

// directory merges a directory. The zero ID is one that does not exist, also as the result.
func (m *treeMerge) directory(path string, trees [3]git.ObjectID, depth int) (git.ObjectID, error) {
	if err := m.ctx.Err(); err != nil {
		return git.ObjectID{}, err
	}
	if depth > maxDepth {
		return git.ObjectID{}, fault.New(fault.Invalid, "directories are nested more than %d deep", maxDepth)
	}
	format := m.view.repo.Format
	var sides [3]cursor
	for i := range sides {
		if trees[i].IsZero() {
			continue
		}
		data := sides[0].data
		if i == 0 || trees[i] != trees[0] {
			var err error
			if data, err = m.view.read(trees[i], git.Tree); err != nil {
				return git.ObjectID{}, err
			}
		}
		sides[i].data, sides[i].rest = data, data
		if err := m.next(&sides[i], format); err != nil {
			return git.ObjectID{}, err
		}
	}
	var merged []byte
	for {
		mask := first(&sides)
		if mask == 0 {
			break
		}
		entry, err := m.entry(path, &sides, mask, depth)
		if err != nil {
			return git.ObjectID{}, err
		}
		merged = append(merged, entry...)
		for i := range sides {
			switch c := &sides[i]; {
			case mask&(1<<i) == 0:
			case mask == inAll && i != base && c.nextIs(&sides[base]):
			default:
				if err := m.next(c, format); err != nil {
					return git.ObjectID{}, err
				}
			}
		}
	}
	switch {
	case m.uncertain, len(merged) == 0:
		return git.ObjectID{}, nil
	case bytes.Equal(merged, sides[ours].data):
		return trees[ours], nil
	case bytes.Equal(merged, sides[theirs].data):
		return trees[theirs], nil
	}
	m.made = append(m.made, merged)
	return write.ObjectID(format, git.Tree, merged), nil
}

func (m *treeMerge) next(c *cursor, format git.ObjectFormat) error {
	ordinary, err := c.next(format)
	m.uncertain = m.uncertain || !ordinary
	return err
}

// first returns the sides whose entry is the first one in the order of trees.
func first(sides *[3]cursor) (mask int) {
	var least *cursor
	for i := range sides {
		c := &sides[i]
		if c.entry == nil {
			continue
		}
		order := -1
		if least != nil {
			order = compareNames(c.name, c.mode == pack.ModeTree, least.name, least.mode == pack.ModeTree)
		}
		switch {
		case order < 0:
			least, mask = c, 1<<i
		case order == 0:
			mask |= 1 << i
		}
	}
	return mask
}

// entry merges the current entries of some sides, and returns the merged entry; nil: there is none.
func (m *treeMerge) entry(path string, sides *[3]cursor, mask, depth int) ([]byte, error) {
	if mask&inOurs != 0 && string(sides[ours].name) == attributesFile && sides[ours].mode&^0o111 == pack.ModeFile {
		m.attributes[path] = sides[ours].id
	}
	var ids [3]git.ObjectID // of the entries
	var entries [3][]byte
	var name []byte
	isTree := false
	for i := range sides {
		if c := &sides[i]; mask&(1<<i) != 0 {
			ids[i], entries[i], name, isTree = c.id, c.entry, c.name, c.mode == pack.ModeTree
		}
	}
	ourChange, theirChange := !bytes.Equal(entries[base], entries[ours]), !bytes.Equal(entries[base], entries[theirs])
	switch {
	case !ourChange && !theirChange:
		return entries[base], nil
	case isTree:
		return m.subtree(path, name, ids, mask, depth)
	}
	for i := range sides {
		m.uncertain = m.uncertain || mask&(1<<i) == 0 && sides[i].hasDirectory(name, m.view.repo.Format)
	}
	for side, changed := range [3]bool{ours: ourChange, theirs: theirChange} {
		m.adds[side] = m.adds[side] || changed && mask&inBase == 0
		m.deletes[side] = m.deletes[side] || changed && mask&(1<<side) == 0
	}
	switch {
	case ourChange && theirChange:
		m.same = m.same || mask&inAll != inAll
		m.uncertain = m.uncertain || !bytes.Equal(entries[ours], entries[theirs])
		return entries[ours], nil
	case ourChange:
		return entries[ours], nil
	}
	return entries[theirs], nil
}

// subtree merges an entry that is a directory on some sides.
func (m *treeMerge) subtree(path string, name []byte, ids [3]git.ObjectID, mask, depth int) ([]byte, error) {
	for side := ours; side <= theirs; side++ {
		m.gone[side] = m.gone[side] || mask&inBase != 0 && mask&(1<<side) == 0
	}
	switch {
	case mask == inTheirs:
		m.adds[theirs] = true
		return slices.Concat([]byte(canonicalModes[pack.ModeTree]), name, []byte{0}, ids[theirs].Raw()), nil
	case mask == inBase:
		m.deletes[ours], m.deletes[theirs], m.same = true, true, true
		return nil, nil
	case mask == inBase|inOurs && ids[base] == ids[ours]:
		m.deletes[theirs] = true
		return nil, nil
	case mask == inBase|inTheirs && ids[base] == ids[theirs]:
		m.deletes[ours] = true
		return nil, nil
	}
	tree, err := m.directory(path+string(name)+"/", ids, depth+1)
	if err != nil || tree.IsZero() {
		return nil, err
	}
	return slices.Concat([]byte(canonicalModes[pack.ModeTree]), name, []byte{0}, tree.Raw()), nil
}
