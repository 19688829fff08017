package app

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/packhorse-git/packhorse/internal/activity"
	"github.com/packhorse-git/packhorse/internal/fault"
)

// exchange is one request and its answer.
type exchange struct {
	Record
	p        *Proxy
	ctx      context.Context
	w        http.ResponseWriter
	r        *http.Request
	origin   origin
	id       string
	upgrade  string
	body     body
	received time.Time
}

// body is that of a request.
type body struct {
	there bool // though it may be empty
	size  int64
	data  []byte
}

// Serve answers a request, and tells what became of it. After Record.Cut the connection has to be cut, as by panic(http.ErrAbortHandler).
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request) Record {
	e := &exchange{p: p, ctx: r.Context(), w: w, r: r}
	e.serve()
	return e.Record
}

func (e *exchange) serve() {
	began := time.Now()
	if bad := check(e.r); bad != nil {
		e.text(bad.status, bad.text)
		return
	}
	e.origin = e.p.originOf(e.r)
	if e.id = e.origin.id; e.id == "" {
		e.id = activity.From(e.ctx).ID()
	}
	if e.id == "" {
		e.id = strconv.FormatUint(rand.Uint64(), 36)
	}
	data, err := io.ReadAll(io.LimitReader(e.r.Body, e.p.MaxBody))
	if err != nil {
		e.fail(fault.Wrap(fault.Invalid, "the request's body was cut off", err))
		return
	}
	e.body = body{there: e.r.ContentLength != 0 || len(data) > 0, size: int64(len(data)), data: data}
	e.received = time.Now()
	e.Receive, e.In = e.received.Sub(began), e.body.size
	s, err := e.p.take(e.ctx, ask{method: e.r.Method, path: e.r.URL.Path, header: e.r.Header.Get, client: e.origin.client})
	if err != nil {
		e.fail(err)
		return
	}
	e.Worker, e.Pool, e.Reason, e.Queue, e.Tries = s.worker.Name, s.pool, s.reason, s.waited, 1
	err = e.relay(s)
	s.Done(err != nil)
	if err != nil && e.Status == 0 {
		e.fail(fault.Wrap(fault.Internal, "the application worker gave no answer", err))
	}
}

func (e *exchange) relay(s *seat) error {
	began := time.Now()
	defer func() { e.Service = time.Since(began) }()
	cn, err := s.worker.conns.get(e.ctx, false)
	if err != nil {
		return err
	}
	defer s.worker.conns.drop(cn)
	if _, err := cn.Write(append(e.appendHead(nil, s.worker), e.body.data...)); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(cn.Conn), e.r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for name, values := range response.Header {
		if !hopByHop[name] && !internal(name) {
			e.w.Header()[name] = values
		}
	}
	e.Status = response.StatusCode
	e.w.WriteHeader(e.Status)
	if e.Out, err = io.Copy(e.w, response.Body); err != nil {
		e.Cut = true
	}
	return err
}

// fail answers with an error that comes before an answer began.
func (e *exchange) fail(err error) {
	e.Err = err
	kind := fault.KindOf(err)
	status := statusOf(kind)
	if status == http.StatusServiceUnavailable {
		after := max(fault.RetryAfter(err), time.Second)
		e.w.Header().Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
	e.text(status, fault.Message(err))
}

// text answers with a line of text.
func (e *exchange) text(status int, message string) {
	if e.Err == nil {
		e.Err = fault.New(fault.Invalid, "%s", message)
	}
	e.Status = status
	header := e.w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	e.w.WriteHeader(status)
	_, _ = io.WriteString(e.w, message+"\n")
}
