package packcache

import (
	"errors"
	"hash/crc32"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// sink is a fill as the inner pack's Output. Its methods run on behalf of run.
type sink fill

var errUnread = errors.New("all readers of a pack that cannot be kept have left")

// Write publishes whole packets: in the file, or in the window if that fails.
func (s *sink) Write(p []byte) (int, error) {
	f := (*fill)(s)
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	if n, err := wholeFrames(p); isFramed(f.source) && (err != nil || n < len(p)) {
		return 0, fault.Wrap(fault.Internal, "the pack's source does not write whole packets", err)
	}
	f.c.m.generated.Add(float64(len(p)))
	if !f.degraded {
		err := f.store(p)
		if err == nil {
			return len(p), nil
		}
		if err = f.degrade(err); err != nil {
			return 0, err
		}
	}
	return f.stream(p)
}

// Progress keeps text for the readers.
func (s *sink) Progress(text []byte) error {
	f := (*fill)(s)
	f.mu.Lock()
	f.progress.add(text)
	f.wakeLocked()
	f.mu.Unlock()
	return f.ctx.Err()
}

// KeepAliveAfter returns no limit, because each reader keeps its own connection alive.
func (s *sink) KeepAliveAfter() time.Duration { return 0 }

// KeepAlive does nothing.
func (s *sink) KeepAlive() error { return s.ctx.Err() }

// store appends p to the file. After an error, p is not stored.
func (f *fill) store(p []byte) error {
	c := f.c
	if err := c.reserve(f, int64(len(p))); err != nil {
		return err
	}
	if err := c.write(f.file, p, f.stored); err != nil {
		return err
	}
	f.crc = crc32.Update(f.crc, castagnoli, p)
	f.mu.Lock()
	f.stored += int64(len(p))
	f.length = f.stored
	f.wakeLocked()
	f.mu.Unlock()
	return nil
}

// degrade continues without the file. New readers cannot join, because the window has only the latest bytes. The error
// is that of a File, which cannot continue.
func (f *fill) degrade(err error) error {
	c := f.c
	if !isFramed(f.source) {
		c.m.degraded.WithLabelValues(causeOf(err)).Inc()
		return fault.Wrap(fault.Full, "the server's cache has no room for the file", err)
	}
	c.log.Warn("a pack is sent without being cached", "error", err, "written", f.stored)
	c.m.degraded.WithLabelValues(causeOf(err)).Inc()
	f.removeTemp()
	c.mu.Lock()
	f.detachLocked()
	f.forgetLocked()
	f.mu.Lock()
	f.degraded = true
	file := f.takeFileLocked()
	f.mu.Unlock()
	c.gaugesLocked()
	c.mu.Unlock()
	f.closeFile(file)
	return nil
}

// stream passes p to the readers through the window.
func (f *fill) stream(p []byte) (done int, err error) {
	for done < len(p) {
		n, _ := wholeFrames(p[done:min(len(p), done+len(buffer{}))])
		if err := f.push(p[done : done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// push appends complete packets of at most one buffer to the window. It waits if the window has no room.
func (f *fill) push(p []byte) error {
	for {
		f.mu.Lock()
		if len(f.readers) == 0 {
			f.mu.Unlock()
			return errUnread
		}
		if k := f.chunkLocked(len(p)); k != nil {
			k.n += copy(k.buf[k.n:], p)
			f.length += int64(len(p))
			f.wakeLocked()
			f.mu.Unlock()
			return nil
		}
		f.mu.Unlock()
		select {
		case <-f.room:
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
}

// chunkLocked returns a chunk with room for n bytes; nil if the window is full.
func (f *fill) chunkLocked(n int) *chunk {
	if i := len(f.window); i > 0 && f.window[i-1].n+n <= len(buffer{}) {
		return f.window[i-1] // readers only read its published bytes
	}
	if len(f.window) == windowChunks {
		return nil
	}
	k := &chunk{start: f.length, buf: f.c.buffers.get()}
	f.window = append(f.window, k)
	return k
}

// trimLocked removes the chunks that all readers have received from the window.
func (f *fill) trimLocked() {
	pos := f.slowestLocked()
	n := 0
	for n < len(f.window) && f.window[n].end() <= pos {
		f.c.buffers.put(f.window[n].buf)
		n++
	}
	if n > 0 {
		f.window = append(f.window[:0], f.window[n:]...)
		signal(f.room)
	}
}
