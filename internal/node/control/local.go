package control

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
)

// Local is a client of a Server in the same process. It needs neither a connection nor authentication.
type Local struct{ *Server }

// Do implements connect.HTTPClient, for protocols without trailers: gRPC-Web and Connect. The call ends with the
// context of the request, or when the body of the response is closed.
func (l Local) Do(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	from, to := io.Pipe()
	w := &localResponse{header: http.Header{}, body: to, begun: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { from.CloseWithError(ctx.Err()) })
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer stop()
		l.serve(w, r.WithContext(ctx))
	}()
	<-w.begun
	end := func() error {
		cancel()
		from.Close()
		<-served
		return nil
	}
	return &http.Response{Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: w.sent, Body: localBody{from, end}, ContentLength: -1, Request: r}, nil
}

// serve runs the handler, and ends the response.
func (l Local) serve(w *localResponse, r *http.Request) {
	defer r.Body.Close()
	defer func() {
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
			l.Log.LogAttrs(r.Context(), slog.LevelError, "panic in a call", slog.String("procedure", r.URL.Path),
				slog.String("panic", fmt.Sprint(cause)))
		}
		w.WriteHeader(http.StatusInternalServerError)
		w.body.CloseWithError(io.ErrUnexpectedEOF)
	}()
	r.ProtoMajor, r.ProtoMinor = 2, 0
	for _, name := range []string{"Accept-Encoding", "Connect-Accept-Encoding", "Grpc-Accept-Encoding"} {
		r.Header.Del(name) // compression would only cost CPU time
	}
	if r.Header.Get(callerHeader) == "" { // otherwise the call came in by the port, see serveLines
		r.Header.Set(callerHeader, callerLocal)
	}
	l.mux.ServeHTTP(w, r)
	w.WriteHeader(http.StatusOK)
	w.body.Close()
}

// localBody is the body of a response. end ends the call.
type localBody struct {
	io.Reader
	end func() error
}

func (b localBody) Close() error { return b.end() }

// localResponse is the http.ResponseWriter of a call.
type localResponse struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	begun  chan struct{} // closed when sent and status are set
	sent   http.Header
	status int
}

func (w *localResponse) Header() http.Header { return w.header }

func (w *localResponse) WriteHeader(status int) {
	w.once.Do(func() {
		w.sent, w.status = w.header.Clone(), status
		close(w.begun)
	})
}

func (w *localResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush implements http.Flusher, which Connect needs for streams.
func (w *localResponse) Flush() { w.WriteHeader(http.StatusOK) }
