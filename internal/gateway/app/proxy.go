package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// exchange is one request and its response.
type exchange struct {
	Record
	p      *Proxy
	ctx    context.Context // of the client
	cancel context.CancelFunc
	w      client
	r      *http.Request
	from   clients.Source

	id       string
	upgrade  string // protocol that the client wants to switch to
	tunnel   tunnel // after the upgrade
	body     body
	in       atomic.Int64 // bytes of it that were received
	received time.Time

	proxy   httputil.ReverseProxy
	pool    *pool                // of the last worker
	sent    int                  // times that a worker may have got the request
	isSent  bool                 // the present worker may have got it
	closed  bool                 // the latest connection was closed while it was idle, so nothing was sent
	heard   atomic.Bool          // a worker began to respond
	spooled *spool               // body of the response, if it is long
	demand  demand               // of a connection to a worker
	conn    atomic.Pointer[conn] // to the worker
	wrote   atomic.Bool          // the request was sent in full
}

// Serve answers a request, unless ctx ends first, and returns its Record. If Record.Cut is set, the caller has to cut
// the connection, for example with panic(http.ErrAbortHandler).
func (p *Proxy) Serve(ctx context.Context, w http.ResponseWriter, r *http.Request,
	from clients.Source) (record Record) {
	e := &exchange{p: p, ctx: ctx, r: r, from: from}
	e.w = client{ResponseWriter: w, e: e}
	defer func() {
		if e.spooled != nil { // after a panic
			e.spooled.Close()
		}
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
			p.Log.Error("panic while relaying a request", "panic", cause, "stack", string(debug.Stack()))
			e.Err, e.Cut = fault.New(fault.Internal, "internal error; see the server's log"), true
		}
		e.body.close(p)
		if e.Cut && !r.ProtoAtLeast(1, 1) {
			bulk.Reset(w) // a normal close would look like the end of the response
		}
		if !e.Upgraded {
			e.In = e.in.Load()
		}
		if e.pool != nil && e.Status != 0 && !e.pool.isGone.Load() {
			e.pool.counts.answered(e.Status)
		}
		record = e.Record
	}()
	for name := range w.Header() {
		if name != "Connection" { // an instruction for net/http
			w.Header().Del(name)
		}
	}
	if !r.ProtoAtLeast(1, 1) || len(r.TransferEncoding) > 0 {
		// A proxy may see another end of a chunked or HTTP/1.0 request. So no later request on its connection is answered
		// (RFC 9112, section 6.1).
		e.w.closes = true
	}
	e.serve()
	return
}

func (e *exchange) serve() {
	began := time.Now()
	if status, text := e.check(); status != 0 {
		e.refuse(status, text)
		return
	}
	e.id = e.from.ID
	if !inflight.IsID(e.id) {
		e.id = cmp.Or(inflight.From(e.ctx).ID(), strconv.FormatUint(rand.Uint64(), 36))
	}
	if e.upgrade != "" {
		defer e.p.upgrades.Add(-1)
		if n := e.p.upgrades.Add(1); n > int64(e.p.MaxUpgrades) {
			e.fail(fault.Retry(fault.Exhausted, fault.RetrySoon, "too many upgraded connections; try again"))
			return
		}
	}
	ok := e.receive()
	e.received = time.Now()
	if e.Receive = e.received.Sub(began); ok {
		e.relay()
	}
}

// discardLog discards the log of ReverseProxy, because the Record has the same errors.
var discardLog = log.New(io.Discard, "", 0)

// relay has a worker answer the request. If the client disconnects, the request to the worker is not cancelled. Most
// workers would process it to the end anyway, and would not be free for another one.
func (e *exchange) relay() {
	ctx, cancel := context.WithCancel(context.WithValue(e.p.running, demandKey{}, &e.demand))
	e.cancel = cancel
	defer cancel()
	in := e.r.WithContext(ctx)
	in.Body, in.ContentLength, in.TransferEncoding, in.Trailer = nil, 0, nil, nil // send adds the body
	e.proxy = httputil.ReverseProxy{
		Rewrite: e.rewrite, Transport: e, ErrorHandler: e.handleError, BufferPool: &e.p.buffers, ErrorLog: discardLog,
	}
	e.proxy.ServeHTTP(&e.w, in)
	if e.Upgraded {
		e.tunnel.finish(e)
	}
}

// observe has the transport report the progress of a request, in addition to the reports that ReverseProxy needs.
func (e *exchange) observe(r *http.Request) {
	trace := httptrace.ContextClientTrace(r.Context())
	trace.GetConn = func(string) {
		e.closed = false
		e.demand.begin()
	}
	trace.GotConn = e.gotConn
	trace.WroteRequest = func(httptrace.WroteRequestInfo) { e.wrote.Store(true) }
	trace.GotFirstResponseByte = func() { e.heard.Store(true) }
}

// gotConn notes that a worker may get the request.
func (e *exchange) gotConn(info httptrace.GotConnInfo) {
	e.demand.end()
	c := info.Conn.(*conn)
	if e.closed = info.Reused && !c.Settle(); e.closed {
		return // another one follows, from the transport or from send
	}
	if !info.Reused || !e.isSent { // another idle connection leads to the same process, which may just have died
		e.sent++
	}
	e.isSent = true
	c.upgrades.Store(e.upgrade != "")
	e.conn.Store(c)
}

// endRequest half-closes the connection to the worker, so that the worker notices that the client has disconnected.
func (e *exchange) endRequest() {
	if c := e.conn.Load(); c != nil && e.wrote.Load() {
		_ = c.CloseWrite()
	}
}

// A request that kills its workers must not kill all of them.
const (
	maxTries = 16 // workers that are tried
	maxSent  = 2  // times that a worker may have got the request
)

// RoundTrip sends the request to a worker. After a failure it tries another one, if the request may be sent again.
func (e *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	e.observe(r)
	var tried []*seat
	var last error // of a worker
	for {
		waiting := time.Now()
		s, err := e.take(tried)
		e.Queue += time.Since(waiting)
		if err != nil {
			if last != nil && fault.Is(err, fault.Unavailable) {
				return nil, last
			}
			return nil, err
		}
		e.Worker, e.Reason, e.pool = s.name, s.seat.Reason(), s.pool
		e.Tries++
		response, err := e.try(s, r)
		if e.spooled == nil { // else its Close adds the time
			e.Service += s.took
		}
		if err == nil || e.ctx.Err() != nil || e.Tries >= maxTries || !e.canRetry(err) {
			return response, err
		}
		last = err
		tried = append(tried, s)
	}
}

// canRetry reports whether a request that failed may be sent to another worker.
func (e *exchange) canRetry(err error) bool {
	if e.sent >= maxSent || e.heard.Load() || e.body.isUsed() {
		return false
	}
	if _, ok := errors.AsType[*dialError](err); ok { // nothing was sent, at least not to a process that still runs
		return !isExhausted(err)
	}
	isSafe := e.r.Method == http.MethodGet || e.r.Method == http.MethodHead || e.r.Method == http.MethodOptions
	return isSafe && !isTimeout(err) && e.upgrade == ""
}

// try lets one worker answer. The seat is released when the response has been read from the worker.
func (e *exchange) try(s *seat, r *http.Request) (*http.Response, error) {
	if e.Tries > 1 { // the last try may still use the request
		r = r.Clone(r.Context())
	}
	r.URL.Host, e.isSent = s.worker.host, false
	defer context.AfterFunc(e.ctx, e.endRequest)()
	response, err := e.send(s.worker.transport, r)
	e.demand.end() // the client may have left
	if err != nil {
		hasLeft := e.ctx.Err() != nil && !e.heard.Load() && !isTimeout(err)
		if isExhausted(err) || hasLeft || e.body.problem() != nil || e.p.running.Err() != nil {
			s.done(balance.Cut)
		} else {
			s.done(balance.Failed)
		}
		return nil, e.explain(err)
	}
	return e.accept(s, response)
}

// send sends the request on a connection that was not closed while it was idle: see httpguard.Conn.Settle.
func (e *exchange) send(t *http.Transport, r *http.Request) (*http.Response, error) {
	for {
		if e.body.length != 0 {
			r.ContentLength, r.Body = e.body.length, e.body.open()
			if e.body.rest == nil {
				r.GetBody = func() (io.ReadCloser, error) { return e.body.open(), nil }
			}
		}
		response, err := t.RoundTrip(r)
		if err == nil || !e.closed || e.ctx.Err() != nil || r.Context().Err() != nil || e.body.isUsed() {
			return response, err
		}
		r = r.Clone(r.Context()) // the failed try may still use the request
	}
}

// accept takes a response from a worker.
func (e *exchange) accept(s *seat, response *http.Response) (*http.Response, error) {
	for _, header := range []http.Header{response.Header, response.Trailer} {
		maps.DeleteFunc(header, func(name string, _ []string) bool { return !mayReachClient(name) })
	}
	length := response.ContentLength
	isShort := length >= 0 && length <= copySize
	switch {
	case response.StatusCode < 100 || response.StatusCode > 599 || response.ProtoMajor != 1:
		response.Body.Close()
		s.done(balance.Failed)
		return nil, e.explain(fmt.Errorf("invalid response: %s %s", response.Proto, response.Status))
	case response.StatusCode == http.StatusSwitchingProtocols:
		return e.acceptUpgrade(s, response)
	case e.ctx.Err() != nil && !isShort: // no client waits for it
		e.cancel()
		response.Body.Close()
		s.done(balance.Cut)
		return nil, e.ctx.Err()
	case response.Body == http.NoBody:
		s.done(balance.OK)
	case isShort:
		body, err := e.readAll(response.Body, length)
		s.done(outcome(err))
		if err != nil {
			return nil, e.explain(err)
		}
		response.Body = body
	default:
		return e.spool(s, response), nil
	}
	return response, e.ctx.Err()
}

func outcome(err error) balance.Outcome {
	switch err {
	case nil, io.EOF:
		return balance.OK
	case context.Canceled:
		return balance.Cut
	}
	return balance.Failed
}

var errStalled = fault.New(fault.Deadline, "the application did not answer in time")

// readAll reads a short body in full.
func (e *exchange) readAll(from io.ReadCloser, length int64) (io.ReadCloser, error) {
	defer from.Close()
	stall := time.AfterFunc(e.p.StallTimeout, e.cancel)
	body := make([]byte, length)
	_, err := io.ReadFull(from, body)
	if err == nil {
		_, err = from.Read(make([]byte, 1)) // read the end of the body, so that the connection can be reused
	}
	switch {
	case !stall.Stop() && err != nil && err != io.EOF:
		return nil, errStalled
	case err != io.EOF:
		return nil, cmp.Or(err, io.ErrUnexpectedEOF)
	}
	return io.NopCloser(bytes.NewReader(body)), nil
}

// explain returns the error for a client when a worker has failed.
func (e *exchange) explain(err error) error {
	if _, known := errors.AsType[*fault.Error](err); known {
		return err
	}
	_, isDial := errors.AsType[*dialError](err)
	switch {
	case e.p.running.Err() != nil:
		return fault.Wrap(fault.Unavailable, "the server is shutting down; try again", err)
	case isExhausted(err):
		return fault.Wrap(fault.Unavailable, "the server has too many open files; try again", err)
	case isDial && isTimeout(err):
		return fault.Wrap(fault.Unavailable, "the application worker does not accept a connection in time", err)
	case isDial:
		return fault.Wrap(fault.Unavailable, "the application worker cannot be reached", err)
	case isTimeout(err):
		return fault.Wrap(fault.Deadline, "the application did not answer in time", err)
	case strings.Contains(err.Error(), "server response headers exceeded"):
		return fault.Wrap(fault.Internal, fmt.Sprintf("the response header of the application is longer than %d bytes",
			maxHeader), err)
	case e.heard.Load():
		return fault.Wrap(fault.Internal, "the response of the application is incomplete or invalid", err)
	}
	return fault.Wrap(fault.Internal, "the application did not respond", err)
}

// handleError answers a request that no worker has answered with a body.
func (e *exchange) handleError(_ http.ResponseWriter, _ *http.Request, err error) {
	switch problem := e.body.problem(); {
	case e.w.began: // an upgraded connection has failed
		e.Cut, e.Err = true, cmp.Or(e.Err, err)
	case problem != nil: // it may have ended ctx
		e.refuseBody(problem)
	case e.ctx.Err() != nil:
		e.clientLeft()
	default:
		e.fail(e.explain(err))
	}
}

// fail answers with an error before a response has begun.
func (e *exchange) fail(err error) {
	e.Err = err
	status := statusOf(fault.KindOf(err))
	if status == http.StatusServiceUnavailable {
		e.w.Header().Set("Retry-After", fault.RetryHeader(fault.RetryAfter(err)))
	}
	e.text(status, fault.Message(err))
}

// refuse answers a request that is not passed on. No other request may follow on its connection.
func (e *exchange) refuse(status int, message string) {
	if e.Err == nil {
		e.Err = fault.New(fault.Invalid, "%s", message)
	}
	e.w.closes = true
	e.text(status, message)
}

// text answers with a line of text.
func (e *exchange) text(status int, message string) {
	header := e.w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	e.w.WriteHeader(status)
	_, _ = io.WriteString(e.w.ResponseWriter, message+"\n")
}

// clientLeft notes that the client has disconnected.
func (e *exchange) clientLeft() {
	e.Status, e.Cut = statusClientLeft, true
	e.Err = fault.Wrap(fault.Cancelled, "the client disconnected", e.ctx.Err())
}

// statusClientLeft is the status in the log when the client disconnected first. No client receives it.
const statusClientLeft = 499

// statusOf returns the status for an error before a response has begun.
func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.Exhausted, fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Deadline:
		return http.StatusGatewayTimeout
	case fault.Cancelled:
		return statusClientLeft
	}
	return http.StatusBadGateway
}
