package sidechannel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// leastHanded is the minimum length in bytes of a section whose file is passed. Sending fewer bytes is cheaper than
// opening a file.
const leastHanded = 256 << 10

// progressInterval is the interval in which a gateway reports its progress with a file. It is shorter if a quarter of
// the time limit is.
const progressInterval = time.Second

// HandFiles allows passing files to the peer, if both sides support that. Use it for transfers whose other direction is
// empty.
func (s *Sender) HandFiles() { s.files = s.c.line.files && !s.c.line.opener }

// prove sends a response together with a file, so that the gateway can check that files arrive. After
// errors.ErrUnsupported nothing was sent.
func (l *line) prove(answer string) error {
	f, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	defer f.Close()
	return l.kernel.Hand([]byte(answer), f)
}

// sendFile passes the section's file to the gateway, and waits until the gateway has sent it. After
// errors.ErrUnsupported the section is unchanged.
func (s *Sender) sendFile(section *bulk.Section) error {
	if err := s.admit(section.N); err != nil {
		return err
	}
	if err := s.flush(0); err != nil {
		return err
	}
	if !s.c.handing(section.N) {
		return errors.ErrUnsupported
	}
	h := header{kind: file, transfer: s.c.transfer, length: section.N}
	var b [headerSize + offsetSize]byte
	err := s.c.line.kernel.Hand(binary.BigEndian.AppendUint64(h.append(b[:0]), uint64(section.Offset)), section.File)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		s.c.handing(0)
		return err
	case err != nil:
		return s.broken(err)
	}
	for gone := int64(0); section.N > 0; {
		n, err := s.c.awaitTaken(gone)
		gone += n
		section.Elsewhere(n)
		s.sent += n
		s.c.line.limits.metrics.countSent(n, 0)
		if err != nil {
			return s.fail(closeFailed, err)
		}
	}
	s.c.handing(0)
	return nil
}

// handing sets the number of bytes of a file that the peer has to send; 0: none. It reports false if the peer's
// direction has begun, because then files cannot be passed.
func (c *Channel) handing(n int64) bool {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	c.handed, c.taken = n, 0
	l.deadline = time.Time{}
	switch {
	case n == 0:
		l.timer.Stop()
	case l.first != nil || l.closed || l.running != c || c.released:
		c.handed = 0
		return false
	default:
		l.limit(l.limits.stall)
	}
	return true
}

// awaitTaken waits until the peer has sent more than before bytes of the file. It returns how many more.
func (c *Channel) awaitTaken(before int64) (int64, error) {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	for c.taken <= before && c.refused == nil && !l.closed && l.running == c {
		changed := l.changed
		l.mu.Unlock()
		<-changed
		l.mu.Lock()
	}
	switch n := c.taken - before; {
	case c.refused != nil:
		return n, c.refused
	case l.running != c:
		return 0, closeError(closeUnfinished, nil)
	case l.closed && c.taken < c.handed:
		return n, l.cause
	default:
		return n, nil
	}
}

// fileProgress processes the gateway's report about a file. It reports whether the line is still open.
func (l *line) fileProgress(h header) bool {
	message := make([]byte, h.message)
	err := l.readFull(message)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.running
	switch {
	case l.closed:
	case err != nil:
		l.close(closeBroken, err)
	case c == nil || h.transfer != l.next || c.handed == 0 || h.length < c.taken || h.length > c.handed:
		l.close(closeProtocol, fmt.Errorf("TAKEN of %d bytes is out of place", h.length))
	default:
		if c.taken = h.length; h.status != 0 {
			c.refused = h.fault(message)
		}
		l.limit(l.limits.stall)
		l.notify()
	}
	return !l.closed
}

// takeFile takes the file that came with the last header, of n bytes.
func (r *Receiver) takeFile(n int64) error {
	l := r.c.line
	r.file, l.file = l.file, nil
	var offset [offsetSize]byte
	if err := l.readFull(offset[:]); err != nil {
		return r.broken(err)
	}
	at := int64(binary.BigEndian.Uint64(offset[:]))
	info, err := r.file.Stat()
	switch {
	case err != nil:
		return r.wrong(err)
	case !info.Mode().IsRegular() || at < 0 || at > maxLength || info.Size() < at+n:
		return r.wrong(errors.New("a FILE without a regular file that has so many bytes"))
	case !r.c.untouched():
		return r.wrong(errors.New("a FILE while the gateway sends"))
	}
	r.section = bulk.Section{File: r.file, Offset: at, N: n, Done: l.done}
	r.left = n
	return nil
}

// untouched reports whether our direction has not begun.
func (c *Channel) untouched() bool {
	c.line.mu.Lock()
	defer c.line.mu.Unlock()
	return c.sending == untouched
}

// runFile hands the rest of the file's run to w.
func (r *Receiver) runFile(w io.Writer) (n int64, err error) {
	defer r.dropFile()
	p := r.tellProgress()
	kernel := r.section.KernelBytes()
	if to, ok := w.(io.ReaderFrom); ok {
		n, err = to.ReadFrom(&r.section)
	} else {
		n, err = io.Copy(w, &r.section)
	}
	p.stop()
	took := r.left - r.section.N
	r.left -= took
	r.got += took
	kernel = r.section.KernelBytes() - kernel
	r.c.line.limits.metrics.countReceived(kernel, took-kernel)
	if err == nil && r.left > 0 {
		err = io.ErrShortWrite
	}
	return n, r.reportFile(err)
}

// readFile reads some of the file. The node gets a report only at the end, so slow callers should use WriteTo.
func (r *Receiver) readFile(p []byte) (int, error) {
	n, err := r.section.Read(p)
	r.left -= int64(n)
	r.got += int64(n)
	r.c.line.limits.metrics.countReceived(0, int64(n))
	if err != nil || r.left == 0 {
		err = r.reportFile(err)
		r.dropFile()
	}
	return n, err
}

// reportFile reports to the node that the whole file was sent, or that it cannot be read. It returns the error for the
// user; err is that of the copy.
func (r *Receiver) reportFile(err error) error {
	if lost := r.c.usable(); lost != nil {
		r.err, r.broke = lost, lost
		return lost
	}
	unread := r.section.Err()
	if err != nil && unread == nil {
		return err // the client's
	}
	var status error
	if unread != nil {
		status = fault.New(fault.Corrupt, "the gateway cannot read the file that it was handed: %v", unread)
		r.c.line.hindered(status)
	}
	if err := r.sendTaken(r.section.Gone(), status); err != nil {
		return r.broken(err)
	}
	if unread != nil {
		return r.broken(status)
	}
	return nil
}

// sendTaken reports that n bytes of the file were sent.
func (r *Receiver) sendTaken(n int64, status error) error {
	l := r.c.line
	return l.write(appendStatus(nil, taken, r.c.transfer, n, status), l.limits.stall)
}

// progress reports from time to time how much of a file was sent.
type progress struct {
	mu    sync.Mutex
	over  bool
	timer *time.Timer
}

func (r *Receiver) tellProgress() *progress {
	p, every := &progress{}, min(progressInterval, r.c.line.limits.stall/4)
	almost := r.section.Gone() + r.left - 1 // without the last byte, because bytes that were read may not be sent yet
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(every, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over {
			return
		}
		if err := r.sendTaken(min(r.section.Gone(), almost), nil); err != nil {
			_ = r.c.broken(closeBroken, err) // the copy ends with its next step
			return
		}
		p.timer.Reset(every)
	})
	return p
}

func (p *progress) stop() {
	p.timer.Stop()
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
}

// dropFile closes the file.
func (r *Receiver) dropFile() {
	if r.file != nil {
		r.file.Close()
		r.file, r.section = nil, bulk.Section{}
	}
}
