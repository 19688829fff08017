package sidechannel

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Receiver is the peer's direction of a transfer. io.EOF comes only after an END with status 0, and all its bytes. The
// status of another END is a fault of its kind; whatever happens to the channel is Unavailable or Cancelled. After an
// error the channel cannot be used again.
type Receiver struct {
	c      *Channel
	begun  bool
	length int64 // or unknown
	left   int64 // remaining bytes of the last header
	got    int64
	err    error // of the next Read; io.EOF after the END
	broke  error // of the channel or the peer
	stream bulk.Stream

	file    *os.File     // that the run is in; nil: it comes on the channel
	section bulk.Section // of the file
}

// Length waits for the peer to begin, and returns the length of its direction; -1: unknown.
func (r *Receiver) Length() (int64, error) {
	if err := r.begin(); err != nil {
		return 0, err
	}
	return r.length, nil
}

// Err returns the error of the channel or the peer. If WriteTo failed and Err is nil, the writer failed.
func (r *Receiver) Err() error { return r.broke }

// Read copies through user space.
func (r *Receiver) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.next(); err != nil {
		return 0, err
	}
	return r.read(p)
}

// WriteTo passes each run of bytes as a *bulk.Stream to ReadFrom of w, so that the kernel can move them. If the length
// of the direction is unknown, it calls Flush of w after each run.
func (r *Receiver) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		err := r.next()
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		n, err := r.run(w)
		total += n
		if f, ok := w.(interface{ Flush() error }); err == nil && ok && r.length == unknown {
			err = f.Flush()
		}
		if err != nil {
			r.abandon(err)
			return total, err
		}
	}
}

// run passes the rest of a run to w.
func (r *Receiver) run(w io.Writer) (int64, error) {
	if r.file != nil {
		return r.runFile(w)
	}
	l := r.c.line
	short := l.files && l.opener && r.left <= bufferSize // bytes before a file
	if l.kernel == nil || len(l.head) > 0 || short {
		buf := l.limits.buffers.get()
		defer l.limits.buffers.put(buf)
		n := r.left
		if l.kernel != nil && !short {
			n = min(n, int64(len(l.head))) // bytes received with the handshake; the kernel copies the rest
		}
		return io.CopyBuffer(w, &part{r, n}, buf[:])
	}
	r.stream = bulk.Stream{From: l.kernel, N: r.left}
	var n int64
	var err error
	if to, ok := w.(io.ReaderFrom); ok {
		n, err = to.ReadFrom(&r.stream)
	} else {
		n, err = io.Copy(w, &r.stream)
	}
	took := r.left - r.stream.N
	r.left -= took
	r.got += took
	kernel := r.stream.KernelBytes()
	l.limits.metrics.countReceived(kernel, took-kernel)
	if failed := r.stream.Err(); failed != nil {
		return n, r.broken(failed)
	}
	if err == nil && r.left > 0 {
		err = io.ErrShortWrite
	}
	return n, err
}

// part reads n bytes of a run.
type part struct {
	r *Receiver
	n int64
}

func (p *part) Read(b []byte) (int, error) {
	if p.r.err != nil {
		return 0, p.r.err
	}
	if p.n == 0 {
		return 0, io.EOF
	}
	n, err := p.r.read(b[:min(int64(len(b)), p.n)])
	p.n -= int64(n)
	return n, err
}

// read reads some of the remaining bytes of a run.
func (r *Receiver) read(p []byte) (int, error) {
	l := r.c.line
	p = p[:min(int64(len(p)), r.left)]
	if r.file != nil {
		return r.readFile(p)
	}
	n := copy(p, l.head)
	l.head = l.head[n:]
	if n == 0 {
		l.limitRead(l.limits.stall)
		var err error
		if n, err = l.Conn.Read(p); n == 0 && err != nil {
			return 0, r.broken(unexpected(err))
		}
		if r.left == int64(n) {
			l.limitRead(0)
		}
	}
	r.left -= int64(n)
	r.got += int64(n)
	l.limits.metrics.countReceived(0, int64(n))
	return n, nil
}

// begin waits for the first header.
func (r *Receiver) begin() error {
	if r.begun || r.err != nil {
		return r.over()
	}
	l := r.c.line
	l.mu.Lock()
	if l.running == r.c && !r.c.released && !l.closed && l.first == nil {
		r.c.await()
		for l.running == r.c && !r.c.released && !l.closed && l.first == nil {
			changed := l.changed
			l.mu.Unlock()
			<-changed
			l.mu.Lock()
		}
		r.c.arrive()
	}
	first := l.first
	if l.running == r.c && !l.closed && !r.c.released && first.kind == start {
		r.c.getting = open
	}
	l.mu.Unlock()
	if err := r.c.usable(); err != nil {
		r.err, r.broke = err, err
		return err
	}
	r.begun = true
	if first.kind == end {
		return r.end(first)
	}
	r.length = first.length
	return nil
}

// over returns the error that ended the direction; nil if it ended well.
func (r *Receiver) over() error {
	if r.err == io.EOF {
		return nil
	}
	return r.err
}

// next makes sure that a run has bytes left.
func (r *Receiver) next() error {
	if err := r.begin(); err != nil {
		return err
	}
	if r.err != nil {
		return r.err
	}
	if r.left > 0 {
		return r.usable()
	}
	if err := r.usable(); err != nil {
		return err
	}
	h, err := r.nextHeader()
	if err != nil {
		if errors.Is(err, errHeader) {
			return r.wrong(err)
		}
		return r.broken(unexpected(err))
	}
	switch {
	case h.transfer != r.c.transfer:
		return r.wrong(fmt.Errorf("a header of transfer %d in transfer %d", h.transfer, r.c.transfer))
	case h.kind == end:
		if err := r.end(&h); err != nil {
			return err
		}
		return r.err
	case h.kind == start || h.length > r.room():
		return r.wrong(fmt.Errorf("%c of %d bytes is out of place", h.kind, h.length))
	case h.kind == file:
		return r.takeFile(h.length)
	}
	r.left = h.length
	return nil
}

// room returns the maximum number of further bytes.
func (r *Receiver) room() int64 {
	if r.length >= 0 {
		return r.length - r.got
	}
	return maxLength - r.got
}

// nextHeader waits for a header. If the length is known, it is due.
func (r *Receiver) nextHeader() (header, error) {
	l := r.c.line
	l.mu.Lock()
	r.c.due = r.c.due || r.length >= 0
	r.c.await()
	l.mu.Unlock()
	h, err := l.readHeader()
	l.mu.Lock()
	r.c.arrive()
	l.mu.Unlock()
	return h, err
}

// usable returns an error if the transfer has ended, so that the receiver does not read another transfer's bytes.
func (r *Receiver) usable() error {
	if err := r.c.usable(); err != nil {
		r.err, r.broke = err, err
		return err
	}
	return nil
}

// end processes the peer's END.
func (r *Receiver) end(h *header) error {
	if h.length != r.got || h.status == 0 && r.length >= 0 && r.got != r.length {
		return r.wrong(fmt.Errorf("END after %d bytes says %d", r.got, h.length))
	}
	if h.status == 0 {
		r.err = io.EOF
		r.c.set(&r.c.getting, ended)
		return nil
	}
	message := make([]byte, h.message)
	if err := r.c.line.readFull(message); err != nil {
		return r.broken(err)
	}
	r.err = h.fault(message)
	r.broke = r.err
	r.c.set(&r.c.getting, failed)
	return r.err
}

// abandon prevents further reads after the writer has failed.
func (r *Receiver) abandon(err error) {
	if r.err == nil {
		r.err = err
	}
}

// broken closes the channel after an error of its connection.
func (r *Receiver) broken(err error) error {
	why := closeBroken
	if errors.Is(err, os.ErrDeadlineExceeded) {
		why = closeStall
	}
	return r.close(why, err)
}

// wrong closes the channel because the peer violates the protocol.
func (r *Receiver) wrong(err error) error { return r.close(closeProtocol, err) }

func (r *Receiver) close(why reason, err error) error {
	r.c.line.dropFile()
	r.broke = r.c.broken(why, err)
	r.err = r.broke
	return r.err
}
