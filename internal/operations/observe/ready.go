package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Check is a condition for readiness.
type Check struct {
	Name string // of a metric's label, and in the answer of /readyz
	// Look returns the reason for which the condition does not hold, or nil. It is called by one goroutine at a time. A
	// call that hangs, for example on a disk that does not respond, counts as a failure.
	Look func() error
}

const (
	checkFresh = time.Second     // a result holds for
	checkLimit = 2 * time.Second // a look may take
)

// Readiness runs checks on demand, each at most once a second. It is safe for concurrent use.
type Readiness struct {
	log    *slog.Logger
	now    func() time.Time
	limit  time.Duration
	failed *prometheus.Desc

	mu      sync.Mutex
	checks  []*checked
	failing string // names of those that fail, as the log knows them
}

// checked is a check and its latest result. Its fields are guarded by Readiness.mu.
type checked struct {
	Check
	running chan struct{} // closed when the look ends; nil: none runs
	ended   time.Time
	err     error
}

// NewReadiness returns a Readiness, which is also a prometheus.Collector.
func NewReadiness(log *slog.Logger, checks ...Check) *Readiness {
	r := &Readiness{log: log, now: time.Now, limit: checkLimit, failed: prometheus.NewDesc("packhorse_ready_check_failed",
		"1 while a check of /readyz fails, else 0.", []string{"check"}, nil)}
	for _, c := range checks {
		r.checks = append(r.checks, &checked{Check: c})
	}
	return r
}

// Describe implements prometheus.Collector.
func (r *Readiness) Describe(to chan<- *prometheus.Desc) { to <- r.failed }

// Collect implements prometheus.Collector and runs the checks.
func (r *Readiness) Collect(to chan<- prometheus.Metric) {
	for _, result := range r.run() {
		value := 0.0
		if result.err != nil {
			value = 1
		}
		to <- prometheus.MustNewConstMetric(r.failed, prometheus.GaugeValue, value, result.name)
	}
}

// Err runs the checks and returns the failing ones, one on each line.
func (r *Readiness) Err() error {
	var all []error
	for _, result := range r.run() {
		if result.err != nil {
			all = append(all, fmt.Errorf("%s: %w", result.name, result.err))
		}
	}
	return errors.Join(all...)
}

// checkResult is the result of a check.
type checkResult struct {
	name string
	err  error
}

// run runs all checks without a recent result concurrently, and waits for at most the time limit.
func (r *Readiness) run() []checkResult {
	limit, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	for _, running := range r.begin() {
		select {
		case <-running:
		case <-limit.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []checkResult
	var failing []string
	for _, c := range r.checks {
		err := c.err
		if c.running != nil {
			err = fmt.Errorf("no answer within %s", r.limit)
		}
		all = append(all, checkResult{c.Name, err})
		if err != nil {
			failing = append(failing, c.Name)
		}
	}
	if now := strings.Join(failing, " "); now != r.failing {
		r.failing = now
		if now == "" {
			r.log.Info("ready again")
		} else {
			r.log.Warn("not ready", "checks", now)
		}
	}
	return all
}

// begin starts the checks that are due, and returns channels for the ends of all running checks.
func (r *Readiness) begin() (running []chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.checks {
		if c.running == nil && (c.ended.IsZero() || r.now().Sub(c.ended) >= checkFresh) {
			c.running = make(chan struct{})
			go r.look(c, c.running)
		}
		if c.running != nil {
			running = append(running, c.running)
		}
	}
	return running
}

func (r *Readiness) look(c *checked, end chan struct{}) {
	err := c.Look()
	r.mu.Lock()
	c.err, c.ended, c.running = err, r.now(), nil
	r.mu.Unlock()
	close(end)
}

// Close waits for running checks, but not longer than the time limit of a check.
func (r *Readiness) Close() {
	limit := time.After(r.limit)
	r.mu.Lock()
	var running []chan struct{}
	for _, c := range r.checks {
		if c.running != nil {
			running = append(running, c.running)
		}
	}
	r.mu.Unlock()
	for _, end := range running {
		select {
		case <-end:
		case <-limit:
			return
		}
	}
}
