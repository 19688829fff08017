package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
)

// state is what is known of the node. Immutable.
type state struct {
	reachable bool  // it answers
	untrusted bool  // it does not take what we have to show, or we not what it shows
	silent    bool  // it gave no sign of life
	err       error // why it cannot be asked, or should not if there is another; nil: it is ready
}

const (
	lookEvery = time.Second            // while the node can be reached
	seekEvery = 300 * time.Millisecond // while it cannot
	// trustEvery is the same while the node does not trust us: somebody has to do something first, and each look is a
	// line in its log. If it is our own secret or certificate that changes, the next look does not wait.
	trustEvery = 5 * time.Second
	// lookLimit is how long one look may take. It is long, because a machine that is busy is not away.
	lookLimit = 5 * time.Second
	// maxSeeks is how many looks for a node that is away run at a time: as many as begin until the first has to end, so
	// that none waits for those that hang.
	maxSeeks = int(lookLimit/seekEvery) + 1
)

// Ready tells from memory why the node should not be asked now; nil: it is ready.
func (n *Node) Ready() error { return n.state.Load().err }

// Reachable tells from memory whether the node can be asked, ready or not.
func (n *Node) Reachable() bool { return n.state.Load().reachable }

// look is one look at the node over a link.
type look struct {
	link  *link
	state *state
}

// watch looks at the node until ctx ends.
func (n *Node) watch(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	looks := make(chan look, maxSeeks+1)
	running := 0
	var ticked time.Time // when it was time for a look last
	var sought time.Time // when the last look began
	var shown shown      // with what
	every := lookEvery
	defer func() {
		cancel()
		for ; running > 0; running-- {
			if l := <-looks; l.link != n.link.Load() {
				l.link.close()
			}
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-looks:
			running--
			n.note(ctx, l)
		case <-n.kick: // soon, but not so soon that many failures at once take all looks
			every = seekEvery
			timer.Reset(every - time.Since(ticked))
			continue
		case <-timer.C:
			ticked, every = time.Now(), lookEvery
			now, most := n.state.Load(), 1
			if now.untrusted && time.Since(sought) < trustEvery && shown == n.shown() {
				break
			}
			if !now.reachable && !now.untrusted {
				most = maxSeeks
			}
			if running < most {
				l := n.link.Load()
				if !now.reachable {
					l = n.newLink()
				}
				running++
				sought, shown = time.Now(), n.shown()
				go func() { looks <- look{l, n.look(ctx, l)} }()
			}
		}
		if !n.state.Load().reachable {
			every = seekEvery
		}
		timer.Reset(every - time.Since(ticked)) // from the last time on: looks that end put off no other
	}
}

// shown is what proves to the node who we are.
type shown struct {
	secret      string
	certificate *tls.Certificate
}

func (n *Node) shown() shown {
	s := shown{certificate: n.certificate()}
	if n.Secret != nil {
		s.secret = n.Secret()
	}
	return s
}

// look asks the node how it is.
func (n *Node) look(ctx context.Context, l *link) *state {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	request := connect.NewRequest(&healthv1.HealthCheckRequest{})
	n.introduce(ctx, request.Header())
	response, err := l.health.CallUnary(ctx, request)
	switch {
	case err != nil && !connect.IsWireError(err):
		return &state{err: n.unreachable(err), untrusted: isMistrust(err), silent: ctx.Err() != nil}
	case connect.CodeOf(err) == connect.CodeUnauthenticated:
		return &state{err: n.untrusted(err), untrusted: true}
	case err != nil || response.Msg.GetStatus() == healthv1.HealthCheckResponse_NOT_SERVING:
		return &state{reachable: true, err: fault.Retry(fault.Unavailable, fault.RetrySoon,
			"the storage node %s is not ready; try again in a moment", n.Name)}
	}
	return &state{reachable: true}
}

// isMistrust tells whether a TLS handshake failed because of a certificate, of either side.
func isMistrust(err error) bool {
	_, ours := errors.AsType[*tls.CertificateVerificationError](err)
	theirs, ok := errors.AsType[*net.OpError](err)
	return ours || ok && theirs.Op == "remote error" // as crypto/tls calls the peer's alerts
}

// untrusted is the error of a node that does not take what this gateway has to show.
func (n *Node) untrusted(err error) error {
	return &fault.Error{
		Kind: fault.Unavailable, Msg: "the storage node " + n.Name +
			" does not trust this server; its operator has to look", RetryAfter: fault.RetrySoon, Err: err,
	}
}

// note takes over what a look has found.
func (n *Node) note(ctx context.Context, l look) {
	current := n.link.Load()
	switch {
	case ctx.Err() != nil:
	case l.state.reachable && l.link != current && !n.state.Load().reachable:
		n.retire(current)
		n.link.Store(l.link)
		n.become(l.state)
		return
	case l.link == current:
		n.become(l.state)
	}
	if now := n.state.Load(); l.state.silent && !now.reachable {
		// what began before the node came back may have failed after that
		current.direct.Abort() // short sessions wait for nothing; one may have begun since the look before
	}
	if l.link != current {
		l.link.close()
	} else if !current.shows(n.certificate()) {
		n.Log.Info("the certificate shown to a storage node has changed: new connections are made", "node", n.Name)
		n.link.Store(n.newLink())
		n.retire(current)
	}
	n.tidy()
}

// become changes the state, and says so.
func (n *Node) become(s *state) {
	before := n.state.Swap(s)
	n.Metrics.state(n.Name, s)
	n.forget(s)
	switch {
	case before.err == nil && s.err != nil:
		n.Log.Warn("a storage node is away", "node", n.Name, "error", s.err)
	case before.err != nil && s.err == nil:
		n.Log.Info("a storage node is back", "node", n.Name)
	}
}

// forget closes the side channels that wait for the next transfer, if the node cannot be reached: what is not told of
// its end may be over, and each transfer that was given one of them would fail.
func (n *Node) forget(s *state) {
	if s.reachable {
		return
	}
	l := n.link.Load()
	if l.pool != nil {
		l.pool.Forget()
	}
}

// lost notes that a call failed for reasons of the connection.
func (n *Node) lost(err error) {
	if now := n.state.Load(); now.reachable && isDial(err) && !errors.Is(err, context.Canceled) {
		down := &state{err: n.unreachable(err)}
		if n.state.CompareAndSwap(now, down) {
			n.Metrics.state(n.Name, down)
			n.forget(down)
			n.Log.Warn("a storage node is away", "node", n.Name, "error", down.err)
		}
	}
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// retire keeps a link whose transfers may go on.
func (n *Node) retire(l *link) {
	l.since = time.Now()
	n.mu.Lock()
	n.retired = append(n.retired, l)
	n.mu.Unlock()
	l.rest()
}

// tidy closes what retired links have that no session uses any more. An idle connection ends by itself after idleLimit.
func (n *Node) tidy() {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.retired[:0]
	for _, l := range n.retired {
		if rests := l.rest(); !rests || time.Since(l.since) < idleLimit {
			kept = append(kept, l)
		}
	}
	clear(n.retired[len(kept):])
	n.retired = kept
}
