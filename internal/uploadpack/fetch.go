package uploadpack

import (
	"context"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// fetch is one run of the fetch command (gitprotocol-v2(5), "fetch").
type fetch struct {
	*Server
	repo     *repo.Repo
	request  *protocol.Fetch
	question question
	outcome  *protocol.Outcome
	start    time.Time
	snapshot *refs.Snapshot

	wants  []git.ObjectID // sorted: want lines and what the want-refs point at
	wanted []git.ObjectID // what each of the want-refs points at; pooled
	common []git.ObjectID // haves that exist here
	not    []git.ObjectID // what the deepen-not lines name

	lines protocol.Lines // the answer up to the packfile section; pooled

	clientShallow graph.Commits // the client's boundary before this fetch
	serverShallow graph.Commits // commits whose parents are missing here too
	boundary      graph.Boundary
	shallowInfo   bool // whether the answer has a shallow-info section
}

func (f *fetch) serve(ctx context.Context, reply protocol.Reply) error {
	pooled := getScratch()
	f.lines = protocol.Lines{Buf: pooled.buf, Sideband: f.request.SidebandAll}
	f.wanted = pooled.ids
	defer func() { pooled.buf, pooled.ids = f.lines.Buf, f.wanted; putScratch(pooled) }()
	negotiated := time.Now()
	send, err := f.negotiate(ctx)
	f.outcome.Negotiate = time.Since(negotiated)
	if err != nil {
		return err
	}
	if !send {
		reply.Length(int64(len(f.lines.Buf)))
		_, err := reply.Write(f.lines.Buf)
		return err
	}
	spec, err := f.spec(ctx)
	f.outcome.Negotiate = time.Since(negotiated)
	if err != nil {
		return err
	}
	spec.Seal()
	f.answers.keep(f, spec)
	return f.send(ctx, spec, f.lines.Buf, f.request.NoProgress, reply)
}

// negotiate works out the answer up to the packfile section; send tells whether there is one.
func (f *fetch) negotiate(ctx context.Context) (send bool, err error) {
	f.outcome.Wants = len(f.request.Wants) + len(f.request.WantRefs)
	f.outcome.Haves = len(f.request.Haves)
	if f.outcome.Wants == 0 && !f.request.WaitForDone {
		return false, nil // nothing wanted, nothing sent: as git
	}
	if err := f.repo.Refresh(); err != nil {
		return false, err
	}
	if f.snapshot, err = f.repo.Refs.Snapshot(ctx); err != nil {
		return false, err
	}
	if err := f.checkWants(ctx); err != nil {
		return false, err
	}
	if err := f.shallows(); err != nil {
		return false, err
	}
	if err := f.deepenNot(); err != nil {
		return false, err
	}
	ready, err := f.acknowledge(ctx)
	if err != nil {
		return false, err
	}
	if len(f.request.Haves) > 0 && !f.request.Done {
		f.acknowledgments(ready)
		if !ready {
			f.lines.Flush()
			return false, nil
		}
		f.lines.Delim()
	}
	if len(f.wants) == 0 {
		return false, fault.New(fault.Invalid, "the request asks for a pack but wants nothing")
	}
	if err := f.deepen(ctx); err != nil {
		return false, err
	}
	if err := f.ownBoundary(ctx); err != nil {
		return false, err
	}
	if f.shallowInfo {
		f.shallowSection()
	}
	if len(f.wanted) > 0 {
		f.wantedRefsSection()
	}
	f.lines.Text("packfile")
	return true, nil
}

// checkWants resolves want-refs and sees to it that everything wanted exists and may be asked for.
func (f *fetch) checkWants(ctx context.Context) error {
	f.wants = f.request.Wants
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
			return notOurs(id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(f.wanted) > 0 {
		f.wants = protocol.SortIDs(f.wants)
	}
	rule := f.wantRule(f.repo)
	if rule == WantsAny {
		return nil
	}
	return f.checkReachable(ctx, rule)
}

// lookupsPerCheck is after how many look-ups a request asks whether its client is still there.
const lookupsPerCheck = 1024

// has calls fn for each of the IDs and tells whether the object exists.
func (f *fetch) has(ctx context.Context, ids []git.ObjectID, fn func(id git.ObjectID, ok bool) error) error {
	for i, id := range ids {
		if i%lookupsPerCheck == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		ok, err := f.repo.Objects.Has(id)
		if err == nil {
			err = fn(id, ok)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func notOurs(id git.ObjectID) error {
	return fault.New(fault.NotFound, "upload-pack: not our ref %s", id)
}

// shallows sorts out which commits have no parents for the client and for us.
func (f *fetch) shallows() error {
	f.clientShallow = graph.Commits{}
	for _, id := range f.request.Shallow {
		_, err := f.repo.Graph.Commit(id)
		switch {
		case fault.Is(err, fault.NotFound): // the client has a boundary in history that we do not know
		case fault.Is(err, fault.Invalid):
			return fault.New(fault.Invalid, "invalid shallow object %s", id)
		case err != nil:
			return err
		default:
			f.clientShallow[id] = struct{}{}
		}
	}
	ids, err := f.repo.Shallow()
	f.serverShallow = graph.NewCommits(ids...)
	return err
}

// acknowledge finds the common haves; ready means that they suffice to make a pack.
func (f *fetch) acknowledge(ctx context.Context) (ready bool, err error) {
	err = f.has(ctx, f.request.Haves, func(id git.ObjectID, ok bool) error {
		if ok {
			f.common = append(f.common, id)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	f.outcome.Common = len(f.common)
	if f.request.Done || f.request.WaitForDone || len(f.common) == 0 {
		return false, nil
	}
	return f.repo.Graph.AllReach(ctx, f.wants, f.common, f.serverShallow)
}

func (f *fetch) acknowledgments(ready bool) {
	f.lines.Text("acknowledgments")
	if len(f.common) == 0 {
		f.lines.Text("NAK")
	}
	for _, id := range f.common {
		f.lines.ID("ACK", id)
	}
	if ready {
		f.lines.Text("ready")
	}
}

// deepen works out the client's new boundary.
func (f *fetch) deepen(ctx context.Context) (err error) {
	req, g := f.request, f.repo.Graph
	f.shallowInfo = req.Deepens() || len(f.clientShallow) > 0 || len(f.serverShallow) > 0
	switch {
	case req.Depth > 0 && (req.DeepenSince != 0 || len(req.DeepenNot) > 0):
		return fault.New(fault.Invalid, "deepen and deepen-since (or deepen-not) cannot be used together")
	case req.Depth == protocol.InfiniteDepth && len(f.serverShallow) == 0:
		f.boundary.Unshallow = f.clientShallow.IDs()
	case req.Depth > 0 && req.DeepenRelative:
		var tips []git.ObjectID
		if tips, err = f.visibleTips(); err == nil {
			f.boundary, err = g.DepthRelative(ctx, f.wants, req.Depth, f.serverShallow, f.clientShallow, tips)
		}
	case req.Depth > 0:
		f.boundary, err = g.Depth(ctx, f.wants, req.Depth, f.serverShallow, f.clientShallow)
	case req.Deepens():
		f.boundary, err = g.Since(ctx, f.wants, req.DeepenSince, f.not, f.serverShallow, f.clientShallow)
	case len(f.serverShallow) > 0:
		f.boundary, err = g.Depth(ctx, f.wants, graph.Infinite, f.clientView(), f.clientShallow)
	}
	return err
}

// deepenNot resolves the names of deepen-not lines.
func (f *fetch) deepenNot() error {
	for _, name := range f.request.DeepenNot {
		found, err := f.snapshot.Expand(name)
		if err != nil {
			return err
		}
		if len(found) != 1 {
			return fault.New(fault.Invalid, "ambiguous deepen-not: %.200q names %d refs", name, len(found))
		}
		f.not = append(f.not, found[0].ID)
	}
	return nil
}

func (f *fetch) shallowSection() {
	f.lines.Text("shallow-info")
	for _, id := range f.boundary.Shallow {
		f.lines.ID("shallow", id)
	}
	for _, id := range f.boundary.Unshallow {
		f.lines.ID("unshallow", id)
	}
	f.lines.Delim()
}

// wantedRefLine is about how long a line of the wanted-refs section is.
const wantedRefLine = 128

func (f *fetch) wantedRefsSection() {
	f.lines.Buf = slices.Grow(f.lines.Buf, len(f.wanted)*wantedRefLine)
	f.lines.Text("wanted-refs")
	for i, id := range f.wanted {
		f.lines.WantedRef(id, f.request.WantRefs[i])
	}
	f.lines.Delim()
}

// send writes the sections and then the pack.
func (f *fetch) send(ctx context.Context, spec *packsource.Spec, sections []byte, quiet bool, reply protocol.Reply) error {
	f.outcome.Key = spec.Key().String()
	if err := reply.Bulk(); err != nil {
		return err
	}
	pack, err := f.source.Open(ctx, spec)
	if err != nil {
		return err
	}
	defer pack.Close()
	out := newOutput(reply, sections, quiet, f.start)
	out.keepAlive = f.repo.Policy().KeepAlive
	info := pack.Info()
	if size := pack.Size(); size >= 0 {
		reply.Length(out.announce(info, size))
	}
	begun := time.Now()
	err = pack.Send(ctx, out)
	if err == nil {
		err = out.finish()
	} else if out.err == nil {
		err = out.fail(err)
	} else {
		err = &protocol.BrokenReply{Err: out.err}
	}
	info = pack.Info()
	o := f.outcome
	o.Pack, o.Objects, o.Bytes, o.Wait = string(info.Result), info.Objects, info.Bytes, info.Wait
	o.ChildCPU, o.ChildMaxRSS = info.Child.User+info.Child.System, info.Child.MaxRSS
	o.FirstByte, o.Copy = out.firstByte, time.Since(begun)
	return err
}
