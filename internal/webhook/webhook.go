// Package webhook tells others about pushes by HTTP: it asks them before refs change (receivepack.Decider), and delivers to them what has changed
// (receivepack.Recorder).
//
// # Requests
//
// Each is a POST of JSON: event, push (an ID), time, repository, pusher, options, and updates with ref, old and new. Packhorse-Event and
// Packhorse-Delivery, the push's ID, stand in the header, and with a secret Packhorse-Signature: "sha256=" and the HMAC-SHA256 of the body in
// hexadecimal digits. What of ref, repository and options is no UTF-8 stands beside it in base64, as ref_bytes, repository_bytes and options_bytes. No redirect is followed, and no proxy used; unless a target is allowed to be private, the address that its name leads to is
// looked at when the connection is made.
//
// # Outbox
//
//	pushes/ID             a push that was begun and not ended
//	TARGET/SEQUENCE-ID    deliveries to come, oldest first; the body as it is sent
//	dead/TARGET/...       deliveries that were given up, the latest only
//
// A file has its name once it is on disk whole. TARGET is the target's name; a directory of none that is configured is left as it is. What a
// crash leaves in pushes is held against the refs (Recover): each update that came to be is delivered. A delivery is removed once the target has
// answered 2xx, and can come twice after a crash, never not at all. Those of one repository come in their order: while the target does not want one
// the later ones wait, until it is put aside.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

// Target is somebody who is told.
type Target struct {
	Name         string // of directories, in logs and metric labels: letters, digits, ".", "_" and "-"
	URL          string
	Pre, Post    bool                    // asked before refs change; told after
	Covers       func(git.RepoPath) bool // nil: all repositories
	Secret       func() string           // nil, or an empty one: requests are not signed
	Timeout      time.Duration           // of one request, its answer included; 0: 10 s
	Open         bool                    // a push goes on if the target does not decide
	AllowPrivate bool                    // its address may be one of a private network, or of this machine
	GiveUp       time.Duration           // how old a delivery gets; 0: 7 days

	client *http.Client
}

// Options says who is told, and how.
type Options struct {
	Dir     string // of the outbox; unused without a target that is told after pushes
	Targets []Target
	Agent   string
	Metrics *Metrics
	Log     *slog.Logger

	MaxCount int           // deliveries that wait for one target, and dead ones that are kept; 0: 10,000
	MaxBytes int64         // of them; 0: 256 MiB
	Hold     time.Duration // how long a delivery that its target does not want is tried, while later ones of its repository wait; 0: an hour
	Retry    time.Duration // first pause after a failure, doubled with each up to 10 minutes; 0: a second
}

const (
	defaultTimeout  = 10 * time.Second
	defaultGiveUp   = 7 * 24 * time.Hour
	defaultMaxCount = 10_000
	defaultMaxBytes = 256 << 20
	defaultHold     = time.Hour
	defaultRetry    = time.Second
	maxRetry        = 10 * time.Minute
)

// Hooks is both. Safe for concurrent use.
type Hooks struct {
	o       Options
	queues  []*queue // of the targets that are told after pushes
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	last int64 // sequence number
}

// New opens the outbox. Nothing is delivered before Start.
func New(o Options) (*Hooks, error) {
	o.MaxCount, o.MaxBytes = cmpOr(o.MaxCount, defaultMaxCount), cmpOr(o.MaxBytes, defaultMaxBytes)
	o.Hold, o.Retry = cmpOr(o.Hold, defaultHold), cmpOr(o.Retry, defaultRetry)
	o.Targets = slices.Clone(o.Targets)
	h := &Hooks{o: o}
	h.ctx, h.stop = context.WithCancel(context.Background())
	for i := range o.Targets {
		t := &o.Targets[i]
		if err := CheckName(t.Name); err != nil {
			return nil, err
		}
		if _, err := ParseURL(t.URL); err != nil {
			return nil, err
		}
		t.Timeout, t.GiveUp = cmpOr(t.Timeout, defaultTimeout), cmpOr(t.GiveUp, defaultGiveUp)
		t.client = newClient(t.AllowPrivate)
		if !t.Post {
			continue
		}
		if err := os.MkdirAll(filepath.Join(o.Dir, pushesDir), 0o700); err != nil {
			return nil, fmt.Errorf("make the outbox: %w", err)
		}
		q, err := openQueue(h, t)
		if err != nil {
			return nil, fmt.Errorf("open the outbox: %w", err)
		}
		h.queues = append(h.queues, q)
		h.last = max(h.last, q.newest())
	}
	return h, nil
}

func cmpOr[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// CheckName checks a target's name, which is a directory's too.
func CheckName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	switch {
	case name == "" || len(name) > 64 || strings.Trim(name, letters) != "" || name[0] == '.':
		return errors.New(`a name has letters, digits, ".", "_" and "-", does not begin with ".", and has at most 64 of them`)
	case name == pushesDir || name == deadDir:
		return fmt.Errorf("%q is taken; choose another name", name)
	}
	return nil
}

// ParseURL checks where a target is. The error does not repeat it: there may be a secret in it.
func ParseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.New("the url cannot be read")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New(`the url has to begin with "http://" or "https://"`)
	case u.Hostname() == "":
		return nil, errors.New("the url names no host")
	case u.User != nil:
		return nil, errors.New("the url holds a password; use secret_file, by which requests are signed")
	}
	query, err := url.QueryUnescape(u.RawQuery)
	if err != nil || strings.ContainsFunc(s+u.Host+u.Path+query, unicode.IsControl) {
		return nil, errors.New("the url has a control character")
	}
	return u, nil
}

func (t *Target) covers(repo git.RepoPath) bool { return t.Covers == nil || t.Covers(repo) }

// Tells tells whether somebody is told after pushes.
func (h *Hooks) Tells() bool { return len(h.queues) > 0 }

// Asks tells whether somebody is asked before refs change.
func (h *Hooks) Asks() bool {
	return slices.ContainsFunc(h.o.Targets, func(t Target) bool { return t.Pre })
}

// Start delivers, from the oldest on. Once at most.
func (h *Hooks) Start() {
	for _, q := range h.queues {
		h.running.Go(q.run)
	}
}

// Close ends deliveries that are under way; they come again after the next Start.
func (h *Hooks) Close() error {
	h.mu.Lock() // nothing is begun after this
	h.stop()
	h.mu.Unlock()
	h.running.Wait()
	for i := range h.o.Targets {
		h.o.Targets[i].client.CloseIdleConnections()
	}
	return nil
}

// Decide asks the targets one after the other; the first that refuses, or cannot be asked and is no open one, ends it.
func (h *Hooks) Decide(ctx context.Context, p *receivepack.Push) error {
	var body []byte
	for i := range h.o.Targets {
		t := &h.o.Targets[i]
		if !t.Pre || !t.covers(p.Repo) {
			continue
		}
		if body == nil {
			body = encode("pre-receive", time.Now(), p, p.Updates)
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
	a, err := h.post(ctx, t, "pre-receive", p.ID, inflight.TraceParent(traced), body, maxSaid)
	span.End("")
	h.o.Metrics.seconds.WithLabelValues(t.Name, "pre-receive").Observe(time.Since(start).Seconds())
	count := func(result string) { h.o.Metrics.decisions.WithLabelValues(t.Name, result).Inc() }
	switch {
	case ctx.Err() != nil:
		count("cancelled")
		return ctx.Err()
	case err == nil && a.status/100 == 2:
		count("accepted")
		return nil
	case err == nil && (a.status == http.StatusForbidden || a.status == http.StatusConflict || a.status == http.StatusUnprocessableEntity):
		count("refused")
		return fault.New(fault.Denied, "%s", cmpOr(a.said(), "the push was refused by "+t.Name))
	case err == nil:
		err = fmt.Errorf("it answered with status %d", a.status)
	}
	h.o.Log.Warn("a webhook does not decide about a push", "target", t.Name, "push", p.ID, "repository", p.Repo.String(), "open", t.Open, "error", err)
	if t.Open {
		count("failed_open")
		return nil
	}
	count("failed_closed")
	return &fault.Error{
		Kind: fault.Unavailable, Msg: "the server could not ask " + t.Name + " whether the push may be taken; try again", RetryAfter: fault.RetrySoon, Err: err,
	}
}
