package objects

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/lfs"
)

// progress is the progress of one upload, for requests that ask about it.
type progress struct {
	last atomic.Int64  // when something arrived, in nanoseconds since 1970
	done chan struct{} // closed at the end
}

const (
	// activeTime is how long an upload that receives nothing counts as running. After that it is interrupted, although its
	// connection is open.
	activeTime = 2 * time.Second
	// noticeTime is how long the server may take to notice that a client has closed its connection.
	noticeTime = 500 * time.Millisecond
)

func (g *progress) arrived() { g.last.Store(time.Now().UnixNano()) }

// isRunning reports whether the upload is not interrupted.
func (g *progress) isRunning() bool { return time.Since(time.Unix(0, g.last.Load())) < activeTime }

// wait waits for the end of the upload, but not longer than noticeTime.
func (g *progress) wait(ctx context.Context) {
	limit := time.NewTimer(noticeTime)
	defer limit.Stop()
	select {
	case <-g.done:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// UploadedBytes returns the number of bytes of an object that are here: all, or those of an interrupted upload. Those
// are fewer than o.Size, so that another upload completes the object. During an upload it is zero, because another one
// would interrupt it. A client that has closed its connection can ask at once.
func (s *Store) UploadedBytes(ctx context.Context, r Repository, o lfs.Object) (int64, error) {
	path := s.partPath(r, o.OID)
	for hasWaited := false; ; hasWaited = true {
		states, err := s.states(ctx, r, lfs.Batch{Upload: true, Objects: []lfs.Object{o}})
		if err != nil {
			return 0, err
		}
		if r.Purged[o.OID] {
			return 0, states[0].Err
		}
		if states[0].State == lfs.Present {
			return o.Size, nil
		}
		s.mu.Lock()
		p := s.parts[path]
		s.mu.Unlock()
		if p == nil {
			info, err := os.Stat(path)
			if errors.Is(err, fs.ErrNotExist) {
				return 0, nil
			}
			if err != nil {
				return 0, err
			}
			return min(info.Size(), max(o.Size-1, 0)), nil
		}
		running := p.running.Load()
		switch {
		case running == nil || !running.isRunning():
			return min(p.Size(), max(o.Size-1, 0)), nil
		case hasWaited:
			return 0, nil
		}
		running.wait(ctx)
	}
}
