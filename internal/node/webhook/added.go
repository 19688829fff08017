package webhook

import (
	"bytes"
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	addedSuffix = ".target" // of States of targets that were added by calls
	maxAdded    = 100
	followEvery = 10 * time.Second // how often changes by other nodes are looked for
	minSecret   = 16
	maxSecret   = 1000
)

// GitHub is the format of requests that programs for GitHub expect.
const GitHub = "github"

// target checks a webhook and returns its target.
func (h *Hooks) target(r *packhorsev1.WebhookServiceAddRequest) (*Target, error) {
	w, secret := r.GetWebhook(), r.GetSecret()
	u, urlErr := ParseURL(w.GetUrl())
	if err := cmp.Or(fault.InField("name", CheckName(w.GetName())), fault.InField("url", urlErr)); err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !IsPublic(ip) && !w.GetAllowPrivate() {
		return nil, fault.InvalidField("url", "the address %s is in a private network or on this machine", ip)
	}
	if w.GetAllowPrivate() && !h.o.AllowPrivate {
		return nil, fault.InField("allow_private", fault.New(fault.Denied, "the server's configuration does not allow "+
			"webhooks in private networks (push.private_webhooks)"))
	}
	if n := len(secret); n > 0 && (n < minSecret || n > maxSecret) {
		return nil, fault.InvalidField("secret", "it has %d bytes: want %d to %d", n, minSecret, maxSecret)
	}
	for _, kind := range w.GetEvents() {
		if !slices.Contains([]event.Kind{event.Create, event.Rename, event.Configure, event.Delete, event.Push},
			event.Kind(kind)) {
			return nil, fault.InvalidField("events", "unknown kind %q: want push, create, rename, configure or delete",
				fault.Short(kind))
		}
	}
	if w.GetFormat() != "" && w.GetFormat() != GitHub {
		return nil, fault.InvalidField("format", `unknown format %q: want "" or "github"`, fault.Short(w.GetFormat()))
	}
	if _, err := ParseURL(w.GetBaseUrl()); w.GetFormat() == GitHub && err != nil {
		return nil, fault.InField("base_url", err)
	}
	t := &Target{Name: w.GetName(), URL: w.GetUrl(), Post: true, Kinds: w.GetEvents(), Format: w.GetFormat(),
		AllowPrivate: w.GetAllowPrivate(), BaseURL: strings.TrimSuffix(w.GetBaseUrl(), "/"),
		Secret: func() string { return secret }, Repositories: w.GetRepositories()}
	return t, fault.InField("repositories", t.prepare(&h.o))
}

// Add adds a target, which gets the events from now on, or replaces one, which continues. It is durable when there is
// no error.
func (h *Hooks) Add(ctx context.Context, asked *packhorsev1.WebhookServiceAddRequest) error {
	t, err := h.target(asked)
	if err != nil {
		return err
	}
	if err := h.follow(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	q, old, count := h.queues[t.Name], h.added[t.Name], len(h.added)
	h.mu.Unlock()
	r := &packhorsev1.WebhookServiceAddRequest{Webhook: asked.GetWebhook(), Secret: asked.GetSecret()}
	switch {
	case old != nil && asked.GetReplace():
		if r.Secret = cmp.Or(r.Secret, old.Secret); r.Secret != asked.Secret {
			t.Secret = func() string { return r.Secret }
		}
	case old != nil:
		return fault.New(fault.Exists, "a webhook %s already exists: replace it, or choose another name", t.Name)
	case h.isConfigured(t.Name):
		return fault.New(fault.Exists, "a webhook %s already exists in the configuration file: change it there", t.Name)
	case count >= maxAdded:
		return fault.New(fault.Exhausted, "there are %d webhooks already, which is the maximum: remove some of them", count)
	default:
		if err := h.o.States.Remove(ctx, t.Name); err != nil { // of an earlier one
			return err
		}
		if err := newQueue(h, t).begin(ctx); err != nil {
			return err
		}
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r)
	text = append(text, '\n')
	if err == nil {
		err = h.o.States.Save(ctx, t.Name+addedSuffix, text)
	}
	if err != nil {
		return err
	}
	if old != nil {
		h.end(t.Name, q)
	}
	h.start(r, t, text)
	return nil
}

// isConfigured reports whether a target is in the configuration file.
func (h *Hooks) isConfigured(name string) bool {
	return slices.ContainsFunc(h.o.Targets, func(t Target) bool { return t.Name == name })
}

// start begins the deliveries to an added target with a text in States.
func (h *Hooks) start(r *packhorsev1.WebhookServiceAddRequest, t *Target, text []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || h.queues[t.Name] != nil {
		return
	}
	q := newQueue(h, t)
	q.text = text
	h.queues[t.Name], h.added[t.Name] = q, r
	h.running.Go(q.run)
}

// Remove removes a target that was added by a call. Its pending deliveries are dropped.
func (h *Hooks) Remove(ctx context.Context, name string) error {
	if err := h.follow(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	q := h.queues[name]
	h.mu.Unlock()
	switch {
	case h.isConfigured(name):
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
		if h.isConfigured(name) {
			continue
		}
		h.mu.Lock()
		q := h.queues[name]
		h.mu.Unlock()
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
		if q != nil { // it was replaced, or removed and added again
			h.end(name, q)
		}
		r, t := &packhorsev1.WebhookServiceAddRequest{}, (*Target)(nil)
		if err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, r); err == nil {
			t, err = h.target(r)
		}
		if err != nil {
			h.o.Log.Error("a webhook that was added by a call cannot be used", "target", name, "error", err)
			continue
		}
		h.start(r, t, text)
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

// List describes the targets, without their secrets.
func (h *Hooks) List(ctx context.Context) (list []*packhorsev1.Webhook, err error) {
	if err := h.follow(ctx); err != nil {
		return nil, err
	}
	for i := range h.o.Targets {
		t := &h.o.Targets[i]
		w := &packhorsev1.Webhook{Name: t.Name, Url: t.URL, Repositories: t.Repositories, AllowPrivate: t.AllowPrivate,
			Configured: true, HasSecret: t.Secret != nil && t.Secret() != ""}
		if !t.Post {
			w.Events = []string{"pre-receive"}
		}
		list = append(list, w)
	}
	h.mu.Lock()
	for _, r := range h.added {
		w := proto.CloneOf(r.GetWebhook())
		w.HasSecret = r.GetSecret() != ""
		list = append(list, w)
	}
	h.mu.Unlock()
	slices.SortFunc(list, func(a, b *packhorsev1.Webhook) int { return strings.Compare(a.GetName(), b.GetName()) })
	for _, w := range list {
		s, err := h.stateOf(ctx, w.GetName())
		if err != nil {
			return nil, err
		}
		w.Position = s.Position
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
func (h *Hooks) Deliveries(ctx context.Context, name string) ([]*packhorsev1.WebhookDelivery, error) {
	q, err := h.queue(ctx, name)
	if err != nil {
		return nil, err
	}
	list, err := q.latest(ctx)
	slices.Reverse(list)
	return list, err
}

// Redeliver sends one of the latest deliveries again, once, and returns the result.
func (h *Hooks) Redeliver(ctx context.Context, name, id string) (*packhorsev1.WebhookDelivery, error) {
	q, err := h.queue(ctx, name)
	if err != nil {
		return nil, err
	}
	return q.again(ctx, id)
}
