// Package githttp is the front end for HTTP: Git's smart HTTP protocol (gitprotocol-http(5)), the APIs below /-/api/,
// and the paths that belong to web pages or to an application. It is the one place where the kind of a fault becomes an
// HTTP status or an ERR packet.
package githttp

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/gateway/web/crawl"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// Options configures a Handler.
type Options struct {
	*gateway.Gateway
	Proxies     clients.Proxies // trusted to name the client
	Pages       Pages           // nil: there are none
	Sessions    Sessions        // of visitors of pages; nil: no sessions
	Gate        *crawl.Gate     // for archives of anonymous callers; nil: no limit
	Hooks       Hooks           // nil: there are none
	API         bool            // the API of repositories is served
	Access      *auth.Service   // answers calls about tokens and rules; nil: they are not served
	CORSOrigins []string        // of scripts in browsers that may use Git; "*" alone: all origins
	Application Application     // answers all paths that are neither Git's nor the gateway's; nil: they are not found
}

// Handler serves HTTP requests.
type Handler struct {
	Options
	waiters  *waiters
	streams  *waiters // of events
	draining atomic.Bool
}

// New makes a Handler.
func New(o Options) *Handler {
	return &Handler{Options: o, waiters: newWaiters(maxWaiters, maxCallerWaiters, maxAnonymousWaiters, tooManyWaiters),
		streams: newWaiters(maxStreams, maxCallerStreams, maxStreams/2, tooManyStreams)}
}

// Drain closes each client's connection after its next response, so that the client connects elsewhere.
func (h *Handler) Drain() { h.draining.Store(true) }

// Listen returns a listener whose connections the kernel can copy files to. A wrapper around them prevents that.
func (h *Handler) Listen(l net.Listener, writeStall time.Duration) net.Listener {
	return bulk.Listen(l, h.Pump, writeStall)
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{handler: h, w: w, r: r}
	q.findOrigin()
	q.Request = h.Begin(r.Context(), gateway.Other, r.RemoteAddr, r.Header)
	defer q.cut()
	defer q.End(q)
	q.limitBody()
	q.serve()
}

// Refused counts and logs a connection that the guard refused (package httpguard).
func (h *Handler) Refused(client net.Addr, why *httpguard.Refusal) {
	q := &refusedRequest{h.Begin(context.Background(), gateway.Other, client.String(), nil), why}
	q.Err, q.Status, q.Result = why, why.Status, fault.Invalid.String()
	q.End(q)
}

// request is one request and its response.
type request struct {
	gateway.Request
	handler *Handler
	w       http.ResponseWriter
	r       *http.Request // its RemoteAddr is the client's
	from    clients.Source
	peer    string // address of the proxy that forwarded the request; "": none

	visitor *Visitor    // nil until a page is requested
	served  *Served     // by the application; nil: it was not asked
	lfs     *lfsRequest // nil: it is not a request of Git LFS
	aborted bool        // the response must not look complete
}

// findOrigin determines the client's address and makes it the request's RemoteAddr.
func (q *request) findOrigin() {
	if q.from = q.handler.Proxies.Of(q.r); len(q.from.Hops) > 0 {
		q.peer, q.r.RemoteAddr = q.r.RemoteAddr, netip.AddrPortFrom(q.from.Client, 0).String()
	}
}

// abort marks the response as incomplete: its connection is cut instead of ending the body.
func (q *request) abort() {
	q.aborted = true
	if httpguard.RefusedIn(q.r.Context()) != nil {
		q.Result = fault.Invalid.String() // that is why it failed, whatever the error says
	}
}

// cut cuts the connection if the response is not complete.
func (q *request) cut() {
	if q.aborted {
		if !q.r.ProtoAtLeast(1, 1) {
			bulk.Reset(q.w)
		}
		panic(http.ErrAbortHandler)
	}
}

// closeIfDraining closes the connection after the response while the server drains.
func (q *request) closeIfDraining() {
	if q.handler.draining.Load() {
		q.w.Header().Set("Connection", "close")
	}
}

// dumbPaths are parts of the paths that a client of the dumb protocol requests.
var dumbPaths = []string{"/HEAD", "/objects/", "/info/", "/refs/"}

const noDumbProtocol = "the dumb HTTP protocol is not supported; use a git client that supports smart HTTP"

// isDumb reports whether a client of the dumb protocol requests a path.
func isDumb(path string) bool {
	return slices.ContainsFunc(dumbPaths, func(part string) bool { return strings.Contains(path, part) })
}

// serve selects the handler for the request's path.
func (q *request) serve() {
	q.closeIfDraining() // the application's responses do not pass through begin
	header := q.w.Header()
	if !q.r.ProtoAtLeast(1, 1) || len(q.r.TransferEncoding) > 0 {
		// httpguard refuses what two servers could parse differently. Of the rest, proxies have most trouble with
		// chunks and HTTP/1.0. In case a proxy found another end of the request, nothing behind it is answered (RFC
		// 9112, section 6.1).
		header.Set("Connection", "close")
	}
	path := q.r.URL.Path
	if q.forApplication(path) {
		q.application()
		return
	}
	header.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	header.Set("Expires", "Fri, 01 Jan 1980 00:00:00 GMT")
	header.Set("Pragma", "no-cache")
	switch {
	case path == waitPath:
		q.wait()
	case path == resolvePath && q.Resolver != nil:
		q.resolve()
	case q.handler.API && strings.HasPrefix(path+"/", rest.Prefix):
		q.api()
	case q.handler.API && path == rest.OpenAPIPath:
		q.openAPI()
	case q.handler.API && q.handler.Access != nil && rest.IsServer(path):
		q.manage(strings.TrimPrefix(path, rest.ServerPrefix))
	case strings.HasPrefix(path, hooksPath) && q.handler.Hooks != nil && q.handler.Hooks.Accepts(path[len(hooksPath):]):
		q.hook(path[len(hooksPath):])
	case q.handler.Pages != nil && q.isPage(path):
		q.page(path)
	case q.handler.Pages != nil && q.isSrcLink():
		q.srcLink()
	case strings.HasPrefix(path, "/-/") || path == "/-":
		q.refuse(http.StatusNotFound, "nothing here; metrics and health are on the private listener")
	case path == "/":
		q.refuse(http.StatusNotFound, "this is a Git server: name a repository, as in git clone "+q.url("team/app"))
	default:
		q.git(path)
	}
}

// git answers a request for a repository.
func (q *request) git(path string) {
	if q.handler.Pages != nil && q.isPageBelow(path) {
		q.page(path)
		return
	}
	if q.cors(path) {
		return
	}
	switch {
	case strings.HasSuffix(path, "/info/refs"):
		q.infoRefs(strings.TrimSuffix(path, "/info/refs"))
	case strings.HasSuffix(path, "/git-upload-pack"):
		q.uploadPack(strings.TrimSuffix(path, "/git-upload-pack"))
	case strings.HasSuffix(path, "/git-receive-pack"):
		q.receivePack(strings.TrimSuffix(path, "/git-receive-pack"))
	case strings.Contains(path, archivePath):
		repo, name, _ := strings.Cut(path, archivePath)
		q.archive(repo, name)
	case strings.Contains(path, "/-/") && !strings.HasPrefix(path, "//") && q.handler.Pages != nil:
		q.page(path)
	default:
		q.notFound(path)
	}
}

// notFound refuses a request for anything else.
func (q *request) notFound(path string) {
	if repo, rest, ok := lfsRepository(path); ok {
		q.serveLFS(repo, rest)
		return
	}
	if q.isPageOfRepository(path) {
		q.page(path) // the same whether a repository exists or not
		return
	}
	if isDumb(path) {
		q.refuse(http.StatusForbidden, noDumbProtocol)
		return
	}
	q.refuse(http.StatusNotFound, "not found; clone a repository by its path, as in git clone "+q.url("team/app"))
}

// url returns an example URL of this server for messages.
func (q *request) url(path string) string {
	scheme := "http"
	if q.from.HTTPS {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: cmp.Or(q.from.Host, q.r.Host), Path: "/" + path}).String()
}

// method reports whether the request has the one allowed method, and refuses it otherwise.
func (q *request) method(allowed string) bool {
	if q.r.Method == allowed || allowed == http.MethodGet && q.r.Method == http.MethodHead {
		return true
	}
	q.w.Header().Set("Allow", allowed)
	q.refuse(http.StatusMethodNotAllowed, "use "+allowed)
	return false
}

// repository sets the request's repository, and refuses the request if there can be none at that path.
func (q *request) repository(path string) bool {
	repo, err := gateway.ParseRepo(path)
	if err != nil {
		q.refuse(http.StatusNotFound, fault.Message(err))
		return false
	}
	q.Repo = repo
	return true
}

// Transport implements gateway.FrontEnd.
func (q *request) Transport() string { return "http" }

// Attributes implements gateway.FrontEnd.
func (q *request) Attributes(a []slog.Attr) []slog.Attr {
	a = append(a,
		slog.Int("status", q.Status),
		slog.String("client", strings.TrimSuffix(q.Client, ":0")), // behind a proxy its port is not known
		slog.String("protocol", q.protocol()),
		slog.String("agent", gateway.LogText(cmp.Or(q.Outcome.Agent, q.r.UserAgent()))),
	)
	if q.peer != "" {
		a = append(a, slog.String("proxy", q.peer))
	}
	if q.Op.Web {
		a = append(a, slog.String("method", gateway.LogText(q.r.Method)),
			slog.String("path", gateway.LogText(q.r.URL.Path)))
	}
	if q.visitor != nil {
		a = append(a, q.visitor.attrs...)
	}
	if q.served != nil {
		a = append(a, q.served.Attrs...)
	}
	return a
}

// protocol returns the versions of HTTP and of Git's protocol.
func (q *request) protocol() string {
	if q.Op == gateway.App {
		return q.r.Proto
	}
	return q.r.Proto + " " + protocol.ParseVersion(q.r.Header.Get("Git-Protocol")).String()
}

// Panicked implements gateway.FrontEnd.
func (q *request) Panicked() {
	if q.Status == 0 {
		q.fail(q.Err)
	} else {
		q.abort()
	}
}

// refusedRequest is a request of which only its client and the reason of its refusal are known.
type refusedRequest struct {
	gateway.Request
	why *httpguard.Refusal
}

// Transport implements gateway.FrontEnd.
func (q *refusedRequest) Transport() string { return "http" }

// Attributes implements gateway.FrontEnd.
func (q *refusedRequest) Attributes(a []slog.Attr) []slog.Attr {
	return append(a, slog.Int("status", q.why.Status), slog.String("client", q.Client),
		slog.String("reason", q.why.Reason))
}

// Panicked implements gateway.FrontEnd.
func (q *refusedRequest) Panicked() {}

// begin sends the header.
func (q *request) begin(status int) {
	q.Status = status
	q.closeIfDraining()
	q.At(inflight.Sending)
	q.w.WriteHeader(status)
}
