package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Health says how workers are asked whether they are ready. Without an interval nobody asks, and all are.
type Health struct {
	Path     string        // that is asked for; empty: a connection is enough
	Interval time.Duration // between two checks
	Timeout  time.Duration // of one; 0: 5 s
	Failures int           // checks without an answer in a row after which a worker is down; less than 1 means 1
	Passes   int           // good ones in a row before it is given requests again; less than 1 means 1
}

// report is what came of a check.
type report int

const (
	passed  report = iota
	red            // it answered that it is not ready
	dead           // there was no answer
	unknown        // it could not be asked, and that says nothing of it
)

// standing is what is believed of a worker.
type standing int

const (
	starting standing = iota // nothing is known yet
	up
	unready // it answers, and says that it is not ready
	down
)

func (s standing) String() string { return [...]string{"starting", "up", "unready", "down"}[s] }

// vitals turn checks into a standing. No clock, no lock.
type vitals struct {
	standing
	why            string // it is not up
	passes, deaths int    // checks in a row
	flaps          int    // times that it fell soon after it rose
	rose           time.Time
}

// Each time that a worker falls within calm of its rise it has to pass twice as many checks before the next one, up to 2^maxFlaps times as many.
const (
	calm     = time.Minute
	maxFlaps = 5
)

// heard takes a check in and tells whether the standing changed.
func (v *vitals) heard(r report, why string, h *Health, now time.Time) bool {
	before := v.standing
	if r == passed {
		v.deaths = 0
		if v.passes++; before == up || before != starting && v.passes < max(h.Passes, 1)<<v.flaps {
			return false
		}
		*v = vitals{standing: up, flaps: v.flaps, rose: now}
		return true
	}
	v.passes = 0
	next := unready
	if r == red {
		v.deaths = 0
	} else if v.deaths++; v.deaths >= max(h.Failures, 1) || before == starting || before == down {
		next = down
	} else {
		return false
	}
	v.why = why
	if v.standing = next; before == up {
		if v.flaps++; now.Sub(v.rose) >= calm {
			v.flaps = 0
		}
		v.flaps = min(v.flaps, maxFlaps)
	}
	return v.standing != before
}

// soon tells whether the next check decides something, and should not wait for its turn.
func (v *vitals) soon() bool {
	return v.standing == starting || v.standing != up && v.passes > 0 || v.standing != down && v.deaths > 0
}

// probe asks a worker once, on a connection of its own out of those that the worker may have.
func (h *Health) probe(ctx context.Context, c *conns) (report, string) {
	timeout := h.Timeout
	if timeout <= 0 {
		timeout = 5 * second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cn, err := c.get(ctx, true, true)
	if exhausted(err) || errors.Is(err, errOccupied) {
		return unknown, ""
	}
	if err != nil {
		return dead, "cannot connect: " + plainError(err)
	}
	defer c.drop(cn)
	if h.Path == "" {
		return passed, ""
	}
	end, _ := ctx.Deadline()
	_ = cn.SetDeadline(end)
	defer context.AfterFunc(ctx, func() { _ = cn.SetDeadline(time.Now()) })()
	request := "GET " + h.Path + " HTTP/1.1\r\nHost: " + c.host + "\r\nUser-Agent: packhorse-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
	if _, err := io.WriteString(cn.Conn, request); err != nil {
		return dead, "cannot be asked: " + plainError(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(cn.Conn, maxProbe)), nil)
	if err != nil {
		return dead, fmt.Sprintf("no answer to GET %s: %s", h.Path, plainError(err))
	}
	if response.StatusCode/100 == 2 {
		return passed, ""
	}
	return red, fmt.Sprintf("GET %s: %.80q", h.Path, response.Status)
}

// full tells whether a new connection has to wait for one that is in use.
func (c *conns) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit > 0 && c.open >= c.limit && len(c.idle) == 0
}

// maxProbe bounds the bytes that are read of an answer: its status is enough.
const maxProbe = 64 << 10

// plainError is an error without the addresses that the reader knows already.
func plainError(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "too slow"
	}
	if nerr, ok := errors.AsType[net.Error](err); ok && nerr.Timeout() {
		return "too slow"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return strings.TrimPrefix(op.Err.Error(), "connect: ")
	}
	return err.Error()
}
