package remote

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// requestPartSize is the maximum number of bytes of a request in one message. The request for a clone of 1,500 branches
// has 75 KB, and fits into the first message.
const requestPartSize = 128 << 10

var (
	requestBuffers = sync.Pool{New: func() any { return new([requestPartSize]byte) }}
	parts          = sync.Pool{New: func() any { return new(part) }}
)

// Advertise implements router.Node.
func (n *Node) Advertise(ctx context.Context, repo git.RepoPath, session node.Session, w node.ResponseWriter) (
	o node.Outcome, err error) {
	if err := n.checkCredential(session); err != nil {
		return o, err
	}
	if n.usesUnary(session) {
		if o, err, done := n.unarySession(ctx, repo, session, nil, w); done {
			return o, err
		}
	}
	return n.session(ctx, w, nil, &sessionCall{
		open:  func(l *link) openSession { return l.sessions.Advertise },
		start: &internalv1.SessionStart{Repository: repo.String(), Session: sessionMessage(session)},
	})
}

// UploadPack implements router.Node. A stateless request is sent whole before the response is read.
func (n *Node) UploadPack(ctx context.Context, repo git.RepoPath, session node.Session, request io.Reader,
	w node.ResponseWriter) (o node.Outcome, err error) {
	if err := n.checkCredential(session); err != nil {
		return o, err
	}
	buf := requestBuffers.Get().(*[requestPartSize]byte)
	defer requestBuffers.Put(buf)
	parts := &requestParts{request: request, buf: buf, stateful: !session.Stateless}
	first, err := parts.next()
	if err != nil {
		return o, err
	}
	if first.Last && len(first.Data) <= maxUnary && n.usesUnary(session) && !isFetch(first.Data) {
		if o, err, done := n.unarySession(ctx, repo, session, first.Data, w); done {
			return o, err
		}
	}
	var rest *requestStream
	if !session.Stateless && !first.Last {
		rest = newRequestStream(request, session)
	}
	return n.session(ctx, w, rest, &sessionCall{
		open:  func(l *link) openSession { return l.sessions.UploadPack },
		start: &internalv1.SessionStart{Repository: repo.String(), Session: sessionMessage(session), Data: first},
		parts: parts,
	})
}

// ReceivePack implements router.Node. The request is not read before the node has admitted the push, because until then
// another node may take it. Its bytes pass through user space, because they come from a body of net/http or an SSH
// channel.
func (n *Node) ReceivePack(ctx context.Context, repo git.RepoPath, session node.Session, pusher node.Pusher,
	request io.Reader, w node.ResponseWriter) (o node.Outcome, err error) {
	if err := n.checkCredential(session); err != nil {
		return o, err
	}
	if err := n.checkRules(!pusher.Rules.IsZero()); err != nil {
		return o, err
	}
	session.Service = protocol.ReceivePack
	stream := newRequestStream(request, session)
	stream.push = true
	stream.lossAdvice = "the push; check whether your refs have changed, and push again if not"
	return n.session(ctx, w, stream, &sessionCall{
		storeID: session.StoreID,
		open:    func(l *link) openSession { return l.sessions.ReceivePack },
		start: &internalv1.SessionStart{Repository: repo.String(), Session: sessionMessage(session),
			Pusher: &internalv1.Pusher{Name: pusher.Name, Address: pusher.Address, Rules: pusher.Rules.Message()}},
	})
}

// addStore adds the object store in which a change has to be committed, unless it is "".
func addStore(h http.Header, id string) {
	if id != "" {
		h.Set(node.StoreHeader, id)
	}
}

func sessionMessage(s node.Session) *internalv1.Session {
	return &internalv1.Session{
		Version: uint32(s.Version), Service: string(s.Service), Stateful: !s.Stateless, Caller: s.Caller,
		Reachable: s.Reachable, Authorization: s.Authorization.Reveal(), RequestBytes: s.Length,
	}
}

// checkCredential refuses a session with the client's credential if others on the network could read it.
func (n *Node) checkCredential(s node.Session) error {
	if s.Authorization.IsZero() || n.private {
		return nil
	}
	return fault.New(fault.Unavailable, "the storage node %s is reached without TLS, so your credential was not sent to "+
		"it: ask the operator to set up TLS for it", n.Name)
}

// sessionCall is a call of one session.
type sessionCall struct {
	storeID string // of the object store in which the session has to commit its change; "" for any
	open    func(*link) openSession
	start   *internalv1.SessionStart
	parts   *requestParts // the request after start; nil: none, or a requestStream has it
}

// openSession is a procedure of the node for sessions.
type openSession func(context.Context) *connect.BidiStreamForClient[internalv1.SessionRequest,
	internalv1.SessionResponse]

func dataMessage(d *internalv1.RequestData) *internalv1.SessionRequest {
	return &internalv1.SessionRequest{Part: &internalv1.SessionRequest_Data{Data: d}}
}

// begin opens the call and sends the request, except for the part that a requestStream has. The call is nil if it could
// not be opened.
func (n *Node) begin(ctx context.Context, l *link, c *sessionCall) (connect.StreamingClientConn, error) {
	call, err := c.open(l)(ctx).Conn()
	if err != nil {
		return nil, err
	}
	n.addHeaders(ctx, call.RequestHeader())
	addStore(call.RequestHeader(), c.storeID)
	err = call.Send(&internalv1.SessionRequest{Part: &internalv1.SessionRequest_Start{Start: c.start}})
	for err == nil && c.parts != nil && !c.parts.part.Last && !c.parts.stateful {
		var data *internalv1.RequestData
		if data, err = c.parts.next(); err == nil {
			err = call.Send(dataMessage(data))
		}
	}
	return call, err
}

// disconnectDelay is how long a call continues after its client has disconnected. A client may disconnect as soon as it
// has its whole response, before the end of the call arrives here. Cancelling the call then would close the side
// channel, and count a complete response as cancelled.
const disconnectDelay = 50 * time.Millisecond

// session runs one session. w may be nil if the response has no data. stream, unless nil, sends a part of the request
// while the response may arrive.
func (n *Node) session(client context.Context, w node.ResponseWriter, stream *requestStream,
	c *sessionCall) (node.Outcome, error) {
	if s := n.state.Load(); !s.reachable {
		return node.Outcome{}, s.err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(client))
	defer cancel()
	if limit, ok := client.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, limit)
		defer cancel()
	}
	l := n.link.Load()
	call, err := n.begin(ctx, l, c)
	if call == nil {
		return node.Outcome{}, n.failed(client, err)
	}
	hangUp := func() {
		cancel()
		_ = call.CloseRequest() // net/http does not watch the context while it waits for more of the request
	}
	defer func() {
		hangUp()
		_ = call.CloseResponse() // reads the remaining response: no other goroutine may read
	}()
	var complete atomic.Bool
	done := make(chan struct{})
	defer close(done)
	defer context.AfterFunc(client, func() {
		select {
		case <-time.After(disconnectDelay):
			if !complete.Load() {
				hangUp()
			}
		case <-done:
		}
	})()
	if failure, ok := errors.AsType[requestError](err); ok {
		return node.Outcome{}, failure.error
	}
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF the node's response has the reason
		return node.Outcome{}, n.failed(client, err)
	}
	r := &response{
		node: n, pool: l.pool, ctx: client, callCtx: ctx, hangUp: hangUp, complete: &complete, call: call,
		request: stream, w: w, part: parts.Get().(*part),
	}
	defer func() {
		if cap(r.part.buf) <= 2*fullPart {
			parts.Put(r.part)
		}
	}()
	if stream == nil {
		err = r.run()
		return r.outcome, err
	}
	stream.response = r
	if !stream.push {
		_ = stream.start()
	}
	err = r.run()
	if _, reported := errors.AsType[*node.ReportedError](err); reported { // the response is complete
		if failure := stream.end(nil); failure != nil {
			err = failure
		}
	} else {
		err = stream.end(err)
	}
	r.outcome.Push.Updates = r.updates
	return r.outcome, err
}

// failed returns the error of a call: the node's own, or that the node is unreachable.
func (n *Node) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeUnauthenticated:
		n.markLost(err)
		return n.untrusted(err)
	case connect.IsWireError(err):
		return faultrpc.From(err)
	}
	n.markLost(err)
	return n.unreachable(err)
}
