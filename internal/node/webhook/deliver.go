package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	maxWindow = 10_000 // pending deliveries in memory, and settled events after the first of them
	readPage  = 500
	maxRecent = 50
	maxShown  = 512         // bytes of a response that are kept
	saveEvery = time.Second // at most, while a target gets deliveries
	// takeAfter is how long a session may give no sign although deliveries are pending. It renews four times as often.
	takeAfter = 8 * time.Second
	maxWait   = 20 * time.Second
)

// delivery is a pending delivery.
type delivery struct {
	event  event.Event
	before string // position
	number int    // in the order of events
	tries  int
	next   time.Time // time of the next try of a rejected delivery
	since  time.Time // first rejection
	sent   int       // of its requests
}

// queue delivers events to one target, one delivery at a time, so that the target gets them in their order. Its
// position in the events is kept in States. The fields below are used by run only, except for mu.
type queue struct {
	hooks  *Hooks
	target *Target
	ctx    context.Context
	stop   context.CancelFunc
	ended  chan struct{} // closed when run has ended
	text   []byte        // of an added target in States

	position string // of the next event to read
	window   []*delivery
	done     map[string]int // numbers of settled events by ID, after the first delivery of window
	number   int
	isDirty  bool // the state has to be saved
	saved    time.Time
	failures int       // consecutive ones of the target
	resume   time.Time // of the next try after them

	mu     sync.Mutex
	recent []*packhorsev1.WebhookDelivery // the latest results, the oldest first; they do not change
}

func newQueue(h *Hooks, t *Target) *queue {
	q := &queue{hooks: h, target: t, done: make(map[string]int), ended: make(chan struct{})}
	q.ctx, q.stop = context.WithCancel(h.ctx)
	return q
}

// begin makes sure that a new target gets the events from now on.
func (q *queue) begin(ctx context.Context) error {
	text, err := q.hooks.o.States.Load(ctx, q.target.Name)
	if err != nil || text != nil {
		return err
	}
	_, q.position, err = q.hooks.o.Events.Read(ctx, event.Now, 1)
	if err != nil {
		return err
	}
	return q.write(ctx, state{Position: q.position})
}

func (q *queue) write(ctx context.Context, s state) error {
	s.Saved = time.Now().UTC()
	text, err := json.Marshal(s)
	if err == nil {
		err = q.hooks.o.States.Save(ctx, q.target.Name, text)
	}
	return err
}

// run delivers until Close.
func (q *queue) run() {
	defer close(q.ended)
	failures := 0
	for q.ctx.Err() == nil {
		err := q.take()
		if err == nil {
			failures = 0
			err = q.serve()
		}
		if err != nil && q.ctx.Err() == nil {
			q.hooks.o.Log.Warn("cannot read or keep the deliveries of a webhook; trying again", "target", q.target.Name,
				"error", err)
			failures++
			_ = (retry.Policy{First: time.Second, Max: time.Minute}).Wait(q.ctx, failures, 0)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	q.isDirty = q.isDirty || q.hooks.o.States.IsShared() // the next process need not wait for the end of the session
	_ = q.save(ctx, "")                                  // otherwise these deliveries are repeated
}

// take waits until this process is the one that delivers, and loads the state of the target.
func (q *queue) take() error {
	var seen []byte
	var since time.Time // from when on the state was the same, and deliveries were pending
	var changed <-chan struct{}
	for {
		text, err := q.hooks.o.States.Load(q.ctx, q.target.Name)
		if err != nil {
			return err
		}
		if text == nil {
			if err := q.begin(q.ctx); err != nil {
				return err
			}
			continue
		}
		s, err := parseState(text)
		if err != nil {
			q.hooks.o.Log.Error("the state of a webhook is damaged; all events are delivered again", "target", q.target.Name,
				"error", err)
			s = state{}
		}
		isFree := !q.hooks.o.States.IsShared() || s.Session == "" || s.Session == q.hooks.session
		if !isFree {
			if !bytes.Equal(text, seen) {
				seen, since, changed = text, time.Time{}, nil
			}
			isFree = !since.IsZero() && time.Since(since) > q.hooks.takeAfter
			if since.IsZero() && isClosed(changed) {
				changed = q.hooks.o.Events.Changed()
				q.load(s)
				if err := q.fill(); err != nil {
					return err
				}
				if len(q.window) > 0 {
					since, changed = time.Now(), nil // more events make no difference
				}
			}
		}
		if isFree {
			if seen != nil {
				q.hooks.o.Log.Info("took over the deliveries of a webhook from another node", "target", q.target.Name)
			}
			q.load(s)
			s.Session, q.isDirty = q.hooks.session, false
			return q.write(q.ctx, s)
		}
		if err := q.wait(changed, q.hooks.takeAfter/4); err != nil {
			return err
		}
	}
}

// isClosed reports whether a channel is nil or closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return c == nil
	}
}

// wait waits for more events, and at most for a time.
func (q *queue) wait(changed <-chan struct{}, limit time.Duration) error {
	timer := time.NewTimer(min(limit, maxWait))
	defer timer.Stop()
	select {
	case <-q.ctx.Done():
	case <-changed:
	case <-timer.C:
		q.hooks.o.Events.Changed() // it is still of interest
	}
	return q.ctx.Err()
}

// load begins with a state.
func (q *queue) load(s state) {
	q.position, q.window, q.number, q.done = s.Position, nil, 0, make(map[string]int)
	for _, id := range s.Done {
		q.done[id] = 0 // until it is read
	}
	q.mu.Lock()
	q.recent = s.Recent
	q.mu.Unlock()
}

// current returns the state.
func (q *queue) current(session string) state {
	s := state{Session: session, Position: q.position}
	if len(q.window) > 0 {
		first := q.window[0]
		s.Position = first.before
		for id, number := range q.done {
			if number != 0 && number < first.number {
				delete(q.done, id)
			} else {
				s.Done = append(s.Done, id)
			}
		}
		slices.Sort(s.Done)
	} else {
		clear(q.done)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s.Recent = slices.Clone(q.recent)
	return s
}

// errTaken reports that another process delivers now.
var errTaken = fault.New(fault.Unavailable, "another node has taken over the deliveries")

// save saves the state, unless another process delivers now.
func (q *queue) save(ctx context.Context, session string) error {
	if !q.isDirty {
		return nil
	}
	if q.hooks.o.States.IsShared() {
		text, err := q.hooks.o.States.Load(ctx, q.target.Name)
		if err != nil {
			return err
		}
		if s, err := parseState(text); err == nil && s.Session != q.hooks.session {
			q.isDirty = false
			return errTaken
		}
	}
	err := q.write(ctx, q.current(session))
	if err == nil {
		q.isDirty, q.saved = q.hooks.o.States.IsShared() && session != "" && len(q.window) > 0, time.Now()
	}
	return err
}

func (q *queue) isFull() bool { return len(q.window) >= maxWindow || len(q.done) >= maxWindow }

// fill reads events into the window.
func (q *queue) fill() error {
	for !q.isFull() {
		events, next, err := q.hooks.o.Events.Read(q.ctx, q.position, readPage)
		if fault.Is(err, fault.OutOfRange) && q.position != "" {
			q.hooks.o.Log.Error("events that a webhook has not got were removed; it gets the later ones", "target",
				q.target.Name, "error", err)
			q.position = ""
			continue
		}
		if err != nil {
			return err
		}
		before := q.position
		for _, e := range events {
			q.number++
			if _, isDone := q.done[e.ID]; isDone {
				q.done[e.ID] = q.number
			} else if q.target.wants(&e) {
				q.window = append(q.window, &delivery{event: e, before: before, number: q.number})
			}
			before = e.Position
		}
		if next != q.position {
			q.position, q.isDirty = next, true
		}
		if len(events) == 0 {
			break
		}
	}
	return nil
}

// wants reports whether a target gets an event.
func (t *Target) wants(e *event.Event) bool {
	path, err := git.ParseRepoPath(string(e.Repository))
	return err == nil && t.covers(path) && (slices.Contains(t.Kinds, string(e.Kind)) ||
		len(t.Kinds) == 0 && e.Kind == event.Push)
}

// serve delivers until an error, which may be that another process does.
func (q *queue) serve() error {
	var changed <-chan struct{}
	for {
		if isClosed(changed) {
			changed = q.hooks.o.Events.Changed()
			if err := q.fill(); err != nil {
				return err
			}
			if q.isFull() {
				changed = nil // read on when there is room
			}
		}
		q.updateMetrics()
		d, wait := q.due()
		if d == nil || time.Since(q.saved) > saveEvery {
			if err := q.save(q.ctx, q.hooks.session); err != nil {
				return err
			}
		}
		if d == nil {
			if q.isDirty {
				wait = min(wait, q.hooks.takeAfter/4)
			}
			if err := q.wait(changed, wait); err != nil {
				return err
			}
			continue
		}
		q.deliver(d)
		if err := cmp.Or(q.pause(), q.ctx.Err()); err != nil {
			return err
		}
	}
}

// pause waits until resume after a failure of the target, and keeps the session alive meanwhile.
func (q *queue) pause() error {
	for {
		if time.Since(q.saved) > q.hooks.takeAfter/4 {
			if err := q.save(q.ctx, q.hooks.session); err != nil {
				return err
			}
		}
		left := time.Until(q.resume)
		if left <= 0 {
			return nil
		}
		if err := retry.Sleep(q.ctx, min(left, q.hooks.takeAfter/4)); err != nil {
			return err
		}
	}
}

func (h *Hooks) backoff() retry.Policy { return retry.Policy{First: h.o.Retry, Max: maxRetry} }

// updateMetrics counts the pending deliveries.
func (q *queue) updateMetrics() {
	m, oldest := q.hooks.metrics, 0.0
	m.pending.WithLabelValues(q.target.Name).Set(float64(len(q.window)))
	if len(q.window) > 0 {
		oldest = float64(q.window[0].event.Time.Unix())
	}
	m.oldest.WithLabelValues(q.target.Name).Set(oldest)
}

// due returns the oldest delivery that is due and not behind another one of its repository, or nil and how long to
// wait.
func (q *queue) due() (*delivery, time.Duration) {
	now, wait := time.Now(), time.Hour
	var held map[git.Text]bool // repositories
	for _, d := range q.window {
		if held[d.event.Repository] {
			continue
		}
		if !d.next.After(now) {
			return d, 0
		}
		wait = min(wait, d.next.Sub(now))
		if held == nil {
			held = map[git.Text]bool{}
		}
		held[d.event.Repository] = true
	}
	return nil, wait
}

// deliver tries a delivery once. If the target is unavailable, it sets resume, so that other deliveries have to wait.
func (q *queue) deliver(d *delivery) {
	h := q.hooks
	d.tries++
	result := q.send(q.ctx, d)
	if q.ctx.Err() != nil {
		return
	}
	failures := q.failures + 1
	q.failures = 0
	q.isDirty = true
	now := time.Now()
	isRejected := isRejection(int(result.Status))
	if isRejected && d.since.IsZero() {
		d.since = now
	}
	switch {
	case result.Result == "delivered":
	case now.Sub(d.event.Time) > q.target.GiveUp, isRejected && now.Sub(d.since) > h.o.Hold:
		result.Result = "dead"
		h.o.Log.Error("abandoned a delivery of a webhook", "target", q.target.Name, "delivery", d.event.ID, "tries", d.tries,
			"reason", result.Response)
	case isRejected:
		d.next = now.Add(h.backoff().Jitter(d.tries))
		result.NextTry = timestamppb.New(d.next)
	default:
		q.failures, q.resume = failures, now.Add(h.backoff().Jitter(failures))
		result.NextTry = timestamppb.New(q.resume)
	}
	if result.Result == "failed" {
		h.o.Log.Warn("cannot deliver a webhook; trying again", "target", q.target.Name, "delivery", d.event.ID, "tries",
			d.tries, "error", result.Response)
	}
	h.metrics.deliveries.WithLabelValues(q.target.Name, result.Result).Inc()
	q.note(result)
	if result.Result != "failed" {
		q.window = slices.DeleteFunc(q.window, func(other *delivery) bool { return other == d })
		q.done[d.event.ID] = d.number
	}
}

// send makes the remaining requests of a delivery.
func (q *queue) send(ctx context.Context, d *delivery) *packhorsev1.WebhookDelivery {
	h, e := q.hooks, &d.event
	result := &packhorsev1.WebhookDelivery{Id: e.ID, Kind: string(e.Kind), Repository: valid(string(e.Repository)),
		Time: timestamppb.Now(), Result: "failed", Tries: int32(d.tries), After: d.before}
	var duration time.Duration
	requests, err := h.requestsOf(ctx, q.target, e)
	for ; err == nil && d.sent < len(requests); d.sent++ {
		var r response
		start := time.Now()
		r, err = h.post(ctx, q.target, requests[d.sent], e.Trace, maxShown)
		if ctx.Err() == nil {
			h.metrics.seconds.WithLabelValues(q.target.Name, requests[d.sent].event).Observe(time.Since(start).Seconds())
		}
		duration += time.Since(start)
		result.Status, result.Response = int32(r.status), r.text()
		if err == nil && r.status/100 != 2 {
			err = fmt.Errorf("unexpected status %d", r.status)
		}
		if err != nil {
			break
		}
	}
	result.Duration = durationpb.New(duration)
	if err == nil {
		result.Result = "delivered"
	} else {
		result.Response = strings.TrimSpace(valid(err.Error()) + "\n" + result.Response)
	}
	return result
}

// note keeps the result of a try.
func (q *queue) note(result *packhorsev1.WebhookDelivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.recent = slices.DeleteFunc(q.recent, func(d *packhorsev1.WebhookDelivery) bool { return d.Id == result.Id })
	q.recent = append(q.recent, result)
	q.recent = q.recent[max(0, len(q.recent)-maxRecent):]
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

// latest returns the latest deliveries of all processes, the oldest first.
func (q *queue) latest(ctx context.Context) ([]*packhorsev1.WebhookDelivery, error) {
	s, err := q.hooks.stateOf(ctx, q.target.Name)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hooks.o.States.IsShared() && s.Session != q.hooks.session {
		return s.Recent, err
	}
	return slices.Clone(q.recent), err
}

// again sends the request of a delivery once more.
func (q *queue) again(ctx context.Context, id string) (*packhorsev1.WebhookDelivery, error) {
	recent, err := q.latest(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(recent, func(d *packhorsev1.WebhookDelivery) bool { return d.Id == id })
	if i < 0 {
		return nil, fault.New(fault.NotFound, "no delivery %s: the latest %d are kept", fault.Short(id), maxRecent)
	}
	events, _, err := q.hooks.o.Events.Read(ctx, recent[i].After, 1)
	if err == nil && (len(events) != 1 || events[0].ID != id) {
		err = fault.New(fault.NotFound, "the event of delivery %s is not kept any more", fault.Short(id))
	}
	if err != nil {
		return nil, err
	}
	return q.send(ctx, &delivery{event: events[0], before: recent[i].After, tries: 1}), nil
}
