package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/origin"
)

// exchange is one request and its answer.
type exchange struct {
	Record
	p        *Proxy
	ctx      context.Context
	w        http.ResponseWriter
	r        *http.Request
	from     origin.Origin
	id       string
	upgrade  string // the protocol that the client wants to switch to
	odd      bool   // workers may take the request for malformed
	body     body
	received time.Time // when all of it was here
	began    bool      // the answer to the client
	fields   []field   // of the answer; kept for the next one
	first    call
	by       *pool // that answers, or was the last to fail; nil: none was asked
	sent     int   // workers that may have had the request
	patient  bool  // all workers have what they had under another name: it waits for one of them
}

// Serve answers a request from a client, unless ctx ends before, and tells what became of it. After Record.Cut the connection has to be cut, as by panic(http.ErrAbortHandler).
func (p *Proxy) Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, from origin.Origin) (record Record) {
	e := &exchange{p: p, ctx: ctx, w: w, r: r, from: from}
	defer func() {
		e.body.close(p)
		if cause := recover(); cause != nil {
			e.Err, e.Cut = p.panicked(cause), true
		}
		if e.Cut && !r.ProtoAtLeast(1, 1) {
			bulk.Reset(w)
		}
		e.count()
		record = e.Record
	}()
	header := w.Header()
	for name := range header {
		if name != "Connection" { // that says what net/http is to do
			delete(header, name)
		}
	}
	if !r.ProtoAtLeast(1, 1) || len(r.TransferEncoding) > 0 {
		// Chunks and HTTP/1.0 are what proxies have trouble with most: nothing behind them is answered, in case that one took something else for the end
		// (RFC 9112, section 6.1).
		header.Set("Connection", "close")
	}
	e.serve()
	return
}

// panicked logs a panic, where it was recovered, and is the error for it.
func (p *Proxy) panicked(cause any) error {
	p.Log.Error("panic while relaying a request", "panic", cause, "stack", string(debug.Stack()))
	return fault.New(fault.Internal, "internal error; the server's log says more")
}

func (e *exchange) serve() {
	began := time.Now()
	if bad := e.check(); bad != nil {
		e.refuse(bad.status, bad.text)
		return
	}
	e.identify()
	if e.upgrade != "" {
		if n := e.p.upgrades.Add(1); n > int64(e.p.MaxUpgrades) {
			e.p.upgrades.Add(-1)
			e.fail(fault.Retry(fault.Exhausted, time.Second, "too many connections speak another protocol already; try again"))
			return
		}
		defer e.p.upgrades.Add(-1)
	}
	ok := e.receive()
	e.received = time.Now()
	if e.Receive, e.In = e.received.Sub(began), e.body.size; ok {
		e.answer()
	}
}

// identify finds the ID under which workers know the request.
func (e *exchange) identify() {
	if e.id = e.from.ID; !inflight.IsID(e.id) {
		e.id = inflight.From(e.ctx).ID()
	}
	if e.id == "" {
		e.id = strconv.FormatUint(rand.Uint64(), 36)
	}
}

// How many workers are asked at the most: a request that ends whoever reads it must not end all.
const (
	maxTries = 16
	maxSent  = 2 // that may have had it
)

// answer has workers answer, one after the other, until one does or the request cannot be sent again.
func (e *exchange) answer() {
	a := ask{method: e.r.Method, path: e.r.URL.Path, header: e.r.Header, client: e.from.Client}
	var occupied []*worker // of those tried: with what they had under another name, or in another pool
	var last error         // of a worker
	for {
		s, err := e.p.take(e.ctx, a)
		e.Pool = s.pool
		e.Queue += s.waited
		if err != nil {
			wait := e.p.table.Load().Routing.Queue.Wait
			if e.ctx.Err() != nil {
				e.gone()
			} else if len(occupied) > 0 && fault.Is(err, fault.Unavailable) && (wait <= 0 || time.Since(e.received) < wait) {
				a.tried = slices.DeleteFunc(a.tried, func(w *worker) bool { return slices.Contains(occupied, w) })
				occupied, e.patient = nil, true
				continue
			} else if len(a.tried) == 0 || !fault.Is(err, fault.Unavailable) {
				e.fail(err)
			} else {
				e.fail(last)
			}
			return
		}
		e.Worker, e.Class, e.Reason, e.by = s.worker.Name, s.class, s.reason, s.worker.pool
		e.Tries++
		again, err := e.try(s)
		switch {
		case err == nil:
			return
		case e.began:
			e.Err, e.Cut = err, true
			return
		case e.ctx.Err() != nil:
			e.gone()
			return
		case errors.Is(err, errOccupied):
			e.Tries-- // it was not asked
			occupied = append(occupied, s.worker)
		case !again || e.Tries >= maxTries || e.sent >= maxSent:
			e.fail(err)
			return
		}
		last = err
		a.tried = append(a.tried, s.worker)
	}
}

// try has one worker answer. again: it failed, and another one may be asked.
func (e *exchange) try(s *seat) (again bool, err error) {
	began, c := s.taken, (*call)(nil)
	defer func() {
		if c == nil || c.took == 0 {
			e.Service += time.Since(began)
		} else {
			e.Service += c.took
		}
		if c == nil || !c.left {
			s.Done(balance.Cut) // unless that was said
		}
	}()
	// Puma 5.6 answers a malformed request on a kept connection by 20 s of silence, in which the slot would be taken; on a new one it does so at once.
	for fresh := e.odd; ; fresh = true {
		cn, err := s.worker.conns.get(e.ctx, fresh, e.patient)
		if err != nil && c != nil && c.reached {
			e.sent++ // on the connection before: the worker may have died of it
		}
		if errors.Is(err, errOccupied) {
			s.Done(balance.Cut)
			return true, fault.Wrap(fault.Unavailable, "the application worker is busy with what it had before", err)
		} else if err != nil {
			if exhausted(err) {
				s.Done(balance.Cut)
				return false, fault.Wrap(fault.Unavailable, "the server has too many open files; try again", err)
			}
			if e.ctx.Err() == nil {
				s.Done(balance.Failed)
			}
			if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
				return true, fault.Wrap(fault.Unavailable, "the application worker accepts no connection in time", err)
			}
			return true, fault.Wrap(fault.Unavailable, "the application worker cannot be reached", err)
		}
		if c = &e.first; c.e != nil {
			c = new(call) // what was begun for the one before may still look at it
		}
		c.e, c.s, c.cn, c.began = e, s, cn, began
		err = c.run()
		if err == nil || e.began || e.ctx.Err() != nil {
			return false, c.explain(err)
		}
		if c.heard {
			s.Done(balance.Failed)
			return false, c.explain(err)
		}
		safe := !c.reached || e.r.Method == http.MethodGet || e.r.Method == http.MethodHead || e.r.Method == http.MethodOptions
		if cn.used && safe && !fresh && !isTimeout(err) {
			continue // the worker may have closed it before the request was there
		}
		s.Done(balance.Failed)
		e.sent++
		return safe && !isTimeout(err) && e.upgrade == "", c.explain(err)
	}
}

// explain says what a failure means.
func (c *call) explain(err error) error {
	if _, known := errors.AsType[*fault.Error](err); known || err == nil {
		return err
	}
	switch {
	case errors.Is(err, errDisk):
		return fault.Wrap(fault.Internal, "internal error; the server's log says more", err)
	case c.e.p.running.Err() != nil:
		return fault.Wrap(fault.Unavailable, "the server is being shut down, and waits for the application no longer; try again", err)
	case isTimeout(err):
		return fault.Wrap(fault.Deadline, "the application did not answer in time", err)
	case c.heard:
		return fault.Wrap(fault.Internal, "the application's answer was cut off, or is none", err)
	}
	return fault.Wrap(fault.Internal, "the application gave no answer", err)
}

// exhausted tells whether it is this process, or this machine, that has no more descriptors: that says nothing of a worker.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// fail answers with an error that comes before an answer began.
func (e *exchange) fail(err error) {
	e.Err = err
	status := statusOf(fault.KindOf(err))
	if status == http.StatusServiceUnavailable {
		after := max(fault.RetryAfter(err), time.Second)
		e.w.Header().Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
	e.text(status, fault.Message(err))
}

// refuse answers a request that is not relayed, and that nothing may follow on its connection: who knows what that would be.
func (e *exchange) refuse(status int, message string) {
	if e.Err == nil {
		e.Err = fault.New(fault.Invalid, "%s", message)
	}
	e.w.Header().Set("Connection", "close")
	e.text(status, message)
}

// text answers with a line of text.
func (e *exchange) text(status int, message string) {
	e.Status, e.began = status, true
	header := e.w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	e.w.WriteHeader(status)
	_, _ = io.WriteString(e.w, message+"\n")
}

// gone notes that nobody waits for an answer any more.
func (e *exchange) gone() {
	e.Status, e.Cut = statusGone, true
	e.Err = fault.Wrap(fault.Cancelled, "the client went away", e.ctx.Err())
}

// statusGone is what the log says where the client went away; nobody receives it.
const statusGone = 499

// statusOf is the status of an error that comes before an answer began.
func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.Exhausted, fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Deadline:
		return http.StatusGatewayTimeout
	case fault.Cancelled:
		return statusGone
	}
	return http.StatusBadGateway
}

// note logs what an operator has to know of.
func (e *exchange) note(message string, attrs ...slog.Attr) {
	attrs = append(attrs, slog.String("worker", e.Worker), slog.String("request_id", e.id))
	e.p.Log.LogAttrs(e.ctx, slog.LevelWarn, message, attrs...)
}
