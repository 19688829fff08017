package remote_test

import (
	"bytes"
	"context"
	"errors"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/gateway/remote"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// hostile is a node that answers as a test says.
type hostile struct {
	internalv1connect.UnimplementedSessionServiceHandler
	channels *sidechannel.Server
	serve    func(*hostileCall) error
	short    func() (*internalv1.UnarySessionResponse, error) // nil: the response is too long
	lfs      hostileLFS
}

func (h *hostile) UnarySession(context.Context,
	*connect.Request[internalv1.UnarySessionRequest]) (*connect.Response[internalv1.UnarySessionResponse], error) {
	if h.short == nil {
		return connect.NewResponse(&internalv1.UnarySessionResponse{TooLong: true}), nil
	}
	m, err := h.short()
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(m), nil
}

// hostileCall is one call to it.
type hostileCall struct {
	*hostile
	ctx    context.Context
	stream *connect.BidiStream[internalv1.SessionRequest, internalv1.SessionResponse]
}

func (h *hostile) UploadPack(ctx context.Context, stream *connect.BidiStream[internalv1.SessionRequest,
	internalv1.SessionResponse]) error {
	if _, err := stream.Receive(); err != nil {
		return err
	}
	return h.serve(&hostileCall{h, ctx, stream})
}

func (c *hostileCall) send(answers ...*internalv1.SessionResponse) error {
	for _, a := range answers {
		if err := c.stream.Send(a); err != nil {
			return err
		}
	}
	return nil
}

// claim says that a pack comes, and claims the channel.
func (c *hostileCall) claim() (*sidechannel.Channel, error) {
	if err := c.send(partBulk); err != nil {
		return nil, err
	}
	m, err := c.stream.Receive()
	if err != nil {
		return nil, err
	}
	road := m.GetDataPath().GetSideChannel()
	return c.channels.Claim(c.ctx, road.GetName(), road.GetTransfer(), "gateway")
}

var (
	partBulk = &internalv1.SessionResponse{Part: &internalv1.SessionResponse_DataPathRequest{
		DataPathRequest: &internalv1.DataPathRequest{}}}
	partEnd = &internalv1.SessionResponse{Part: &internalv1.SessionResponse_End{End: &internalv1.End{}}}
)

func partData(text string) *internalv1.SessionResponse {
	return &internalv1.SessionResponse{Part: &internalv1.SessionResponse_Data{Data: []byte(text)}}
}

func partLength(n uint64) *internalv1.SessionResponse {
	return &internalv1.SessionResponse{Part: &internalv1.SessionResponse_Length{Length: n}}
}

// hostileLFS answers requests of Git LFS as a test says.
type hostileLFS struct {
	internalv1connect.UnimplementedLFSServiceHandler
	batch  *internalv1.BatchResponse
	part   int64
	upload []*internalv1.SessionResponse
}

func (h *hostileLFS) Batch(context.Context, *connect.Request[internalv1.BatchRequest]) (
	*connect.Response[internalv1.BatchResponse], error) {
	return connect.NewResponse(h.batch), nil
}

func (h *hostileLFS) Part(context.Context, *connect.Request[internalv1.PartRequest]) (
	*connect.Response[internalv1.PartResponse], error) {
	return connect.NewResponse(&internalv1.PartResponse{ObjectBytes: h.part}), nil
}

func (h *hostileLFS) Upload(_ context.Context, stream *connect.BidiStream[internalv1.SessionRequest,
	internalv1.SessionResponse]) error {
	_, err := stream.Receive()
	for _, part := range h.upload {
		err = errors.Join(err, stream.Send(part))
	}
	return err
}

// Answers about Git LFS that no node gives are errors of the node.
func TestHostileLFS(t *testing.T) {
	t.Parallel()
	end := func(size int64) *internalv1.SessionResponse {
		return &internalv1.SessionResponse{Part: &internalv1.SessionResponse_End{End: &internalv1.End{ObjectBytes: size}}}
	}
	refusals := []*packhorsev1.Fault{{Message: "no"}}
	object := lfs.Object{Size: 10}
	for name, h := range map[string]hostileLFS{
		"no states":       {batch: &internalv1.BatchResponse{}},
		"two states":      {batch: &internalv1.BatchResponse{States: []byte{0, 0}}},
		"a fourth state":  {batch: &internalv1.BatchResponse{States: []byte{3}, Refusals: refusals}},
		"no reason":       {batch: &internalv1.BatchResponse{States: []byte{2}}},
		"negative part":   {part: -1},
		"long part":       {part: 11},
		"negative upload": {upload: []*internalv1.SessionResponse{end(-1)}},
		"long upload":     {upload: []*internalv1.SessionResponse{end(11)}},
		"data":            {upload: []*internalv1.SessionResponse{partData("x"), end(10)}},
		"a length":        {upload: []*internalv1.SessionResponse{partLength(1), end(10)}},
		"no end":          {upload: []*internalv1.SessionResponse{}},
		"two requests":    {upload: []*internalv1.SessionResponse{partBulk, partBulk, end(10)}},
	} {
		n := startHostile(t, &hostile{lfs: h})
		var err error
		switch {
		case h.batch != nil:
			_, _, err = n.LFSBatch(t.Context(), app, node.Session{}, lfs.Batch{Objects: []lfs.Object{object}})
		case h.part != 0:
			_, _, err = n.LFSPart(t.Context(), app, node.Session{}, object)
		default:
			_, _, err = n.LFSUpload(t.Context(), app, node.Session{}, lfs.Upload{Object: object},
				strings.NewReader("0123456789"))
		}
		if !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "invalid response") {
			t.Errorf("%s: %v, want an invalid response", name, err)
		}
	}
}

// newHostile begins a node, and a gateway's side of it that waits for a silent one for a moment only.
func newHostile(t *testing.T, serve func(*hostileCall) error) *remote.Node {
	t.Helper()
	return startHostile(t, &hostile{serve: serve})
}

func startHostile(t *testing.T, h *hostile) *remote.Node {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	pump := bulk.NewPump(bulk.PumpOptions{})
	h.channels = sidechannel.NewServer(sidechannel.Options{Pump: pump, Metrics: sidechannel.NewMetrics(nil), Log: log})
	mux := http.NewServeMux()
	mux.Handle(internalv1connect.NewSessionServiceHandler(h))
	mux.Handle(internalv1connect.NewLFSServiceHandler(&h.lfs))
	healthy(mux)
	mux.HandleFunc(sidechannel.Path, func(w http.ResponseWriter,
		r *http.Request) {
		h.channels.Upgrade(w, r, "gateway")
	})
	port := &http.Server{Handler: mux, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute}
	port.Protocols.SetHTTP1(true)
	port.Protocols.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = port.Serve(bulk.Listen(l, pump, time.Minute)) }()
	n, err := remote.New(remote.Options{
		Name: "one", Address: l.Addr().String(), Channels: sidechannel.NewMetrics(nil),
		ChannelStall: 300 * time.Millisecond, Pump: pump,
		Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Close()
		port.Close()
		h.channels.Close()
		<-served
	})
	return n
}

// An incomplete response of a node is an error of the right kind within a limited time.
func TestHostileNodes(t *testing.T) {
	t.Parallel()
	parts := func(answers ...*internalv1.SessionResponse) func(*hostileCall) error {
		return func(c *hostileCall) error { return c.send(answers...) }
	}
	// onChannel sends text on a channel of a length, and then the given messages on the call.
	onChannel := func(length int64, text string, end func(*sidechannel.Channel, *sidechannel.Sender),
		answers ...*internalv1.SessionResponse) func(*hostileCall) error {
		return func(c *hostileCall) error {
			channel, err := c.claim()
			if err != nil {
				return err
			}
			defer channel.Release()
			s := channel.Send(length)
			if _, err := s.Write([]byte(text)); err != nil {
				return err
			}
			_ = s.Flush()
			end(channel, s)
			if err := c.send(answers...); err != nil {
				return err
			}
			if len(answers) == 0 || answers[0] == partEnd {
				<-c.ctx.Done() // the channel stays
			}
			return nil
		}
	}
	good := func(_ *sidechannel.Channel, s *sidechannel.Sender) { _ = s.End(nil) }
	none := func(*sidechannel.Channel, *sidechannel.Sender) {}
	abort := func(c *sidechannel.Channel, _ *sidechannel.Sender) { c.Abort() }
	denied := func(_ *sidechannel.Channel, s *sidechannel.Sender) { _ = s.End(fault.New(fault.Denied, "not you")) }
	corrupt := &internalv1.SessionResponse{Part: &internalv1.SessionResponse_End{End: &internalv1.End{
		Fault: faultrpc.Message(fault.New(fault.Corrupt, "damaged"))}}}
	for name, test := range map[string]struct {
		serve func(*hostileCall) error
		kind  fault.Kind
	}{
		"nothing":               {parts(), fault.Internal},
		"no end":                {parts(partData("some")), fault.Internal},
		"shorter than said":     {parts(partLength(10), partData("some"), partEnd), fault.Internal},
		"longer than said":      {parts(partLength(2), partData("some"), partEnd), fault.Internal},
		"absurd length":         {parts(partLength(1 << 63)), fault.Internal},
		"length twice":          {parts(partLength(4), partLength(4), partData("some"), partEnd), fault.Internal},
		"length after data":     {parts(partData("some"), partLength(4), partEnd), fault.Internal},
		"data after the end":    {parts(partData("some"), partEnd, partData("more")), fault.Internal},
		"two ends":              {parts(partData("some"), partEnd, partEnd), fault.Internal},
		"no part":               {parts(&internalv1.SessionResponse{}), fault.Internal},
		"bulk after data":       {parts(partData("some"), partBulk), fault.Internal},
		"bulk twice":            {parts(partBulk, partBulk), fault.Internal},
		"data beside a channel": {parts(partBulk, partData("some")), fault.Internal},
		"end without a channel": {func(c *hostileCall) error {
			_ = c.send(partBulk,
				partEnd)
			<-c.ctx.Done()
			return nil
		}, fault.Unavailable},
		"good channel, bad end":      {onChannel(4, "some", good, corrupt), fault.Corrupt},
		"good channel, no end":       {onChannel(4, "some", good), fault.Internal},
		"silent channel, good end":   {onChannel(10, "some", none, partEnd), fault.Unavailable},
		"silent frames, good end":    {onChannel(-1, "some", none, partEnd), fault.Unavailable},
		"broken channel, good end":   {onChannel(10, "some", abort, partEnd), fault.Unavailable},
		"refusing channel, good end": {onChannel(-1, "some", denied, partEnd), fault.Unavailable},
		"channel closed before use": {func(c *hostileCall) error {
			if err := c.send(partBulk); err != nil {
				return err
			}
			if _, err := c.stream.Receive(); err != nil {
				return err
			}
			c.channels.Close()
			return faultrpc.Error(fault.New(fault.Unavailable, "no such channel"), &internalv1.Outcome{})
		}, fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newHostile(t, test.serve)
			repo, _ := git.ParseRepoPath("app")
			out := &answer{}
			_, err := n.UploadPack(context.Background(), repo, version2, bytes.NewReader(lsRefs()), out)
			if !fault.Is(err, test.kind) || strings.Contains(fault.Message(err), "not you") {
				t.Errorf("%v (%v), want %v, after %q", err, fault.KindOf(err), test.kind, out)
			}
		})
	}
}

// A node may take long to make a pack. The client can cancel its request meanwhile.
func TestSilenceAfterBulk(t *testing.T) {
	t.Parallel()
	claimed := make(chan struct{})
	n := newHostile(t, func(c *hostileCall) error {
		channel, err := c.claim()
		if err != nil {
			return err
		}
		defer channel.Release()
		close(claimed)
		<-c.ctx.Done()
		return c.ctx.Err()
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-claimed; cancel() }()
	repo, _ := git.ParseRepoPath("app")
	if _, err := n.UploadPack(ctx, repo, version2, bytes.NewReader(lsRefs()), &answer{}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

// slowBulk is a reply whose lane keeps a pack waiting.
type slowBulk struct {
	answer
	wait func()
}

func (s *slowBulk) StartBulk(bool) error { s.wait(); return nil }

// A node waits for the data path for a limited time, and the gateway reports the timeout.
func TestRoadThatIsNamedTooLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{roadWait: 50 * time.Millisecond, source: &madeUp{send: endless}})
	reply := &slowBulk{wait: func() {
		if !eventually(func() bool { return strings.Contains(w.log.String(), "result=deadline") }) {
			t.Error("the node waits for the road")
		}
	}}
	if _, err := w.ask(context.Background(), "app", w.pack(), reply); !fault.Is(err, fault.Deadline) ||
		reply.Len() > 0 {
		t.Errorf("the error is %v, after %d bytes", err, reply.Len())
	}
}

// healthy has a node say that it serves; without it a gateway soon takes it for none.
func healthy(mux *http.ServeMux) {
	const health = "/grpc.health.v1.Health/Check"
	mux.Handle(health, connect.NewUnaryHandler(health,
		func(context.Context, *connect.Request[healthv1.HealthCheckRequest]) (*connect.Response[healthv1.HealthCheckResponse],
			error) {
			return connect.NewResponse(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}), nil
		}))
}
