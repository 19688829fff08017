package uploadpack

import (
	"context"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// conversation is a fetch in version 0 or 1 (gitprotocol-pack(5), "Packfile Negotiation"): the client sends its wants,
// and then its haves until the common commits suffice.
type conversation struct {
	*fetch
	needs   *protocol.Needs
	haves   *protocol.HaveReader
	lookups pack.Lookups // of haves

	pending       []git.ObjectID // haves that are not processed yet, if the repository borrows objects
	ignored       graph.Commits  // those of them that are foreign
	foreignBudget int            // remaining work for finding these; see exactWork

	reach []git.ObjectID // each must reach a common commit before a pack is possible
	cut   graph.Commits  // commits without parents for that walk

	known      map[git.ObjectID]struct{} // the common commits
	last       git.ObjectID              // the last common have
	gotCommon  bool                      // a common have came since the client last waited
	gotUnknown bool                      // a have that does not exist here came since then
	ready      bool                      // the client knows that a pack is possible

	budget  int  // remaining work for finding whether the common commits suffice; see exactWork
	checked int  // number of common commits at the last check
	enough  bool // they suffice

	// For a client without multi_ack, like have_obj and THEY_HAVE in git: the number of haves that others did not imply,
	// and the commits that are known or implied.
	named   int
	implied graph.Commits
}

// serveV0 answers in versions 0 and 1. A stateless response is sent when it is complete, a stateful one in parts, when
// the client waits for them.
func (f *fetch) serveV0(ctx context.Context, request *pktline.Reader, limits protocol.Limits) error {
	needs, err := protocol.ReadNeeds(request, f.repo.Format, f.offer(f.repo, f.session), limits)
	f.outcome.Fetch.Parse = time.Since(f.start)
	if err != nil {
		return err
	}
	f.request = &needs.Fetch
	f.outcome.Command, f.outcome.Agent, f.outcome.Session = protocol.CommandFetch, needs.Agent, needs.SessionID
	if err := checkFilter(&f.repo.Policy().Filters, needs.Filter); err != nil {
		return err
	}
	pooled := getScratch()
	f.lines = protocol.Lines{Buf: pooled.buf}
	defer func() { pooled.buf = f.lines.Buf; putScratch(pooled) }()
	c := &conversation{
		fetch: f, needs: needs, haves: protocol.NewHaveReader(request, f.repo.Format, limits),
		lookups: f.repo.Objects.Lookups(), budget: exactWork, foreignBudget: exactWork,
	}
	negotiated := time.Now()
	send, err := c.negotiate(ctx)
	f.outcome.Fetch.Negotiate, f.outcome.Fetch.Common = time.Since(negotiated), len(f.common)
	if err != nil {
		return err
	}
	if !send {
		return c.end()
	}
	form := packFormat{quiet: needs.NoProgress, sideband: needs.Sideband}
	if f.session.Stateless {
		return f.sendNegotiated(ctx, form, nil)
	}
	return f.sendNegotiated(ctx, form, c.flushLines)
}

// negotiate sends the client its new boundary, and reads its haves. send reports whether a pack follows.
func (c *conversation) negotiate(ctx context.Context) (send bool, err error) {
	if err := c.begin(ctx, c.checkWantsV0); err != nil {
		return false, err
	}
	if err := c.deepen(ctx); err != nil {
		return false, err
	}
	if c.request.Deepens() {
		for _, id := range c.boundary.Shallow {
			c.lines.Boundary("shallow", id)
		}
		for _, id := range c.boundary.Unshallow {
			c.lines.Boundary("unshallow", id)
		}
		c.lines.Flush()
		if err := c.flushLines(); err != nil {
			return false, err
		}
	}
	if len(c.wants) == 0 {
		return false, nil
	}
	behind, err := c.behindUnshallow()
	if err != nil {
		return false, err
	}
	c.reach, c.cut = slices.Concat(c.wants, behind), c.grafts()
	c.known, c.implied = make(map[git.ObjectID]struct{}), graph.Commits{}
	return c.readHaves(ctx)
}

// readHaves reads haves and answers them until a pack follows, or a stateless request ends.
func (c *conversation) readHaves(ctx context.Context) (send bool, err error) {
	borrows := c.borrows()
	for n := 0; ; n++ {
		if n%lookupsPerCheck == 0 {
			if err := ctx.Err(); err != nil {
				return false, err
			}
		}
		turn, id, err := c.haves.Next()
		if err == nil && (turn != protocol.TurnHave || len(c.pending) == lookupsPerCheck) {
			err = c.pendingHaves(ctx)
		}
		if err != nil {
			return false, err
		}
		switch {
		case turn == protocol.TurnHave && borrows:
			c.pending = append(c.pending, id)
			continue
		case turn == protocol.TurnHave:
			err = c.have(ctx, id)
		case turn == protocol.TurnFlush:
			if send, err = c.flush(ctx); send || c.session.Stateless {
				return send, err
			}
		case turn == protocol.TurnDone:
			c.done()
			return true, nil
		case turn == protocol.TurnEnd:
			// a stateless client sends its haves in another request, after the response with its boundary
			if !c.session.Stateless {
				err = fault.New(fault.Invalid, "the request ends early")
			}
			return false, err
		}
		if err != nil {
			return false, err
		}
	}
}

// pendingHaves processes the pending haves, with one walk for all that are not proven yet.
func (c *conversation) pendingHaves(ctx context.Context) error {
	haves := c.pending
	c.pending, c.ignored = c.pending[:0], nil
	if c.foreignBudget > 0 {
		ignored, cost, err := c.foreign(ctx, haves, false)
		if err != nil {
			return err
		}
		c.ignored = ignored
		c.foreignBudget -= cost
	} else {
		c.ignored = graph.NewCommits(haves...)
	}
	for _, id := range haves {
		if err := c.have(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// have processes one have line.
func (c *conversation) have(ctx context.Context, id git.ObjectID) error {
	c.outcome.Fetch.Haves++
	ok, err := c.lookups.Has(id)
	switch {
	case err != nil:
		return err
	case ok && !c.ignored.Has(id):
		err = c.commonHave(id)
	case c.needs.Acks == protocol.SingleAck:
		c.gotUnknown = true
	default: // the client is past the common history, and may stop if that suffices
		c.gotUnknown = true
		suffices, failed := c.suffices(ctx)
		if err = failed; suffices {
			c.acknowledge(id, "ready")
		}
	}
	if err == nil && len(c.lines.Buf) > bufferSize {
		err = c.flushLines()
	}
	return err
}

// commonHave processes a have that exists here.
func (c *conversation) commonHave(id git.ObjectID) error {
	c.gotCommon, c.last = true, id
	if _, repeat := c.known[id]; !repeat {
		if err := c.reserve(commonCost); err != nil {
			return err
		}
		c.known[id] = struct{}{}
		c.common = append(c.common, id)
	}
	if c.needs.Acks != protocol.SingleAck {
		c.acknowledge(id, "common")
		return nil
	}
	first, err := c.isFirst(id)
	if first {
		c.lines.Ack(id, "")
	}
	return err
}

// acknowledge adds an ACK with a status that the client understands.
func (c *conversation) acknowledge(id git.ObjectID, status string) {
	if c.needs.Acks == protocol.MultiAck {
		status = "continue"
	} else if status == "ready" {
		c.ready = true
	}
	c.lines.Ack(id, status)
}

// isFirst reports whether a common have is the first one, or is implied by it.
func (c *conversation) isFirst(id git.ObjectID) (bool, error) {
	if c.named > 1 {
		return false, nil
	}
	if !c.implied.Has(id) {
		c.named++
	}
	commit, err := c.repo.Graph.Commit(id)
	switch {
	case fault.Is(err, fault.Invalid): // not a commit, so it implies no others
		return c.named == 1, nil
	case err != nil:
		return false, err
	}
	c.implied[id] = struct{}{}
	if !c.cut.Has(id) {
		for _, parent := range commit.Parents {
			c.implied[parent] = struct{}{}
		}
	}
	return c.named == 1, nil
}

// exactWork is the number of commits that may be visited, named or grafted to find exactly when the common commits
// suffice. Otherwise a client that names known and unknown commits in turn would cause a walk for each. Beyond it, a
// walk begins only when the number of common commits has doubled.
const exactWork = 1_000_000

// suffices reports whether a pack can be made: whether all wants reach a common commit.
func (c *conversation) suffices(ctx context.Context) (bool, error) {
	n := len(c.common)
	if c.enough || n == c.checked || c.budget <= 0 && n < 2*c.checked {
		return c.enough, nil
	}
	enough, visited, err := c.repo.Graph.AllReach(ctx, c.reach, c.common, c.cut)
	c.checked, c.enough = n, enough
	c.budget -= visited + n + len(c.reach) + len(c.cut)
	return enough, err
}

// flush answers a client that waits. send reports whether it gets its pack before it sends "done".
func (c *conversation) flush(ctx context.Context) (send bool, err error) {
	if c.needs.Acks == protocol.MultiAckDetailed && c.gotCommon && !c.gotUnknown {
		suffices, err := c.suffices(ctx)
		if err != nil {
			return false, err
		}
		if suffices {
			c.acknowledge(c.last, "ready")
		}
	}
	if len(c.common) == 0 || c.needs.Acks != protocol.SingleAck {
		c.lines.Text("NAK")
	}
	if c.needs.NoDone && c.ready {
		c.lines.Ack(c.last, "")
		return true, nil
	}
	c.gotCommon, c.gotUnknown = false, false
	return false, c.flushLines()
}

// done answers "done".
func (c *conversation) done() {
	switch {
	case len(c.common) == 0:
		c.lines.Text("NAK")
	case c.needs.Acks != protocol.SingleAck:
		c.lines.Ack(c.last, "")
	}
}

// flushLines sends the pending lines of a stateful session. In a stateless one they wait for the end of the response.
func (c *conversation) flushLines() error {
	if c.session.Stateless || len(c.lines.Buf) == 0 {
		return nil
	}
	_, err := c.response.Write(c.lines.Buf)
	c.lines.Buf = c.lines.Buf[:0]
	if err == nil {
		err = c.response.Flush()
	}
	if err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// end ends a response without a pack.
func (c *conversation) end() error {
	if !c.session.Stateless {
		return c.flushLines()
	}
	c.response.SetLength(int64(len(c.lines.Buf)))
	_, err := c.response.Write(c.lines.Buf)
	return err
}
