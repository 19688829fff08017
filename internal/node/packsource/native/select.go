package native

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// selection chooses the objects of a pack. It is used once, by one goroutine, while the view's indexes are mapped.
type selection struct {
	ctx     context.Context
	spec    *packsource.Spec
	store   *pack.Store
	graph   *graph.Graph
	view    *view
	tick    func(steps int) error // called about every 1,000 steps; its error ends the selection
	budget  int64                 // maximum memory in bytes; 0: no limit
	bitmaps *bitmaps              // may be nil

	chosen  *objectSet
	known   *objectSet // objects of the client, as far as found; nil: no haves
	walked  *objectSet // trees that are not to be walked any more: all that they reach is chosen, known or omitted
	commits *objectSet // commits that haves do not reach; nil: the same as chosen, because they pass the filter
	omitted *objectSet // blobs that the filter omits because of their size; nil: none yet
	reached *reached   // objects that haves reach by a bitmap; nil: unknown
	filter  filter
	trees   treeWalk
	diffs   *diffWalk // nil unless it is running

	versions versions // of the objects of the pack; nil: not sought
	byBitmap bool     // a bitmap has chosen objects, whose versions are not sought
	steps    int      // since the last tick
	work     int64    // bytes since the last tick
}

// maxNestedTags is the maximum length of a chain of tags, as for a walk of history.
const maxNestedTags = 1000

// run returns the objects of the pack, and objects that the client surely has. Deltas of a thin pack may refer to them.
// known is nil unless the Spec is thin. The error is a *fallback if git is to make the pack.
func (s *selection) run() (chosen, known *objectSet, err error) {
	s.chosen, s.walked = s.view.newSet(), s.view.newSet()
	s.trees.open(s)
	defer s.trees.reader.Close()
	if err := s.choose(); err != nil {
		return nil, nil, selectionError(err)
	}
	if s.spec.Thin {
		known = s.known
	}
	return s.chosen, known, nil
}

// selectionError turns errors of the repository into fallbacks, so that git reports them as always.
func selectionError(err error) error {
	switch fault.KindOf(err) {
	case fault.NotFound:
		return &fallback{reasonMissing, err}
	case fault.Corrupt, fault.Invalid:
		return &fallback{reasonDamaged, err}
	}
	return err
}

func (s *selection) choose() error {
	if err := s.filter.parse(s.spec.Filter); err != nil {
		return err
	}
	r, err := s.history()
	if err != nil {
		return err
	}
	var had []git.ObjectID
	if len(s.spec.Haves) > 0 {
		if had, err = s.markKnown(r); err != nil {
			return err
		}
	}
	for _, id := range s.spec.First {
		if err := s.want(id); err != nil {
			return err
		}
	}
	if err := s.addCommits(r.Commits); err != nil {
		return err
	}
	if s.comparesTrees(r) {
		err = s.diff(r, had)
	} else {
		err = s.addRoots(r.Commits)
	}
	if err != nil {
		return err
	}
	for _, id := range s.spec.Wants {
		if err := s.want(id); err != nil {
			return err
		}
	}
	if err := s.trees.walk(); err != nil {
		return err
	}
	return s.includeTags()
}

// history finds the commits of the pack. It ends at commits whose objects are chosen as a whole: by an earlier pack, or
// else by a bitmap.
func (s *selection) history() (graph.Range, error) {
	o := graph.RangeOptions{Shallow: graph.NewCommits(s.spec.Shallow...), Tick: s.graphTick}
	closed, err := s.useClosed()
	if err != nil {
		return graph.Range{}, err
	}
	if closed {
		o.Stop = func(id []byte) bool { return s.contains(s.chosen, id) }
		return s.graph.Between(s.ctx, s.spec.Wants, s.spec.Haves, o)
	}
	w, err := s.openBitmap()
	if err != nil {
		return graph.Range{}, err
	}
	if w == nil {
		return s.graph.Between(s.ctx, s.spec.Wants, s.spec.Haves, o)
	}
	o.Stop = w.stop
	r, err := s.graph.Between(s.ctx, s.spec.Wants, s.spec.Haves, o)
	if err == nil {
		err = w.err
	}
	return r, err
}

// graphTick is called after each 1,024 commits of a walk of history.
func (s *selection) graphTick() error {
	s.steps += stepsPerTick
	return s.report()
}

// addCommits chooses commits that pass the filter.
func (s *selection) addCommits(commits graph.CommitList) error {
	set := s.chosen
	if !s.filter.commits {
		s.commits = s.view.newSet()
		set = s.commits
	}
	for id := range commits.All() {
		if err := s.step(); err != nil {
			return err
		}
		s.addTo(set, id)
	}
	return nil
}

// addRoots adds the root trees of commits to those to be walked.
func (s *selection) addRoots(commits graph.CommitList) error {
	if !s.filter.passesAt(0) {
		return nil
	}
	for _, root := range commits.All() {
		if err := s.step(); err != nil {
			return err
		}
		if err := s.trees.add(root); err != nil {
			return err
		}
	}
	return nil
}

// addTo adds an object to a set.
func (s *selection) addTo(set *objectSet, raw []byte) {
	if at, ok := s.view.find(raw); ok {
		set.add(at)
		return
	}
	set.addLoose(git.RawObjectID(raw))
}

// want chooses a wanted object, and for a tag the objects that it leads to, regardless of the filter.
func (s *selection) want(id git.ObjectID) error {
	for range maxNestedTags {
		if err := s.step(); err != nil {
			return err
		}
		if s.contains(s.chosen, id.Raw()) || s.contains(s.known, id.Raw()) {
			return nil
		}
		typ, data, err := s.read(id, git.Tag)
		if err != nil {
			return err
		}
		switch typ {
		case git.Tree:
			return s.trees.addWanted(id.Raw())
		case git.Commit:
			if s.known == nil || s.contains(s.commits, id.Raw()) { // otherwise haves reach it
				s.addTo(s.chosen, id.Raw())
			}
			return nil
		}
		s.addTo(s.chosen, id.Raw())
		if typ == git.Blob {
			return nil
		}
		if id, _, err = pack.ParseTag(data, s.view.format); err != nil {
			return err
		}
	}
	return fault.New(fault.Corrupt, "tag %s: more than %d nested tags", id, maxNestedTags)
}

// includeTags chooses the tags of the Spec whose targets are chosen, with all tags between them.
func (s *selection) includeTags() error {
	for _, t := range s.spec.Tags {
		if err := s.step(); err != nil {
			return err
		}
		if !s.contains(s.chosen, t.Peeled.Raw()) {
			continue
		}
		if err := s.want(t.ID); err != nil {
			return err
		}
	}
	return nil
}

// contains reports whether a set, which may be nil, has an object.
func (s *selection) contains(set *objectSet, raw []byte) bool {
	if set == nil {
		return false
	}
	if at, ok := s.view.find(raw); ok {
		return set.has(at)
	}
	return len(set.loose) > 0 && set.hasLoose(git.RawObjectID(raw))
}

// read returns the type of an object, and its content if it has a certain type.
func (s *selection) read(id git.ObjectID, content git.ObjectType) (git.ObjectType, []byte, error) {
	typ, _, err := s.header(id)
	if err != nil || typ != content {
		return typ, nil, err
	}
	typ, data, err := s.store.Read(id, 0)
	if err == nil {
		err = s.spend(int64(len(data)))
	}
	return typ, data, err
}

// header returns the type and the size of an object.
func (s *selection) header(id git.ObjectID) (git.ObjectType, int64, error) {
	if err := s.spend(headerWork); err != nil {
		return 0, 0, err
	}
	return s.store.Header(id)
}

// step counts a step of work, and calls tick from time to time.
func (s *selection) step() error {
	if s.steps++; s.steps < stepsPerTick {
		return nil
	}
	return s.report()
}

const (
	stepsPerTick = 1024
	workPerTick  = 4 << 20
	headerWork   = 64 << 10 // of a header, which may be that of the last of many deltas
)

// spend counts work, and calls tick from time to time, because few steps can take long. Work is bytes of trees, tags
// and deltas.
func (s *selection) spend(bytes int64) error {
	if s.work += bytes; s.work < workPerTick {
		return nil
	}
	return s.report()
}

func (s *selection) report() error {
	n := s.steps
	s.steps, s.work = 0, 0
	if s.budget > 0 && s.memory() > s.budget {
		return &fallback{reason: reasonMemory}
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if s.tick == nil {
		return nil
	}
	return s.tick(n)
}

// memory estimates the memory of the selection in bytes.
func (s *selection) memory() int64 {
	n := s.trees.memory() + s.diffs.memory()
	for _, set := range []*objectSet{s.chosen, s.known, s.walked, s.commits, s.omitted} {
		n += set.memory()
	}
	return n
}
