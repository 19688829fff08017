package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// Node is a storage node whose mirrors follow their origins. It serves sessions of mirrors itself: it checks the origin
// first, and then has the storage node answer. Everything else is the storage node's.
//
// As long as a mirror is not complete, or if it does not have a wanted object, the origin gets the client's request.
type Node struct {
	*storage.Node
	mirrors *Mirrors
}

// Node returns the node of the mirrors.
func (m *Mirrors) Node() *Node { return &Node{Node: m.node, mirrors: m} }

// exchange is one request of a client to a mirror.
type exchange struct {
	mirrors  *Mirrors
	mirror   *mirror
	rule     *Rule
	session  node.Session
	response node.ResponseWriter
	outcome  node.Outcome

	isBulk     bool // StartBulk of the response was called
	originTime time.Duration
	age        time.Duration // of the repository's state if the origin did not answer, else 0
}

// begin returns the exchange of a request to a mirror; nil if the repository is not a mirror.
func (n *Node) begin(ctx context.Context, path git.RepoPath, session node.Session, response node.ResponseWriter) (
	*exchange, error) {
	start := time.Now()
	session = n.mirrors.sessionFor(path, session)
	r, err := n.mirrors.open(origin.WithCaller(ctx, session.Caller), path, session.Authorization)
	if r == nil || err != nil {
		return nil, err
	}
	return &exchange{mirrors: n.mirrors, mirror: r, rule: r.currentRule(), session: session, response: response,
		originTime: time.Since(start)}, nil
}

// result returns the outcome of the exchange.
func (x *exchange) result() node.Outcome {
	x.outcome.OriginTime, x.outcome.Stale = x.originTime, x.age
	return x.outcome
}

// Advertise begins a session on a repository.
func (n *Node) Advertise(ctx context.Context, path git.RepoPath, session node.Session, response node.ResponseWriter) (
	node.Outcome, error) {
	if session.Service == protocol.ReceivePack {
		return n.advertisePush(ctx, path, session, response)
	}
	x, err := n.begin(ctx, path, session, response)
	switch {
	case err != nil:
		return node.Outcome{}, err
	case x == nil:
		return n.Node.Advertise(ctx, path, session, response)
	case session.Version == protocol.V2:
		err = x.advertiseV2(ctx)
	default:
		err = x.advertiseV0(ctx)
	}
	return x.result(), err
}

// advertiseV2 sends the capabilities of version 2. As long as requests may be relayed, these are the ones that the
// origin has as well. After that, only the features of requests that cannot be relayed without them depend on it.
func (x *exchange) advertiseV2(ctx context.Context) error {
	isComplete := x.mirror.complete()
	if !isComplete {
		if _, err := x.originRefs(ctx); err != nil {
			return err
		}
	}
	version, offer := x.mirror.originFeatures()
	if isComplete || version != protocol.V2 || !x.rule.Origin.CanRelay() {
		offer.Filter, offer.Unborn, offer.ObjectInfo, offer.BundleURI = true, true, true, true
	}
	offer.SidebandAll = false                       // few origins have it
	offer.RefInWant = offer.RefInWant && isComplete // clients send object IDs instead, so that equal requests are shared
	offer.Session = true
	x.session.Offer = &offer
	return x.advertise(ctx)
}

// advertise has the storage node begin the session.
func (x *exchange) advertise(ctx context.Context) (err error) {
	x.outcome, err = x.mirrors.node.Advertise(ctx, x.mirror.path, x.session, x.response)
	x.outcome.Mirror = node.MirrorLocal
	return err
}

// advertiseV0 sends the refs in version 0 or 1: those of the repository if it is up to date, else those of the origin.
// A client of a session with state waits for the repository, because its later requests cannot be relayed.
func (x *exchange) advertiseV0(ctx context.Context) error {
	for {
		err := error(nil)
		isComplete := x.mirror.complete()
		if isComplete {
			if err = x.check(ctx, false); err == nil {
				return x.advertise(ctx)
			}
		}
		switch {
		case err != nil && !errors.Is(err, errUpdating):
			return err
		case x.session.Stateless && x.rule.Origin.CanRelay():
			refs, err := x.originRefs(ctx)
			if err != nil {
				return err
			}
			if refs != nil { // otherwise the update has just ended
				return x.advertiseRefs(refs)
			}
		}
		if err := x.awaitUpdate(ctx); err != nil {
			return err
		}
	}
}

// UploadPack serves one request of a fetch session.
func (n *Node) UploadPack(ctx context.Context, path git.RepoPath, session node.Session, request io.Reader,
	response node.ResponseWriter) (node.Outcome, error) {
	x, err := n.begin(ctx, path, session, response)
	switch {
	case err != nil:
		return node.Outcome{}, err
	case x == nil:
		return n.Node.UploadPack(ctx, path, session, request, response)
	case !session.Stateless: // the advertisement was that of the complete mirror
		err = x.serve(ctx, request)
		return x.result(), err
	}
	body, err := readRequest(request, response)
	if err != nil {
		return x.result(), err
	}
	switch {
	case session.Version == protocol.V2 && commandOf(body) == protocol.CommandLsRefs:
		err = x.lsRefs(ctx, body)
	case x.mirror.complete():
		err = x.fetch(ctx, body)
	default:
		err = x.fetchIncomplete(ctx, body)
	}
	return x.result(), err
}

// Archive sends an archive of the state after a check of the origin.
func (n *Node) Archive(ctx context.Context, path git.RepoPath, session node.Session, a node.Archive,
	response node.ResponseWriter) (node.Outcome, error) {
	x, err := n.begin(ctx, path, session, response)
	switch {
	case err != nil:
		return node.Outcome{}, err
	case x == nil:
		return n.Node.Archive(ctx, path, session, a, response)
	}
	if err = x.check(ctx, false); errors.Is(err, errUpdating) {
		err = x.awaitUpdate(ctx)
	}
	if err == nil {
		x.outcome, err = x.mirrors.node.Archive(ctx, x.mirror.path, x.session, a, response)
		x.outcome.Mirror = node.MirrorLocal
	}
	return x.result(), err
}

// requestStep is the number of bytes of a request that are read at once.
const requestStep = 64 << 10

// readRequest reads the whole request, because it may be needed more than once.
func readRequest(request io.Reader, response node.ResponseWriter) ([]byte, error) {
	body := make([]byte, 0, 4<<10)
	for {
		n, err := request.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case err == io.EOF:
			return body, nil
		case err != nil:
			return nil, err
		case len(body) < cap(body):
			continue
		}
		more := min(max(cap(body), requestStep), 16*requestStep)
		if err := response.ReserveMemory(int64(more)); err != nil {
			return nil, err
		}
		body = append(make([]byte, 0, cap(body)+more), body...)
	}
}

// commandOf returns the command of a request of version 2; "" if it cannot be read.
func commandOf(body []byte) protocol.Command {
	for {
		line, rest, ok := cutLine(body)
		if !ok {
			return ""
		}
		body = rest
		if command, ok := bytes.CutPrefix(line, []byte("command=")); ok {
			return protocol.Command(command)
		}
	}
}

// cutLine cuts off the first packet, without its newline. ok is false at another kind of packet and at the end. Unlike
// a pktline.Reader it needs no buffer.
func cutLine(b []byte) (line, rest []byte, ok bool) {
	n, err := pktline.ParseLength(b)
	if err != nil || n < 4 || n > len(b) {
		return nil, nil, false
	}
	return bytes.TrimSuffix(b[4:n], []byte("\n")), b[n:], true
}

// startBulk announces a response that takes long. It comes before a request to the origin, because it may be refused.
func (x *exchange) startBulk() error {
	if x.isBulk {
		return nil
	}
	x.isBulk = true
	return x.response.StartBulk(false)
}

// serve has the storage node answer a request.
func (x *exchange) serve(ctx context.Context, request io.Reader) (err error) {
	if x.age == 0 {
		x.noteAge(x.mirror.outage())
	}
	x.outcome, err = x.mirrors.node.UploadPack(ctx, x.mirror.path, x.session, request, x.response)
	x.outcome.Mirror = node.MirrorLocal
	return err
}

// check checks the origin. If it does not answer and the repository may be used, the client is informed.
func (x *exchange) check(ctx context.Context, forced bool) error {
	start := time.Now()
	result, err := x.mirror.check(ctx, x.session.Authorization, forced)
	x.originTime += time.Since(start)
	if err == nil {
		x.noteAge(result.Age, result.Err)
	}
	return err
}

// noteAge notes the age of the repository's state and its reason for the client. Zero means that it is current.
func (x *exchange) noteAge(age time.Duration, reason error) {
	if age == x.age {
		return
	}
	x.age = age
	if w, ok := x.response.(node.StalenessWriter); ok {
		w.SetStaleness(age)
	}
	if x.session.Notice = ""; age == 0 {
		return
	}
	problem := "origin " + x.rule.Origin.Host() + " does not answer"
	switch {
	case fault.Is(reason, fault.Exhausted):
		problem = fault.Message(reason)
	case !origin.IsDown(reason):
		problem = "the update from origin " + x.rule.Origin.Host() + " failed"
	}
	x.session.Notice = "warning: " + problem + "; this is its state of " + formatAge(age) + " ago"
}

// formatAge formats an age for people, such as "12 minutes".
func formatAge(age time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "days"}, {time.Hour, "hours"}, {time.Minute, "minutes"}} {
		if age >= 2*unit.size {
			return fmt.Sprintf("%d %s", age/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%d seconds", age/time.Second)
}

// fetch answers a fetch from the complete repository. It does not ask the origin about objects that are here. For an
// unknown one it checks the origin. Then the origin gets the request, if passageOf permits that.
func (x *exchange) fetch(ctx context.Context, body []byte) error {
	if namesRefs(body) { // their values may have changed
		switch err := x.check(ctx, false); {
		case err == nil:
		case !errors.Is(err, errUpdating):
			return err
		default:
			if done, err := x.relayFetch(ctx, body); done {
				return err
			}
			if err := x.awaitUpdate(ctx); err != nil {
				return err
			}
		}
	}
	unknown := x.serve(ctx, bytes.NewReader(body))
	if !isUnknown(unknown) {
		return unknown
	}
	err := x.check(ctx, true)
	switch {
	case errors.Is(err, errUpdating):
	case err != nil:
		return err
	case x.age > 0:
		return x.refuse(&fault.Error{Kind: fault.Unavailable, Msg: fault.Message(unknown) + " in the mirror, and origin " +
			x.rule.Origin.Host() + " does not answer", RetryAfter: fault.RetryMuchLater, Err: unknown})
	default:
		if unknown = x.serve(ctx, bytes.NewReader(body)); !isUnknown(unknown) {
			return unknown
		}
	}
	if done, err := x.relayFetch(ctx, body); done {
		return err
	}
	if err == nil {
		return unknown
	}
	if err := x.awaitUpdate(ctx); err != nil {
		return err
	}
	return x.serve(ctx, bytes.NewReader(body))
}

// refuse sends an error to the client as a packet: git does not show the text of a response with another status.
func (x *exchange) refuse(err error) error {
	if _, broken := x.response.Write(protocol.AppendError(nil, fault.Message(err))); broken != nil {
		return &node.ClientConnError{Err: broken}
	}
	return &node.ReportedError{Err: err}
}

// namesRefs reports whether a request may have names of refs. It may report a name where there is none.
func namesRefs(body []byte) bool {
	return bytes.Contains(body, []byte("want-ref ")) || bytes.Contains(body, []byte("deepen-not "))
}

// isUnknown reports whether the storage node refused a request, before its response began, because of an object or a
// ref that it does not have or does not show.
func isUnknown(err error) bool {
	if _, reported := errors.AsType[*node.ReportedError](err); reported {
		return false
	}
	if _, broken := errors.AsType[*node.ClientConnError](err); broken {
		return false
	}
	return fault.Is(err, fault.NotFound) || fault.Is(err, fault.Denied)
}

// fetchIncomplete answers a fetch while the first update runs.
func (x *exchange) fetchIncomplete(ctx context.Context, body []byte) error {
	if done, err := x.follow(ctx, body); done || err != nil {
		return err
	}
	if done, err := x.relayFetch(ctx, body); done {
		return err
	}
	if err := x.awaitUpdate(ctx); err != nil {
		return err
	}
	return x.fetch(ctx, body)
}

// canRelay reports whether the origin understands the client's requests.
func (x *exchange) canRelay() bool {
	version, _ := x.mirror.originFeatures()
	return x.rule.Origin.CanRelay() && (x.session.Version != protocol.V2 || version == protocol.V2)
}
