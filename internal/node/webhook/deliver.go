package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// delivery is a pending delivery. Its file is in the queue's directory.
type delivery struct {
	name  string // sequence number, which is about the time in nanoseconds since 1970, and ID of the push
	size  int64
	repo  string    // later deliveries of the same repository wait; "": unreadable
	tries int       // guarded by queue.mu
	next  time.Time // time of the next try of a rejected delivery; guarded by queue.mu
	since time.Time // first rejection; used by run only
	trace string    // of the push, in this process only
}

// push returns the ID of the push.
func (d *delivery) push() string {
	_, id, _ := strings.Cut(strings.TrimSuffix(d.name, sharedSuffix), "-")
	return id
}

func (d *delivery) recorded() time.Time {
	n, _ := strconv.ParseInt(strings.SplitN(d.name, "-", 2)[0], 10, 64)
	return time.Unix(0, n)
}

// queue has the pending deliveries of one target. There is one delivery at a time, so that the target gets the pushes
// in their order.
type queue struct {
	hooks  *Hooks
	target *Target
	dir    string
	kick   chan struct{} // has a token when a delivery was added

	mu    sync.Mutex
	list  []*delivery // oldest first
	bytes int64
}

// openQueue reads the pending deliveries of earlier servers.
func openQueue(h *Hooks, t *Target) (*queue, error) {
	q := &queue{hooks: h, target: t, dir: filepath.Join(h.o.Dir, t.Name), kick: make(chan struct{}, 1)}
	if err := os.MkdirAll(q.dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(q.dir) // sorted by their numbers
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if isTemporary(e.Name()) || err != nil || !info.Mode().IsRegular() {
			_ = os.Remove(filepath.Join(q.dir, e.Name()))
			continue
		}
		q.list = append(q.list, &delivery{name: e.Name(), size: info.Size(),
			repo: repositoryIn(filepath.Join(q.dir, e.Name()))})
		q.bytes += info.Size()
	}
	q.updateMetrics()
	return q, nil
}

// repositoryIn returns the repository of a delivery's file.
func repositoryIn(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var m message
	_ = json.Unmarshal(b, &m) // a damaged file is abandoned later
	return original(m.Repository, m.RepositoryBytes)
}

// newest returns the greatest sequence number.
func (q *queue) newest() int64 {
	if len(q.list) == 0 {
		return 0
	}
	return q.list[len(q.list)-1].recorded().UnixNano()
}

// add adds a delivery whose file exists. If there are too many, the oldest ones are abandoned.
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
		q.abandon(d, "too many deliveries are pending")
	}
	q.updateMetrics()
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// updateMetrics counts the pending deliveries.
func (q *queue) updateMetrics() {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.hooks.metrics
	m.pending.WithLabelValues(q.target.Name).Set(float64(len(q.list)))
	oldest := 0.0
	if len(q.list) > 0 {
		oldest = float64(q.list[0].recorded().Unix())
	}
	m.oldest.WithLabelValues(q.target.Name).Set(oldest)
}

// run delivers until Close.
func (q *queue) run() {
	failures := 0 // consecutive ones of the target
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
		unavailable := q.deliver(d)
		if q.hooks.ctx.Err() != nil {
			return
		}
		if !unavailable {
			failures = 0
			continue
		}
		failures++
		if q.hooks.backoff().Wait(q.hooks.ctx, failures, 0) != nil {
			return
		}
	}
}

func (h *Hooks) backoff() retry.Policy { return retry.Policy{First: h.o.Retry, Max: maxRetry} }

// due returns the oldest delivery that is due and not behind another one of its repository, or nil and how long to
// wait.
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

// deliver tries a delivery once. It reports whether the target is unavailable, so that other deliveries have to wait.
func (q *queue) deliver(d *delivery) (unavailable bool) {
	h, path := q.hooks, filepath.Join(q.dir, d.name)
	body, err := os.ReadFile(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			h.o.Log.Error("cannot read a delivery", "target", q.target.Name, "file", path, "error", err)
			return true
		}
		q.remove(d) // an administrator has removed it, or another node has it
		q.settle(d)
		return false
	}
	if !json.Valid(body) {
		q.remove(d)
		q.abandon(d, "the file is damaged")
		return false
	}
	id := d.push()
	start := time.Now()
	response, err := h.post(h.ctx, q.target, "post-receive", id, d.trace, body, 1<<10)
	if h.ctx.Err() != nil {
		return false
	}
	h.metrics.seconds.WithLabelValues(q.target.Name, "post-receive").Observe(time.Since(start).Seconds())
	if err == nil && response.status/100 == 2 {
		h.metrics.deliveries.WithLabelValues(q.target.Name, "delivered").Inc()
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // it was abandoned meanwhile
			h.o.Log.Error("cannot remove a successful delivery; it will be repeated", "file", path, "error", err)
		}
		q.remove(d)
		q.settle(d)
		return false
	}
	if err == nil {
		err = fmt.Errorf("unexpected status %d", response.status)
	}
	tries := q.countTries(d, 1)
	if time.Since(d.recorded()) > q.target.GiveUp {
		q.remove(d)
		q.abandon(d, err.Error())
		return false
	}
	h.metrics.deliveries.WithLabelValues(q.target.Name, "failed").Inc()
	h.o.Log.Warn("cannot deliver a webhook; trying again", "target", q.target.Name, "delivery", id, "tries", tries,
		"error", err)
	if !isRejection(response.status) {
		return true
	}
	if d.since.IsZero() {
		d.since = start
	} else if time.Since(d.since) > h.o.Hold { // later deliveries of its repository wait
		q.remove(d)
		q.abandon(d, err.Error())
		return false
	}
	q.mu.Lock()
	d.next = time.Now().Add(h.backoff().Jitter(tries))
	q.mu.Unlock()
	return false
}

// countTries adds to the number of tries and returns it. A delivery can be abandoned during a try.
func (q *queue) countTries(d *delivery, more int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	d.tries += more
	return d.tries
}

// isRejection reports whether a status concerns only this delivery, so that others can be tried.
func isRejection(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusRequestTimeout,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status/100 == 4
}

// remove removes a delivery from the list.
func (q *queue) remove(d *delivery) {
	q.mu.Lock()
	if i := slices.Index(q.list, d); i >= 0 {
		q.list = slices.Delete(q.list, i, i+1)
		q.bytes -= d.size
	}
	q.mu.Unlock()
	q.updateMetrics()
}

// settle notes in the Store that the delivery has ended.
func (q *queue) settle(d *delivery) {
	if q.hooks.shared != nil {
		q.hooks.shared.settle(d.push(), q.target.Name)
	}
}

// drop removes the deliveries of pushes, which another node has.
func (q *queue) drop(pushes map[string]*sharedPush) {
	q.mu.Lock()
	var dropped []*delivery
	for _, d := range q.list {
		if pushes[d.push()] != nil {
			dropped = append(dropped, d)
		}
	}
	q.mu.Unlock()
	for _, d := range dropped {
		q.remove(d)
		_ = os.Remove(filepath.Join(q.dir, d.name)) // the next process removes it
	}
}

// abandon moves a delivery to the abandoned ones.
func (q *queue) abandon(d *delivery, reason string) {
	h := q.hooks
	h.metrics.deliveries.WithLabelValues(q.target.Name, "dead").Inc()
	dir := filepath.Join(h.o.Dir, deadDir, q.target.Name)
	kept := filepath.Join(dir, strings.TrimSuffix(d.name, sharedSuffix))
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Rename(filepath.Join(q.dir, d.name), kept)
	}
	q.settle(d)
	h.o.Log.Error("abandoned a delivery of a webhook", "target", q.target.Name, "delivery", d.name,
		"tries", q.countTries(d, 0), "kept", kept, "reason", reason, "error", err)
	entries, _ := os.ReadDir(dir)
	var bytes int64
	for i := len(entries) - 1; i >= 0; i-- { // newest first
		if info, err := entries[i].Info(); err == nil {
			bytes += info.Size()
		}
		if len(entries)-i > h.o.MaxCount || bytes > h.o.MaxBytes {
			_ = os.Remove(filepath.Join(dir, entries[i].Name()))
		}
	}
}
