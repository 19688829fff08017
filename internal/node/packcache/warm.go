package packcache

import (
	"context"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Warm makes a pack and keeps it like one that was requested twice. It returns when that is done; made is false if the
// pack exists or is being made. It does not count as a request. When ctx ends, the fill ends too, unless it has
// readers.
func (c *Cache) Warm(ctx context.Context, spec *packsource.Spec) (bytes int64, made bool, err error) {
	key := spec.Key()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return 0, false, errClosed()
	}
	if c.index.entries[key] != nil || c.fills[key] != nil {
		c.mu.Unlock()
		return 0, false, nil
	}
	r := c.beginLocked(ctx, key, spec, c.inner)
	r.f.kept = true
	c.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		r.f.mu.Lock()
		quits := r.f.quits
		r.f.mu.Unlock()
		r.f.abandon(quits)
	}()
	pack, err := r.wait()
	if err != nil {
		return 0, false, err
	}
	defer pack.Close()
	if err := pack.Send(ctx, nowhere{}); err != nil {
		return 0, false, err
	}
	return pack.Info().Bytes, true, nil
}

// Fits reports whether a pack of a size can be kept, if other entries are removed for it.
func (c *Cache) Fits(bytes int64) bool {
	c.mu.Lock()
	entries, automatic := c.index.bytes, c.automatic
	c.mu.Unlock()
	if !automatic {
		return bytes <= c.max
	}
	_, free, err := c.sys.space(c.dir)
	return err != nil || bytes <= free+entries-max(c.low, 0)
}

// nowhere is an Output that discards the pack without copying it.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

func (nowhere) ReadFrom(r io.Reader) (int64, error) {
	if s, ok := r.(*bulk.Section); ok {
		return s.N, nil
	}
	return io.Copy(io.Discard, r)
}

func (nowhere) Progress([]byte) error         { return nil }
func (nowhere) KeepAliveAfter() time.Duration { return 0 }
func (nowhere) KeepAlive() error              { return nil }
