// Package gateway listens, finds out what a request is about, and relays it to the node that holds the repository.
//
// It speaks Git's smart HTTP protocol (gitprotocol-http(5)). It owns no repository: a node is whatever has the methods of
// Node, and a Router says which one is asked. It is the one place where a fault becomes an HTTP status or an ERR packet.
package gateway

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/httpguard"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
	"github.com/packhorse-git/packhorse/internal/origin"
	"github.com/packhorse-git/packhorse/internal/resolve"
	"github.com/packhorse-git/packhorse/internal/router"
)

// Options says how the gateway serves.
type Options struct {
	Router  *router.Router
	Auth    Auth           // nil: everybody may read, and nobody push
	Proxies origin.Proxies // whose word is taken for who the client is
	Pump    *bulk.Pump
	Lanes   admit.Lanes
	Memory  *admit.Budget // bytes of requests that are longer than readFirst
	Metrics *Metrics
	SLI     *sli.Set // nil: nothing is judged
	Log     *slog.Logger
	Board   *inflight.Board  // of requests that run; nil: nobody looks
	Tracer  *inflight.Tracer // nil: nothing is traced
	Pages   Pages            // nil: none
	// Application answers what is left over; nil: there is none, and that is not found.
	Application Application
	// Resolver answers what revisions name; nil: nobody does.
	Resolver resolve.Resolver
	// Changed, unless nil, is told that a push may have changed a repository's refs, before its client is. It returns soon.
	Changed func(git.RepoPath)

	MaxBody   int64         // bytes of a request's body once it is unpacked
	ReadStall time.Duration // how long a client may send nothing of a body
	MaxPush   int64         // bytes of a push's pack; 0: no limit
	PushTime  time.Duration // how long a push's body may take; 0: a day
}

// HTTP is the handler for smart HTTP.
type HTTP struct {
	Options
	waiters  *waiters
	draining atomic.Bool
}

// NewHTTP makes the handler.
func NewHTTP(o Options) *HTTP { return &HTTP{Options: o, waiters: newWaiters()} }

// Drain tells clients with each answer from now on that their connection ends after it, so that they send their next request elsewhere.
func (h *HTTP) Drain() { h.draining.Store(true) }

// Listen makes a TCP listener's connections ones that can be copied to by the kernel; whatever wraps them turns that off.
func (h *HTTP) Listen(l net.Listener, writeStall time.Duration) net.Listener {
	return bulk.Listen(l, h.Pump, writeStall)
}

const (
	typeRequest = "application/x-git-upload-pack-request"
	typeResult  = "application/x-git-upload-pack-result"
)

// ServeHTTP answers one request and writes its line into the log.
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, running := h.Board.Begin(r.Context(), string(opOther), "")
	defer running.End()
	e := &exchange{call: call{Options: &h.Options, running: running, start: time.Now(), op: opOther}, waiters: h.waiters, draining: &h.draining, w: w, r: r}
	e.findOrigin()
	running.Is("", "", hostOf(r.RemoteAddr))
	e.ctx, e.span = h.Tracer.FromAnybody(ctx, r.Header)
	defer e.done()
	e.limitBody()
	e.serve()
}

// exchange is one request and its answer.
type exchange struct {
	call
	waiters  *waiters
	draining *atomic.Bool // see HTTP.Drain
	w        http.ResponseWriter
	r        *http.Request // its RemoteAddr is the client's
	from     origin.Origin
	peer     string // the address of the proxy that the request came by; "": none

	who   balance.Caller // see caller; "": was not asked for
	whoIs string         // the name that who is of

	reply   *reply   // nil until a session began
	visitor *Visitor // nil until a page is asked for
	app     struct { // of the application's
		writer appWriter
		served Served
	}
	isLFS  bool // errors are documents of Git LFS
	status int  // 0 until the header is sent
	abort  bool // what was sent must not look like a whole answer
}

// findOrigin finds out who the client is, and has everything that looks at the request's RemoteAddr see the client, and not the proxy.
func (e *exchange) findOrigin() {
	if e.from = e.Proxies.Of(e.r); len(e.from.Hops) > 0 {
		e.peer, e.r.RemoteAddr = e.r.RemoteAddr, netip.AddrPortFrom(e.from.Client, 0).String()
	}
}

// client is the client's address, for logs: with its port where that is known.
func (e *exchange) client() string { return strings.TrimSuffix(e.r.RemoteAddr, ":0") }

// dumbPaths are what a client of the dumb protocol asks for below a repository.
var dumbPaths = []string{"/HEAD", "/objects/", "/info/", "/refs/"}

// closeIfDraining has the connection closed after the answer while the server drains.
func (e *exchange) closeIfDraining() {
	if e.draining.Load() {
		e.w.Header().Set("Connection", "close")
	}
}

func (e *exchange) serve() {
	e.closeIfDraining() // answers of the application do not begin here
	header := e.w.Header()
	if !e.r.ProtoAtLeast(1, 1) || len(e.r.TransferEncoding) > 0 {
		// What two servers could understand in two ways is refused (httpguard). Of what is left, chunks and HTTP/1.0 are what proxies have
		// trouble with most: nothing behind them is answered, in case that one did take something else for the end (RFC 9112, section 6.1).
		header.Set("Connection", "close")
	}
	path := e.r.URL.Path
	if e.forApplication(path) {
		e.application()
		return
	}
	header.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	header.Set("Expires", "Fri, 01 Jan 1980 00:00:00 GMT")
	header.Set("Pragma", "no-cache")
	switch {
	case path == waitPath:
		e.wait()
	case path == resolvePath && e.Resolver != nil:
		e.resolve()
	case e.Pages != nil && e.isPage(path):
		e.page(path)
	case e.Pages != nil && e.isSrcLink():
		e.srcLink()
	case strings.HasPrefix(path, "/-/") || path == "/-":
		e.refuse(http.StatusNotFound, "nothing here; metrics and health are on the private listener")
	case path == "/":
		e.refuse(http.StatusNotFound, "this is a Git server: name a repository, as in git clone "+e.url("team/app"))
	case strings.HasSuffix(path, "/info/refs"):
		e.infoRefs(strings.TrimSuffix(path, "/info/refs"))
	case strings.HasSuffix(path, "/git-upload-pack"):
		e.uploadPack(strings.TrimSuffix(path, "/git-upload-pack"))
	case strings.HasSuffix(path, "/git-receive-pack"):
		e.receivePack(strings.TrimSuffix(path, "/git-receive-pack"))
	default:
		if repo, ok := lfsRepository(path); ok {
			e.noLFS(repo)
			return
		}
		for _, dumb := range dumbPaths {
			if strings.Contains(path, dumb) || strings.HasSuffix(path, dumb) {
				e.refuse(http.StatusForbidden, "the dumb HTTP protocol is not served; use a git client that speaks smart HTTP")
				return
			}
		}
		e.refuse(http.StatusNotFound, "not found; clone a repository by its path, as in git clone "+e.url("team/app"))
	}
}

// url is an example of how this server is reached, for messages.
func (e *exchange) url(path string) string {
	scheme := "http"
	if e.from.HTTPS {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: cmp.Or(e.from.Host, e.r.Host), Path: "/" + path}).String()
}

// method refuses other methods than the one that the resource has.
func (e *exchange) method(allowed string) bool {
	if e.r.Method == allowed || allowed == http.MethodGet && e.r.Method == http.MethodHead {
		return true
	}
	e.w.Header().Set("Allow", allowed)
	e.refuse(http.StatusMethodNotAllowed, "use "+allowed)
	return false
}

func (e *exchange) repository(path string) bool {
	repo, err := git.ParseRepoPath(path)
	if err != nil {
		e.refuse(http.StatusNotFound, "no such repository: "+err.Error())
		return false
	}
	if auth.HoldsToken(path) { // it would be in the logs of nodes, too
		e.refuse(http.StatusNotFound, "no such repository: there is a token in its path; revoke it, and give the new one as the password")
		return false
	}
	e.repo = repo
	return true
}

// infoRefs answers the first request of a session (gitprotocol-http(5), "Discovering References").
func (e *exchange) infoRefs(path string) {
	if !e.method(http.MethodGet) || !e.repository(path) {
		return
	}
	e.op = opAdvertise
	query, err := url.ParseQuery(e.r.URL.RawQuery)
	if err != nil {
		e.refuse(http.StatusBadRequest, "bad query")
		return
	}
	switch service := protocol.Service(query.Get("service")); service {
	case protocol.UploadPack:
		e.advertise(service, auth.Read)
	case protocol.ReceivePack:
		e.push = true
		e.advertise(service, auth.Write)
	case "":
		e.refuse(http.StatusForbidden, "the dumb HTTP protocol is not served; use a git client that speaks smart HTTP")
	default:
		e.refuse(http.StatusForbidden, "unknown service; git-upload-pack and git-receive-pack are served")
	}
}

// advertise begins a session of a service for callers who may do what it is for.
func (e *exchange) advertise(service protocol.Service, op auth.Operation) {
	if !e.may(op) {
		return
	}
	seat, err := e.Lanes.Small.Enter(e.caller())
	if err != nil {
		e.fail(err)
		return
	}
	seat.Stay()
	e.w.Header().Set("Content-Type", "application/x-"+string(service)+"-advertisement")
	e.reply = newReply(e, seat, &body{ended: true})
	defer seat.Leave()
	session := e.session()
	session.Service = service
	// Git leaves the line away in version 2 of fetches. Of pushes there is none: clients that ask for it could not make sense of the rest without.
	if session.Version != protocol.V2 || service == protocol.ReceivePack {
		e.reply.before = pktline.AppendFlush(pktline.AppendLine(nil, "# service="+string(service)))
	}
	e.relay(e.reply, func(n router.Node) (node.Outcome, error) {
		return n.Advertise(e.ctx, e.repo, session, e.reply)
	})
	e.finish()
}

// session tells how the client speaks.
func (e *exchange) session() node.Session {
	return node.Session{
		Version: protocol.ParseVersion(e.r.Header.Get("Git-Protocol")), Stateless: true, Caller: string(e.caller()),
		Reachable: e.reachable,
	}
}

// caller is whom the request counts for. It is known once may has been asked.
func (e *exchange) caller() balance.Caller {
	if e.who == "" || e.whoIs != e.id.Name {
		e.who, e.whoIs = e.Lanes.CallerOf(e.id.Name, e.r.RemoteAddr), e.id.Name
	}
	return e.who
}

// uploadPack answers a request that follows the advertisement.
func (e *exchange) uploadPack(path string) {
	if !e.method(http.MethodPost) || !e.repository(path) {
		return
	}
	e.op = opFetch
	if ct := e.r.Header.Get("Content-Type"); ct != typeRequest {
		e.refuse(http.StatusUnsupportedMediaType, "bad content type; a git client sends "+typeRequest)
		return
	}
	if !e.may(auth.Read) {
		return
	}
	// The body comes before the lane: clients that send slowly must not fill it.
	body, err := e.body()
	if err != nil {
		e.fail(err)
		return
	}
	defer body.Close()
	seat, err := e.Lanes.Small.Enter(e.caller())
	if err != nil {
		e.fail(err)
		return
	}
	e.w.Header().Set("Content-Type", typeResult)
	e.reply = newReply(e, seat, body)
	defer seat.Leave()
	e.relay(e.reply, func(n router.Node) (node.Outcome, error) {
		return n.UploadPack(e.ctx, e.repo, e.session(), body, e.reply)
	})
	e.op = opOf(e.outcome.Command)
	e.finish()
}

// finish ends an answer after a node is through with it.
func (e *exchange) finish() {
	if e.err == nil {
		e.err = e.reply.commit()
	}
	if e.reply.body.broken != nil {
		e.err = e.reply.body.broken
	}
	if e.err == nil {
		return
	}
	if !e.reply.begun {
		e.fail(e.err)
		return
	}
	_, told := errors.AsType[*node.ReportedError](e.err)
	if _, announced := e.bytes.Announced(); told && !announced {
		return
	}
	// What was sent is no whole answer, and must not look like one: cut the connection instead of ending the body.
	e.abort = true
}

// fail renders an error that comes before the answer began: a status, or an ERR packet for what is wrong with a request that was understood.
func (e *exchange) fail(err error) {
	e.err = err
	kind := fault.KindOf(err)
	status := e.advise(err)
	e.w.Header().Del("Content-Length")
	if bad := httpguard.RefusedIn(e.r.Context()); bad != nil { // whatever protocol the request is of, it is none of HTTP's
		e.malformed(bad)
		return
	}
	session := e.op != opAdvertise && e.op != opPush && e.op != opWait && e.op != opResolve && e.op != opSearch && e.op != opPage && e.op != opOther
	inside := e.outcome.Command != "" // the request was understood
	if session && (kind == fault.Invalid || inside && (kind == fault.Denied || kind == fault.NotFound || kind == fault.Corrupt || kind == fault.Internal)) {
		e.tell(err)
		return
	}
	e.text(status, fault.Message(err))
}

// malformed answers a request whose body was refused.
func (e *exchange) malformed(bad *httpguard.Refusal) {
	e.err = bad
	e.w.Header().Set("Connection", "close")
	e.text(bad.Status, bad.Error())
}

// advise sets the headers that tell a client what to do about an error, and gives its status.
func (e *exchange) advise(err error) (status int) {
	status = statusOf(fault.KindOf(err))
	after := fault.RetryAfter(err)
	if after > 0 || status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		e.w.Header().Set("Retry-After", fault.RetryHeader(after))
	}
	if status == http.StatusUnauthorized {
		e.challenge()
	}
	return status
}

// tell answers a session's request with an ERR packet. Git prints its message; of a status it prints the number only.
func (e *exchange) tell(err error) {
	e.err = err
	e.answer(typeResult, protocol.AppendError(nil, fault.Message(err)))
}

// statusOf is the one table from kinds to HTTP.
func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Denied:
		return http.StatusForbidden
	case fault.Unauthenticated:
		return http.StatusUnauthorized
	case fault.Exists:
		return http.StatusConflict
	case fault.Exhausted:
		return http.StatusTooManyRequests
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Deadline:
		return http.StatusGatewayTimeout
	case fault.Cancelled:
		return statusClientClosed
	}
	return http.StatusInternalServerError
}

// statusClientClosed is what the log says where the client went away; nobody receives it.
const statusClientClosed = 499

// refuse answers a request that never reached a session.
func (e *exchange) refuse(status int, message string) {
	e.err = fault.New(fault.Invalid, "%s", message)
	e.text(status, message)
}

// text sends a message that git shows as a remote's.
func (e *exchange) text(status int, message string) {
	if e.op == opSearch && e.wantsEvents() {
		e.failEvents(status, message)
		return
	}
	if e.isLFS {
		e.lfsError(status, message)
		return
	}
	e.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	e.w.Header().Set("X-Content-Type-Options", "nosniff")
	e.begin(status)
	e.write([]byte(message + "\n"))
}

// answer sends a short answer whole.
func (e *exchange) answer(contentType string, p []byte) {
	e.w.Header().Set("Content-Type", contentType)
	e.begin(http.StatusOK)
	e.write(p)
}

func (e *exchange) write(p []byte) {
	n, err := e.w.Write(p)
	e.sent(n)
	if e.err == nil {
		e.err = err
	}
}

func (e *exchange) begin(status int) {
	e.status = status
	e.closeIfDraining()
	e.running.At(inflight.Sending)
	e.w.WriteHeader(status)
}
