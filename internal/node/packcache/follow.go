package packcache

import (
	"cmp"
	"context"
	"io"
	"os"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// follower is one reader of a fill: the first one or a later one.
type follower struct {
	f      *fill
	ctx    context.Context // of Open: cancelling it ends Send, too
	wake   chan struct{}   // has a token if something happened after waiting was set
	result packsource.Result

	// Guarded by f.mu.
	pos     int64 // bytes sent
	shown   int64 // position in the progress text
	waiting bool
	left    bool

	section bulk.Section
}

// wait returns the reader once the inner Source has opened the pack.
func (r *follower) wait() (packsource.Pack, error) {
	select {
	case <-r.f.opened:
		if err := r.f.openErr; err != nil {
			r.leave()
			return nil, err
		}
		return r, nil
	case <-r.ctx.Done():
		r.leave()
		return nil, r.ctx.Err()
	}
}

func (r *follower) Size() int64 {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if r.f.state == complete {
		return r.f.length
	}
	return -1
}

// step is the next thing to do for a reader: the first field that is set.
type step struct {
	text []byte   // progress
	err  error    // the end, or io.EOF for a whole pack
	file *os.File // send from here up to end
	end  int64
	data []byte // send this
}

// next returns the next step. If it is empty, the reader waits for wake.
func (r *follower) next(buf *buffer) (s step) {
	f := r.f
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case r.shown < f.progress.end:
		s.text, r.shown = f.progress.since(r.shown, buf[:])
	case f.state == failed:
		s.err = f.err
	case r.pos < f.stored:
		s.file, s.end = f.file, f.stored
	case r.pos < f.length:
		for _, k := range f.window {
			if r.pos < k.end() {
				s.data = k.buf[r.pos-k.start : k.n]
				break
			}
		}
	case f.state == complete:
		s.err = io.EOF
	default:
		r.waiting = true
	}
	return s
}

// Send follows the fill to its end.
func (r *follower) Send(ctx context.Context, out packsource.Output) error {
	defer r.leave()
	buf := r.f.c.buffers.get()
	defer r.f.c.buffers.put(buf)
	silence := out.KeepAliveAfter()
	var timer *time.Timer
	var silent <-chan time.Time // nil: never
	for {
		if err := cmp.Or(ctx.Err(), r.ctx.Err()); err != nil {
			return err
		}
		s := r.next(buf)
		var err error
		switch {
		case s.text != nil:
			err = out.Progress(s.text)
		case s.err == io.EOF:
			return nil
		case s.err != nil:
			return s.err
		case s.file != nil:
			err = r.sendFile(out, s.file, s.end, buf)
		case s.data != nil:
			var n int
			n, err = out.Write(s.data)
			if err == nil && n < len(s.data) {
				err = io.ErrShortWrite
			}
			r.advance(int64(n))
		default:
			if timer != nil {
				timer.Reset(silence)
			} else if silence > 0 {
				timer = time.NewTimer(silence)
				defer timer.Stop()
				silent = timer.C
			}
			select {
			case <-r.wake:
			case <-silent:
				err = out.KeepAlive()
			case <-ctx.Done():
			case <-r.ctx.Done():
			}
		}
		if err != nil {
			return err
		}
	}
}

// sendFile sends the file up to end. Without io.ReaderFrom it sends one buffer of it.
func (r *follower) sendFile(out packsource.Output, file *os.File, end int64, buf *buffer) (err error) {
	pos := r.pos
	var n int64
	if rf, ok := out.(io.ReaderFrom); ok {
		r.section = bulk.Section{File: file, Offset: pos, N: end - pos}
		n, err = rf.ReadFrom(&r.section)
		if err == nil && n < end-pos {
			err = io.ErrUnexpectedEOF
		}
	} else {
		n, err = copyFrames(out, file, pos, end, buf)
	}
	r.advance(n)
	return err
}

func (r *follower) advance(n int64) {
	f := r.f
	f.mu.Lock()
	r.pos += n
	var file *os.File
	if f.degraded {
		f.trimLocked()
		file = f.takeFileLocked()
	}
	f.mu.Unlock()
	f.closeFile(file)
}

// Info describes the fill. Only the first reader learns how the pack was made.
func (r *follower) Info() packsource.Info {
	f := r.f
	f.mu.Lock()
	defer f.mu.Unlock()
	info := packsource.Info{Result: r.result, Bytes: r.pos, Objects: f.info.Objects}
	if r.result == packsource.Miss {
		info.Wait, info.Made = f.info.Wait, f.info.Made
		if f.degraded {
			info.Result = packsource.Uncached
		}
	}
	return info
}

// leave ends the reader's part in the fill.
func (r *follower) leave() {
	f, c := r.f, r.f.c
	c.mu.Lock()
	f.mu.Lock()
	if r.left {
		f.mu.Unlock()
		c.mu.Unlock()
		return
	}
	r.left = true
	delete(f.readers, r)
	f.trimLocked()
	if f.entry != nil {
		c.index.release(f.entry, c.now())
		c.gaugesLocked()
	}
	end := false
	if len(f.readers) == 0 && f.state == filling {
		if end = f.degraded || c.grace < 0; end {
			f.detachLocked()
		} else {
			f.quits++
			nth := f.quits
			f.grace = time.AfterFunc(c.grace, func() { f.abandon(nth) })
		}
	}
	file := f.takeFileLocked()
	f.mu.Unlock()
	c.mu.Unlock()
	if end {
		f.cancel()
	}
	f.closeFile(file)
}

// Close leaves the fill. If the fill has no use for other readers, Close waits for its end.
func (r *follower) Close() error {
	r.leave()
	f := r.f
	f.mu.Lock()
	end := f.degraded && len(f.readers) == 0
	f.mu.Unlock()
	if end {
		<-f.done
	}
	return nil
}
