package edit

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// trees reads trees of a state, and makes new ones.
type trees struct {
	state   write.State
	format  git.ObjectFormat
	read    map[git.ObjectID][]Entry
	objects []*write.Object // new
}

func newTrees(s write.State) *trees {
	return &trees{state: s, format: s.Repo().Format, read: make(map[git.ObjectID][]Entry)}
}

// entries returns the entries of a tree; the zero ID has none. They must not be changed.
func (t *trees) entries(id git.ObjectID) ([]Entry, error) {
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
	list, err := ParseTree(data, t.format)
	if err != nil {
		return nil, err
	}
	t.read[id] = list
	return list, nil
}

// find returns the entry of a path. If a file blocks the path, because it has the name of a directory of the path, that
// is returned.
func (t *trees) find(tree git.ObjectID, path string) (found Entry, blocked bool, err error) {
	found = Entry{Mode: pack.ModeTree, ID: tree}
	for component := range strings.SplitSeq(path, "/") {
		if found.Mode != pack.ModeTree {
			return found, found.Exists(), nil
		}
		list, err := t.entries(found.ID)
		if err != nil {
			return found, false, err
		}
		found = FindEntry(list, component)
	}
	return found, false, nil
}

// make makes a tree of entries in any order. An empty one is only made as the root.
func (t *trees) make(list []Entry) git.ObjectID {
	slices.SortFunc(list, CompareEntries)
	o := write.NewObject(t.format, git.Tree, FormatTree(list))
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
	root := Entry{Mode: pack.ModeTree, ID: tree}
	if len(c.root.below) > 0 || tree.IsZero() {
		list, err := a.directory(root, &c.root)
		if err != nil {
			return git.ObjectID{}, nil, err
		}
		root.ID = t.make(list)
	}
	for _, change := range c.list {
		if change.Blob != nil {
			t.objects = append(t.objects, change.Blob)
		}
	}
	return root.ID, t.objects, nil
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
			found = Entry{}
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
		if (old.Mode != present.Mode || old.ID != present.ID || oldBlocked != presentBlocked) && len(failed) < maxMismatches {
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

// directory returns the entries of a directory after the changes below a spot.
func (a *application) directory(old Entry, s *spot) ([]Entry, error) {
	var present []Entry
	if old.Exists() {
		var err error
		if present, err = a.entries(old.ID); err != nil {
			return nil, err
		}
	}
	list := make([]Entry, 0, len(present)+len(s.below))
	found := make(map[string]Entry, len(s.below))
	for _, e := range present {
		if s.below[string(e.Name)] == nil {
			list = append(list, e)
		} else {
			found[string(e.Name)] = e
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.below)) {
		e, err := a.entry(found[name], s.below[name])
		if err != nil {
			return nil, err
		}
		if e.Exists() {
			e.Name = []byte(name)
			list = append(list, e)
		}
	}
	return list, nil
}

// entry returns the entry of a spot after the changes.
func (a *application) entry(old Entry, s *spot) (Entry, error) {
	if (s.role == removes || s.role == modifies) && !old.Exists() {
		return Entry{}, fault.InField(s.field(), fault.New(fault.NotFound, "%q does not exist", fault.Short(s.change.Path)))
	}
	e := old
	if s.role == removes {
		e = Entry{}
	}
	if len(s.below) > 0 {
		if e.Exists() && e.Mode != pack.ModeTree {
			return Entry{}, s.blocked()
		}
		list, err := a.directory(e, s)
		if err != nil {
			return Entry{}, err
		}
		e = Entry{}
		if len(list) > 0 {
			e = Entry{Mode: pack.ModeTree, ID: a.make(list)}
		}
	}
	if s.role != adds && s.role != modifies {
		return e, nil
	}
	return a.set(e, s)
}

// set returns the entry that a change sets instead of another one.
func (a *application) set(e Entry, s *spot) (Entry, error) {
	change := s.change
	switch {
	case change.Kind == Move && e.Exists():
		return Entry{}, fault.InField(s.field(), fault.New(fault.Precondition, "%q exists", fault.Short(change.To)))
	case change.Kind == Move:
		moved, blocked, err := a.find(a.tree, change.Path)
		if err != nil || !moved.Exists() || blocked {
			return Entry{}, err // the spot of the source reports it
		}
		return moved, fault.InField(s.field(), CheckPath(change.To, moved.Mode))
	case e.Mode == pack.ModeTree:
		return Entry{}, fault.InField(s.field(), fault.New(fault.Precondition, "%q is a directory", fault.Short(change.Path)))
	case change.Kind == Mode && e.Mode == pack.ModeGitlink:
		return Entry{}, fault.InField(s.field(), fault.New(fault.Precondition, "%q is a submodule", fault.Short(change.Path)))
	case change.Kind == Mode:
		return Entry{Mode: change.Mode, ID: e.ID}, nil
	}
	made := Entry{Mode: change.Mode, ID: change.ID}
	if change.Blob != nil {
		made.ID = change.Blob.ID
	}
	if made.Mode == 0 {
		made.Mode = pack.ModeFile
		if e.Exists() && e.Mode != pack.ModeGitlink {
			made.Mode = e.Mode
		}
	}
	return made, fault.InField(s.field(), CheckPath(change.Path, made.Mode))
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
