package app

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
)

// call is a request on a connection to a worker.
type call struct {
	e  *exchange
	s  *seat
	cn *conn

	head answer
	in   incoming

	began   time.Time
	took    time.Duration // until the worker was through with it
	sender  chan struct{} // closed when the body was sent, where another goroutine does that; else nil
	sent    error         // what became of sending; of the sender, once it has ended
	left    bool          // the client has; the worker is heard out
	reached bool          // bytes of the request may have come to the worker
	heard   bool          // bytes of an answer came

	mu          sync.Mutex
	interrupted bool
	answering   bool // the head of an answer that counts has come
	over        bool // the connection is not ours any more
}

// maxInform is how many answers of 1xx may come before the one that counts.
const maxInform = 8

// run sends the request and relays the answer. After an error nothing may have gone to the client, unless exchange.began.
func (c *call) run() (err error) {
	e, cn := c.e, c.cn
	cn.watch.begin(c)
	defer func() {
		if !c.over && (err == nil || !c.leave()) {
			c.end(false, undecided)
		}
	}()
	// A deadline costs more than all that is allocated for a small request: one that is a little late serves many.
	if left := time.Until(cn.until); left < e.p.HeaderTime {
		late := e.p.HeaderTime + e.p.HeaderTime/16
		if err := c.limit(cn.SetDeadline, late); err != nil {
			return err
		}
		cn.until = time.Now().Add(late)
	}
	sent := c.send()
	if c.sender == nil {
		c.sent = sent
	}
	for range maxInform {
		head, err := cn.readHead()
		c.heard = c.heard || head != "" || cn.end > 0
		if err != nil {
			if sent != nil && !c.heard {
				err = sent
			}
			return cutOff(err)
		}
		a := &c.head
		if *a, err = parseAnswer(head, e.p.FileHeader, e.fields[:0]); err != nil {
			return err
		}
		if e.fields = a.fields; a.status >= 200 || a.status == http.StatusSwitchingProtocols {
			c.mu.Lock()
			c.answering = true
			c.mu.Unlock()
			return c.respond(a)
		}
		if a.status == http.StatusEarlyHints && e.r.ProtoAtLeast(1, 1) {
			e.inform(a)
		}
	}
	return bad("too many answers of 1xx")
}

// inlineBody is up to which size a body goes out in one write with the head; longBody, from which on a goroutine of its own sends it: a worker may
// answer before it has read all, or instead.
const (
	inlineBody = 16 << 10
	longBody   = 64 << 10
)

// send sends the request, or begins to. Its error is no reason not to look for an answer.
func (c *call) send() error {
	e, cn := c.e, c.cn
	out := e.appendHead(cn.out[:0], c.s.worker)
	inline := e.body.size <= inlineBody && e.body.file == nil
	if inline {
		out = append(out, e.body.memory...)
	}
	n, err := cn.Conn.Write(out)
	c.reached = n > 0
	if cn.out = nil; cap(out) <= maxHeader {
		cn.out = out
	}
	if err != nil || inline {
		return err
	}
	if e.body.size <= longBody && e.body.file == nil {
		_, err = cn.Conn.Write(e.body.memory)
		return err
	}
	cn.until = time.Time{}
	if err := c.limit(cn.SetReadDeadline, 0); err != nil { // it is set when the body was sent
		return err
	}
	c.sender = make(chan struct{})
	go c.sendBody()
	return nil
}

func (c *call) sendBody() {
	defer close(c.sender)
	e, cn := c.e, c.cn
	defer func() {
		if cause := recover(); cause != nil {
			c.sent = e.p.panicked(cause)
			c.interrupt()
		}
	}()
	c.sent = e.body.writeTo(cn.Conn, e.p, func() error { return c.limit(cn.SetWriteDeadline, e.p.IdleTime) })
	if c.sent != nil && isTimeout(c.sent) {
		c.interrupt()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.interrupted && !c.answering {
		_ = cn.SetReadDeadline(time.Now().Add(e.p.HeaderTime))
	}
}

// limit sets a time limit, 0 for none, unless the call was interrupted before: then its limit has passed, and stays so.
func (c *call) limit(set func(time.Time) error, d time.Duration) error {
	t := time.Time{}
	if d > 0 {
		t = time.Now().Add(d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.left: // it has one
		return nil
	case c.interrupted:
		return errInterrupted
	}
	return set(t)
}

var errInterrupted = errors.New("the client went away")

// interrupt has the call fail, if it is not over.
func (c *call) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupted = true
	if !c.over {
		_ = c.cn.SetDeadline(time.Unix(1, 0))
	}
}

// undecided says that what became of the request on the worker is not known yet.
const undecided balance.Outcome = -1

// end ends the use of the connection: keep says that the answer is whole, and that the worker keeps the connection. Then the worker may be given
// other work.
func (c *call) end(keep bool, how balance.Outcome) {
	if c.sender != nil {
		select {
		case <-c.sender:
			keep = keep && c.sent == nil
		default: // it answered before it had all
			c.interrupt()
			<-c.sender
			keep = false
		}
	}
	c.cn.watch.end()
	c.mu.Lock()
	c.over = true
	keep = keep && !c.interrupted && c.cn.at == c.cn.end
	c.mu.Unlock()
	now := time.Now()
	if c.took = now.Sub(c.began); keep {
		c.s.worker.conns.put(c.cn)
	} else {
		c.s.worker.conns.drop(c.cn)
	}
	if how != undecided {
		c.s.done(how, now)
	}
}

// respond relays an answer that counts.
func (c *call) respond(a *answer) error {
	e := c.e
	switch {
	case a.status == http.StatusSwitchingProtocols:
		return c.switchProtocols(a)
	case a.file != "" && c.s.worker.Files:
		return c.sendFile(a)
	case a.file != "":
		e.note("an application worker that may not have files sent wanted one")
	}
	if a.hasBody(e.r.Method) {
		return c.body(a)
	}
	c.end(a.ends(e.r.Method), balance.OK)
	e.begin(a)
	return nil
}

// begin sends the head of an answer.
func (e *exchange) begin(a *answer) {
	header := e.w.Header()
	setFields(header, a.fields)
	if a.length >= 0 && a.status != http.StatusNoContent {
		header["Content-Length"] = []string{cmp.Or(a.written, strconv.FormatInt(a.length, 10))}
	}
	if _, there := header["Content-Type"]; !there {
		header["Content-Type"] = nil // what it is nobody guesses
	}
	if a.chunked && len(a.trailer) > 0 {
		header["Trailer"] = a.trailer
	}
	inflight.From(e.ctx).At(inflight.Sending)
	e.Status, e.began = a.status, true
	e.w.WriteHeader(a.status)
}

func setFields(header http.Header, fields []field) {
	values := make([]string, len(fields))
	for i, f := range fields {
		if old := header[f.name]; old != nil {
			header[f.name] = append(old, f.value)
			continue
		}
		values[i] = f.value
		header[f.name] = values[i : i+1 : i+1]
	}
}

// inform passes on what a worker says before its answer.
func (e *exchange) inform(a *answer) {
	header := e.w.Header()
	setFields(header, a.fields)
	e.w.WriteHeader(a.status)
	for _, f := range a.fields {
		delete(header, f.name)
	}
}

// trail sets the trailers that were announced. Fields of the same names that went with the head are no part of them.
func (e *exchange) trail(a *answer, in *incoming) {
	for _, name := range a.trailer {
		delete(e.w.Header(), name)
	}
	for _, f := range in.trailer {
		if slices.Contains(a.trailer, f.name) {
			e.w.Header().Add(f.name, f.value)
		}
	}
}

// body relays an answer that has a body. A short one is taken off the worker first, and so is what has come of a longer one.
func (c *call) body(a *answer) error {
	e := c.e
	in := a.incoming(c)
	buffer := e.p.buffer()
	defer e.p.giveBuffer(buffer)
	short := a.length >= 0 && a.length <= int64(len(buffer)) && !a.unbuffered
	n, err := 0, error(nil)
	for err == nil && n < len(buffer) {
		m := 0
		m, err = in.read(buffer[n:], short)
		n += m
	}
	switch {
	case err == io.EOF || short && int64(n) == a.length:
		c.end(!a.close, balance.OK)
		if !e.r.ProtoAtLeast(1, 1) {
			a.length, a.written, a.trailer = int64(n), "", nil // it knows no other way to tell the whole
		}
		e.begin(a)
		if err := e.write(buffer[:n]); err != nil {
			return err
		}
		e.trail(a, in)
		return nil
	case err != nil && err != errWait:
		return err
	}
	return c.pass(a, in, buffer[:n])
}

// write sends a part of the answer's body.
func (e *exchange) write(p []byte) error {
	n, err := e.w.Write(p)
	e.Out += int64(n)
	return lost(err)
}

// lost is what it means that the client is not sent anything; nil for nil.
func lost(err error) error {
	switch {
	case err == nil:
		return nil
	case isTimeout(err):
		return fault.Wrap(fault.Deadline, "the client took nothing of the answer for too long", err)
	}
	return fault.Wrap(fault.Cancelled, "the client went away", err)
}

// pass relays a long answer, or one whose length is not known, of which the first bytes have come: a goroutine takes it off the worker, and this one sends it.
func (c *call) pass(a *answer, in *incoming, first []byte) error {
	e := c.e
	s := newSpool(e.p, a.unbuffered)
	defer s.close()
	e.begin(a)
	fetched := make(chan struct{})
	defer func() { // after a panic as well: nobody else may have the spool's memory before
		c.interrupt() // before it is stopped: whoever finds that asks why
		s.stop()
		<-fetched
		e.Spooled += s.spooled
	}()
	go func() {
		defer close(fetched)
		defer func() {
			if cause := recover(); cause != nil {
				s.end(e.p.panicked(cause))
			}
		}()
		s.write(first)
		c.fetch(a, in, s)
	}()
	if err := e.drain(s); err != nil {
		return err
	}
	<-fetched
	e.trail(a, in)
	return nil
}

// fetch takes an answer off the worker.
func (c *call) fetch(a *answer, in *incoming, s *spool) {
	var scratch *[copySize]byte // for what goes into a file
	defer func() { c.e.p.giveBuffer(scratch) }()
	err := errInterrupted
	for {
		ring, ok := s.space()
		if !ok {
			break
		}
		n := 0
		if ring != nil {
			n, err = in.read(ring, true)
			s.put(n)
		} else {
			if scratch == nil {
				scratch = c.e.p.buffer()
			}
			n, err = in.read(scratch[:], true)
			s.write(scratch[:n])
		}
		if err != nil {
			break
		}
	}
	switch {
	case err == io.EOF:
		c.end(!a.close, balance.OK)
	case c.gone():
		c.end(false, balance.Cut)
	default:
		c.end(false, balance.Failed)
	}
	s.end(err)
}

// gone tells whether the call was interrupted.
func (c *call) gone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.interrupted
}

// drain sends what comes into a spool. What has come is flushed as soon as nothing else is there.
func (e *exchange) drain(s *spool) error {
	control := http.NewResponseController(e.w)
	for more := s.some(); ; {
		if !more {
			if err := control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return lost(err)
			}
		}
		p, err := s.next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := e.write(p); err != nil {
			return err
		}
		if more, err = s.took(len(p)); err != nil {
			return err
		}
	}
}
