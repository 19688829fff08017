package uploadpack

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// fetch is one fetch in any version of the protocol: the wants, the common haves, and the boundary of the client's
// history. v0.go and v2.go implement the versions.
type fetch struct {
	*Server
	repo     *repo.Repo
	caller   balance.Caller // for fair queues
	session  node.Session
	response node.ResponseWriter
	notice   string // see node.Session
	request  *protocol.Fetch
	lookup   cacheLookup
	outcome  *node.Outcome
	start    time.Time
	reserve  func(n int64) error // ReserveMemory of node.ResponseWriter
	snapshot *refs.Snapshot
	held     func()  // releases the objects; nil: not held
	isBulk   bool    // StartBulk of the response was called
	out      *output // has begun before the pack is known; nil: not yet

	wants  []git.ObjectID // sorted: want lines and the values of want-refs
	wanted []git.ObjectID // values of the want-refs; pooled
	common []git.ObjectID // haves that exist here, and are not foreign
	not    []git.ObjectID // values of the deepen-not lines

	lines protocol.Lines // the response up to the packfile section; pooled

	clientShallow graph.Commits // the client's boundary before this fetch
	serverShallow graph.Commits // commits whose parents are missing here too; shared by all fetches
	boundary      graph.Boundary

	tagsMissing bool // some tags are missing or damaged, so the list of included tags may be incomplete
}

// Bytes of memory that a line of the request needs besides its parsed form: copies of its ID in several lists, and
// lines of the response. TestChargeCoversAllocation compares them with the allocations.
const (
	wantCost   = 128
	commonCost = 512 // of a have that exists here
	knownCost  = 288 // of a shallow line's commit that exists here

	foreignCost = 256 // of each of these in a repository that borrows objects
)

// begin checks the client's wants. All of them must exist, and the rule must allow them.
func (f *fetch) begin(ctx context.Context, rule func(context.Context) error) (err error) {
	f.outcome.Fetch.Wants = len(f.request.Wants) + len(f.request.WantRefs)
	if len(f.request.WantRefs) > 0 {
		f.snapshot, err = f.repo.Refs.Snapshot(ctx)
	} else {
		f.snapshot, err = f.repo.Refs.SnapshotOf(ctx, f.request.Wants)
	}
	if err != nil {
		return err
	}
	f.NoteRefs(f.repo, f.snapshot)
	if err := f.hold(ctx, f.earlySections(), packFormat{sideband: protocol.Sideband64k}); err != nil {
		return err
	}
	if err := f.repo.Refresh(); err != nil {
		return err
	}
	if err := f.findWants(ctx); err != nil {
		return err
	}
	if err := rule(ctx); err != nil {
		return err
	}
	if err := f.readShallow(ctx); err != nil {
		return err
	}
	return f.deepenNot()
}

// findWants resolves want-refs, and fails if a want does not exist.
func (f *fetch) findWants(ctx context.Context) error {
	f.wants = f.request.Wants
	if err := f.reserve(int64(len(f.wants)+len(f.request.WantRefs)) * wantCost); err != nil {
		return err
	}
	if n := len(f.request.WantRefs); n > 0 {
		f.wants, f.wanted = slices.Grow(f.wants, n), slices.Grow(f.wanted, n)
	}
	err := f.snapshot.LookupAll(f.request.WantRefs, func(i int, ref refs.Ref, ok bool) error {
		if !ok {
			return fault.New(fault.NotFound, "unknown ref %s", f.request.WantRefs[i])
		}
		f.wanted = append(f.wanted, ref.ID)
		f.wants = append(f.wants, ref.ID)
		return nil
	})
	if err != nil {
		return err
	}
	err = f.has(ctx, f.wants, func(id git.ObjectID, ok bool) error {
		if !ok {
			return cmp.Or(f.repo.Objects.MissingAlternate(), errMissingWant(id))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(f.wanted) > 0 {
		f.wants = protocol.SortIDs(f.wants)
	}
	return nil
}

// lookupsPerCheck is the number of look-ups after which a request checks whether it was cancelled.
const lookupsPerCheck = 1024

// has calls fn for each of the IDs, and reports whether the object exists.
func (f *fetch) has(ctx context.Context, ids []git.ObjectID, fn func(id git.ObjectID, ok bool) error) error {
	lookups := f.repo.Objects.Lookups()
	for i, id := range ids {
		if i%lookupsPerCheck == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		ok, err := lookups.Has(id)
		if err == nil {
			err = fn(id, ok)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func errMissingWant(id git.ObjectID) error {
	return fault.New(fault.NotFound, "upload-pack: not our ref %s", id)
}

// readShallow sets the boundaries of the client's history and of the repository's.
func (f *fetch) readShallow(ctx context.Context) (err error) {
	if f.serverShallow, err = f.repo.ShallowSet(); err != nil {
		return err
	}
	foreign, _, err := f.foreign(ctx, f.request.Shallow, true) // exact, because a missing boundary would break the client
	if err != nil {
		return err
	}
	f.clientShallow = graph.Commits{}
	lookups := f.repo.Objects.Lookups()
	for _, id := range f.request.Shallow {
		ok, err := lookups.Has(id)
		if ok = ok && !foreign.Has(id); err == nil && ok {
			_, err = f.repo.Graph.Commit(id)
		}
		switch {
		case err == nil && !ok || fault.Is(err, fault.NotFound):
			// the client's boundary is in history that does not exist here
		case fault.Is(err, fault.Invalid):
			return fault.New(fault.Invalid, "invalid shallow object %s", id)
		case err != nil:
			return err
		default:
			if err := f.reserve(knownCost); err != nil {
				return err
			}
			f.clientShallow[id] = struct{}{}
		}
	}
	return nil
}

// deepen computes the client's new boundary, if it asks for one.
func (f *fetch) deepen(ctx context.Context) (err error) {
	req, g := f.request, f.repo.Graph
	switch {
	case req.Depth > 0 && (req.DeepenSince != 0 || len(req.DeepenNot) > 0):
		return fault.New(fault.Invalid, "deepen and deepen-since (or deepen-not) cannot be used together")
	case req.Depth == protocol.InfiniteDepth && len(f.serverShallow) == 0:
		f.boundary.Unshallow = f.clientShallow.IDs()
	case req.Depth > 0 && req.DeepenRelative:
		f.boundary, err = g.DepthRelative(ctx, f.wants, req.Depth, f.serverShallow, f.clientShallow)
	case req.Depth > 0:
		f.boundary, err = g.Depth(ctx, f.wants, req.Depth, f.serverShallow, f.clientShallow)
	case req.Deepens():
		f.boundary, err = g.Since(ctx, f.wants, req.DeepenSince, f.not, f.serverShallow, f.clientShallow)
	}
	if err != nil {
		return err
	}
	return f.addServerBoundary(ctx)
}

// deepenNot resolves the names of deepen-not lines.
func (f *fetch) deepenNot() error {
	for _, name := range f.request.DeepenNot {
		found, err := f.snapshot.Expand(name)
		if err != nil {
			return err
		}
		switch len(found) {
		case 1:
		case 0:
			return fault.New(fault.NotFound, "ambiguous deepen-not: %q names no ref", fault.Short(name))
		default:
			return fault.New(fault.Invalid, "ambiguous deepen-not: %q names %d refs", fault.Short(name), len(found))
		}
		f.not = append(f.not, found[0].ID)
	}
	return nil
}
