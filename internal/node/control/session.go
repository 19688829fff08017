package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// sessionService serves Git's sessions.
type sessionService struct {
	*Server
	internalv1connect.UnimplementedSessionServiceHandler
}

var _ internalv1connect.SessionServiceHandler = (*sessionService)(nil)

type (
	sessionStream = connect.BidiStream[internalv1.SessionRequest, internalv1.SessionResponse]
	// answerFunc has the node answer a request in its lane.
	answerFunc = func(context.Context, *sessionCall) (node.Outcome, error)
)

// receiveStart receives the first message of a session. It refuses other services than these.
func receiveStart(stream *sessionStream, services ...protocol.Service) (*internalv1.SessionStart, error) {
	first, err := stream.Receive()
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case first.GetStart() == nil:
		return nil, fault.New(fault.Invalid, "invalid first message: want a start")
	}
	return first.GetStart(), checkService(first.GetStart().GetSession(), services...)
}

// checkService refuses other services than these. An empty name stands for the first one.
func checkService(session *internalv1.Session, services ...protocol.Service) error {
	service := protocol.Service(session.GetService())
	if service == "" || slices.Contains(services, service) {
		return nil
	}
	return connect.NewError(connect.CodeUnimplemented, fmt.Errorf("unknown service %.40q", service))
}

// serveStream is serveSession for a stream. The request is nil if the data path is for it.
func (s *Server) serveStream(ctx context.Context, operation string, stream *sessionStream,
	start *internalv1.SessionStart, request *request, answer answerFunc) error {
	if request != nil {
		request.receive = stream.Receive
	}
	return s.serveSession(ctx, operation, stream.RequestHeader().Get(callerHeader), start, request, stream.Send, answer)
}

// Advertise begins a session.
func (t *sessionService) Advertise(ctx context.Context, stream *sessionStream) error {
	start, err := receiveStart(stream, protocol.UploadPack, protocol.ReceivePack)
	if err != nil {
		return err
	}
	request := &request{last: true, memory: new(admit.Holding)}
	return t.serveStream(ctx, "advertise", stream, start, request, t.advertise)
}

// advertise serves an advertisement. It stays in the small lane.
func (t *sessionService) advertise(ctx context.Context, x *sessionCall) (node.Outcome, error) {
	x.response.seat.Stay()
	return t.Sessions.Advertise(ctx, x.repo, x.session, x.response)
}

// UploadPack serves one request of a fetch session.
func (t *sessionService) UploadPack(ctx context.Context, stream *sessionStream) error {
	start, err := receiveStart(stream, protocol.UploadPack)
	if err != nil {
		return err
	}
	memory := t.reserve(start.GetSession())
	defer memory.Shrink(0)
	request := &request{stateful: start.GetSession().GetStateful(), limit: t.MaxRequest, memory: &memory,
		receive: stream.Receive}
	if err := request.take(start.GetData()); err != nil {
		return err
	}
	if err := request.ahead(); err != nil {
		return err
	}
	return t.serveStream(ctx, "upload_pack", stream, start, request, t.uploadPack)
}

func (t *sessionService) uploadPack(ctx context.Context, x *sessionCall) (node.Outcome, error) {
	return t.Sessions.UploadPack(ctx, x.repo, x.session, x.response.request, x.response)
}

// reserve starts to count the memory of a session.
func (t *sessionService) reserve(session *internalv1.Session) admit.Holding {
	if session.GetReachable() && !t.callersKnown.Load() {
		t.callersKnown.Store(true)
	}
	return t.Memory.Hold(balance.Caller(session.GetCaller()), freeMemory)
}

// Limits of requests and responses in one message, in bytes.
const (
	maxShortRequest = 64 << 10
	maxShortAnswer  = 256 << 10
)

// errTooLong reports a response that does not fit into one message. It does not leave this package.
var errTooLong = errors.New("response too long for one message")

// UnarySession serves a request with one message, or reports that the response is too long for that.
func (t *sessionService) UnarySession(ctx context.Context,
	r *connect.Request[internalv1.UnarySessionRequest]) (*connect.Response[internalv1.UnarySessionResponse], error) {
	data := r.Msg.GetData()
	if len(data) > maxShortRequest {
		return nil, fault.New(fault.Invalid, "request longer than %d bytes: use a stream", maxShortRequest)
	}
	services := []protocol.Service{protocol.UploadPack}
	if r.Msg.Data == nil {
		services = append(services, protocol.ReceivePack)
	}
	if err := checkService(r.Msg.GetSession(), services...); err != nil {
		return nil, err
	}
	memory := t.reserve(r.Msg.GetSession())
	defer memory.Shrink(0)
	request := &request{data: data, last: true, short: true, memory: &memory}
	answer := &internalv1.UnarySessionResponse{}
	send := func(a *internalv1.SessionResponse) error {
		if end := a.GetEnd(); end != nil {
			answer.End = end
		}
		answer.Data = append(answer.Data, a.GetData()...) // the bytes are valid during the call only
		if len(answer.Data) > maxShortAnswer {
			return errTooLong
		}
		return nil
	}
	operation, answerWith := "upload_pack", t.uploadPack
	if r.Msg.Data == nil {
		operation, answerWith = "advertise", t.advertise
	}
	err := t.serveSession(ctx, operation, r.Header().Get(callerHeader), r.Msg, request, send, answerWith)
	if errors.Is(err, errTooLong) {
		return connect.NewResponse(&internalv1.UnarySessionResponse{TooLong: true}), nil
	}
	return responseOf(answer, err)
}

// maxCaller is the maximum length of the caller's name in bytes.
const maxCaller = 128

func checkCaller(name string) error {
	if len(name) > maxCaller {
		return fault.New(fault.Invalid, "caller name longer than %d bytes", maxCaller)
	}
	return nil
}

// sessionCall is one request of a session with its response.
type sessionCall struct {
	*Server
	operation string
	caller    string
	repo      git.RepoPath
	session   node.Session
	response  *responseStream
	outcome   node.Outcome
	updates   bool // the gateway has the results of a push, and logs them

	objectBytes int64 // of an upload to Git LFS: how many bytes of the object are here
}

// sessionMessage is the first message of a session.
type sessionMessage interface {
	GetRepository() string
	GetSession() *internalv1.Session
}

// serveSession serves a request in its lane. It returns the error of the call.
func (s *Server) serveSession(ctx context.Context, operation, caller string, from sessionMessage, request *request,
	send func(*internalv1.SessionResponse) error, answer answerFunc) error {
	x := &sessionCall{Server: s, operation: operation, caller: caller}
	session := from.GetSession()
	var err error
	if x.repo, err = git.ParseRepoPath(from.GetRepository()); err != nil {
		return fault.Wrap(fault.NotFound, "no such repository: "+err.Error(), err)
	}
	if session.GetVersion() > uint32(protocol.V2) {
		return fault.New(fault.Invalid, "unknown protocol version %d", session.GetVersion())
	}
	if err := checkCaller(session.GetCaller()); err != nil {
		return err
	}
	running := inflight.From(ctx)
	running.Describe(operation, x.repo.String(), running.Caller())
	x.session = node.Session{
		Service: protocol.Service(session.GetService()), Version: protocol.Version(session.GetVersion()),
		Stateless: !session.GetStateful(),
		Caller:    session.GetCaller(), Reachable: session.GetReachable(),
		Authorization: node.NewSecret(session.GetAuthorization()), Length: session.GetRequestBytes(),
	}
	seat, err := s.Lanes.Small.Enter(balance.Caller(x.session.Caller))
	if err != nil {
		return err
	}
	start := time.Now()
	x.response = newResponseStream(ctx, x, seat, request, send)
	defer x.response.close()
	ended := false
	defer func() {
		if !ended { // a panic
			x.log(ctx, time.Since(start), fault.New(fault.Internal, "panic"))
		}
	}()
	x.outcome, err = answer(ctx, x)
	if ended = errors.Is(err, errTooLong); ended { // the gateway sends it again as a stream
		seat.Withdraw()
		return errTooLong
	}
	callErr, err := x.finish(err)
	ended = true
	x.log(ctx, time.Since(start), err)
	return callErr
}

// finish ends a response. callErr is the error of the call, and cause the error for the log.
func (x *sessionCall) finish(err error) (callErr, cause error) {
	_, reported := errors.AsType[*node.ReportedError](err)
	if err == nil || reported {
		if failed := x.response.commit(err == nil); failed != nil {
			err, reported = failed, false
		}
	}
	outcome := x.outcomeMessage()
	_, broken := errors.AsType[*node.ClientConnError](err)
	x.updates = !broken && x.sendUpdates() == nil
	if broken || err != nil && !x.response.begun {
		return faultrpc.Error(err, outcome), err
	}
	end := &internalv1.End{Outcome: outcome, Fault: faultrpc.Message(err), FaultReported: reported,
		ObjectBytes: x.objectBytes}
	part := &internalv1.SessionResponse{Part: &internalv1.SessionResponse_End{End: end}}
	if failed := x.response.deliver(part); failed != nil && err == nil {
		return failed, failed
	}
	return nil, err
}

// maxUpdatesPart is the maximum size of the names and reasons in one message of updates in bytes.
const maxUpdatesPart = 64 << 10

// sendUpdates sends the result of each ref of a push.
func (x *sessionCall) sendUpdates() error {
	updates := batch[*internalv1.RefUpdate]{bytes: maxUpdatesPart, send: func(list []*internalv1.RefUpdate) error {
		part := &internalv1.SessionResponse_Updates{Updates: &internalv1.RefUpdates{Updates: list}}
		return x.response.deliver(&internalv1.SessionResponse{Part: part})
	}}
	for _, u := range x.outcome.Push.Updates {
		update := &internalv1.RefUpdate{Ref: strings.ToValidUTF8(u.Ref, "?"), OldId: u.Old.Raw(), NewId: u.New.Raw(),
			Result: strings.ToValidUTF8(u.Result, "?")}
		if err := updates.add(update, len(u.Ref)+len(u.Result)+2*len(u.Old.Raw())); err != nil {
			return err
		}
	}
	return updates.flush()
}

// log logs the request.
func (x *sessionCall) log(ctx context.Context, took time.Duration, err error) {
	result := "ok"
	level := slog.LevelInfo
	if err != nil {
		kind := fault.KindOf(err)
		if _, broken := errors.AsType[*node.ClientConnError](err); broken || ctx.Err() != nil && kind != fault.Deadline {
			kind = fault.Cancelled
		}
		result = kind.String()
		switch kind {
		case fault.Internal, fault.Corrupt:
			level = slog.LevelError
		case fault.Unavailable:
			level = slog.LevelWarn
		default:
			if x.outcome.Command == node.CommandPush {
				level = slog.LevelWarn
			}
		}
	}
	if !x.Log.Enabled(ctx, level) {
		return
	}
	o := x.outcome
	if x.updates { // the gateway logs them
		o.Push.Updates = nil
	}
	var a []slog.Attr
	if id := inflight.From(ctx).ID(); id != "" {
		a = append(a, slog.String("request", id))
	}
	a = append(a,
		slog.String("operation", x.operation), slog.String("result", result), slog.String("repository", x.repo.String()),
		slog.String("caller", x.caller), slog.String("protocol", x.session.Version.String()),
		slog.String("command", string(o.Command)),
		node.Milliseconds("ms", took), slog.Int64("bytes", x.response.bytes.Sent),
		slog.Int64("kernel_bytes", x.response.bytes.Kernel), slog.String("data_path", x.response.dataPath))
	a = inflight.From(ctx).Usage().Attrs(o.Attrs(a))
	if err != nil {
		a = append(a, slog.String("error", clip(err.Error())))
	}
	x.Log.LogAttrs(ctx, level, "transfer", a...)
	node.LogUpdates(ctx, x.Log, level, o.Push.Updates, slog.String("request", inflight.From(ctx).ID()),
		slog.String("repository", x.repo.String()))
}

// outcomeMessage converts the outcome, with the usage of git.
func (x *sessionCall) outcomeMessage() *internalv1.Outcome {
	return &internalv1.Outcome{Json: x.outcome.Encode(), GitUsage: inflight.From(x.response.ctx).Usage().Header()}
}
