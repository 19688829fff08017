package refs

import (
	"errors"
	"slices"
	"sort"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Ref is a ref with its value.
type Ref struct {
	Name git.RefName
	ID   git.ObjectID

	// Peeled is the object that an annotated tag peels to, if packed-refs has it. If PeelKnown, a zero Peeled means
	// that ID is not a tag object. Otherwise call Store.Peeled.
	Peeled    git.ObjectID
	PeelKnown bool

	// Target is the ref at the end of a chain of symbolic refs, and ID is its ID. Empty: the ref is not symbolic.
	Target git.RefName
}

// Head is the content of HEAD. A detached HEAD has no Target, an unborn one has no ID, a broken or missing one has
// neither.
type Head struct {
	Target git.RefName // after the last link of a chain of symbolic refs
	ID     git.ObjectID
}

// ErrStop, returned by the function that Each calls, ends Each without an error.
var ErrStop = errors.New("stop")

// Snapshot is a repository's refs at one moment. It is immutable and safe for concurrent use. Its methods fail only if
// packed-refs is damaged (Corrupt). Only EachHidden and Unhidden return hidden refs. Like in git, a symbolic ref to a
// hidden ref is visible.
type Snapshot struct {
	loose      []*refEntry // sorted by name, with broken ones, because they hide packed refs
	packed     *packed     // nil: none
	head       Head
	headRef    Ref
	generation uint64
	hidden     func(git.RefName) bool // nil: no ref is hidden
	hasSource  bool
	former     []Former
}

// HasSource reports whether the refs have a Source: then Former has what they lost, and HasTips can be used.
func (s *Snapshot) HasSource() bool { return s.hasSource }

// Former returns values that refs lost before this moment, hidden ones among them, if the refs have a Source.
func (s *Snapshot) Former() []Former { return s.former }

// Head returns the content of HEAD. It is empty if HEAD is hidden.
func (s *Snapshot) Head() Head {
	if s.hides(git.HEAD) {
		return Head{}
	}
	return s.head
}

// Hides reports whether a ref of that name is hidden, or would be.
func (s *Snapshot) Hides(name git.RefName) bool { return s.hides(name) }

func (s *Snapshot) hides(name git.RefName) bool { return s.hidden != nil && s.hidden(name) }

// Generation returns a number that increases with every change that the Store finds, even if refs only move between
// loose and packed. It starts at 1 in every Store.
func (s *Snapshot) Generation() uint64 { return s.generation }

// Lookup finds a ref by its full name, or HEAD. A broken ref is absent.
func (s *Snapshot) Lookup(name git.RefName) (Ref, bool, error) {
	if ref, ok, known := s.unpacked(name); known {
		return ref, ok, nil
	}
	return s.packed.lookup(name)
}

// TargetOf returns the ref at the end of a chain of symbolic refs, which need not exist; "" if the name is not one of a
// symbolic ref. Of reftables only those whose target exists are known.
func (s *Snapshot) TargetOf(name git.RefName) git.RefName {
	if e := s.findLoose(name); e != nil && e.to != nil {
		return e.to.Target
	}
	return ""
}

// LookupAll is Lookup for many names. It calls fn for each of them in order; an error of fn ends it and is returned.
// Names in the order of their bytes, as clients send them, cost a tenth of as many single look-ups. fn must not panic,
// and must not hold a lock that a fault in a truncated file would leave locked.
func (s *Snapshot) LookupAll(names []git.RefName, fn func(i int, ref Ref, ok bool) error) error {
	return s.packed.lookupAll(func(find finder) error {
		for i, name := range names {
			ref, ok, known := s.unpacked(name)
			if !known {
				var err error
				if ref, ok, err = find(name); err != nil {
					return err
				}
			}
			if err := fn(i, ref, ok); err != nil {
				return err
			}
		}
		return nil
	})
}

// unpacked looks a name up in the hidden refs, HEAD and the loose refs. If known, packed-refs is not needed.
func (s *Snapshot) unpacked(name git.RefName) (ref Ref, ok, known bool) {
	if s.hides(name) {
		return Ref{}, false, true
	}
	if name == git.HEAD {
		return s.headRef, !s.headRef.ID.IsZero(), true
	}
	if e := s.findLoose(name); e != nil {
		ref, ok = e.ref()
		return ref, ok, true
	}
	return Ref{}, false, false
}

// Each calls fn for every ref whose full name begins with prefix, in the order of the names' bytes; "" means all. HEAD
// is not among them. An error of fn ends it and is returned, except ErrStop. Names share memory: a caller that keeps a
// few of many should clone them.
func (s *Snapshot) Each(prefix string, fn func(Ref) error) error { return s.EachAfter(prefix, "", fn) }

// EachAfter is Each for the refs whose names come after a name, which need not be a ref. Its cost depends only on the
// refs that it finds.
func (s *Snapshot) EachAfter(prefix string, after git.RefName, fn func(Ref) error) error {
	from := prefix
	// the lowest name after it, because names have no NUL
	if next := string(after) + "\x00"; after != "" && next > from {
		from = next
	}
	err := s.each(prefix, from, s.visible(fn))
	if err == ErrStop {
		return nil
	}
	return err
}

// EachHidden calls fn for every hidden ref, HEAD among them.
func (s *Snapshot) EachHidden(fn func(Ref) error) error {
	if s.hides(git.HEAD) && !s.headRef.ID.IsZero() {
		if err := fn(s.headRef); err != nil {
			return err
		}
	}
	return s.each("", "", func(ref Ref) error {
		if !s.hides(ref.Name) {
			return nil
		}
		return fn(ref)
	})
}

// Unhidden returns the same snapshot without hidden refs: all are visible.
func (s *Snapshot) Unhidden() *Snapshot {
	if s.hidden == nil {
		return s
	}
	all := *s
	all.hidden = nil
	return &all
}

// visible returns a function that calls fn for refs that are not hidden.
func (s *Snapshot) visible(fn func(Ref) error) func(Ref) error {
	if s.hidden == nil {
		return fn
	}
	return func(ref Ref) error {
		if s.hidden(ref.Name) {
			return nil
		}
		return fn(ref)
	}
}

// each calls fn for the refs that begin with prefix and are not less than from.
func (s *Snapshot) each(prefix, from string, fn func(Ref) error) error {
	loose := s.loose[s.looseFrom(from):]
	hasLoose := func() bool { return len(loose) > 0 && strings.HasPrefix(string(loose[0].name), prefix) }
	emitLoose := func() error {
		ref, ok := loose[0].ref()
		loose = loose[1:]
		if !ok {
			return nil
		}
		return fn(ref)
	}
	c := cursor{p: s.packed, prefix: prefix, from: from, done: s.packed == nil}
	for !c.done {
		batch, err := c.next()
		if err != nil {
			return err
		}
		for i := range batch {
			hidden := false
			for !hidden && hasLoose() && loose[0].name <= batch[i].Name {
				hidden = loose[0].name == batch[i].Name
				if err := emitLoose(); err != nil {
					return err
				}
			}
			if hidden {
				continue
			}
			if err := fn(batch[i]); err != nil {
				return err
			}
		}
	}
	for hasLoose() {
		if err := emitLoose(); err != nil {
			return err
		}
	}
	return nil
}

// Expand returns all refs that a short name can mean, the most likely first, by the rules of gitrevisions(7) for
// "<refname>". They are the name itself, below refs/, refs/tags/, refs/heads/ and refs/remotes/, and the HEAD of a
// remote. Of names without a slash, only HEAD is looked up at the top.
func (s *Snapshot) Expand(short string) ([]Ref, error) {
	var found []Ref
	for _, rule := range [...]struct{ prefix, suffix string }{
		{"", ""}, {"refs/", ""}, {"refs/tags/", ""}, {"refs/heads/", ""}, {"refs/remotes/", ""}, {"refs/remotes/",
			"/HEAD"},
	} {
		name, err := git.ParseRefName(rule.prefix + short + rule.suffix)
		if err != nil {
			continue
		}
		ref, ok, err := s.Lookup(name)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, ref)
		}
	}
	return found, nil
}

// ref returns the entry as a Ref, unless it is broken.
func (e *refEntry) ref() (Ref, bool) {
	switch {
	case e.to != nil && !e.to.ID.IsZero():
		return *e.to, true
	case e.kind == direct:
		return Ref{Name: e.name, ID: e.id}, true
	}
	return Ref{}, false
}

// looseFrom returns the index of the first loose ref whose name is not less than name.
func (s *Snapshot) looseFrom(name string) int {
	return sort.Search(len(s.loose), func(i int) bool { return string(s.loose[i].name) >= name })
}

func (s *Snapshot) findLoose(name git.RefName) *refEntry {
	if i := s.looseFrom(string(name)); i < len(s.loose) && s.loose[i].name == name {
		return s.loose[i]
	}
	return nil
}

func compareEntries(a, b *refEntry) int { return strings.Compare(string(a.name), string(b.name)) }

// sortEntries sorts loose refs, which come sorted within each directory.
func sortEntries(loose []*refEntry) {
	if !slices.IsSortedFunc(loose, compareEntries) {
		slices.SortFunc(loose, compareEntries)
	}
}

// resolveAll resolves HEAD and the symbolic refs, while the Snapshot is made.
func (s *Snapshot) resolveAll(head *refEntry, m *Metrics) error {
	for i, e := range s.loose {
		if e.kind != symbolic {
			continue
		}
		resolved := *e
		ref, err := s.resolve(e, head)
		if err != nil {
			return err
		}
		if ref.ID.IsZero() {
			m.broken.Inc()
		}
		resolved.to = &ref
		s.loose[i] = &resolved
	}
	ref, err := s.resolve(head, head)
	if err != nil {
		return err
	}
	s.head, s.headRef = Head{Target: ref.Target, ID: ref.ID}, ref
	return nil
}

// maxLinks is the maximum length of a chain of symbolic refs. Git reads five files, and the last one must contain an
// ID.
const maxLinks = 4

// resolve follows a symbolic ref. If the target does not exist, the ref has a Target but no ID. If it is broken, the
// ref has neither.
func (s *Snapshot) resolve(e, head *refEntry) (Ref, error) {
	ref := Ref{Name: e.name}
	for links := 0; e.kind == symbolic && links < maxLinks; links++ {
		ref.Target = e.link
		next := head
		if e.link != git.HEAD {
			next = s.findLoose(e.link)
		}
		if next == nil {
			packed, _, err := s.packed.lookup(e.link)
			packed.Name, packed.Target = ref.Name, ref.Target
			return packed, err
		}
		if next.kind == deleted {
			return ref, nil
		}
		e = next
	}
	if e.kind != direct {
		return Ref{Name: ref.Name}, nil
	}
	ref.ID = e.id
	if e.to != nil {
		ref.Peeled, ref.PeelKnown = e.to.Peeled, e.to.PeelKnown
	}
	return ref, nil
}
