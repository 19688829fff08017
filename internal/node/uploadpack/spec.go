package uploadpack

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

const (
	// tagWalk is the maximum number of commits of the pack to walk for the tags that it includes. Beyond that, all visible
	// annotated tags are part of the key. That is correct, but fewer requests share the pack.
	tagWalk = 5000
	// graftWalk is the maximum number of commits to walk for the boundaries that affect the pack. Beyond that, all are
	// part of the key. That is correct, but fewer requests share the pack.
	graftWalk = 5000
)

// spec brings the negotiated pack into canonical form.
func (f *fetch) spec(ctx context.Context) (*packsource.Spec, error) {
	spec := &packsource.Spec{
		Repo: packsource.Repository{
			Objects: f.repo.Objects.Dirs()[0], Format: f.repo.Format, Incarnation: f.repo.PackScope(),
			Store: f.repo.Objects, Graph: f.repo.Graph, Hold: f.repo.Hold,
		},
		Wants: f.wants, Thin: f.request.ThinPack, Offset: f.request.OfsDelta,
	}
	grafts := f.grafts()
	// A have implies its ancestors in the history that the client sees. The pack excludes its ancestors in the history
	// that git sees when it makes the pack. So only an ancestor in both histories can be omitted.
	haves, err := f.repo.Graph.Maximal(ctx, f.common, grafts)
	if err != nil {
		return nil, err
	}
	spec.Haves = haves
	if err := f.unshallow(spec); err != nil {
		return nil, err
	}
	// A CI machine that fetches with --depth repeatedly keeps all its boundaries. Those that the walk does not meet do not
	// affect the pack.
	met, err := f.repo.Graph.Met(ctx, slices.Concat(spec.Wants, spec.Haves), grafts, graftWalk)
	if err != nil {
		return nil, err
	}
	spec.Shallow = met.IDs()
	if err := f.filter(ctx, spec); err != nil {
		return nil, err
	}
	if f.request.IncludeTag {
		spec.Tags, err = f.includedTags(ctx, spec, grafts)
	}
	if len(spec.Haves) == 0 {
		spec.Thin = false // without haves a thin pack is the same
	}
	return spec, err
}

// grafts returns the commits that have no parents while the pack is made: in the client's repository before and after
// this fetch, and in ours. The result may be shared and must not be modified.
func (f *fetch) grafts() graph.Commits {
	return f.clientView().With(slices.Values(f.boundary.Shallow))
}

// clientView returns the commits without parents in the client's repository. The result may be shared and must not be
// modified.
func (f *fetch) clientView() graph.Commits {
	if len(f.clientShallow) > len(f.serverShallow) {
		return f.clientShallow.With(maps.Keys(f.serverShallow))
	}
	return f.serverShallow.With(maps.Keys(f.clientShallow))
}

// addServerBoundary adds the commits of our own boundary that are in the client's new history. Git omits that for
// deepen-since, deepen-not and deepen-relative, and the client's history is then broken.
func (f *fetch) addServerBoundary(ctx context.Context) error {
	if len(f.serverShallow) == 0 || !f.request.Deepens() {
		return nil
	}
	behind, err := f.behindUnshallow()
	if err != nil {
		return err
	}
	met, err := f.repo.Graph.Depth(ctx, slices.Concat(f.wants, behind), graph.Infinite, f.grafts(), f.clientShallow)
	f.boundary.Shallow = protocol.SortIDs(append(f.boundary.Shallow, met.Shallow...))
	return err
}

// unshallow adds the parents of former boundary commits to the wants. The client has the commits themselves. They stay
// grafted for the walk, so that their history is reached only through their parents.
func (f *fetch) unshallow(spec *packsource.Spec) error {
	if len(f.boundary.Unshallow) == 0 {
		return nil
	}
	behind, err := f.behindUnshallow()
	spec.Wants = protocol.SortIDs(append(slices.Clone(spec.Wants), behind...))
	spec.Haves = protocol.SortIDs(append(slices.Clone(spec.Haves), f.boundary.Unshallow...))
	return err
}

// behindUnshallow returns the parents of former boundary commits.
func (f *fetch) behindUnshallow() (parents []git.ObjectID, err error) {
	for _, id := range f.boundary.Unshallow {
		commit, err := f.repo.Graph.Commit(id)
		if err != nil {
			return nil, err
		}
		parents = append(parents, commit.Parents...)
	}
	return parents, nil
}

// filter resolves the names in a filter to object IDs, and exempts objects that the client wants by ID.
func (f *fetch) filter(ctx context.Context, spec *packsource.Spec) error {
	if f.request.Filter == nil {
		return nil
	}
	resolve := func(name string) (git.ObjectID, error) { return f.sparseBlob(ctx, name) }
	if err := f.request.Filter.ResolveSparse(resolve); err != nil {
		return err
	}
	spec.Filter = f.request.Filter.String()
	var err error
	spec.First, err = f.orderedObjects(ctx, spec.Wants, spec.Filter)
	return err
}

// sparseBlob resolves the name of a sparse filter's blob: an object ID, or REVISION:PATH. If wants are restricted, an
// ID that visible refs do not reach counts as missing: the filter would reveal its content.
func (f *fetch) sparseBlob(ctx context.Context, name string) (git.ObjectID, error) {
	revision, path, hasPath := strings.Cut(name, ":")
	id, err := git.ParseObjectID(revision)
	if err != nil || id.Format() != f.repo.Format {
		found, err := f.snapshot.Expand(revision)
		if err != nil {
			return git.ObjectID{}, err
		}
		if len(found) == 0 {
			return git.ObjectID{}, sparseError(name)
		}
		id = found[0].ID
	} else if f.wantRule(f.repo, f.session) != WantsAny {
		err := f.checkReachable(ctx, WantsReachable, []git.ObjectID{id})
		if fault.Is(err, fault.Denied) || fault.Is(err, fault.NotFound) {
			return git.ObjectID{}, sparseError(name)
		} else if err != nil {
			return git.ObjectID{}, err
		}
	}
	if hasPath {
		if id, err = f.treeEntry(id, path); fault.Is(err, fault.NotFound) {
			return git.ObjectID{}, sparseError(name)
		} else if err != nil {
			return git.ObjectID{}, err
		}
	}
	typ, _, err := f.repo.Objects.Header(id)
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && typ != git.Blob:
		return git.ObjectID{}, sparseError(name)
	case err != nil:
		return git.ObjectID{}, err
	}
	return id, nil
}

func sparseError(name string) error {
	return fault.New(fault.Invalid, "unable to access sparse blob in %q", fault.Short(name))
}

func (f *fetch) treeEntry(id git.ObjectID, path string) (git.ObjectID, error) {
	id, typ, err := f.repo.Graph.Peel(id)
	if err != nil {
		return id, err
	}
	if typ == git.Commit {
		if id, err = f.rootTree(id); err != nil {
			return id, err
		}
	}
	id, _, err = f.repo.Objects.Resolve(id, path)
	return id, err
}

// includedTags lists the annotated tags that the pack may include: those that peel to a commit in it. Hidden refs are
// not in the snapshot, so their tags are not included.
func (f *fetch) includedTags(ctx context.Context, spec *packsource.Spec, grafts graph.Commits) ([]packsource.Tag,
	error) {
	all, whole, err := f.tags.get(f.snapshot, f.annotatedTags)
	if err != nil {
		return nil, err
	}
	f.tagsMissing = !whole
	var candidates []packsource.Tag
	for _, tag := range all {
		if _, wanted := slices.BinarySearchFunc(spec.Wants, tag.ID, git.ObjectID.Compare); !wanted {
			candidates = append(candidates, tag)
		}
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	sent, more, err := f.repo.Graph.Missing(ctx, spec.Wants, spec.Haves, grafts, tagWalk)
	if err != nil || more {
		return candidates, err
	}
	return slices.DeleteFunc(candidates, func(tag packsource.Tag) bool {
		if _, isSent := sent[tag.Peeled]; isSent {
			return false
		}
		_, err := f.repo.Graph.Commit(tag.Peeled)
		return err == nil // a commit that is not sent. Tags of trees and blobs stay candidates.
	}), nil
}

// annotatedTags lists the annotated tags below refs/tags/, sorted by ID. whole is false if some are missing or damaged.
// These may be repaired without a change of the refs.
func (f *fetch) annotatedTags() (tags []packsource.Tag, whole bool, err error) {
	whole = true
	err = f.snapshot.Each("refs/tags/", func(ref refs.Ref) error {
		peeled, known, err := f.repo.PeelRef(ref)
		whole = whole && known
		if err == nil && !peeled.IsZero() {
			tags = append(tags, packsource.Tag{ID: ref.ID, Peeled: peeled})
		}
		return err
	})
	slices.SortFunc(tags, func(a, b packsource.Tag) int { return a.ID.Compare(b.ID) })
	return slices.Compact(tags), whole, err
}
