package githttp

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
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// Application answers all requests that are neither Git's nor the gateway's. It authenticates and authorizes by itself.
type Application interface {
	// Has reports whether a path below /-/ or /.api/ is the application's.
	Has(path string) bool
	// Serve answers a request. The request's context is ctx, not that of r.
	Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, from clients.Source) Served
}

// Served is the result of a request to the application.
type Served struct {
	Status int // 0: no response was sent
	Bytes  int64
	Class  inflight.Class
	Took   time.Duration // by which the class is rated
	Attrs  []slog.Attr   // for the log
	Err    error
	Cut    bool // the response is not complete
}

// forApplication reports whether a request is the application's. Git's requests never are: git would mistake the
// application's responses for those of a Git server, and the application would see git's credentials.
func (q *request) forApplication(path string) bool {
	if q.handler.Application == nil {
		return false
	}
	if isOwn(path) {
		isAPI := q.handler.API &&
			(strings.HasPrefix(path, rest.Prefix) || path == rest.OpenAPIPath || rest.IsServer(path))
		return path != waitPath && path != resolvePath && !isAPI && q.handler.Application.Has(path)
	}
	if _, _, isLFS := lfsRepository(path); isLFS && q.LFS != nil {
		return false
	}
	return !isGit(path) && !isOwn(readAs(path))
}

// isOwn reports whether a path is the gateway's unless the application has it by name.
func isOwn(path string) bool {
	return path == "/-" || strings.HasPrefix(path, "/-/") || strings.HasPrefix(path, foreignAPI)
}

// readAs returns a path as an application may normalize it: without empty segments, dot segments and parameters after a
// semicolon, and with slashes for backslashes. Otherwise the application would get variants of the gateway's paths.
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

// isGit reports whether git's clients request a path, with the dumb protocol included (gitprotocol-http(5),
// gitrepository-layout(5)). HEAD counts only below a name that ends in .git: applications have pages of that name, and
// a client requests info/refs before.
func isGit(path string) bool {
	for _, end := range [...]string{
		"/info/refs", "/git-upload-pack", "/git-receive-pack", ".git/HEAD",
		"/objects/info/packs", "/objects/info/alternates", "/objects/info/http-alternates",
	} {
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

// isHex reports whether text is a whole object ID.
func isHex(text string) bool {
	return (len(text) == 40 || len(text) == 64) && strings.Trim(text, "0123456789abcdef") == ""
}

// application has the application answer.
func (q *request) application() {
	q.Op = gateway.App
	q.Publish()
	w := appWriter{ResponseWriter: q.w, q: q}
	served := q.handler.Application.Serve(q.Ctx, &w, q.r, q.from)
	q.served, q.Err, q.Status = &served, served.Err, served.Status
	q.Rating = &gateway.Rating{Class: served.Class, Latency: served.Took}
	q.Sent(int(served.Bytes))
	switch refusal := httpguard.RefusedIn(q.r.Context()); {
	case refusal != nil && !w.begun && served.Bytes == 0:
		q.malformed(refusal)
	case served.Cut:
		q.abort()
	}
	if q.Err == nil && q.Status >= http.StatusInternalServerError {
		q.Err = fault.New(kindOfApplication(q.Status), "the application responded with status %d", q.Status)
		q.WarnOnly = true // the application has its own log
	}
}

// kindOfApplication returns the kind of error that an application's status stands for.
func kindOfApplication(status int) fault.Kind {
	switch status {
	case http.StatusServiceUnavailable:
		return fault.Unavailable
	case http.StatusGatewayTimeout:
		return fault.Deadline
	}
	return fault.Internal
}

// appWriter is what the application writes its response to.
type appWriter struct {
	http.ResponseWriter
	q     *request
	begun bool // a final status was sent
}

// WriteHeader implements http.ResponseWriter.
func (w *appWriter) WriteHeader(status int) {
	w.begun = w.begun || status >= http.StatusOK
	w.q.At(inflight.Sending)
	w.ResponseWriter.WriteHeader(status)
}

// Hijack implements http.Hijacker.
func (w *appWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := w.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	w.q.At(inflight.Sending)
	return h.Hijack()
}

// Unwrap is for http.ResponseController.
func (w *appWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
