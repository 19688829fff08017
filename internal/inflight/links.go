package inflight

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Of the requests that take less than quick one in each span of that length is linked: a link takes ten times as long as the counting, and a bucket shows its last one only.
const quick = 10 * time.Millisecond

// Links links what a histogram counts with the requests that it was, as exemplars. The zero value is ready; it is safe for concurrent use.
type Links struct{ last atomic.Int64 }

// Observe counts a duration of the request that the context belongs to.
func (l *Links) Observe(ctx context.Context, o prometheus.Observer, took time.Duration) {
	if labels := l.labels(ctx, took); labels != nil {
		if e, ok := o.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(took.Seconds(), labels)
			return
		}
	}
	o.Observe(took.Seconds())
}

func (l *Links) labels(ctx context.Context, took time.Duration) prometheus.Labels {
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
