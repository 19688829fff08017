package packcache

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// hit sends a complete entry to one reader. The entry's file stays readable when the entry is evicted.
type hit struct {
	c       *Cache
	ctx     context.Context // of Open: cancelling it ends Send, too
	e       *cacheEntry
	file    *os.File
	section bulk.Section
	sent    int64
	objects uint32
}

// openHit opens the entry's file and reads its beginning and end, so that a truncated or unreadable file is found
// before a client gets a response. The caller has acquired e, and the hit's Close releases it.
//
// The file must still have the identity want; errChanged says that it has another.
func (c *Cache) openHit(ctx context.Context, e *cacheEntry, objects uint32, want disk.ID, framed bool) (*hit, error) {
	f, err := c.openSame(c.path(e.key, dataExt), want)
	if err != nil {
		return nil, err
	}
	buf := c.buffers.get()
	defer c.buffers.put(buf)
	if _, err = f.ReadAt(buf[:frameHead], 0); err == nil {
		// One byte more than there may be: e may be gone, and the file that of a newer entry with another length.
		var n int
		if n, err = f.ReadAt(buf[frameHead:frameHead+2], e.size-1); n == 1 && err == io.EOF {
			err = nil
		} else if err == nil {
			err = fault.New(fault.Corrupt, "the pack cache entry has grown")
		}
	}
	if err == nil && framed {
		_, err = wholeFrames(buf[:frameHead])
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &hit{c: c, ctx: ctx, e: e, file: f, section: bulk.Section{File: f, N: e.size}, objects: objects}, nil
}

// errChanged means that another program changed an entry's data file.
var errChanged = errors.New("the pack cache entry was written to by another program")

func (h *hit) Size() int64 { return h.e.size }

func (h *hit) Send(ctx context.Context, out packsource.Output) error {
	err := h.send(ctx, out)
	if err != nil && suspect(err) {
		h.c.distrust(h.e)
	}
	return err
}

func (h *hit) send(ctx context.Context, out packsource.Output) error {
	if err := cmp.Or(ctx.Err(), h.ctx.Err()); err != nil {
		return err
	}
	if rf, ok := out.(io.ReaderFrom); ok {
		n, err := rf.ReadFrom(&h.section)
		h.sent += n
		if err == nil && h.sent != h.e.size {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	buf := h.c.buffers.get()
	defer h.c.buffers.put(buf)
	for h.sent < h.e.size {
		n, err := copyFrames(out, h.file, h.sent, h.e.size, buf)
		h.sent += n
		if err == nil {
			err = cmp.Or(ctx.Err(), h.ctx.Err())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *hit) Info() packsource.Info {
	return packsource.Info{Result: packsource.Hit, Bytes: h.sent, Objects: h.objects}
}

func (h *hit) Close() error {
	if h.file == nil {
		return nil
	}
	h.file.Close()
	h.file = nil
	h.c.release(h.e)
	return nil
}

// suspect reports whether the file may have caused an error of a copy, and not the connection.
func suspect(err error) bool {
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return true
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || isDamage(err) || fault.Is(err, fault.Corrupt)
}

// distrust makes e untrusted: it is verified before its next use.
func (c *Cache) distrust(e *cacheEntry) {
	c.mu.Lock()
	if !e.gone && e.check == nil {
		e.check = &check{done: make(chan struct{})}
	}
	c.mu.Unlock()
}

// frameHead is the length of a packet's digits and band.
const frameHead = 5

// wholeFrames returns the length of the complete side-band-1 packets at the beginning of b. It returns an error if b
// has other content.
func wholeFrames(b []byte) (int, error) {
	i := 0
	for len(b)-i >= frameHead {
		n, err := pktline.ParseLength(b[i:])
		if err != nil || n < frameHead || pktline.Band(b[i+4]) != pktline.BandData {
			return i, fault.New(fault.Corrupt, "the pack's frames are damaged")
		}
		if n > len(b)-i {
			break
		}
		i += n
	}
	return i, nil
}

// copyFrames writes to out the whole packets that one buffer holds of the file's bytes from off to end.
func copyFrames(out io.Writer, f *os.File, off, end int64, buf *buffer) (int64, error) {
	b := buf[:min(int64(len(buf)), end-off)]
	n, err := f.ReadAt(b, off)
	if n < len(b) {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, err
	}
	n, err = wholeFrames(b)
	if err == nil && n == 0 {
		err = fault.New(fault.Corrupt, "the pack's frames are damaged")
	}
	if err != nil {
		return 0, err
	}
	w, err := out.Write(b[:n])
	if err == nil && w < n {
		err = io.ErrShortWrite
	}
	return int64(w), err
}
