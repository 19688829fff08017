//go:build !linux

package bench

import (
	"context"
	"sync"
	"time"
)

// run sends each request on a goroutine of its own.
func (l *appLoad) run(ctx context.Context) (*appOutcome, error) {
	out := l.outcome()
	p := &pings{target: l.target, timeout: l.timeout}
	conns := make(chan *pinger, l.clients)
	for range l.clients {
		conns <- &pinger{pings: p, failures: &out.failures}
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
		sleep(ctx, due-time.Since(start))
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
			err := w.get(ctx, l, path, start.Add(due))
			took := time.Since(start) - due
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ctx.Err() != nil:
			case err != nil:
				out.failures.add(err)
				out.failed[path]++
			default:
				out.latency[path] = append(out.latency[path], took)
			}
		})
	}
	wg.Wait()
	for range l.clients {
		w := <-conns
		w.close()
	}
	out.elapsed = time.Since(start)
	return out, ctx.Err()
}

// get sends one request, and keeps the connection if that is asked for.
func (w *pinger) get(ctx context.Context, l *appLoad, path int, due time.Time) error {
	own := *w.pings
	own.request = l.requests[path]
	w.pings = &own
	err := w.once(ctx, due)
	if err != nil || !l.keep {
		w.close()
	}
	return err
}
