package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// delivery is one that waits. Its file is in the queue's directory.
type delivery struct {
	name  string // its sequence number, which is about when it was recorded in nanoseconds since 1970, and the push's ID
	size  int64
	repo  string    // later ones of the same one wait for it; "" of a file that cannot be read
	tries int       // guarded by the queue's mu, as next is
	next  time.Time // of a delivery that the target did not want
	since time.Time // it does not want it; of run alone
	trace string    // of the push; forgotten with the process
}

func (d *delivery) recorded() time.Time {
	n, _ := strconv.ParseInt(strings.SplitN(d.name, "-", 2)[0], 10, 64)
	return time.Unix(0, n)
}

// queue is what waits for one target. One delivery is under way at a time: a target learns of pushes in their order.
type queue struct {
	hooks  *Hooks
	target *Target
	dir    string
	kick   chan struct{} // capacity 1: there is something new

	mu    sync.Mutex
	list  []*delivery // oldest first
	bytes int64
}

// openQueue finds what is left from before.
func openQueue(h *Hooks, t *Target) (*queue, error) {
	q := &queue{hooks: h, target: t, dir: filepath.Join(h.o.Dir, t.Name), kick: make(chan struct{}, 1)}
	if err := os.MkdirAll(q.dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(q.dir) // sorted: so are the numbers
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if strings.HasSuffix(e.Name(), newSuffix) || err != nil || !info.Mode().IsRegular() {
			_ = os.Remove(filepath.Join(q.dir, e.Name()))
			continue
		}
		q.list = append(q.list, &delivery{name: e.Name(), size: info.Size(), repo: repositoryIn(filepath.Join(q.dir, e.Name()))})
		q.bytes += info.Size()
	}
	q.count()
	return q, nil
}

// repositoryIn is the repository that a delivery's file is about.
func repositoryIn(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var m message
	_ = json.Unmarshal(b, &m) // one that is damaged is put aside when its turn comes
	return exact(m.Repository, m.RepositoryBytes)
}

// newest is the greatest sequence number.
func (q *queue) newest() int64 {
	if len(q.list) == 0 {
		return 0
	}
	return q.list[len(q.list)-1].recorded().UnixNano()
}

// add notes a delivery whose file is written. A target that has been away for too long loses its oldest ones.
func (q *queue) add(d delivery) {
	q.mu.Lock()
	q.list = append(q.list, &d)
	slices.SortFunc(q.list, func(a, b *delivery) int { return strings.Compare(a.name, b.name) })
	q.bytes += d.size
	var over []*delivery
	for len(q.list) > q.hooks.o.MaxCount || q.bytes > q.hooks.o.MaxBytes && len(q.list) > 1 {
		over = append(over, q.list[0])
		q.bytes -= q.list[0].size
		q.list = q.list[1:]
	}
	q.mu.Unlock()
	for _, d := range over {
		q.bury(d, "too many wait for the target")
	}
	q.count()
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// count tells how many wait.
func (q *queue) count() {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.hooks.o.Metrics
	m.pending.WithLabelValues(q.target.Name).Set(float64(len(q.list)))
	oldest := 0.0
	if len(q.list) > 0 {
		oldest = float64(q.list[0].recorded().Unix())
	}
	m.oldest.WithLabelValues(q.target.Name).Set(oldest)
}

// run delivers until the end.
func (q *queue) run() {
	failures := 0 // of the target, one after the other
	for {
		d, wait := q.due()
		if d == nil {
			timer := time.NewTimer(wait)
			select {
			case <-q.hooks.ctx.Done():
				timer.Stop()
				return
			case <-q.kick:
			case <-timer.C:
			}
			timer.Stop()
			continue
		}
		away := q.deliver(d)
		if q.hooks.ctx.Err() != nil {
			return
		}
		if !away {
			failures = 0
			continue
		}
		failures++
		select {
		case <-q.hooks.ctx.Done():
			return
		case <-time.After(q.hooks.pause(failures)):
		}
	}
}

// pause is how long to wait after so many failures: about twice as long each time, and never together with others.
func (h *Hooks) pause(failures int) time.Duration {
	d := min(h.o.Retry<<min(failures-1, 20), maxRetry)
	return d/2 + rand.N(d/2+1)
}

// due is the oldest delivery whose time has come, and before which none of its repository waits; or how long there will be none.
func (q *queue) due() (*delivery, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, wait := time.Now(), time.Hour
	var held map[string]bool // repositories
	for _, d := range q.list {
		if held[d.repo] {
			continue
		}
		if !d.next.After(now) {
			return d, 0
		}
		wait = min(wait, d.next.Sub(now))
		if held == nil {
			held = map[string]bool{}
		}
		held[d.repo] = true
	}
	return nil, wait
}

// deliver tries once. It reports whether the target is away, so that others need not be tried now.
func (q *queue) deliver(d *delivery) (away bool) {
	h, path := q.hooks, filepath.Join(q.dir, d.name)
	body, err := os.ReadFile(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			h.o.Log.Error("a delivery cannot be read", "target", q.target.Name, "file", path, "error", err)
			return true
		}
		q.remove(d) // somebody took it away
		return false
	}
	if !json.Valid(body) {
		q.remove(d)
		q.bury(d, "its file is damaged")
		return false
	}
	_, id, _ := strings.Cut(d.name, "-")
	start := time.Now()
	a, err := h.post(h.ctx, q.target, "post-receive", id, d.trace, body, 1<<10)
	if h.ctx.Err() != nil {
		return false
	}
	h.o.Metrics.seconds.WithLabelValues(q.target.Name, "post-receive").Observe(time.Since(start).Seconds())
	if err == nil && a.status/100 == 2 {
		h.o.Metrics.deliveries.WithLabelValues(q.target.Name, "delivered").Inc()
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // given up meanwhile
			h.o.Log.Error("a delivery that was made cannot be removed; it will come again", "file", path, "error", err)
		}
		q.remove(d)
		return false
	}
	if err == nil {
		err = fmt.Errorf("it answered with status %d", a.status)
	}
	tries := q.tried(d, 1)
	if time.Since(d.recorded()) > q.target.GiveUp {
		q.remove(d)
		q.bury(d, err.Error())
		return false
	}
	h.o.Metrics.deliveries.WithLabelValues(q.target.Name, "failed").Inc()
	h.o.Log.Warn("a webhook was not delivered; it will be tried again", "target", q.target.Name, "delivery", id, "tries", tries, "error", err)
	if !unwanted(a.status) {
		return true
	}
	if d.since.IsZero() {
		d.since = start
	} else if time.Since(d.since) > h.o.Hold { // others of its repository wait for it
		q.remove(d)
		q.bury(d, err.Error())
		return false
	}
	q.mu.Lock()
	d.next = time.Now().Add(h.pause(tries))
	q.mu.Unlock()
	return false
}

// tried counts more attempts, and tells how many there were: whoever records pushes may give a delivery up while it is tried.
func (q *queue) tried(d *delivery, more int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	d.tries += more
	return d.tries
}

// unwanted tells whether a status is about this delivery alone: others may be welcome.
func unwanted(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status/100 == 4
}

// remove takes a delivery from the list.
func (q *queue) remove(d *delivery) {
	q.mu.Lock()
	if i := slices.Index(q.list, d); i >= 0 {
		q.list = slices.Delete(q.list, i, i+1)
		q.bytes -= d.size
	}
	q.mu.Unlock()
	q.count()
}

// bury gives a delivery up.
func (q *queue) bury(d *delivery, why string) {
	h := q.hooks
	h.o.Metrics.deliveries.WithLabelValues(q.target.Name, "dead").Inc()
	dir := filepath.Join(h.o.Dir, deadDir, q.target.Name)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Rename(filepath.Join(q.dir, d.name), filepath.Join(dir, d.name))
	}
	h.o.Log.Error("a webhook was given up", "target", q.target.Name, "delivery", d.name, "tries", q.tried(d, 0), "kept", filepath.Join(dir, d.name), "reason", why, "error", err)
	entries, _ := os.ReadDir(dir)
	var bytes int64
	for i := len(entries) - 1; i >= 0; i-- { // the latest first
		if info, err := entries[i].Info(); err == nil {
			bytes += info.Size()
		}
		if len(entries)-i > h.o.MaxCount || bytes > h.o.MaxBytes {
			_ = os.Remove(filepath.Join(dir, entries[i].Name()))
		}
	}
}
