package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
)

// state is the node's state after a health check. It is immutable.
type state struct {
	reachable bool   // it responded
	untrusted bool   // the node rejects our credentials, or we reject its certificate
	silent    bool   // it did not respond in time
	err       error  // why the node is not ready; nil: it is ready
	reported  bool   // store is known
	store     string // ID of the node's object store; "" if it has none
	rules     bool   // it enforces rules for refs
}

const (
	checkInterval = time.Second            // between health checks of a node that can be reached
	downInterval  = 300 * time.Millisecond // between those of a node that cannot be reached
	// untrustedInterval is for a node that rejects our credentials: an operator has to act first, and each check is a
	// line in the node's log. After our own secret or certificate has changed, the next check does not wait.
	untrustedInterval = 5 * time.Second
	// checkTimeout is the maximum duration of a health check. It is long, because a busy machine is not down.
	checkTimeout = 5 * time.Second
	// maxDownChecks is the maximum number of concurrent health checks of a node that is down: as many as begin before
	// the first one times out. So no check waits for one that hangs.
	maxDownChecks = int(checkTimeout/downInterval) + 1
)

// Ready returns why the node is not ready for sessions; nil: it is. It does not contact the node.
func (n *Node) Ready() error { return n.state.Load().err }

// Reachable reports whether the node responded to the last health check, ready or not. It does not contact the node.
func (n *Node) Reachable() bool { return n.state.Load().reachable }

// healthCheckResult is the result of a health check over a link.
type healthCheckResult struct {
	link  *link
	state *state
}

// checkHealth checks the node's health until ctx ends.
func (n *Node) checkHealth(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	checks := make(chan healthCheckResult, maxDownChecks+1)
	running := 0
	var ticked time.Time      // when the last check was due
	var lastBegun time.Time   // when the last check began
	var lastIdentity identity // the credentials of the last check
	every := checkInterval
	defer func() {
		cancel()
		for ; running > 0; running-- {
			if l := <-checks; l.link != n.link.Load() {
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
		case l := <-checks:
			running--
			n.apply(ctx, l)
		case <-n.kick: // not at once, because many failures together must not use up all checks
			every = downInterval
			timer.Reset(every - time.Since(ticked))
			continue
		case <-timer.C:
			ticked, every = time.Now(), checkInterval
			now, most := n.state.Load(), 1
			if now.untrusted && time.Since(lastBegun) < untrustedInterval && lastIdentity == n.identity() {
				break
			}
			if !now.reachable && !now.untrusted {
				most = maxDownChecks
			}
			if running < most {
				l := n.link.Load()
				if !now.reachable {
					l = n.newLink()
				}
				running++
				lastBegun, lastIdentity = time.Now(), n.identity()
				go func() { checks <- healthCheckResult{l, n.check(ctx, l)} }()
			}
		}
		if !n.state.Load().reachable {
			every = downInterval
		}
		// from the last due time: the end of a check does not delay the next one
		timer.Reset(every - time.Since(ticked))
	}
}

// checkRules returns an error if the node would ignore rules for refs.
func (n *Node) checkRules(has bool) error {
	if s := n.state.Load(); !has || !s.reachable || s.rules {
		return nil
	}
	return &node.UnsentError{Err: fault.Retry(fault.Unavailable, fault.RetryLater,
		"the storage node %s is too old for rules with refs: upgrade it before the gateway", n.Name)}
}

// identity is our credentials for the node.
type identity struct {
	secret      string
	certificate *tls.Certificate
}

func (n *Node) identity() identity {
	s := identity{certificate: n.certificate()}
	if n.Secret != nil {
		s.secret = n.Secret()
	}
	return s
}

// check checks the node's health.
func (n *Node) check(ctx context.Context, l *link) *state {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	request := connect.NewRequest(&healthv1.HealthCheckRequest{})
	n.addHeaders(ctx, request.Header())
	response, err := l.health.CallUnary(ctx, request)
	switch {
	case err != nil && !connect.IsWireError(err):
		return &state{err: n.unreachable(err), untrusted: isMistrust(err), silent: ctx.Err() != nil}
	case connect.CodeOf(err) == connect.CodeUnauthenticated:
		return &state{err: n.untrusted(err), untrusted: true}
	}
	s := &state{reachable: true}
	if err == nil {
		s.store, s.reported = response.Header().Get(node.StoreHeader), true
		s.rules = response.Header().Get(node.RulesHeader) != ""
	}
	if err != nil || response.Msg.GetStatus() == healthv1.HealthCheckResponse_NOT_SERVING {
		reason := "try again in a moment"
		if err == nil {
			reason = cmp.Or(response.Header().Get(node.NotReadyHeader), reason)
		}
		s.err = fault.Retry(fault.Unavailable, fault.RetrySoon, "the storage node %s is not ready: %s", n.Name, reason)
	}
	return s
}

// isMistrust reports whether a TLS handshake failed because of a certificate, of either side.
func isMistrust(err error) bool {
	_, ours := errors.AsType[*tls.CertificateVerificationError](err)
	theirs, ok := errors.AsType[*net.OpError](err)
	return ours || ok && theirs.Op == "remote error" // the name of the peer's alerts in crypto/tls
}

// untrusted returns the error of a node that rejects our credentials.
func (n *Node) untrusted(err error) error {
	return &fault.Error{
		Kind: fault.Unavailable, Msg: "the storage node " + n.Name +
			" does not trust this server; its operator has to fix that", RetryAfter: fault.RetrySoon, Err: err,
	}
}

// apply applies the result of a health check.
func (n *Node) apply(ctx context.Context, l healthCheckResult) {
	current := n.link.Load()
	switch {
	case ctx.Err() != nil:
	case l.state.reachable && l.link != current && !n.state.Load().reachable:
		n.retire(current)
		n.link.Store(l.link)
		n.setState(l.state)
		return
	case l.link == current:
		n.setState(l.state)
	}
	if now := n.state.Load(); l.state.silent && !now.reachable {
		// unary sessions that began since the previous check do not notice that the node is silent
		current.unaryClient.Abort()
	}
	if l.link != current {
		l.link.close()
	} else if !current.hasCertificate(n.certificate()) {
		n.Log.Info("client certificate for a storage node changed; connecting again", "node", n.Name)
		n.link.Store(n.newLink())
		n.retire(current)
	}
	n.closeRetired()
}

// setState changes and logs the state.
func (n *Node) setState(s *state) {
	before := n.state.Swap(s)
	n.dropIdleChannels(s)
	switch {
	case before.err == nil && s.err != nil:
		n.Log.Warn("storage node is down", "node", n.Name, "error", s.err)
	case before.err != nil && s.err == nil:
		n.Log.Info("storage node is up", "node", n.Name)
	}
}

// dropIdleChannels closes the idle side channels if the node cannot be reached, because they may be dead without an
// error.
func (n *Node) dropIdleChannels(s *state) {
	if s.reachable {
		return
	}
	l := n.link.Load()
	if l.pool != nil {
		l.pool.Forget()
	}
}

// markLost is called when a call failed because of its connection. It triggers a health check.
func (n *Node) markLost(err error) {
	if now := n.state.Load(); now.reachable && isDialError(err) && !errors.Is(err, context.Canceled) {
		down := &state{err: n.unreachable(err)}
		if n.state.CompareAndSwap(now, down) {
			n.dropIdleChannels(down)
			n.Log.Warn("storage node is down", "node", n.Name, "error", down.err)
		}
	}
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// retire keeps a link whose sessions may still be in flight.
func (n *Node) retire(l *link) {
	l.retired = time.Now()
	n.mu.Lock()
	n.retired = append(n.retired, l)
	n.mu.Unlock()
	l.closeIdle()
}

// closeRetired closes the idle connections of retired links. New ones may become idle until idleLimit has passed.
func (n *Node) closeRetired() {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.retired[:0]
	for _, l := range n.retired {
		if empty := l.closeIdle(); !empty || time.Since(l.retired) < idleLimit {
			kept = append(kept, l)
		}
	}
	clear(n.retired[len(kept):])
	n.retired = kept
}
