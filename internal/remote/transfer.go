package remote

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
)

// firstData is how much of a request goes with the call's first message, in bytes; the rest follows in messages of that
// size. A clone of a repository with 1,500 branches asks with 75 KB: what is in one message the node need not put
// together.
const firstData = 128 << 10

var (
	requestBuffers = sync.Pool{New: func() any { return new([firstData]byte) }}
	parts          = sync.Pool{New: func() any { return new(part) }}
)

// Advertise begins a session.
func (n *Node) Advertise(ctx context.Context, repo git.RepoPath, session node.Session,
	reply node.ResponseWriter) (o node.Outcome, err error) {
	defer func() { n.Metrics.called(n.Name, err) }()
	if n.isShort(session) {
		if o, err, done := n.short(ctx, repo, session, nil, reply); done {
			return o, err
		}
	}
	return n.transfer(ctx, reply, nil, func(ctx context.Context, l *link) (connect.StreamingClientConn, roadMessage,
		error) {
		stream, err := l.transfers.Advertise(ctx).Conn()
		if err != nil {
			return nil, nil, err
		}
		n.introduce(ctx, stream.RequestHeader())
		err = stream.Send(&internalv1.AdvertiseRequest{Part: &internalv1.AdvertiseRequest_Start{
			Start: &internalv1.AdvertiseStart{Repository: repo.String(), Session: sessionMessage(session)},
		}})
		return stream, func(r *internalv1.DataPath) any {
			return &internalv1.AdvertiseRequest{Part: &internalv1.AdvertiseRequest_DataPath{DataPath: r}}
		}, err
	})
}

// UploadPack answers one request of a session. Of a stateless one all of the request is sent before the answer is
// looked at.
func (n *Node) UploadPack(ctx context.Context, repo git.RepoPath, session node.Session, request io.Reader,
	reply node.ResponseWriter) (
	o node.Outcome, err error) {
	defer func() { n.Metrics.called(n.Name, err) }()
	buf := requestBuffers.Get().(*[firstData]byte)
	defer requestBuffers.Put(buf)
	parts := &requestParts{request: request, buf: buf, stateful: !session.Stateless}
	first, err := parts.next()
	if err != nil {
		return o, err
	}
	if first.Last && len(first.Data) <= maxShort && n.isShort(session) && !isFetch(first.Data) {
		if o, err, done := n.short(ctx, repo, session, first.Data, reply); done {
			return o, err
		}
	}
	var rest *upload
	if !session.Stateless && !first.Last {
		rest = newUpload(request, session, func(d *internalv1.RequestData) any {
			return &internalv1.UploadPackRequest{Part: &internalv1.UploadPackRequest_Data{Data: d}}
		})
	}
	return n.transfer(ctx, reply, rest, func(ctx context.Context, l *link) (connect.StreamingClientConn, roadMessage,
		error) {
		stream, err := l.transfers.UploadPack(ctx).Conn()
		if err != nil {
			return nil, nil, err
		}
		n.introduce(ctx, stream.RequestHeader())
		start := &internalv1.UploadPackStart{Repository: repo.String(), Session: sessionMessage(session), Data: first}
		err = sendRequest(stream, start, parts)
		return stream, func(r *internalv1.DataPath) any {
			return &internalv1.UploadPackRequest{Part: &internalv1.UploadPackRequest_DataPath{DataPath: r}}
		}, err
	})
}

func sessionMessage(s node.Session) *internalv1.Session {
	return &internalv1.Session{Version: uint32(s.Version), Service: string(s.Service), Stateful: !s.Stateless,
		Caller: s.Caller, Reachable: s.Reachable}
}

// requestError is an error of the client's request.
type requestError struct{ error }

func (e requestError) Unwrap() error { return e.error }

// requestParts cuts a client's request into the parts that messages carry.
type requestParts struct {
	request  io.Reader
	buf      *[firstData]byte
	stateful bool            // what has come is a part: the client may send no more before it has its answer
	call     context.Context // nothing more is read once it has ended; nil: all is read
	part     internalv1.RequestData
}

// next gives the next part, which is good until the one after it.
func (p *requestParts) next() (*internalv1.RequestData, error) {
	k, err := 0, error(nil)
	for m := 0; k < len(p.buf) && err == nil && (k == 0 || !p.stateful); k += m {
		// not io.ReadFull: it hides a request that was cut off
		if p.call != nil && p.call.Err() != nil {
			return nil, p.call.Err()
		}
		m, err = p.request.Read(p.buf[k:])
	}
	if err != nil && err != io.EOF {
		return nil, requestError{err}
	}
	p.part.Data, p.part.Last = p.buf[:k], err == io.EOF
	return &p.part, nil
}

// sendRequest sends the start and the whole request, or what there is of that of a session with state.
func sendRequest(stream connect.StreamingClientConn, start *internalv1.UploadPackStart, parts *requestParts) error {
	err := stream.Send(&internalv1.UploadPackRequest{Part: &internalv1.UploadPackRequest_Start{Start: start}})
	for err == nil && !parts.part.Last && !parts.stateful {
		var data *internalv1.RequestData
		if data, err = parts.next(); err == nil {
			err = stream.Send(&internalv1.UploadPackRequest{Part: &internalv1.UploadPackRequest_Data{Data: data}})
		}
	}
	return err
}

// roadMessage names the road in a message of the call.
type roadMessage func(*internalv1.DataPath) any

// hangUp is how long after its client has gone a call goes on. A client that has all of its answer hangs up at once,
// maybe before we know that it had all; to give the call up then would cost the side channel, and call a whole answer a
// cancelled one.
const hangUp = 50 * time.Millisecond

// transfer runs one session: begin opens the call and sends the request, but for what is uploaded while the answer may
// come.
func (n *Node) transfer(caller context.Context, reply node.ResponseWriter, up *upload,
	begin func(context.Context, *link) (connect.StreamingClientConn, roadMessage, error)) (node.Outcome, error) {
	if s := n.state.Load(); !s.reachable {
		return node.Outcome{}, s.err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(caller))
	defer cancel()
	if limit, ok := caller.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, limit)
		defer cancel()
	}
	l := n.link.Load()
	stream, road, err := begin(ctx, l)
	if stream == nil {
		return node.Outcome{}, n.failed(caller, err)
	}
	leave := func() {
		cancel()
		_ = stream.CloseRequest() // net/http does not look at the context while it waits for more of the request
	}
	defer func() {
		leave()
		_ = stream.CloseResponse() // reads what is left, so nobody else may be reading
	}()
	var whole atomic.Bool
	done := make(chan struct{})
	defer close(done)
	defer context.AfterFunc(caller, func() {
		select {
		case <-time.After(hangUp):
			if !whole.Load() {
				leave()
			}
		case <-done:
		}
	})()
	if wrong, ok := errors.AsType[requestError](err); ok {
		return node.Outcome{}, wrong.error
	}
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF the node's answer says more
		return node.Outcome{}, n.failed(caller, err)
	}
	r := &relay{
		node: n, pool: l.pool, ctx: caller, call: ctx, leave: leave, whole: &whole, stream: stream, road: road, up: up,
		reply: reply, part: parts.Get().(*part),
	}
	defer func() {
		if cap(r.part.buf) <= 2*fullData {
			parts.Put(r.part)
		}
	}()
	if up == nil {
		err = r.run()
		return r.outcome, err
	}
	up.relay = r
	if !up.push {
		up.start()
	}
	err = r.run()
	if _, told := errors.AsType[*node.ReportedError](err); told { // the answer is whole
		if failed := up.end(nil); failed != nil {
			err = failed
		}
	} else {
		err = up.end(err)
	}
	r.outcome.Updates = r.updates
	return r.outcome, err
}

// failed is the error of a call: the node's own, or one that says that there was none.
func (n *Node) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeUnauthenticated:
		n.lost(err)
		return n.untrusted(err)
	case connect.IsWireError(err):
		return faultrpc.From(err)
	}
	n.lost(err)
	return n.unreachable(err)
}

// relay is an answer on its way from the node to the client.
type relay struct {
	node    *Node
	pool    *sidechannel.Pool // of the link that the call is on; nil: bulk bytes go inside the call
	ctx     context.Context   // of the client's request
	call    context.Context   // of the call, which may go on for a moment after its client has gone
	leave   func()            // gives the call up
	whole   *atomic.Bool      // the client has all of the answer, and may go
	stream  connect.StreamingClientConn
	road    roadMessage
	up      *upload // nil: the request was sent
	reply   node.ResponseWriter
	part    *part
	outcome node.Outcome
	updates []node.RefUpdate // of a push, as far as they have come

	length    int64
	hasLength bool
	sent      int64
	bulk      bool // the road has been named
	lost      bool // the call ended without the node's word
}

// run relays parts until the last one. Whatever the error is: without a whole answer it is not nil.
func (r *relay) run() error {
	for {
		err := r.receive()
		if errors.Is(err, io.EOF) {
			return r.cut(errors.New("the call ended without an end of the answer"))
		} else if err != nil {
			if o, ok := faultrpc.Detail[*internalv1.Outcome](err); ok {
				r.outcome = outcomeOf(r.ctx, o)
			}
			return r.failed(err)
		}
		if r.part.other == nil {
			if err := r.write(r.part.data); err != nil {
				return err
			}
			continue
		}
		switch p := r.part.other.GetPart().(type) {
		case *internalv1.ResponsePart_Data:
			err = r.write(r.part.data)
		case *internalv1.ResponsePart_Length:
			if r.hasLength || r.sent > 0 || p.Length > 1<<62 {
				return r.cut(errors.New("a length where none may stand"))
			}
			r.hasLength, r.length = true, int64(p.Length)
		case *internalv1.ResponsePart_DataPathRequest:
			if r.up != nil && r.up.push {
				err = r.up.start()
				break
			}
			var end *internalv1.End
			if end, err = r.nameRoad(p.DataPathRequest.GetCold()); end != nil {
				return r.end(end)
			}
		case *internalv1.ResponsePart_Updates:
			err = r.takeUpdates(p.Updates)
		case *internalv1.ResponsePart_End:
			return r.end(p.End)
		default:
			return r.cut(errors.New("an unknown part of an answer"))
		}
		if err != nil {
			return err
		}
	}
}

// maxUpdates bounds how many refs a node may report on: more than a node's push.max_commands can be in a request of the
// longest list.
const maxUpdates = 1 << 20

// takeUpdates keeps what became of a push's refs.
func (r *relay) takeUpdates(m *internalv1.RefUpdates) error {
	if len(r.updates)+len(m.GetUpdates()) > maxUpdates || r.up == nil || !r.up.push {
		return r.cut(errors.New("more updates of refs than may be"))
	}
	for _, u := range m.GetUpdates() {
		before, ok := objectID(u.GetOldId())
		after, fine := objectID(u.GetNewId())
		if !ok || !fine || len(u.GetRef()) > 64<<10 || len(u.GetResult()) > 1<<10 {
			return r.cut(errors.New("an update of a ref that makes no sense"))
		}
		r.updates = append(r.updates, node.RefUpdate{Ref: u.GetRef(), Old: before, New: after, Result: u.GetResult()})
	}
	return nil
}

func objectID(raw []byte) (git.ObjectID, bool) {
	if len(raw) != git.SHA1.Size() && len(raw) != git.SHA256.Size() {
		return git.ObjectID{}, false
	}
	return git.RawObjectID(raw), true
}

// receive waits for the next part.
func (r *relay) receive() error {
	r.part.data, r.part.other = nil, nil
	return r.stream.Receive(r.part)
}

// cut is the error of a node that does not keep to the protocol.
func (r *relay) cut(err error) error {
	return fault.Wrap(fault.Internal, "the storage node "+r.node.Name+" sent an answer that makes no sense", err)
}

// begin announces the length before the first byte.
func (r *relay) begin() {
	if r.sent == 0 && r.hasLength {
		r.reply.SetLength(r.length)
	}
}

// write sends bytes that came inside the call to the client. What the node did not wait to fill up it wants to be seen.
func (r *relay) write(p []byte) error {
	if err := r.up.whole(); err != nil {
		return err
	}
	r.begin()
	n, err := r.reply.Write(p)
	r.count(int64(n))
	if err == nil && (r.bulk || r.up != nil) && len(p) < fullData {
		err = r.reply.Flush()
	}
	if err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// count notes n bytes that the client was sent.
func (r *relay) count(n int64) {
	r.sent += n
	if r.hasLength && r.sent == r.length {
		r.whole.Store(true)
	}
}

// fullData is from which length on a part is one that the node filled, in bytes.
const fullData = 128 << 10

// nameRoad lets the client's side refuse a long answer, and tells the node how it is to come. If that is a channel, the
// answer's bytes are relayed, and the last part is returned.
func (r *relay) nameRoad(cold bool) (*internalv1.End, error) {
	if r.bulk || r.sent > 0 && (r.up == nil || !r.up.stateful) {
		return nil, r.cut(errors.New("a long answer was asked for where none may be"))
	}
	if err := r.reply.StartBulk(cold); err != nil {
		return nil, err
	}
	r.bulk = true
	if r.pool != nil {
		return r.byChannel()
	}
	return nil, r.send(&internalv1.DataPath{Path: &internalv1.DataPath_InBand{InBand: &internalv1.InBand{}}})
}

// send names the road.
func (r *relay) send(road *internalv1.DataPath) error {
	if r.up != nil {
		r.up.mu.Lock()
		defer r.up.mu.Unlock()
	}
	if err := r.stream.Send(r.road(road)); err != nil && !errors.Is(err, io.EOF) {
		// after io.EOF the node's answer says more
		return r.node.failed(r.ctx, err)
	}
	return nil
}

// said takes over what the last part says.
func (r *relay) said(end *internalv1.End) error {
	r.outcome = outcomeOf(r.ctx, end.GetOutcome())
	err := faultrpc.Fault(end.GetFault())
	if err != nil && end.GetFaultReported() {
		return &node.ReportedError{Err: err}
	}
	return err
}

// end takes the last part.
func (r *relay) end(end *internalv1.End) error {
	said := r.said(end)
	if said != nil {
		if _, told := errors.AsType[*node.ReportedError](said); !told {
			return said
		}
	} else if r.hasLength && r.sent != r.length {
		return r.cut(errors.New("an answer that is not as long as was announced"))
	} else {
		r.begin()
	}
	if err := r.receive(); !errors.Is(err, io.EOF) && r.ctx.Err() == nil {
		return r.cut(errors.New("more after the end of the answer"))
	}
	return said
}

// word is a short text from a node as a log may show it.
func word(s string) string { return s[:min(len(s), 40)] }

// outcomeOf is what a node says of a session, once. What git used for it there counts for the request that the context
// belongs to.
func outcomeOf(ctx context.Context, o *internalv1.Outcome) node.Outcome {
	if u := o.GetGit(); u != nil {
		inflight.From(ctx).Used(inflight.Usage{
			Commands: int(u.GetCommands()), User: u.GetUser().AsDuration(), System: u.GetSystem().AsDuration(),
			Queue:  u.GetQueue().AsDuration(),
			MaxRSS: u.GetMaxRss(), In: u.GetBytesIn(), Out: u.GetBytesOut(),
		})
	}
	return node.Outcome{
		Command: protocol.Command(o.GetCommand()), Agent: o.GetAgent(), Session: o.GetSessionId(),
		Refs: int(o.GetRefs()), Wants: int(o.GetWants()), Haves: int(o.GetHaves()), Common: int(o.GetCommon()),
		Pack: o.GetPack(), Key: o.GetKey(), Objects: o.GetObjects(), Bytes: o.GetBytes(),
		Parse: o.GetParse().AsDuration(), Negotiate: o.GetNegotiate().AsDuration(), Wait: o.GetWait().AsDuration(),
		FirstByte: o.GetFirstByte().AsDuration(), Copy: o.GetCopy().AsDuration(),
		ChildCPU: o.GetChildCpu().AsDuration(), ChildMaxRSS: o.GetChildMaxRss(), Reason: word(o.GetReason()),
	}
}
