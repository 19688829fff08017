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
// and then its haves until one side has enough.
type conversation struct {
	*fetch
	session  node.Session
	needs    *protocol.Needs
	haves    *protocol.HaveReader
	response node.ResponseWriter
	lookups  pack.Lookups // of haves

	reach []git.ObjectID // what has to reach the common commits for a pack to be possible
	cut   graph.Commits  // commits without parents on that way

	known map[git.ObjectID]struct{} // the common commits
	last  git.ObjectID              // of them
	got   bool                      // one was named since the client last waited
	other bool                      // and something that does not exist here
	ready bool                      // the client knows that a pack is possible

	budget  int  // what may still be spent on working out whether the common commits suffice; see exactWork
	checked int  // for how many of them it was worked out the last time
	enough  bool // they do

	// For a client without multi_ack, like have_obj and THEY_HAVE in git: how many of its haves were not implied by
	// others, and the commits that are known or implied.
	named   int
	implied graph.Commits
}

// serveV0 answers in versions 0 and 1. Without state the response is sent when it is complete. With state each part is
// sent when the client waits for it.
func (f *fetch) serveV0(ctx context.Context, session node.Session, request *pktline.Reader, limits protocol.Limits,
	response node.ResponseWriter) error {
	needs, err := protocol.ReadNeeds(request, f.repo.Format, f.offer(f.repo, f.session), limits)
	f.outcome.Parse = time.Since(f.start)
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
		fetch: f, session: session, needs: needs, response: response,
		haves: protocol.NewHaveReader(request, f.repo.Format, limits), lookups: f.repo.Objects.Lookups(),
		budget: exactWork,
	}
	negotiated := time.Now()
	send, err := c.negotiate(ctx)
	f.outcome.Negotiate, f.outcome.Common = time.Since(negotiated), len(f.common)
	if err != nil {
		return err
	}
	if !send {
		return c.end()
	}
	spec, err := f.spec(ctx)
	f.outcome.Negotiate = time.Since(negotiated)
	if err != nil {
		return err
	}
	spec.Seal()
	form := form{quiet: needs.NoProgress, sideband: needs.Sideband}
	shape := f.note(ctx, spec)
	f.answers.keep(f, spec, form, shape)
	defer func() { f.noted(shape, spec) }()
	if session.Stateless {
		return f.send(ctx, spec, f.lines.Buf, form, response)
	}
	if err := c.say(); err != nil {
		return err
	}
	return f.send(ctx, spec, nil, form, response)
}

// negotiate sends the client its new boundary, and reads its haves. send reports whether a pack follows.
func (c *conversation) negotiate(ctx context.Context) (send bool, err error) {
	if err := c.begin(ctx, c.allowedByV0(c.session)); err != nil {
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
		if err := c.say(); err != nil {
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
	return c.hear(ctx)
}

// hear takes turns with the client until it is done, or wants no more of a session without state.
func (c *conversation) hear(ctx context.Context) (send bool, err error) {
	for n := 0; ; n++ {
		if n%lookupsPerCheck == 0 {
			if err := ctx.Err(); err != nil {
				return false, err
			}
		}
		turn, id, err := c.haves.Next()
		if err != nil {
			return false, err
		}
		switch turn {
		case protocol.TurnHave:
			err = c.have(ctx, id)
		case protocol.TurnFlush:
			if send, err = c.flush(ctx); send || c.session.Stateless {
				return send, err
			}
		case protocol.TurnDone:
			c.done()
			return true, nil
		case protocol.TurnEnd: // a client without state that has heard of its boundary comes back with its haves
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

// have takes one have line.
func (c *conversation) have(ctx context.Context, id git.ObjectID) error {
	c.outcome.Haves++
	ok, err := c.lookups.Has(id)
	switch {
	case err != nil:
		return err
	case ok:
		err = c.commonHave(id)
	case c.needs.Acks == protocol.SingleAck:
		c.other = true
	default: // the client has left what both know: it may stop if that suffices
		c.other = true
		suffices, failed := c.suffices(ctx)
		if err = failed; suffices {
			c.acknowledge(id, "ready")
		}
	}
	if err == nil && len(c.lines.Buf) > bufferSize {
		err = c.say()
	}
	return err
}

// commonHave takes one that exists here.
func (c *conversation) commonHave(id git.ObjectID) error {
	c.got, c.last = true, id
	if _, repeat := c.known[id]; !repeat {
		if err := c.hold(commonCost); err != nil {
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

// acknowledge adds an ACK in the words that the client understands.
func (c *conversation) acknowledge(id git.ObjectID, status string) {
	if c.needs.Acks == protocol.MultiAck {
		status = "continue"
	} else if status == "ready" {
		c.ready = true
	}
	c.lines.Ack(id, status)
}

// isFirst reports whether a common have is the first, or implied by it.
func (c *conversation) isFirst(id git.ObjectID) (bool, error) {
	if c.named > 1 {
		return false, nil
	}
	if !c.implied.Has(id) {
		c.named++
	}
	commit, err := c.repo.Graph.Commit(id)
	switch {
	case fault.Is(err, fault.Invalid): // another object, which implies nothing
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

// exactWork is how many commits may be visited, named or grafted to find exactly when the common commits suffice. A
// client that names known and unknown commits in turn would have history walked for each. After that many commits the
// next walk comes when there are twice as many common commits.
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

// flush answers a client that waits. send reports whether it gets its pack without "done".
func (c *conversation) flush(ctx context.Context) (send bool, err error) {
	if c.needs.Acks == protocol.MultiAckDetailed && c.got && !c.other {
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
	c.got, c.other = false, false
	return false, c.say()
}

// done answers a client that wants its pack.
func (c *conversation) done() {
	switch {
	case len(c.common) == 0:
		c.lines.Text("NAK")
	case c.needs.Acks != protocol.SingleAck:
		c.lines.Ack(c.last, "")
	}
}

// say sends the pending lines. Without state they wait for the end of the response.
func (c *conversation) say() error {
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

// end ends an answer without a pack.
func (c *conversation) end() error {
	if !c.session.Stateless {
		return c.say()
	}
	c.response.SetLength(int64(len(c.lines.Buf)))
	_, err := c.response.Write(c.lines.Buf)
	return err
}
