package uploadpack

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// A request that waits for objects counts as a long one after longWait. A client that can show progress sees it after
// shownWait, and then every progressInterval.
const (
	longWait         = 200 * time.Millisecond
	shownWait        = 2 * time.Second
	progressInterval = time.Second
)

// hold waits until the objects of the snapshot can be read, unless they are held already. While they are copied, a
// client that wants progress gets the sections and then messages: after the first of them, f.out is set, and errors
// must be reported by f.fail. A client without progress waits silently, until the error is Unavailable. Sections are
// nil if they are not known yet.
func (f *fetch) hold(ctx context.Context, sections []byte, form packFormat) error {
	if f.held != nil {
		return nil
	}
	shows := len(sections) > 0 && !form.quiet && form.sideband != protocol.NoSideband
	var copied progress
	for {
		before := copied.done.Load()
		err := f.tryHold(ctx, &copied, func(waited time.Duration) error {
			if !f.isBulk && (shows || f.session.Stateless && f.session.Version == protocol.V2) {
				return f.startBulk(true)
			}
			if !shows || waited < shownWait {
				return nil
			}
			if f.out == nil {
				f.out = f.newOutput(sections, form)
			}
			return f.out.Progress(copied.line())
		})
		switch {
		case f.out == nil:
			return err
		case err == nil:
			return f.out.Progress(copied.end())
		case !fault.Is(err, fault.Unavailable) || copied.done.Load() == before:
			return err
		}
		// A client that sees progress cannot be sent away any more, so it waits as long as there is some.
	}
}

// tryHold waits once. While it does, it calls report with the time that it has waited.
func (f *fetch) tryHold(ctx context.Context, copied *progress, report func(waited time.Duration) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		release func()
		err     error
	}
	results := make(chan result, 1)
	go func() {
		release, err := f.repo.Use(ctx, copied.set)
		results <- result{release, err}
	}()
	start := time.Now()
	timer := time.NewTimer(longWait)
	defer timer.Stop()
	for {
		select {
		case r := <-results:
			f.held = r.release
			return r.err
		case <-timer.C:
		}
		waited := time.Since(start)
		if err := report(waited); err != nil {
			cancel()
			if r := <-results; r.err == nil {
				r.release()
			}
			return err
		}
		next := progressInterval
		if waited < shownWait {
			next = min(next, shownWait-waited)
		}
		timer.Reset(next)
	}
}

// release ends the use of the objects, if they are held.
func (f *fetch) release() {
	if f.held != nil {
		f.held()
		f.held = nil
	}
}

// progress is how much of a repository has been copied, in bytes. It is safe for concurrent use.
type progress struct{ done, total atomic.Int64 }

func (p *progress) set(done, total int64) {
	p.done.Store(done)
	p.total.Store(total)
}

// line returns the progress as a line that the next one replaces on a terminal.
func (p *progress) line() []byte {
	done, total := p.done.Load(), p.total.Load()
	if done >= total {
		return []byte("hydrating: waiting\r")
	}
	return fmt.Appendf(nil, "hydrating: %d%% (%.1f/%.1f MB)\r", 100*done/total, float64(done)/1e6, float64(total)/1e6)
}

// end returns the last line.
func (p *progress) end() []byte {
	return fmt.Appendf(nil, "hydrating: 100%% (%.1f MB), done.\n", float64(p.total.Load())/1e6)
}

// earlySections returns the sections before the pack if they do not depend on objects: those of a plain clone in
// version
// 2. Otherwise it returns nil.
func (f *fetch) earlySections() []byte {
	r := f.request
	if f.session.Version != protocol.V2 || !r.Done || len(r.Wants) == 0 || r.NoProgress || r.SidebandAll || r.Deepens() ||
		len(r.Haves)+len(r.Shallow)+len(r.WantRefs) > 0 {
		return nil
	}
	var lines protocol.Lines
	lines.Text("packfile")
	return lines.Buf
}

// startBulk calls StartBulk of the response once.
func (f *fetch) startBulk(cold bool) error {
	if f.isBulk {
		return nil
	}
	f.isBulk = true
	return f.response.StartBulk(cold)
}

// fail reports an error in the response if that has begun.
func (f *fetch) fail(err error) error {
	switch {
	case f.out == nil:
		return err
	case f.out.err != nil:
		return &node.ClientConnError{Err: f.out.err}
	}
	return f.out.fail(err)
}
