// Package webhook asks and notifies other programs about pushes by HTTP. It asks them before refs change
// (receivepack.Decider), and delivers events to them afterwards.
//
// # Requests
//
// A request is a POST of JSON with the fields event, push (an ID), time, repository, pusher, options, and updates with
// ref, old and new. The header has Packhorse-Event and Packhorse-Delivery, the ID of the push. With a secret it has
// Packhorse-Signature: "sha256=" and the HMAC-SHA256 of the body in hexadecimal digits. If ref, repository or options
// are not UTF-8, their bytes are in ref_bytes, repository_bytes and options_bytes, in base64. Redirects are not
// followed and proxies are not used. Unless a target may be private, each new connection checks the address of the
// target.
//
// # Deliveries
//
// A target reads the events of the node (package event) in their order, and its position is kept in States. So a
// delivery is pending until the target has answered 2xx, whatever happens to this process. After a crash a delivery can
// be repeated, but it is never lost. Deliveries of one repository keep their order: while a target rejects one, the
// later ones wait until it is abandoned.
//
// If States are shared by several nodes, one of them delivers to a target: its session is in the state. While
// deliveries are pending, it renews the state. Another node takes the target when the state does not change for some
// seconds although events are pending. No clocks are compared. A node that was taken for lost notices it when it saves.
package webhook

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Target is a program that is asked or notified about pushes.
type Target struct {
	Name         string // for directories, logs and metric labels; see CheckName
	URL          string
	Pre, Post    bool          // asked before refs change, notified afterwards
	Repositories []string      // patterns; empty: all repositories
	Secret       func() string // nil, or an empty result: requests are not signed
	Timeout      time.Duration // of one request with its response. Zero means 10 s.
	Open         bool          // the push continues if the target cannot be asked
	AllowPrivate bool          // the target may be in a private network or on this machine
	GiveUp       time.Duration // maximum age of a delivery. Zero means 7 days.
	Kinds        []string      // of events, if it has Post; empty: pushes
	Format       string        // "" or GitHub
	BaseURL      string        // of repositories for clients, in the format of GitHub

	covers func(git.RepoPath) bool
	client *http.Client
}

// Options configure Hooks.
type Options struct {
	Targets    []Target
	Agent      string
	Registerer prometheus.Registerer // of metrics; may be nil
	Log        *slog.Logger
	Events     event.Log // needed if a target has Post, and for Add
	States     States    // the same
	// Patterns returns a function that reports whether a repository matches a pattern. AllowPrivate is that of targets
	// that are added by calls.
	Patterns     func([]string) (func(git.RepoPath) bool, error)
	AllowPrivate bool
	// Head returns the default branch of a repository, for the format of GitHub. It may be nil.
	Head func(ctx context.Context, repo git.RepoPath) (string, error)
	// Commits returns up to limit commits of an update, the newest last, for the format of GitHub. It may be nil.
	Commits func(ctx context.Context, repo git.RepoPath, u receivepack.Update, limit int) ([]Commit, error)

	Hold  time.Duration // time until a rejected delivery is abandoned. Zero means one hour.
	Retry time.Duration // first delay after a failure, doubled with each one up to 10 minutes. Zero means 1 s.
}

const (
	defaultTimeout = 10 * time.Second
	defaultGiveUp  = 7 * 24 * time.Hour
	defaultHold    = time.Hour
	defaultRetry   = time.Second
	maxRetry       = 10 * time.Minute
	closeLimit     = 5 * time.Second // for the last requests to the Store
)

// Hooks is a receivepack.Decider. It is safe for concurrent use.
type Hooks struct {
	o       Options
	metrics *metrics
	session string
	// takeAfter is the constant, except in tests.
	takeAfter time.Duration
	ctx       context.Context
	stop      context.CancelFunc
	running   sync.WaitGroup

	mu     sync.Mutex
	queues map[string]*queue                                // of the targets with Post, by name
	added  map[string]*packhorsev1.WebhookServiceAddRequest // targets that were added by calls
}

// New prepares the targets. A new target gets the events that follow. Deliveries begin with Start.
func New(ctx context.Context, o Options) (*Hooks, error) {
	o.Hold, o.Retry = cmp.Or(o.Hold, defaultHold), cmp.Or(o.Retry, defaultRetry)
	o.Targets = slices.Clone(o.Targets)
	h := &Hooks{o: o, metrics: newMetrics(o.Registerer), session: rand.Text(), takeAfter: takeAfter,
		queues: make(map[string]*queue), added: make(map[string]*packhorsev1.WebhookServiceAddRequest)}
	h.ctx, h.stop = context.WithCancel(context.Background())
	for i := range o.Targets {
		t := &o.Targets[i]
		if err := CheckName(t.Name); err != nil {
			return nil, err
		}
		if _, err := ParseURL(t.URL); err != nil {
			return nil, err
		}
		if err := t.prepare(&o); err != nil {
			return nil, err
		}
		if !t.Post {
			continue
		}
		q := newQueue(h, t)
		if err := q.begin(ctx); err != nil && !o.States.IsShared() { // otherwise it begins when the store can be reached
			return nil, fmt.Errorf("cannot prepare the webhook %s: %w", t.Name, err)
		}
		h.queues[t.Name] = q
	}
	return h, nil
}

// prepare sets defaults. The error is Invalid: a pattern is wrong.
func (t *Target) prepare(o *Options) error {
	t.Timeout, t.GiveUp = cmp.Or(t.Timeout, defaultTimeout), cmp.Or(t.GiveUp, defaultGiveUp)
	t.client, t.covers = newClient(t.AllowPrivate), func(git.RepoPath) bool { return true }
	if len(t.Repositories) == 0 {
		return nil
	}
	var err error
	if t.covers, err = o.Patterns(t.Repositories); err != nil {
		return fault.Wrap(fault.Invalid, err.Error(), err)
	}
	return nil
}

// CheckName checks the name of a target, which is also the name of a directory.
func CheckName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	switch {
	case name == "" || len(name) > 64 || strings.Trim(name, letters) != "" || name[0] == '.':
		return fault.New(fault.Invalid, `invalid name: use up to 64 letters, digits, ".", "_" and "-", and begin with `+
			`another character than "."`)
	case strings.HasSuffix(name, addedSuffix):
		return fault.New(fault.Invalid, "the name %q is reserved: choose another one", name)
	}
	return nil
}

// ParseURL checks the URL of a target. The error does not contain the URL, which may have a secret.
func ParseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, fault.New(fault.Invalid, "invalid url")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fault.New(fault.Invalid, `invalid url: want "http://" or "https://"`)
	case u.Hostname() == "":
		return nil, fault.New(fault.Invalid, "invalid url: no host")
	case u.User != nil:
		return nil, fault.New(fault.Invalid, "invalid url: it has a password; sign requests with a secret instead")
	}
	query, err := url.QueryUnescape(u.RawQuery)
	if err != nil || strings.ContainsFunc(s+u.Host+u.Path+query, unicode.IsControl) {
		return nil, fault.New(fault.Invalid, "invalid url: it has a control character")
	}
	return u, nil
}

// Decides reports whether a target is asked before refs change.
func (h *Hooks) Decides() bool {
	return slices.ContainsFunc(h.o.Targets, func(t Target) bool { return t.Pre })
}

// Start begins the deliveries. Call it at most once.
func (h *Hooks) Start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.queues {
		h.running.Go(q.run)
	}
	if h.o.States != nil {
		h.running.Go(h.followAdded)
	}
}

// Close ends the deliveries in progress. They are repeated after the next Start.
func (h *Hooks) Close() error {
	h.mu.Lock() // nothing begins after this
	h.stop()
	h.mu.Unlock()
	h.running.Wait()
	for i := range h.o.Targets {
		h.o.Targets[i].client.CloseIdleConnections()
	}
	return nil
}

// Decide asks the targets one after the other, until one refuses or cannot be asked and is not Open.
func (h *Hooks) Decide(ctx context.Context, p *receivepack.Push) error {
	var body []byte
	for i := range h.o.Targets {
		t := &h.o.Targets[i]
		if !t.Pre || !t.covers(p.Repo) {
			continue
		}
		if body == nil {
			body = encodeMessage("pre-receive", time.Now(), p, p.Updates)
		}
		if err := h.ask(ctx, t, p, body); err != nil {
			return err
		}
	}
	return nil
}

// ask asks one target.
func (h *Hooks) ask(ctx context.Context, t *Target, p *receivepack.Push, body []byte) error {
	start := time.Now()
	traced, span := inflight.Trace(ctx, "webhook")
	span.Text("packhorse.target", t.Name)
	response, err := h.post(ctx, t, request{event: "pre-receive", id: p.ID, body: body}, inflight.TraceParent(traced),
		maxReason)
	span.End("")
	h.metrics.seconds.WithLabelValues(t.Name, "pre-receive").Observe(time.Since(start).Seconds())
	count := func(result string) { h.metrics.decisions.WithLabelValues(t.Name, result).Inc() }
	switch {
	case ctx.Err() != nil:
		count("cancelled")
		return ctx.Err()
	case err == nil && response.status/100 == 2:
		count("accepted")
		return nil
	case err == nil && (response.status == http.StatusForbidden || response.status == http.StatusConflict ||
		response.status == http.StatusUnprocessableEntity):
		count("refused")
		return fault.New(fault.Denied, "%s", cmp.Or(response.text(), "the push was refused by "+t.Name))
	case err == nil:
		err = fmt.Errorf("unexpected status %d", response.status)
	}
	h.o.Log.Warn("cannot ask a webhook about a push", "target", t.Name, "push", p.ID, "repository", p.Repo.String(),
		"open", t.Open, "error", err)
	if t.Open {
		count("failed_open")
		return nil
	}
	count("failed_closed")
	return &fault.Error{
		Kind: fault.Unavailable, Msg: "push not accepted: the server cannot ask " + t.Name + " about it; try again",
		RetryAfter: fault.RetrySoon, Err: err,
	}
}
