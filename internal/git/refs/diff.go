package refs

import (
	"iter"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Change is a ref that differs between two Snapshots. If one of them lacks it, that side has only the name.
type Change struct{ Old, New Ref }

// Diff calls fn for each ref, HEAD included, whose ID or target differs between two Snapshots of one repository, even
// of two Stores. HEAD is first, then the refs by name. An error of fn ends it and is returned. Hidden refs are absent.
//
// It costs nothing for the same Snapshot, and a lookup for each loose ref if packed-refs is the same. Otherwise it
// walks over all refs.
func Diff(old, new *Snapshot, fn func(Change) error) error {
	if old == new {
		return nil
	}
	if c := (Change{old.visibleHead(), new.visibleHead()}); c.differs() {
		if err := fn(c); err != nil {
			return err
		}
	}
	if old.packed == new.packed {
		return diffLoose(old, new, fn)
	}
	return diffAll(old, new, fn)
}

func (c Change) differs() bool { return c.Old.ID != c.New.ID || c.Old.Target != c.New.Target }

// visibleHead returns HEAD as a Ref. An unborn HEAD has only a Target.
func (s *Snapshot) visibleHead() Ref {
	h := s.Head()
	return Ref{Name: git.HEAD, ID: h.ID, Target: h.Target}
}

// diffLoose compares Snapshots with the same packed refs, some of which loose refs may hide.
func diffLoose(old, new *Snapshot, fn func(Change) error) error {
	a, b := old.loose, new.loose
	for len(a) > 0 || len(b) > 0 {
		var name git.RefName
		same := false
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].name < b[0].name:
			name, a = a[0].name, a[1:]
		case len(a) == 0 || b[0].name < a[0].name:
			name, b = b[0].name, b[1:]
		default:
			name, same = a[0].name, a[0] == b[0] && old.hidden == nil && new.hidden == nil
			a, b = a[1:], b[1:]
		}
		if same {
			continue
		}
		c, err := lookupBoth(old, new, name)
		if err == nil && c.differs() {
			err = fn(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func lookupBoth(old, new *Snapshot, name git.RefName) (c Change, err error) {
	if c.Old, _, err = old.Lookup(name); err != nil {
		return c, err
	}
	c.New, _, err = new.Lookup(name)
	c.Old.Name, c.New.Name = name, name
	return c, err
}

// diffAll compares all refs of two Snapshots in order.
func diffAll(old, new *Snapshot, fn func(Change) error) (err error) {
	next, stopOld := iter.Pull(old.all(&err))
	defer stopOld()
	nextNew, stopNew := iter.Pull(new.all(&err))
	defer stopNew()
	a, okA := next()
	b, okB := nextNew()
	for err == nil && (okA || okB) {
		var c Change
		switch {
		case !okB || okA && a.Name < b.Name:
			c = Change{a, Ref{Name: a.Name}}
			a, okA = next()
		case !okA || b.Name < a.Name:
			c = Change{Ref{Name: b.Name}, b}
			b, okB = nextNew()
		default:
			c = Change{a, b}
			a, okA = next()
			b, okB = nextNew()
		}
		// Also drop the change before a fault, because the fault makes refs seem to be missing.
		if err == nil && c.differs() {
			err = fn(c)
		}
	}
	return err
}

// all iterates over the visible refs, and stores an error in err.
func (s *Snapshot) all(err *error) iter.Seq[Ref] {
	return func(yield func(Ref) bool) {
		failed := s.Each("", func(ref Ref) error {
			if !yield(ref) {
				return ErrStop
			}
			return nil
		})
		if failed != nil {
			*err = failed
		}
	}
}
