package gateway

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/httpguard"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
	"github.com/packhorse-git/packhorse/internal/origin"
)

// Application answers what is neither Git's nor the gateway's own. Who calls, what he may do, and what may come from pages of others is its own
// affair.
type Application interface {
	// Has tells whether a path below /-/ or /.api/ is the application's all the same.
	Has(path string) bool
	// Serve answers a request, for which the context is, and not that of r. from is where the request came from.
	Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, from origin.Origin) Served
}

// Served is what became of a request.
type Served struct {
	Status int // 0: none was sent
	Bytes  int64
	Class  sli.Class
	Took   time.Duration // what the class is judged by
	Attrs  []slog.Attr   // for the log
	Err    error
	Cut    bool // what was sent is no whole answer
}

// forApplication tells whether a request is the application's. Git's are not, whatever they name: clients of git would take the application's answers for a
// server's that knows them, and the application see their credentials.
func (e *exchange) forApplication(path string) bool {
	if e.Application == nil {
		return false
	}
	if isOwn(path) {
		return path != waitPath && path != resolvePath && e.Application.Has(path)
	}
	return !isGit(path) && !isOwn(readAs(path))
}

// isOwn tells the paths that are not the application's unless it has them by name.
func isOwn(path string) bool {
	return path == "/-" || strings.HasPrefix(path, "/-/") || strings.HasPrefix(path, foreignAPI)
}

// readAs is a path as an application may read it: without empty segments and those of dots, what follows a semicolon, and with slashes for backslashes. A
// path of ours that is written so would be the application's else.
func readAs(text string) string {
	if !strings.Contains(text, "//") && !strings.Contains(text, "/.") && !strings.ContainsAny(text, ";\\") {
		return text
	}
	segments := strings.Split(strings.ReplaceAll(text, "\\", "/"), "/")
	for i, segment := range segments {
		segments[i], _, _ = strings.Cut(segment, ";")
	}
	return path.Clean("/" + strings.Join(segments, "/"))
}

// isGit tells the paths that git's clients ask for, those of the dumb protocol included (gitprotocol-http(5), gitrepository-layout(5)). HEAD is one only where
// the repository is surely one: applications have pages of that name, and a client asks for info/refs before.
func isGit(path string) bool {
	for _, end := range [...]string{"/info/refs", "/git-upload-pack", "/git-receive-pack", ".git/HEAD", "/objects/info/packs", "/objects/info/alternates", "/objects/info/http-alternates"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	i := strings.LastIndex(path, "/objects/")
	if i < 0 {
		return false
	}
	object := path[i+len("/objects/"):]
	if name, ok := strings.CutPrefix(object, "pack/pack-"); ok {
		return isHex(strings.TrimSuffix(strings.TrimSuffix(name, ".pack"), ".idx"))
	}
	return len(object) > 3 && object[2] == '/' && isHex(object[:2]+object[3:])
}

// isHex tells a whole object ID.
func isHex(text string) bool {
	return (len(text) == 40 || len(text) == 64) && strings.Trim(text, "0123456789abcdef") == ""
}

// application has the application answer.
func (e *exchange) application() {
	e.op = opApp
	e.know()
	a := &e.app
	a.writer = appWriter{ResponseWriter: e.w, e: e}
	a.served = e.Application.Serve(e.ctx, &a.writer, e.r, e.from)
	e.served, e.err, e.abort, e.status = &a.served, a.served.Err, a.served.Cut, a.served.Status
	e.sent(int(a.served.Bytes))
	if bad := httpguard.RefusedIn(e.r.Context()); bad != nil && !a.writer.began && a.served.Bytes == 0 {
		e.abort, a.served.Cut = false, false
		e.malformed(bad)
		a.served.Status, a.served.Err = e.status, e.err
	}
	if e.err == nil && e.status >= http.StatusInternalServerError {
		e.err = fault.New(kindOfApplication(e.status), "the application answered with status %d", e.status)
	}
}

// kindOfApplication is the kind of error that an application's status tells of.
func kindOfApplication(status int) fault.Kind {
	switch status {
	case http.StatusServiceUnavailable:
		return fault.Unavailable
	case http.StatusGatewayTimeout:
		return fault.Deadline
	}
	return fault.Internal
}

// appWriter is what the application's answer is written to.
type appWriter struct {
	http.ResponseWriter
	e     *exchange
	began bool
}

// WriteHeader notes that the answer begins.
func (w *appWriter) WriteHeader(status int) {
	w.began = w.began || status >= http.StatusOK
	w.e.running.At(inflight.Sending)
	w.ResponseWriter.WriteHeader(status)
}

// Hijack gives the connection away.
func (w *appWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := w.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	w.e.running.At(inflight.Sending)
	return h.Hijack()
}

// Unwrap lets http.ResponseController flush, and set limits of time.
func (w *appWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
