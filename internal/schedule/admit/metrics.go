package admit

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Metrics watches lanes, and the slots that their requests wait for. Safe for concurrent use.
type Metrics struct {
	lanes                            []*Lane
	requests, running, queued, limit *prometheus.Desc
	wait                             *prometheus.HistogramVec

	mu     sync.Mutex
	queues map[string]*queue // by lane
}

// queue is the slots that a lane's requests wait for, and the results.
type queue struct {
	slots                           *balance.Slots
	admitted, waited, refused, gone atomic.Int64
}

// NewMetrics watches lanes and the budget of large requests.
func NewMetrics(lanes Lanes, memory *Budget, r prometheus.Registerer) *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("packhorse_lane_"+name, help, append([]string{"lane"}, labels...), nil)
	}
	with := promauto.With(r)
	m := &Metrics{
		lanes: lanes.All(), queues: make(map[string]*queue),
		requests: desc("requests_total", "Requests by outcome: admitted at once, queued and then admitted, "+
			"refused, or gone while they waited.", "outcome"),
		running: desc("running", "Requests that run now."),
		queued:  desc("queued", "Requests that wait now."),
		limit:   desc("limit", "Requests that may run at the same time now."),
		wait: with.NewHistogramVec(prometheus.HistogramOpts{Name: "packhorse_lane_wait_seconds",
			Help:    "Time that requests waited, those included that were refused or gone.",
			Buckets: []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}}, []string{"lane"}),
	}
	with.NewGaugeFunc(prometheus.GaugeOpts{Name: "packhorse_request_memory_bytes",
		Help: "Memory that large requests take now, as counted against lanes.request_bytes.",
	}, func() float64 { return float64(memory.Used()) })
	if r != nil {
		r.MustRegister(m)
	}
	return m
}

// Queue counts the requests that wait for slots as those of a lane. A Lane of that name may bound them, too. Call it
// once for a name, before the first Acquire.
func (m *Metrics) Queue(lane string, slots *balance.Slots) {
	q := &queue{slots: slots}
	wait := m.wait.WithLabelValues(lane)
	slots.Watch(func(waited time.Duration, queued bool, err error) {
		wait.Observe(waited.Seconds())
		switch {
		case fault.Is(err, fault.Exhausted):
			q.refused.Add(1)
		case err != nil:
			q.gone.Add(1)
		case queued:
			q.waited.Add(1)
		default:
			q.admitted.Add(1)
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queues[lane] = q
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.running, m.queued, m.limit} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, s := range m.States() {
		for outcome, n := range map[string]int64{
			"admitted": s.Admitted - s.Delayed, "queued": s.Delayed, "refused": s.Refused, "gone": s.Gone,
		} {
			ch <- prometheus.MustNewConstMetric(m.requests, prometheus.CounterValue, float64(n), s.Name, outcome)
		}
		for desc, n := range map[*prometheus.Desc]int64{m.running: s.Running, m.queued: s.Queued, m.limit: s.Limit} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), s.Name)
		}
	}
}

// State describes a lane: how many requests run, wait and may run, and the results of previous requests.
type State struct {
	Name                    string
	Running, Queued, Limit  int64
	Admitted, Refused, Gone int64 // since the process began; Admitted: at once or later
	Delayed                 int64 // of Admitted, those that waited
}

// States returns the states of all lanes, by name.
func (m *Metrics) States() []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	full := map[string]int64{} // refused because the lane was, where there is a queue besides
	var all []State
	for _, l := range m.lanes {
		if m.queues[l.name] != nil {
			full[l.name] = l.refused.Load()
			continue
		}
		all = append(all, State{Name: l.name, Running: l.running.Load(), Limit: l.limit, Admitted: l.admitted.Load(),
			Refused: l.refused.Load()})
	}
	for name, q := range m.queues {
		all = append(all, State{
			Name: name, Running: int64(q.slots.InUse()), Queued: int64(q.slots.Queued()), Limit: int64(q.slots.Limit()),
			Admitted: q.admitted.Load() + q.waited.Load(), Delayed: q.waited.Load(),
			Refused: q.refused.Load() + full[name], Gone: q.gone.Load(),
		})
	}
	slices.SortFunc(all, func(a, b State) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
