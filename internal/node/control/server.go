// Package control serves a node's port: the control API (proto/packhorse/v1) for gateways and programs, and the upgrade
// to side channels.
//
// One port serves everything. Callers use HTTP/2 with or without TLS for gRPC and Connect. HTTP/1.1 works for unary
// calls, for example with curl, and starts a side channel. Each caller is identified first (Trust). All trusted callers
// may do everything, because only gateways and operators call a node.
//
// Each service has its own file, and a line in Server.register.
package control

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// Options configure a Server.
type Options struct {
	Node *storage.Node // nil: the process has an Index instead of repositories
	// Sessions answers requests of Git and Git LFS. Nil means Node.
	Sessions node.Sessions
	// Access answers calls about tokens and rules. Nil: there are no such services.
	Access   Access
	Store    Store          // has the node's repositories; nil: they are on this machine only
	Events   event.Log      // of the Node's repositories; nil: EventService is not served
	Webhooks *webhook.Hooks // nil: WebhookService is not served
	Index    Index          // serves searches; may be nil
	// Admin does the work of commands; nil except on the admin socket.
	Admin internalv1connect.AdminServiceHandler
	Pump  *bulk.Pump
	Lanes admit.Lanes
	// Memory is the budget for the requests of Git clients beyond the first 64 KiB of each. Nil means 512 MiB.
	Memory *admit.Budget
	// Channels has the side channels of the port. Nil: long responses are sent in the calls.
	Channels *sidechannel.Server
	// Mentions lists the rules, tokens and webhooks of this process that name a repository by its path before it was
	// renamed, and not by the new one. Nil: there are none.
	Mentions   func(from, to git.RepoPath) []string
	Lookups    int // maximum number of concurrent heavy look-ups. Zero means two for each CPU.
	Trust      Trust
	Registerer prometheus.Registerer // of metrics; may be nil
	SLI        *inflight.Levels      // nil: not recorded
	Log        *slog.Logger
	Board      *inflight.Board  // of the running calls; may be nil
	Tracer     *inflight.Tracer // nil: not traced
	Ready      func() error     // returns why an Index without a Node cannot be searched

	MaxRequest   int64         // maximum size of a Git client's request in bytes. Zero means 64 MiB.
	DataPathWait time.Duration // timeout for the choice of the data path. Zero means 10 s.
	// timeout for one read or write; ten times that for the whole request. Zero means one minute.
	Stall time.Duration
}

const (
	defaultMaxRequest   = 64 << 20
	defaultMemory       = 512 << 20
	defaultDataPathWait = 10 * time.Second
	defaultStall        = time.Minute
)

// maxMessage is the maximum size of a received message in bytes, after decompression.
const maxMessage = 4 << 20

// maxCommit is the maximum size of a message of CommitService: a document of 8 MiB, in which JSON escapes a part.
const maxCommit = 9 << 20

// maxAccess is the maximum size of a change of the access log with its checkpoint.
const maxAccess = 16 << 20

// Server is the handler of a node's port. It is safe for concurrent use.
type Server struct {
	Options
	metrics *metrics
	mux     *http.ServeMux
	errors  *connect.ErrorWriter
	health  *health
	slots   *balance.Slots   // of heavy look-ups
	work    *balance.Slots   // of merges, diffs and other calls that compute, see enterWork
	lists   *repositoryLists // of an Index

	delays       chan struct{} // places for delayed responses to refused callers
	unidentified *unidentifiedConns
	refusals     *clients.LogLimit

	callersKnown atomic.Bool // a gateway has named the callers of its requests

	ending context.Context // ends when the port shuts down, and ends watches and waits
	end    context.CancelFunc
}

// New creates a Server.
func New(o Options) *Server {
	if o.MaxRequest == 0 {
		o.MaxRequest = defaultMaxRequest
	}
	if o.DataPathWait == 0 {
		o.DataPathWait = defaultDataPathWait
	}
	if o.Stall == 0 {
		o.Stall = defaultStall
	}
	if o.Memory == nil {
		o.Memory = admit.NewBudget("requests", defaultMemory)
	}
	if o.Sessions == nil && o.Node != nil {
		o.Sessions = o.Node
	}
	s := &Server{
		Options: o, metrics: newMetrics(o.Registerer), mux: http.NewServeMux(),
		errors: connect.NewErrorWriter(), slots: newSlots(o.Lookups), work: newSlots(0),
		delays: make(chan struct{}, maxWaiting), unidentified: newUnidentified(maxUnidentified),
		refusals: clients.NewLogLimit(1, refusalInterval), lists: newRepositoryLists(),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.register()
	return s
}

// Slots returns the slots of heavy look-ups.
func (s *Server) Slots() *balance.Slots { return s.slots }

// CallersKnown reports whether a gateway has named the callers of its requests.
func (s *Server) CallersKnown() bool { return s.callersKnown.Load() }

// register registers the services.
func (s *Server) register() {
	options := connect.WithHandlerOptions(
		connect.WithReadMaxBytes(maxMessage),
		connect.WithInterceptors(&interceptor{s}),
		connect.WithCodec(protoCodec{}), connect.WithCodec(jsonCodec{jsonNames[0]}),
		connect.WithCodec(jsonCodec{jsonNames[1]}), gzipped(),
	)
	// packs are compressed already, and blobs would need ten times the CPU time
	plain := connect.WithCompression("gzip", nil, nil)
	var services []string // that have a state of health
	handle := func(path string, service http.Handler) {
		services = append(services, strings.Trim(path, "/"))
		s.mux.Handle(path, service)
	}
	ready := s.Ready
	if s.Index != nil {
		handle(internalv1connect.NewSearchServiceHandler(searchService{s}, options, plain))
	}
	if s.Node != nil {
		ready = s.Node.Ready
		handle(packhorsev1connect.NewObjectServiceHandler(objectService{s}, options, plain))
		handle(internalv1connect.NewSessionServiceHandler(&sessionService{Server: s}, options, plain))
		handle(internalv1connect.NewNodeServiceHandler(nodeService{s}, options, plain))
		handle(internalv1connect.NewLFSServiceHandler(&lfsService{s}, options, plain))
		handle(internalv1connect.NewAccessServiceHandler(accessService{s}, options,
			connect.WithReadMaxBytes(maxAccess)))
		handle(packhorsev1connect.NewRepositoryServiceHandler(&repositoryService{s}, options))
		handle(packhorsev1connect.NewRefServiceHandler(&refService{s}, options))
		handle(packhorsev1connect.NewCommitServiceHandler(&commitService{Server: s}, options,
			connect.WithReadMaxBytes(maxCommit)))
		handle(packhorsev1connect.NewMergeServiceHandler(&mergeService{Server: s}, options))
		handle(packhorsev1connect.NewDiffServiceHandler(&diffService{Server: s}, options))
		handle(packhorsev1connect.NewHistoryServiceHandler(&historyService{Server: s}, options))
		handle(packhorsev1connect.NewArchiveServiceHandler(&archiveService{s}, options, plain))
	}
	if s.Events != nil {
		handle(packhorsev1connect.NewEventServiceHandler(eventService{s}, options))
	}
	if s.Access != nil {
		handle(packhorsev1connect.NewTokenServiceHandler(s.Access, options))
		handle(packhorsev1connect.NewRuleServiceHandler(s.Access, options))
	}
	if s.Webhooks != nil {
		handle(packhorsev1connect.NewWebhookServiceHandler(webhookService{s}, options))
	}
	if s.Admin != nil {
		handle(internalv1connect.NewAdminServiceHandler(s.Admin, options, plain))
	}
	s.health = newHealth(ready, services...)
	if s.Store != nil {
		s.health.store = s.Store.StoreID()
	}
	s.mux.Handle(s.health.handler(options))
}

// ServeHTTP serves trusted callers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.health.draining.Load() && r.ProtoMajor == 1 { // HTTP/2 connections end with the shutdown, after their calls
		w.Header().Set("Connection", "close")
	}
	caller, err := s.Trust.identify(r)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if c := connectionOf(r); c != nil && !c.identified.Swap(true) {
		s.unidentified.remove(c.Conn)
	}
	// From here on the header has the identified caller, and no secret.
	r.Header.Del("Authorization")
	r.Header.Set(callerHeader, caller)
	controller := http.NewResponseController(w)
	// A client can count objects for long before it sends the first byte of a push. The gateway has the timeout, also of
	// an upload.
	isPush := r.ProtoMajor == 2 && (r.URL.Path == internalv1connect.SessionServiceReceivePackProcedure ||
		r.URL.Path == internalv1connect.LFSServiceUploadProcedure)
	if r.Body != nil && r.Body != http.NoBody && !isPush {
		body := newTimedBody(r, controller, s.Stall)
		defer body.end()
		r.Body = body
	}
	if s.Channels != nil && r.URL.Path == sidechannel.Path {
		s.Channels.Upgrade(w, r, caller)
		return
	}
	inLines, status, text := checkType(r)
	if status != 0 {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, text, status)
		return
	}
	if err := checkQuery(r); err != nil {
		_ = s.errors.Write(w, r, connect.NewError(connect.CodeInvalidArgument, err))
		return
	}
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// A request with two lengths, of which a proxy may use the other one, must not smuggle a second request.
		w.Header().Set("Connection", "close")
	}
	if r.ProtoMajor == 2 {
		timed := newTimedResponse(w, controller, s.Stall)
		defer timed.limit.end()
		w = timed
	}
	if inLines {
		s.serveLines(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// checkType returns a status and a text for requests whose method or content type cannot be that of a call. Connect
// refuses them without a text. The status is 0 for others. inLines is set for a stream whose response is JSON lines.
func checkType(r *http.Request) (inLines bool, status int, text string) {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	kind = strings.TrimSpace(kind)
	if strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+") {
		return false, 0, ""
	}
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(r.URL.Path, "/"), "/", "."))
	found, _ := protoregistry.GlobalFiles.FindDescriptorByName(name)
	method, ok := found.(protoreflect.MethodDescriptor)
	switch {
	case !ok:
	case r.Method == http.MethodPost && kind == "application/json" && method.IsStreamingServer():
		return true, 0, ""
	case method.IsStreamingServer() || method.IsStreamingClient():
		status = http.StatusUnsupportedMediaType
		if r.Method != http.MethodPost {
			status = http.StatusMethodNotAllowed
		}
		return false, status, fmt.Sprintf("%s is a stream: send one message as application/json, as curl --json does, "+
			"and get JSON lines; or use grpcurl -plaintext -d JSON %s %s", method.Name(), cmp.Or(r.Host, "HOST:PORT"),
			r.URL.Path[1:])
	case r.Method == http.MethodPost && kind != "application/json" && kind != "application/proto":
		return false, http.StatusUnsupportedMediaType,
			fmt.Sprintf("content type %.80q: send JSON as application/json, as curl --json does", kind)
	}
	return false, 0, ""
}

// checkQuery refuses invalid base64 in the URL, which Connect would report as an internal error.
func checkQuery(r *http.Request) error {
	if r.Method != http.MethodGet || r.URL.RawQuery == "" {
		return nil
	}
	query := r.URL.Query()
	if query.Get("base64") != "1" {
		return nil
	}
	encoding, message := base64.RawURLEncoding, query.Get("message")
	if len(message)%4 == 0 { // as Connect does
		encoding = base64.URLEncoding
	}
	if _, err := encoding.DecodeString(message); err != nil {
		return fmt.Errorf("invalid message: want base64url: %w", err)
	}
	return nil
}

// callerHeader is the header with the identified caller. The value that the caller sends is overwritten.
const callerHeader = "Packhorse-Caller"

// HTTPServer creates the server for listeners of bulk.Listen. If they use TLS, its protocols are "h2" and "http/1.1".
func (s *Server) HTTPServer() *http.Server {
	h := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		Protocols:         new(http.Protocols),
		ConnContext:       s.unidentified.connContext,
		ConnState:         s.unidentified.connState,
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

// Drain changes the health service to NOT_SERVING. Calls are served as before, but those of HTTP/1.1 close their
// connections.
func (s *Server) Drain() {
	s.health.draining.Store(true)
}

// A connection that is silent for pingAfter gets a ping, and is closed without a response within pingTimeout. So the
// calls of an unreachable gateway end.
const (
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
)

// idleLimit is the timeout of a connection without calls. HTTP/1.1 has no pings, so this also ends connections of
// unreachable callers.
const idleLimit = 30 * time.Second

// Limits of received data that is not read yet, in bytes. A connection has room for 256 streams, so that slow calls do
// not block the others.
const (
	streamWindow     = 256 << 10
	connectionWindow = 64 << 20
)

// maxStreams is the maximum number of calls on one connection. Gateways open more connections.
const maxStreams = 1000
