package gateway

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/inflight"
)

// Pages answers requests for what is below /-/ and /.api/ and is none of the gateway's own: searches, pages for browsers; and "/", if a browser
// asks. The request's body is unpacked, bounded, and came whole before. If nothing was written, an error becomes the answer: NotFound also for
// pages that there are none of, Unauthenticated to have browsers ask for a name. After that it cuts the connection.
type Pages func(w http.ResponseWriter, r *http.Request, v *Visitor) error

// Visitor is who asks for a page. Not safe for concurrent use.
type Visitor struct {
	e     *exchange
	read  func([]git.RepoPath) (may []bool, whole bool)
	asked bool // read is set
	notes []slog.Attr

	failed error // that the answer tells of
}

// Name is the visitor's; empty: nobody knows who it is.
func (v *Visitor) Name() string { return v.e.id.Name }

// Reader tells which of many repositories the visitor may read; nil: all. whole: false: of some that could not be found out in time, and they are
// taken for others'. It asks nobody where it can be helped, but an auth hook's answers that are not remembered yet.
func (v *Visitor) Reader() func([]git.RepoPath) (may []bool, whole bool) {
	if v.e.Auth != nil && !v.asked {
		v.read, v.asked = v.e.Auth.Reader(v.e.ctx, v.e.id), true
	}
	return v.read
}

// May fails as a fetch of the repository would: Unauthenticated, NotFound, Unavailable.
func (v *Visitor) May(ctx context.Context, repo git.RepoPath) error {
	v.e.repo = repo
	if v.e.Auth == nil {
		return nil
	}
	return v.e.Auth.May(ctx, v.e.id, repo, auth.Read)
}

// Note adds to the request's line in the log.
func (v *Visitor) Note(attrs ...slog.Attr) { v.notes = append(v.notes, attrs...) }

// Failed notes an error that the answer, whole as it is, tells the client. The request counts as failed.
func (v *Visitor) Failed(err error) { v.failed = err }

const (
	searchPath = "/-/api/v1/search"
	foreignAPI = "/.api/" // Sourcegraph's
	streamPath = foreignAPI + "search/stream"
	// srcFile begins src's links to symbols: a slash of its own, and the path that it was given.
	srcFile = "//-/blob/"

	eventStream = "text/event-stream"
)

// isPage tells whether a path is for Pages.
func (e *exchange) isPage(path string) bool {
	return strings.HasPrefix(path, "/-/") || strings.HasPrefix(path, foreignAPI) || path == "/" && strings.Contains(e.r.Header.Get("Accept"), "text/html")
}

// isSrcLink tells whether a request follows a link of src to a symbol.
func (e *exchange) isSrcLink() bool {
	return (e.r.Method == http.MethodGet || e.r.Method == http.MethodHead) && strings.HasPrefix(e.r.URL.EscapedPath(), srcFile)
}

// srcLink leads to the page that was meant. The place begins with one slash, and so is on this server.
func (e *exchange) srcLink() {
	e.op = opPage
	e.w.Header().Set("Location", e.r.URL.EscapedPath()[1:])
	e.begin(http.StatusMovedPermanently)
}

// page has Pages answer.
func (e *exchange) page(path string) {
	e.op = opPage
	if path == searchPath || strings.HasPrefix(path, searchPath+"/") || strings.HasPrefix(path, foreignAPI) {
		e.op = opSearch
	}
	if err := e.identify(); err != nil {
		e.fail(err)
		return
	}
	e.keepPrivate()
	body, err := e.body() // before the lane: clients that send slowly must not fill it
	if err != nil {
		e.fail(err)
		return
	}
	defer body.Close()
	seat, err := e.Lanes.Pages.Enter(e.caller())
	if err != nil {
		e.fail(err)
		return
	}
	defer seat.Leave()
	e.know()
	e.running.At(inflight.Working)
	r := e.r.WithContext(e.ctx)
	r.Body, r.ContentLength = io.NopCloser(body), -1
	if r.Header.Get("Content-Encoding") != "" {
		r.Header = r.Header.Clone()
		r.Header.Del("Content-Encoding")
	}
	e.visitor = &Visitor{e: e}
	err = e.Pages(&pageWriter{e}, r, e.visitor)
	switch {
	case err == nil:
		if e.err == nil {
			e.err = e.visitor.failed
		}
	case e.status != 0:
		e.err, e.abort = err, true
	default:
		for _, header := range []string{"Content-Encoding", "Content-Security-Policy", "ETag", "Last-Modified"} {
			e.w.Header().Del(header)
		}
		e.fail(err)
	}
}

// wantsEvents tells whether the client of a search reads server-sent events, whatever the status.
func (e *exchange) wantsEvents() bool {
	return e.r.URL.Path == streamPath || e.r.URL.Path == searchPath && strings.Contains(e.r.Header.Get("Accept"), eventStream)
}

// failEvents sends a failure as such clients read it.
func (e *exchange) failEvents(status int, message string) {
	data, err := json.Marshal(struct {
		Name    string `json:"name"`
		Message string `json:"message"`
	}{"Error", message})
	if err != nil {
		data = []byte(`{"name":"Error"}`)
	}
	e.w.Header().Set("Content-Type", eventStream)
	e.w.Header().Set("X-Content-Type-Options", "nosniff")
	e.begin(status)
	e.write([]byte("event: error\ndata: " + string(data) + "\n\nevent: done\ndata: {}\n\n"))
}

// pageWriter is what Pages writes to: it counts.
type pageWriter struct{ e *exchange }

func (w *pageWriter) Header() http.Header { return w.e.w.Header() }

func (w *pageWriter) WriteHeader(status int) {
	if w.e.status == 0 {
		w.e.begin(status)
	}
}

func (w *pageWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	n, err := w.e.w.Write(p)
	w.e.sent(n)
	return n, err
}

// Unwrap lets http.ResponseController flush, and set limits of time.
func (w *pageWriter) Unwrap() http.ResponseWriter { return w.e.w }
