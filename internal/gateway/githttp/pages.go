package githttp

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/web/browse"
	"github.com/packhorse-git/packhorse/internal/gateway/web/legacy"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Pages answers requests for paths below /-/ and /.api/ that are not the gateway's own: searches, and pages for
// browsers. It also answers "/" and addresses of repositories for browsers. The request's body was received whole,
// within its limits, and is unpacked. If nothing was written, an error becomes the response: NotFound for pages that do
// not exist, Unauthenticated to have a browser ask for a name. Otherwise an error cuts the connection.
type Pages func(w http.ResponseWriter, r *http.Request, v *Visitor) error

// Sessions finds the sessions of visitors. Safe for concurrent use.
type Sessions interface {
	// Credential returns the credential of the session in a request; "" without a session. secure reports whether the
	// connection of the browser has TLS.
	Credential(r *http.Request, secure bool) string
	// End ends the session of a browser whose credential is not valid any more.
	End(w http.ResponseWriter, secure bool)
}

// identifyVisitor is identify for what browsers open, which may have a session. Only requests without an effect outside
// of the pages may call it.
func (q *request) identifyVisitor() error {
	if q.handler.Sessions == nil || q.r.Header.Get("Authorization") != "" {
		return q.identify()
	}
	credential := q.handler.Sessions.Credential(q.r, q.from.HTTPS)
	if credential == "" {
		return q.identify()
	}
	q.w.Header().Add("Vary", "Cookie")
	anonymous := q.r
	q.r = withCredential(q.r, credential)
	err := q.identify()
	if fault.Is(err, fault.Unauthenticated) {
		q.handler.Sessions.End(q.w, q.from.HTTPS)
		q.r = anonymous
		return q.identify()
	}
	q.ID = q.ID.OfSession()
	return err
}

// withCredential returns a request with a credential as the password.
func withCredential(r *http.Request, credential string) *http.Request {
	r = r.Clone(r.Context())
	r.SetBasicAuth("session", credential)
	return r
}

// Identify returns the identity that a credential proves, as the password of a Git client would. If only an origin can
// check it, the error is that of reading the repository whose page has a path.
func (v *Visitor) Identify(ctx context.Context, credential, path string) (auth.Identity, error) {
	if v.q.Auth == nil {
		return auth.Identity{}, nil
	}
	id, err := v.q.Auth.HTTP(withCredential(v.q.r, credential).WithContext(ctx))
	if err != nil || id.By != auth.ByOrigin {
		return id, err
	}
	name, _, _ := strings.Cut(path, "/-/")
	repo, err := gateway.ParseRepo(strings.Trim(name, "/"))
	if err == nil {
		err = v.q.Auth.May(ctx, id, repo, auth.Read)
	}
	return id, err
}

// Identity returns the visitor's identity.
func (v *Visitor) Identity() auth.Identity { return v.q.ID }

// MaySignIn reports whether a credential could make a difference.
func (v *Visitor) MaySignIn() bool { return v.q.Auth != nil && v.q.Auth.Configured() }

// Administers reports whether the visitor administers the whole server.
func (v *Visitor) Administers() bool {
	if v.q.ID.Anonymous() || v.q.handler.Access == nil {
		return false
	}
	_, err := v.q.handler.Access.For(v.q.Ctx, v.q.ID)
	return err == nil
}

// Visitor is the caller who requests a page. Not safe for concurrent use.
type Visitor struct {
	q      *request
	reader func([]git.RepoPath) (may []bool, complete bool)
	asked  bool // reader is set
	attrs  []slog.Attr
	seat   *admit.Seat

	failure error // in a response that is complete
	memory  admit.Holding
}

// freePage is the number of bytes of a page that do not count against the budget of memory.
const freePage = 1 << 20

// Name returns the visitor's name; "" if the visitor is anonymous.
func (v *Visitor) Name() string { return v.q.ID.Name }

// Address returns the address of a path on this server, as the visitor knows it.
func (v *Visitor) Address(path string) string { return v.q.url(path) }

// Secure reports whether the visitor's connection has TLS.
func (v *Visitor) Secure() bool { return v.q.from.HTTPS }

// Reader returns a function that reports which of many repositories the visitor may read; nil means all. If access to a
// repository cannot be determined in time, it is reported as unreadable and complete is false.
func (v *Visitor) Reader() func([]git.RepoPath) (may []bool, complete bool) {
	if v.q.Auth != nil && !v.asked {
		v.reader, v.asked = v.q.Auth.Reader(v.q.Ctx, v.q.ID), true
	}
	return v.reader
}

// Open makes the repository that of the calls, if the visitor may read it. It fails as a fetch would. If the visitor
// may not know of it, calls fail as for one that does not exist.
func (v *Visitor) Open(repo git.RepoPath) error {
	v.q.Repo = repo
	return v.q.Authorize(auth.Read)
}

// Revisions resolves revisions of the repository, in their order. Each has its own error.
func (v *Visitor) Revisions(revisions []string) ([]node.Result, error) {
	return v.q.Revisions(revisions)
}

// Read has a storage node answer a call about the repository.
func (v *Visitor) Read(c gateway.Read) error { return v.q.Read(c) }

// List returns a page of the repositories that the visitor may read and whose path or description has a text.
func (v *Visitor) List(m *packhorsev1.ListRequest, contains string) (*packhorsev1.ListResponse, error) {
	return v.q.List(m, contains)
}

// LFSContent returns an LFS object of the repository. NotFound: the repository does not have it.
func (v *Visitor) LFSContent(o lfs.Object) ([]byte, error) { return v.q.LFSContent(o) }

// LFSStates returns what the repository knows about LFS objects, in their order.
func (v *Visitor) LFSStates(list []lfs.Object) ([]lfs.Status, error) { return v.q.LFSStates(list) }

// SendLFS sends an LFS object of the repository, or the part that the visitor requests, as the whole response.
func (v *Visitor) SendLFS(o lfs.Object, header http.Header) {
	v.seat.Leave() // downloads have lanes of their own
	v.q.Op = gateway.LFSDownload
	v.q.sendLFS(o, header)
}

// Note adds attributes to the request's log line.
func (v *Visitor) Note(attrs ...slog.Attr) { v.attrs = append(v.attrs, attrs...) }

// Hold counts n more bytes that the request holds in memory until it ends, or fewer. It fails if all requests hold too
// much.
func (v *Visitor) Hold(n int) error {
	if n < 0 {
		v.memory.Shrink(v.memory.Size() + int64(n))
		return nil
	}
	return v.memory.Grow(int64(n))
}

// Failed records an error that the response, which is complete, reports to the client. The request counts as failed.
func (v *Visitor) Failed(err error) { v.failure = err }

const (
	searchPath = "/-/api/v1/search"
	foreignAPI = "/.api/" // Sourcegraph's
	streamPath = foreignAPI + "search/stream"
	// srcFile is in the links of the src command to symbols, which have an additional slash before the path.
	srcFile = "/-/file/"

	eventStream = "text/event-stream"
)

// isPage reports whether a path is for Pages.
func (q *request) isPage(path string) bool {
	return strings.HasPrefix(path, "/-/") || strings.HasPrefix(path, foreignAPI) ||
		path == "/" && q.isRead()
}

// isPageBelow reports whether the request is for a page below a repository, also if its path ends like one of Git. A
// repository may have "-" in its path, and Git's requests have another method or a service.
func (q *request) isPageBelow(path string) bool {
	_, rest, ok := browse.Split(path)
	return ok && rest != "" && !strings.HasPrefix(path, "//") && q.isRead() && !q.r.URL.Query().Has("service")
}

// isRead reports whether the request is one of a method that has no effect.
func (q *request) isRead() bool { return q.r.Method == http.MethodGet || q.r.Method == http.MethodHead }

// isPageOfRepository reports whether a path below a repository, or in its place, is for Pages. These are all that no
// Git client requests, because feed readers, monitors and the go command do not say that they accept HTML.
func (q *request) isPageOfRepository(path string) bool {
	if q.handler.Pages == nil || !q.isRead() {
		return false
	}
	_, isOld := legacy.Find(q.r.URL)
	_, err := gateway.ParseRepo(path)
	return err == nil && (isOld || q.wantsHTML() || !isDumb(path))
}

// wantsHTML reports whether a browser opens an address.
func (q *request) wantsHTML() bool {
	return q.isRead() && strings.Contains(q.r.Header.Get("Accept"), "text/html")
}

// isSrcLink reports whether a request follows a link of the src command to a symbol.
func (q *request) isSrcLink() bool {
	return q.isRead() && doubled.MatchString(q.r.URL.EscapedPath())
}

// doubled matches a path that is on this server without its first slash.
var doubled = regexp.MustCompile("^//[^/\\\\].*" + srcFile)

// srcLink redirects to the page. Its path begins with one slash, and so is on this server.
func (q *request) srcLink() {
	q.Op = gateway.Page
	q.w.Header().Set("Location", q.r.URL.EscapedPath()[1:])
	q.begin(http.StatusMovedPermanently)
}

// page has Pages answer.
func (q *request) page(path string) {
	q.Op = gateway.Page
	identify := q.identifyVisitor
	if path == searchPath || strings.HasPrefix(path, searchPath+"/") || strings.HasPrefix(path, foreignAPI) {
		q.Op, identify = gateway.Search, q.identify // the API takes no sessions
	}
	if err := identify(); err != nil {
		q.fail(err)
		return
	}
	q.keepPrivate()
	body, err := q.readBody()
	if err != nil {
		q.fail(err)
		return
	}
	defer body.Close()
	seat, err := q.Enter()
	if err != nil {
		q.fail(err)
		return
	}
	defer seat.Leave()
	q.Publish()
	q.At(inflight.Working)
	r := q.r.WithContext(q.Ctx)
	r.Body, r.ContentLength = io.NopCloser(body), -1
	if r.Header.Get("Content-Encoding") != "" {
		r.Header = r.Header.Clone()
		r.Header.Del("Content-Encoding")
	}
	q.visitor = &Visitor{q: q, seat: seat, memory: q.Memory.Hold(q.Caller(), freePage)}
	defer q.visitor.memory.Shrink(0)
	err = q.handler.Pages(&pageWriter{q}, r, q.visitor)
	switch {
	case err == nil:
		if q.Err == nil {
			q.Err = q.visitor.failure
		}
	case q.Status != 0:
		q.Err = err
		q.abort()
	default:
		for _, header := range []string{"Content-Encoding", "Content-Security-Policy", "ETag", "Last-Modified"} {
			q.w.Header().Del(header)
		}
		q.fail(err)
	}
}

// wantsEvents reports whether the client of a search reads server-sent events, whatever the status.
func (q *request) wantsEvents() bool {
	return q.r.URL.Path == streamPath || q.r.URL.Path == searchPath &&
		strings.Contains(q.r.Header.Get("Accept"), eventStream)
}

// failEvents sends a failure as server-sent events.
func (q *request) failEvents(status int, message string) {
	data, err := json.Marshal(struct {
		Name    string `json:"name"`
		Message string `json:"message"`
	}{"Error", message})
	if err != nil {
		data = []byte(`{"name":"Error"}`)
	}
	q.w.Header().Set("X-Content-Type-Options", "nosniff")
	q.send(status, eventStream, []byte("event: error\ndata: "+string(data)+"\n\nevent: done\ndata: {}\n\n"))
}

// pageWriter is what Pages writes to. It counts bytes.
type pageWriter struct{ q *request }

// Header implements http.ResponseWriter.
func (w *pageWriter) Header() http.Header { return w.q.w.Header() }

// WriteHeader implements http.ResponseWriter.
func (w *pageWriter) WriteHeader(status int) {
	if w.q.Status == 0 {
		w.q.begin(status)
	}
}

// Write implements http.ResponseWriter.
func (w *pageWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	n, err := w.q.w.Write(p)
	w.q.Sent(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *pageWriter) Unwrap() http.ResponseWriter { return w.q.w }
