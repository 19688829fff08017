package edit

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// entry is an entry of a tree. The mode 0 means that there is none.
type entry struct {
	name []byte
	mode uint32
	id   git.ObjectID
}

func (e entry) exists() bool { return e.mode != 0 }

// value returns the object of an entry in an error.
func (e entry) value() string {
	if !e.exists() {
		return fault.Absent
	}
	return e.id.String()
}

// compareEntries compares entries in the order of trees, in which directories end in a slash.
func compareEntries(a, b entry) int {
	n := min(len(a.name), len(b.name))
	if c := bytes.Compare(a.name[:n], b.name[:n]); c != 0 {
		return c
	}
	return int(a.end(n)) - int(b.end(n))
}

// end returns the byte at n, which is at most the length of the name.
func (e entry) end(n int) byte {
	switch {
	case n < len(e.name):
		return e.name[n]
	case e.mode == pack.ModeTree:
		return '/'
	}
	return 0
}

// trees reads trees of a state, and makes new ones.
type trees struct {
	state   write.State
	format  git.ObjectFormat
	read    map[git.ObjectID][]entry
	objects []*write.Object // new
}

func newTrees(s write.State) *trees {
	return &trees{state: s, format: s.Repo().Format, read: make(map[git.ObjectID][]entry)}
}

// entries returns the entries of a tree; the zero ID has none. They must not be changed.
func (t *trees) entries(id git.ObjectID) ([]entry, error) {
	if id.IsZero() {
		return nil, nil
	}
	if list, ok := t.read[id]; ok {
		return list, nil
	}
	typ, data, err := t.state.Read(id, 0)
	if err != nil {
		return nil, err
	}
	if typ != git.Tree {
		return nil, fault.New(fault.Corrupt, "object %s is a %s where a tree should be", id, typ)
	}
	data = bytes.Clone(data) // names refer to it
	list := make([]entry, 0, len(data)/(t.format.Size()+16))
	for len(data) > 0 {
		var e entry
		if e.mode, e.name, e.id, data, err = pack.CutEntry(data, t.format); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	t.read[id] = list
	return list, nil
}

// find returns the entry of a path. If a file blocks the path, because it has the name of a directory of the path, that
// is returned.
func (t *trees) find(tree git.ObjectID, path string) (found entry, blocked bool, err error) {
	found = entry{mode: pack.ModeTree, id: tree}
	for component := range strings.SplitSeq(path, "/") {
		if found.mode != pack.ModeTree {
			return found, found.exists(), nil
		}
		list, err := t.entries(found.id)
		if err != nil {
			return found, false, err
		}
		found = entryOf(list, component)
	}
	return found, false, nil
}

func entryOf(list []entry, name string) entry {
	for _, mode := range []uint32{pack.ModeFile, pack.ModeTree} {
		at, ok := slices.BinarySearchFunc(list, entry{name: []byte(name), mode: mode}, compareEntries)
		if ok {
			return list[at]
		}
	}
	return entry{}
}

// make makes a tree of entries. An empty one is only made as the root.
func (t *trees) make(list []entry) git.ObjectID {
	if !slices.IsSortedFunc(list, compareEntries) {
		slices.SortFunc(list, compareEntries)
	}
	size := 0
	for _, e := range list {
		size += len("100644 ") + len(e.name) + 1 + t.format.Size()
	}
	data := make([]byte, 0, size)
	for _, e := range list {
		data = strconv.AppendUint(data, uint64(e.mode), 8)
		data = append(append(append(data, ' '), e.name...), 0)
		data = append(data, e.id.Raw()...)
	}
	o := write.NewObject(t.format, git.Tree, data)
	t.objects = append(t.objects, o)
	return o.ID
}

// Apply applies the changes to a tree, zero if there is none. It returns the new tree, and the new objects. Check was
// called before. Errors name the fields. They are Aborted if paths do not have the expected objects, NotFound if one
// does not exist, and Precondition if something is in the way.
func (c *Changes) Apply(s write.State, tree git.ObjectID) (git.ObjectID, []*write.Object, error) {
	t := newTrees(s)
	if err := c.checkExpected(t, tree); err != nil {
		return git.ObjectID{}, nil, err
	}
	a := application{trees: t, tree: tree}
	root := entry{mode: pack.ModeTree, id: tree}
	if len(c.root.below) > 0 || tree.IsZero() {
		list, err := a.directory(root, &c.root)
		if err != nil {
			return git.ObjectID{}, nil, err
		}
		root.id = t.make(list)
	}
	for _, change := range c.list {
		if change.Blob != nil {
			t.objects = append(t.objects, change.Blob)
		}
	}
	return root.id, t.objects, nil
}

// maxMismatches is the maximum number of paths in an error.
const maxMismatches = 100

// checkExpected compares the objects in a tree with those that the changes expect.
func (c *Changes) checkExpected(t *trees, tree git.ObjectID) error {
	var failed []fault.Mismatch
	field := "changes"
	for _, change := range c.list {
		want := fault.Absent
		if !change.Expected.Absent {
			if change.Expected.ID.IsZero() {
				continue
			}
			want = change.Expected.ID.String()
		}
		found, blocked, err := t.find(tree, change.Path)
		if err != nil {
			return err
		}
		if blocked {
			found = entry{}
		}
		if found.value() != want && len(failed) < maxMismatches {
			if len(failed) == 0 {
				field = change.Field + ".expected_oid"
			}
			failed = append(failed, fault.Mismatch{Name: change.Path, Expected: want, Actual: found.value()})
		}
	}
	return aborted(field, failed)
}

// aborted returns an error about paths that are not as expected; nil: there are none.
func aborted(field string, failed []fault.Mismatch) error {
	if len(failed) == 0 {
		return nil
	}
	f := failed[0]
	return &fault.Error{Kind: fault.Aborted, Field: field, Mismatches: failed,
		Msg: strconv.Quote(fault.Short(f.Name)) + " is not as expected: it is " + f.Actual + ", not " + f.Expected}
}

// CheckMoved returns an Aborted error with the paths of the changes that are not the same in two trees.
func (c *Changes) CheckMoved(s write.State, before, now git.ObjectID) error {
	t := newTrees(s)
	var failed []fault.Mismatch
	compare := func(path string) error {
		old, oldBlocked, err := t.find(before, path)
		if err != nil {
			return err
		}
		present, presentBlocked, err := t.find(now, path)
		if err != nil {
			return err
		}
		if (old.mode != present.mode || old.id != present.id || oldBlocked != presentBlocked) && len(failed) < maxMismatches {
			failed = append(failed, fault.Mismatch{Name: path, Expected: old.value(), Actual: present.value()})
		}
		return nil
	}
	for _, change := range c.list {
		if err := compare(change.Path); err != nil {
			return err
		}
		if change.Kind == Move {
			if err := compare(change.To); err != nil {
				return err
			}
		}
	}
	return aborted("changes", failed)
}

// application is the application of changes to a tree.
type application struct {
	*trees
	tree git.ObjectID
}

// maxInserted is the maximum number of entries for which inserting is faster than sorting.
const maxInserted = 16

// directory returns the entries of a directory after the changes below a spot.
func (a *application) directory(old entry, s *spot) ([]entry, error) {
	var present []entry
	if old.exists() {
		var err error
		if present, err = a.entries(old.id); err != nil {
			return nil, err
		}
	}
	list := make([]entry, 0, len(present)+len(s.below))
	found := make(map[string]entry, len(s.below))
	for _, e := range present {
		if s.below[string(e.name)] == nil {
			list = append(list, e)
		} else {
			found[string(e.name)] = e
		}
	}
	kept := len(list)
	for _, name := range slices.Sorted(maps.Keys(s.below)) {
		e, err := a.entry(found[name], s.below[name])
		if err != nil {
			return nil, err
		}
		if e.exists() {
			e.name = []byte(name)
			list = append(list, e)
		}
	}
	if added := slices.Clone(list[kept:]); len(added) <= maxInserted {
		for _, e := range added {
			at, _ := slices.BinarySearchFunc(list[:kept], e, compareEntries)
			copy(list[at+1:kept+1], list[at:kept])
			list[at] = e
			kept++
		}
	}
	return list, nil // make sorts it
}

// entry returns the entry of a spot after the changes.
func (a *application) entry(old entry, s *spot) (entry, error) {
	if (s.role == removes || s.role == modifies) && !old.exists() {
		return entry{}, fault.InField(s.field(), fault.New(fault.NotFound, "%q does not exist", fault.Short(s.change.Path)))
	}
	e := old
	if s.role == removes {
		e = entry{}
	}
	if len(s.below) > 0 {
		if e.exists() && e.mode != pack.ModeTree {
			return entry{}, s.blocked()
		}
		list, err := a.directory(e, s)
		if err != nil {
			return entry{}, err
		}
		e = entry{}
		if len(list) > 0 {
			e = entry{mode: pack.ModeTree, id: a.make(list)}
		}
	}
	if s.role != adds && s.role != modifies {
		return e, nil
	}
	return a.set(e, s)
}

// set returns the entry that a change sets instead of another one.
func (a *application) set(e entry, s *spot) (entry, error) {
	change := s.change
	switch {
	case change.Kind == Move && e.exists():
		return entry{}, fault.InField(s.field(), fault.New(fault.Precondition, "%q exists", fault.Short(change.To)))
	case change.Kind == Move:
		moved, blocked, err := a.find(a.tree, change.Path)
		if err != nil || !moved.exists() || blocked {
			return entry{}, err // the spot of the source reports it
		}
		return moved, fault.InField(s.field(), CheckPath(change.To, moved.mode))
	case e.mode == pack.ModeTree:
		return entry{}, fault.InField(s.field(), fault.New(fault.Precondition, "%q is a directory", fault.Short(change.Path)))
	case change.Kind == Mode && e.mode == pack.ModeGitlink:
		return entry{}, fault.InField(s.field(), fault.New(fault.Precondition, "%q is a submodule", fault.Short(change.Path)))
	case change.Kind == Mode:
		return entry{mode: change.Mode, id: e.id}, nil
	}
	made := entry{mode: change.Mode, id: change.ID}
	if change.Blob != nil {
		made.id = change.Blob.ID
	}
	if made.mode == 0 {
		made.mode = pack.ModeFile
		if e.exists() && e.mode != pack.ModeGitlink {
			made.mode = e.mode
		}
	}
	return made, fault.InField(s.field(), CheckPath(change.Path, made.mode))
}

// blocked returns the error for a change below a file.
func (s *spot) blocked() error {
	for _, name := range slices.Sorted(maps.Keys(s.below)) {
		below := s.below[name]
		if below.role == none {
			return below.blocked()
		}
		kind := fault.Precondition
		if below.role != adds {
			kind = fault.NotFound
		}
		return fault.InField(below.field(), fault.New(kind, "a file has the name of a directory of the path"))
	}
	return nil
}
