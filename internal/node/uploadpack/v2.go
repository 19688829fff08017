package uploadpack

import (
	"context"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// serveV2 answers the fetch command of version 2 (gitprotocol-v2(5), "fetch"). The request was read completely.
func (f *fetch) serveV2(ctx context.Context) error {
	pooled := getScratch()
	f.lines = protocol.Lines{Buf: pooled.buf, Sideband: f.request.SidebandAll}
	f.wanted = pooled.ids
	defer func() { pooled.buf, pooled.ids = f.lines.Buf, f.wanted; putScratch(pooled) }()
	negotiated := time.Now()
	send, err := f.negotiate(ctx)
	f.outcome.Fetch.Negotiate, f.outcome.Fetch.Common = time.Since(negotiated), len(f.common)
	if err != nil {
		return f.fail(err)
	}
	if !send {
		f.response.SetLength(int64(len(f.lines.Buf)))
		_, err := f.response.Write(f.lines.Buf)
		return err
	}
	form := packFormat{quiet: f.request.NoProgress, sideband: protocol.Sideband64k}
	return f.sendNegotiated(ctx, form, nil)
}

// sendNegotiated sends the negotiated pack after the pending lines. If flush is not nil, it sends these lines first.
func (f *fetch) sendNegotiated(ctx context.Context, form packFormat, flush func() error) error {
	start := time.Now()
	spec, err := f.spec(ctx)
	f.outcome.Fetch.Negotiate += time.Since(start)
	if err != nil {
		return f.fail(err)
	}
	spec.Seal()
	shape, isFinal := f.countShape(ctx, spec)
	if isFinal {
		f.answers.add(f, spec, form, shape)
	}
	defer func() { f.recordResult(shape, spec) }()
	sections := f.lines.Buf
	if flush != nil {
		if err := flush(); err != nil {
			return err
		}
		sections = nil
	}
	return f.send(ctx, spec, sections, form)
}

// negotiate writes the response up to the packfile section. send reports whether that section follows.
func (f *fetch) negotiate(ctx context.Context) (send bool, err error) {
	f.outcome.Fetch.Haves = len(f.request.Haves)
	if len(f.request.Wants)+len(f.request.WantRefs) == 0 && !f.request.WaitForDone {
		return false, nil // like git, an empty response
	}
	if err := f.begin(ctx, f.checkWantsV2); err != nil {
		return false, err
	}
	ready, err := f.findCommon(ctx)
	if err != nil {
		return false, err
	}
	if len(f.request.Haves) > 0 && !f.request.Done {
		f.acknowledgmentsSection(ready)
		if !ready {
			f.lines.Flush()
			return false, nil
		}
		f.lines.Delim()
	}
	if len(f.wants) == 0 {
		return false, fault.New(fault.Invalid, "the request asks for a pack but wants nothing")
	}
	if err := f.computeBoundary(ctx); err != nil {
		return false, err
	}
	if f.request.Deepens() || len(f.clientShallow) > 0 || len(f.serverShallow) > 0 {
		f.shallowSection()
	}
	if len(f.wanted) > 0 {
		if err := f.wantedRefsSection(); err != nil {
			return false, err
		}
	}
	f.lines.Text("packfile")
	return true, nil
}

// findCommon finds the common haves. ready reports whether they suffice to make a pack.
func (f *fetch) findCommon(ctx context.Context) (ready bool, err error) {
	foreign, _, err := f.foreign(ctx, f.request.Haves, false)
	if err != nil {
		return false, err
	}
	err = f.has(ctx, f.request.Haves, func(id git.ObjectID, ok bool) error {
		if !ok || foreign.Has(id) {
			return nil
		}
		f.common = append(f.common, id)
		return f.reserve(commonCost)
	})
	if err != nil || f.request.Done || f.request.WaitForDone || len(f.common) == 0 {
		return false, err
	}
	ready, _, err = f.repo.Graph.AllReach(ctx, f.wants, f.common, f.serverShallow)
	return ready, err
}

func (f *fetch) acknowledgmentsSection(ready bool) {
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

func (f *fetch) wantedRefsSection() error {
	size := 0
	for _, name := range f.request.WantRefs {
		size += len("0000 \n") + f.repo.Format.HexSize() + len(name)
	}
	if err := f.reserve(int64(size)); err != nil {
		return err
	}
	f.lines.Buf = slices.Grow(f.lines.Buf, size)
	f.lines.Text("wanted-refs")
	for i, id := range f.wanted {
		f.lines.WantedRef(id, f.request.WantRefs[i])
	}
	f.lines.Delim()
	return nil
}
