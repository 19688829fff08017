package inflight

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// quick limits exemplars of requests that take less time to one in each such interval. An exemplar takes ten times as
// long as counting, and a bucket keeps only the last one.
const quick = 10 * time.Millisecond

// Exemplars adds exemplars with the request to a histogram. The zero value is ready to use. Safe for concurrent use.
type Exemplars struct{ last atomic.Int64 }

// Observe counts a duration of the request in the context.
func (l *Exemplars) Observe(ctx context.Context, o prometheus.Observer, took time.Duration) {
	if labels := l.labels(ctx, took); labels != nil {
		if e, ok := o.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(took.Seconds(), labels)
			return
		}
	}
	o.Observe(took.Seconds())
}

func (l *Exemplars) labels(ctx context.Context, took time.Duration) prometheus.Labels {
	if id := TraceID(ctx); id != "" {
		return prometheus.Labels{"trace_id": id}
	}
	r := From(ctx)
	if r == nil {
		return nil
	}
	if took < quick {
		now, last := time.Now().UnixNano(), l.last.Load()
		if now-last < int64(quick) || !l.last.CompareAndSwap(last, now) {
			return nil
		}
	}
	return prometheus.Labels{"request_id": r.ID()}
}
