// Package control is a node's port: the control API (proto/packhorse/v1) for gateways and programs, and the upgrade to side channels
// for bulk bytes.
//
// One port serves it all. A caller speaks HTTP/2, with or without TLS, for gRPC and Connect; HTTP/1.1 does for single calls, as with
// curl, and is what a side channel begins with. Who calls is found out before anything else (Trust); what a caller may do is not
// distinguished, since a node answers gateways and operators only.
//
// Each service has a file of its own, and a line in Server.register.
package control

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
	"github.com/packhorse-git/packhorse/internal/storage"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// Options says what a port serves.
type Options struct {
	Node  *storage.Node // nil: there are no repositories here, but an Index
	Index Index         // answers searches; nil: none
	Pump  *bulk.Pump
	Lanes admit.Lanes
	// Memory is for what Git clients' requests take, beyond the first 64 KiB of each. Nil: 512 MiB.
	Memory *admit.Budget
	// Channels is this end of the side channels, which the port opens. Nil: long answers go inside the calls.
	Channels *sidechannel.Server
	Lookups  int // heavy look-ups that run at the same time; 0: two for each CPU
	Trust    Trust
	Metrics  *Metrics
	SLI      *sli.Set // nil: nothing is judged
	Log      *slog.Logger
	Board    *inflight.Board  // of calls that run; nil: nobody looks
	Tracer   *inflight.Tracer // nil: nothing is traced
	Ready    func() error     // of an Index without a Node: why it cannot be searched

	MaxRequest int64         // bytes of the request of a Git client; 0: 64 MiB
	RoadWait   time.Duration // how long a caller may take to name the road for a pack; 0: 10 s
	Stall      time.Duration // how long a caller may take for one part of a request or an answer, ten times that for all of a request; 0: a minute
}

const (
	defaultMaxRequest = 64 << 20
	defaultMemory     = 512 << 20
	defaultRoadWait   = 10 * time.Second
	defaultStall      = time.Minute
)

// maxMessage bounds a message that a caller sends, in bytes, once it is unpacked.
const maxMessage = 4 << 20

// Server is the handler of a node's port. Safe for concurrent use.
type Server struct {
	Options
	mux        *http.ServeMux
	errors     *connect.ErrorWriter
	health     *health
	slots      *balance.Slots // of heavy look-ups
	catalogues catalogues     // of an Index

	doors      chan struct{} // places of callers that were refused and have to wait for their answer
	strangers  *strangers
	complaints *complaints

	draining     atomic.Bool // see Drain
	callersKnown atomic.Bool // a gateway has told callers from one another

	ending context.Context // ends when the port is shut down: streams without an end of their own, watches, end with it
	end    context.CancelFunc
}

// New makes the handler.
func New(o Options) *Server {
	if o.MaxRequest == 0 {
		o.MaxRequest = defaultMaxRequest
	}
	if o.RoadWait == 0 {
		o.RoadWait = defaultRoadWait
	}
	if o.Stall == 0 {
		o.Stall = defaultStall
	}
	if o.Memory == nil {
		o.Memory = admit.NewBudget("requests", defaultMemory)
	}
	s := &Server{
		Options: o, mux: http.NewServeMux(), errors: connect.NewErrorWriter(), slots: newSlots(o.Lookups),
		doors: make(chan struct{}, maxWaiting), strangers: newStrangers(maxStrangers), complaints: newComplaints(o.Log),
	}
	s.Metrics.slots.Store(s.slots)
	s.ending, s.end = context.WithCancel(context.Background())
	s.register()
	return s
}

// publicServices are the services of a node that reflection describes.
var publicServices = []string{
	packhorsev1connect.ObjectServiceName,
	packhorsev1connect.RepositoryServiceName,
	packhorsev1connect.RefServiceName,
}

// Slots is where heavy look-ups wait.
func (s *Server) Slots() *balance.Slots { return s.slots }

// CallersKnown reports whether a gateway has told callers from one another.
func (s *Server) CallersKnown() bool { return s.callersKnown.Load() }

// register lists the services of the port.
func (s *Server) register() {
	options := connect.WithHandlerOptions(
		connect.WithReadMaxBytes(maxMessage),
		connect.WithInterceptors(&calls{s}),
		connect.WithCodec(protoCodec{}), connect.WithCodec(jsonCodec{jsonNames[0]}), connect.WithCodec(jsonCodec{jsonNames[1]}), gzipped(),
	)
	plain := connect.WithCompression("gzip", nil, nil) // packs are compressed, and blobs would cost ten times the CPU
	var public, internal []string
	ready := s.Ready
	if s.Index != nil {
		internal = append(internal, internalv1connect.SearchServiceName)
		s.mux.Handle(internalv1connect.NewSearchServiceHandler(searches{s}, options, plain))
	}
	if s.Node != nil {
		public, ready = publicServices, s.Node.Ready
		internal = append(internal, internalv1connect.NodeServiceName, internalv1connect.SessionServiceName)
		s.mux.Handle(packhorsev1connect.NewObjectServiceHandler(objects{s}, options, plain))
		s.mux.Handle(internalv1connect.NewSessionServiceHandler(&transfers{Server: s}, options, plain))
		s.mux.Handle(internalv1connect.NewNodeServiceHandler(nodeCalls{s}, options, plain))
		s.mux.Handle(packhorsev1connect.NewRepositoryServiceHandler(&repositories{s}, options))
		s.mux.Handle(packhorsev1connect.NewRefServiceHandler(&refs{s}, options))
	}
	s.health = newHealth(ready, slices.Concat(public, internal)...)
	s.mux.Handle(s.health.handler(s.ending, options))
	reflection(s.mux, append([]string{healthService}, public...), options)
}

// ServeHTTP answers callers that are trusted.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.draining.Load() && r.ProtoMajor == 1 { // in HTTP/2 a connection is ended by the shutdown, after the calls on it
		w.Header().Set("Connection", "close")
	}
	caller, err := s.Trust.identify(r)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if c := connectionOf(r); c != nil && !c.identified.Swap(true) {
		s.strangers.known(c.Conn)
	}
	// What a caller says of itself ends here: from now on the header holds what is known of it, and no secret.
	r.Header.Del("Authorization")
	r.Header.Set(callerHeader, caller)
	controller := http.NewResponseController(w)
	// Who pushes may count objects for long before the first byte; the gateway knows how long is too long.
	push := r.ProtoMajor == 2 && r.URL.Path == internalv1connect.SessionServiceReceivePackProcedure
	if r.Body != nil && r.Body != http.NoBody && !push {
		body := newImpatientBody(r, controller, s.Stall)
		defer body.end()
		r.Body = body
	}
	if s.Channels != nil && r.URL.Path == sidechannel.Path {
		s.Channels.Upgrade(w, r, caller)
		return
	}
	if err := checkQuery(r); err != nil {
		_ = s.errors.Write(w, r, connect.NewError(connect.CodeInvalidArgument, err))
		return
	}
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// As at the gateway: two lengths in one request, of which a proxy in front may have taken the other, smuggle no second one.
		w.Header().Set("Connection", "close")
	}
	if r.ProtoMajor == 2 {
		answer := newImpatient(w, controller, s.Stall)
		defer answer.limit.end()
		w = answer
	}
	s.mux.ServeHTTP(w, r)
}

// checkQuery finds what Connect would answer as an error of the node's own: a message in the URL that is not the base64 that it says it is.
func checkQuery(r *http.Request) error {
	if r.Method != http.MethodGet || r.URL.RawQuery == "" {
		return nil
	}
	query := r.URL.Query()
	if query.Get("base64") != "1" {
		return nil
	}
	encoding, message := base64.RawURLEncoding, query.Get("message")
	if len(message)%4 == 0 { // as Connect finds out whether it is padded
		encoding = base64.URLEncoding
	}
	if _, err := encoding.DecodeString(message); err != nil {
		return fmt.Errorf("the message is not in base64url: %w", err)
	}
	return nil
}

// callerHeader is where the services find who calls. Whatever a caller sends under this name is overwritten.
const callerHeader = "Packhorse-Caller"

// HTTPServer makes the server for the port's listeners, which are made by bulk.Listen, below TLS if there is any (then with the
// protocols "h2" and "http/1.1").
func (s *Server) HTTPServer() *http.Server {
	h := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		Protocols:         new(http.Protocols),
		ConnContext:       s.strangers.come,
		ConnState:         s.strangers.gone,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connectionWindow,
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingTimeout,
		},
	}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(true)
	h.Protocols.SetUnencryptedHTTP2(true)
	h.RegisterOnShutdown(s.end)
	return h
}

// Drain makes the health service say that no more calls should come. They are answered as before, and those of HTTP/1.1 end their connection.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.health.drain()
}

// A connection that is silent for pingAfter is asked for a sign of life, and closed if none comes within pingTimeout: the calls of a
// gateway that was stopped or cut off end.
const (
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
)

// idleLimit is how long a connection may stay open without a call. One of HTTP/1.1 has no signs of life: this is when a caller that was cut off
// is forgotten.
const idleLimit = 30 * time.Second

// How much of what callers send waits here to be read, in bytes. A connection's share is 256 streams': calls that are slow to read do not
// stop the others.
const (
	streamWindow     = 256 << 10
	connectionWindow = 64 << 20
)

// maxStreams is how many calls one connection carries; a gateway with more opens another.
const maxStreams = 1000
