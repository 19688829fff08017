//go:build !linux

package app

import (
	"context"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// run sends each request on a goroutine of its own.
func (l *appLoad) run(ctx context.Context) (*appOutcome, error) {
	out := l.outcome()
	p := &loadgen.Pings{Target: l.target, Timeout: l.timeout}
	conns := make(chan *loadgen.Pinger, l.clients)
	for range l.clients {
		conns <- &loadgen.Pinger{Pings: p, Failures: &out.failures}
	}
	var mu sync.Mutex // guards out
	var wg sync.WaitGroup
	start := time.Now()
	next := l.arrivals.next()
	for begun := 0; ctx.Err() == nil; begun++ {
		due := time.Since(start)
		if l.open {
			due = next.due
		}
		if !l.more(begun, due) {
			break
		}
		loadgen.Sleep(ctx, due-time.Since(start))
		w := <-conns
		path := next.path
		if l.open {
			out.due, out.late = append(out.due, due), append(out.late, time.Since(start)-due)
		} else {
			due = time.Since(start)
		}
		next = l.arrivals.next()
		wg.Go(func() {
			defer func() { conns <- w }()
			err := get(w, ctx, l, path, start.Add(due))
			took := time.Since(start) - due
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ctx.Err() != nil:
			case err != nil:
				out.failures.Add(err)
				out.failed[path]++
			default:
				out.latency[path] = append(out.latency[path], took)
			}
		})
	}
	wg.Wait()
	for range l.clients {
		w := <-conns
		w.Close()
	}
	out.elapsed = time.Since(start)
	return out, ctx.Err()
}

// get sends one request, and keeps the connection if that is asked for.
func get(w *loadgen.Pinger, ctx context.Context, l *appLoad, path int, due time.Time) error {
	own := *w.Pings
	own.Request = l.requests[path]
	w.Pings = &own
	err := w.Once(ctx, due)
	if err != nil || !l.keep {
		w.Close()
	}
	return err
}
