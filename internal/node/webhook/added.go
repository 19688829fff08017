package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

const (
	addedSuffix = ".target" // of States of targets that were added by calls
	maxAdded    = 100
	followEvery = 10 * time.Second // how often changes by other nodes are looked for
	minSecret   = 16
	maxSecret   = 1000
)

// Format is the format of requests.
type Format string

const (
	Native Format = ""
	GitHub Format = "github"
)

// Added is a target that was added by a call. Its JSON is in States.
type Added struct {
	Name         string       `json:"name"`
	URL          string       `json:"url"`
	Secret       string       `json:"secret,omitempty"`
	Repositories []string     `json:"repositories,omitempty"` // patterns; empty: all
	Kinds        []event.Kind `json:"events,omitempty"`       // empty: pushes
	Format       Format       `json:"format,omitempty"`
	BaseURL      string       `json:"base_url,omitempty"` // of repositories, in the format of GitHub
	AllowPrivate bool         `json:"allow_private,omitempty"`
}

// target checks an Added and returns its target.
func (h *Hooks) target(a *Added) (*Target, error) {
	if err := CheckName(a.Name); err != nil {
		return nil, fault.InField("name", fault.Wrap(fault.Invalid, err.Error(), err))
	}
	u, err := ParseURL(a.URL)
	if err != nil {
		return nil, fault.InField("url", fault.Wrap(fault.Invalid, err.Error(), err))
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !IsPublic(ip) && !a.AllowPrivate {
		return nil, fault.InvalidField("url", "the address %s is in a private network or on this machine", ip)
	}
	if a.AllowPrivate && !h.o.AllowPrivate {
		return nil, fault.InField("allow_private", fault.New(fault.Denied, "the server's configuration does not allow "+
			"webhooks in private networks (push.private_webhooks)"))
	}
	if n := len(a.Secret); a.Secret != "" && (n < minSecret || n > maxSecret) {
		return nil, fault.InvalidField("secret", "it has %d bytes: want %d to %d", n, minSecret, maxSecret)
	}
	for _, kind := range a.Kinds {
		if !slices.Contains([]event.Kind{event.Create, event.Rename, event.Configure, event.Delete, event.Push}, kind) {
			return nil, fault.InvalidField("events", "unknown kind %q: want push, create, rename, configure or delete",
				fault.Short(string(kind)))
		}
	}
	if a.Format != Native && a.Format != GitHub {
		return nil, fault.InvalidField("format", `unknown format %q: want "" or "github"`, fault.Short(string(a.Format)))
	}
	if _, err := ParseURL(a.BaseURL); a.Format == GitHub && err != nil {
		return nil, fault.InField("base_url", fault.Wrap(fault.Invalid, err.Error(), err))
	}
	t := &Target{Name: a.Name, URL: a.URL, Post: true, Kinds: a.Kinds, Format: a.Format, AllowPrivate: a.AllowPrivate,
		BaseURL: strings.TrimSuffix(a.BaseURL, "/"), Secret: func() string { return a.Secret }}
	if len(a.Repositories) > 0 {
		if t.Covers, err = h.o.Patterns(a.Repositories); err != nil {
			return nil, fault.InField("repositories", fault.Wrap(fault.Invalid, err.Error(), err))
		}
	}
	t.prepare()
	return t, nil
}

// Add adds a target, which gets the events from now on. It is durable when there is no error.
func (h *Hooks) Add(ctx context.Context, a Added) error {
	t, err := h.target(&a)
	if err != nil {
		return err
	}
	if err := h.follow(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	exists, count := h.queues[a.Name] != nil || slices.ContainsFunc(h.o.Targets, func(t Target) bool {
		return t.Name == a.Name
	}), len(h.added)
	h.mu.Unlock()
	if exists {
		return fault.New(fault.Exists, "a webhook %s already exists", a.Name)
	}
	if count >= maxAdded {
		return fault.New(fault.Exhausted, "there are %d webhooks already, which is the maximum: remove some of them", count)
	}
	if err := h.o.States.Remove(ctx, a.Name); err != nil { // of an earlier one
		return err
	}
	if err := newQueue(h, t).begin(ctx); err != nil {
		return err
	}
	text, err := json.Marshal(a)
	text = append(text, '\n')
	if err == nil {
		err = h.o.States.Save(ctx, a.Name+addedSuffix, text)
	}
	if err == nil {
		h.start(&a, t, text)
	}
	return err
}

// start begins the deliveries to an added target with a text in States.
func (h *Hooks) start(a *Added, t *Target, text []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || h.queues[a.Name] != nil {
		return
	}
	q := newQueue(h, t)
	q.text = text
	h.queues[a.Name], h.added[a.Name] = q, a
	h.running.Go(q.run)
}

// Remove removes a target that was added by a call. Its pending deliveries are dropped.
func (h *Hooks) Remove(ctx context.Context, name string) error {
	if err := h.follow(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	q, isAdded := h.queues[name], h.added[name] != nil
	h.mu.Unlock()
	switch {
	case q != nil && !isAdded:
		return fault.New(fault.Denied, "the webhook %s is in the configuration file: remove it there", name)
	case q == nil:
		return fault.New(fault.NotFound, "no webhook %s", fault.Short(name))
	}
	if err := h.o.States.Remove(ctx, name+addedSuffix); err != nil {
		return err
	}
	h.end(name, q)
	return h.o.States.Remove(ctx, name)
}

// end ends the deliveries to a target that was removed, and waits for their end.
func (h *Hooks) end(name string, q *queue) {
	h.mu.Lock()
	if h.queues[name] == q {
		h.metrics.pending.DeleteLabelValues(name)
		h.metrics.oldest.DeleteLabelValues(name)
		delete(h.queues, name)
		delete(h.added, name)
	}
	h.mu.Unlock()
	q.stop()
	<-q.ended
}

// followAdded follows the targets that calls of this and other nodes add and remove.
func (h *Hooks) followAdded() {
	for {
		if err := h.follow(h.ctx); err != nil && h.ctx.Err() == nil {
			h.o.Log.Warn("cannot read the webhooks that were added by calls; trying again", "error", err)
		}
		if retry.Sleep(h.ctx, followEvery) != nil {
			return
		}
	}
}

// follow makes the added targets those of States.
func (h *Hooks) follow(ctx context.Context) error {
	names, err := h.o.States.List(ctx)
	if err != nil {
		return err
	}
	found := make(map[string]bool)
	for _, file := range names {
		name, ok := strings.CutSuffix(file, addedSuffix)
		if !ok {
			continue
		}
		h.mu.Lock()
		q, isAdded := h.queues[name], h.added[name] != nil
		h.mu.Unlock()
		if q != nil && !isAdded { // it is configured
			continue
		}
		text, err := h.o.States.Load(ctx, file)
		if err != nil {
			return err
		}
		if text == nil { // it was removed meanwhile
			continue
		}
		found[name] = true
		if q != nil && bytes.Equal(q.text, text) {
			continue
		}
		if q != nil { // it was removed and added again
			h.end(name, q)
		}
		var a Added
		var t *Target
		if err = json.Unmarshal(text, &a); err == nil {
			t, err = h.target(&a)
		}
		if err != nil {
			h.o.Log.Error("a webhook that was added by a call cannot be used", "target", name, "error", err)
			continue
		}
		h.start(&a, t, text)
	}
	h.mu.Lock()
	gone := make(map[string]*queue)
	for name := range h.added {
		if !found[name] {
			gone[name] = h.queues[name]
		}
	}
	h.mu.Unlock()
	for name, q := range gone {
		h.end(name, q)
	}
	return nil
}

// Info describes a target that gets events.
type Info struct {
	Added
	IsConfigured bool   // it is in the configuration file
	Position     string // the events before it are settled
	Pending      int    // deliveries, as far as this process knows
	HasSecret    bool
}

// List describes the targets that get events, without their secrets.
func (h *Hooks) List(ctx context.Context) (list []Info, err error) {
	if err := h.follow(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	for name, q := range h.queues {
		i := Info{Added: Added{Name: name, URL: q.target.URL, Kinds: q.target.Kinds}, IsConfigured: true}
		if a := h.added[name]; a != nil {
			i.Added, i.IsConfigured = *a, false
		}
		i.HasSecret = q.target.Secret != nil && q.target.Secret() != ""
		i.Secret = ""
		list = append(list, i)
	}
	h.mu.Unlock()
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	for i := range list {
		s, err := h.stateOf(ctx, list[i].Name)
		if err != nil {
			return nil, err
		}
		list[i].Position = s.Position
	}
	return list, nil
}

func (h *Hooks) stateOf(ctx context.Context, name string) (state, error) {
	text, err := h.o.States.Load(ctx, name)
	if err != nil {
		return state{}, err
	}
	return parseState(text)
}

// queue returns the queue of a target.
func (h *Hooks) queue(ctx context.Context, name string) (*queue, error) {
	if err := h.follow(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.queues[name]; q != nil {
		return q, nil
	}
	return nil, fault.New(fault.NotFound, "no webhook %s", fault.Short(name))
}

// Deliveries returns the latest deliveries to a target, the newest first. In a store, the last second may be missing.
func (h *Hooks) Deliveries(ctx context.Context, name string) ([]Delivery, error) {
	q, err := h.queue(ctx, name)
	if err != nil {
		return nil, err
	}
	recent, err := q.latest(ctx)
	var list []Delivery
	for _, d := range slices.Backward(recent) {
		list = append(list, d)
	}
	return list, err
}

// Redeliver sends one of the latest deliveries again, once, and returns the result.
func (h *Hooks) Redeliver(ctx context.Context, name, id string) (Delivery, error) {
	q, err := h.queue(ctx, name)
	if err != nil {
		return Delivery{}, err
	}
	return q.again(ctx, id)
}
