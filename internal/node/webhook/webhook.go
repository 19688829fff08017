// Package webhook asks and notifies other programs about pushes by HTTP. It asks them before refs change
// (receivepack.Decider), and delivers the changes to them afterwards (receivepack.Recorder).
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
// # Outbox
//
//	pushes/ID             a push that has begun and not ended
//	TARGET/SEQUENCE-ID    a pending delivery, which is the body of its request; oldest first
//	dead/TARGET/...       abandoned deliveries, only the latest
//
// Files are replaced atomically, and names with a dot are temporary files. TARGET is the name of the target.
// Directories of unknown targets are not touched. After a crash, Recover compares the files in pushes with the refs,
// and delivers the updates that were made. A delivery is removed when the target has answered 2xx. After a crash it can
// be repeated, but it is never lost. With a Store, the bucket has pushes and deliveries, and the files are copies that
// end with the process. Deliveries of one repository keep their order: while a target rejects one, the
// later ones wait until it is abandoned.
package webhook

import (
	"cmp"
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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Target is a program that is asked or notified about pushes.
type Target struct {
	Name         string // for directories, logs and metric labels; see CheckName
	URL          string
	Pre, Post    bool                    // asked before refs change, notified afterwards
	Covers       func(git.RepoPath) bool // nil: all repositories
	Secret       func() string           // nil, or an empty result: requests are not signed
	Timeout      time.Duration           // of one request with its response. Zero means 10 s.
	Open         bool                    // the push continues if the target cannot be asked
	AllowPrivate bool                    // the target may be in a private network or on this machine
	GiveUp       time.Duration           // maximum age of a delivery. Zero means 7 days.

	client *http.Client
}

// Options configure Hooks.
type Options struct {
	Dir        string // directory of the outbox; used if a target has Post
	Targets    []Target
	Agent      string
	Registerer prometheus.Registerer // of metrics; may be nil
	Log        *slog.Logger
	Store      Store // keeps pushes and pending deliveries for other nodes; nil: none

	MaxCount int           // maximum number of pending deliveries of a target, and of abandoned ones. Zero means 10,000.
	MaxBytes int64         // maximum size of them in bytes. Zero means 256 MiB.
	Hold     time.Duration // time until a rejected delivery is abandoned. Zero means one hour.
	Retry    time.Duration // first delay after a failure, doubled with each one up to 10 minutes. Zero means 1 s.
}

const (
	defaultTimeout  = 10 * time.Second
	defaultGiveUp   = 7 * 24 * time.Hour
	defaultMaxCount = 10_000
	defaultMaxBytes = 256 << 20
	defaultHold     = time.Hour
	defaultRetry    = time.Second
	maxRetry        = 10 * time.Minute
	closeLimit      = 5 * time.Second // for the last requests to the Store
)

// Hooks is a receivepack.Decider and a receivepack.Recorder. It is safe for concurrent use.
type Hooks struct {
	o       Options
	metrics *metrics
	queues  []*queue // of the targets with Post
	shared  *sharing // nil without a Store
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	begun   sync.Map // pushRecord by the ID of a push

	mu   sync.Mutex
	last int64 // sequence number
}

// New opens the outbox. Deliveries begin with Start.
func New(o Options) (*Hooks, error) {
	o.MaxCount, o.MaxBytes = cmp.Or(o.MaxCount, defaultMaxCount), cmp.Or(o.MaxBytes, defaultMaxBytes)
	o.Hold, o.Retry = cmp.Or(o.Hold, defaultHold), cmp.Or(o.Retry, defaultRetry)
	o.Targets = slices.Clone(o.Targets)
	h := &Hooks{o: o, metrics: newMetrics(o.Registerer)}
	h.ctx, h.stop = context.WithCancel(context.Background())
	if o.Store != nil {
		h.shared = newSharing(h, o.Store)
	}
	for i := range o.Targets {
		t := &o.Targets[i]
		if err := CheckName(t.Name); err != nil {
			return nil, err
		}
		if _, err := ParseURL(t.URL); err != nil {
			return nil, err
		}
		t.Timeout, t.GiveUp = cmp.Or(t.Timeout, defaultTimeout), cmp.Or(t.GiveUp, defaultGiveUp)
		t.client = newClient(t.AllowPrivate)
		if !t.Post {
			continue
		}
		if err := os.MkdirAll(filepath.Join(o.Dir, pushesDir), 0o700); err != nil {
			return nil, fmt.Errorf("cannot create the outbox: %w", err)
		}
		q, err := openQueue(h, t)
		if err != nil {
			return nil, fmt.Errorf("cannot open the outbox: %w", err)
		}
		h.queues = append(h.queues, q)
		h.last = max(h.last, q.newest())
	}
	return h, nil
}

// CheckName checks the name of a target, which is also the name of a directory.
func CheckName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	switch {
	case name == "" || len(name) > 64 || strings.Trim(name, letters) != "" || name[0] == '.':
		return errors.New(`invalid name: use up to 64 letters, digits, ".", "_" and "-", and begin with another character than "."`)
	case name == pushesDir || name == deadDir:
		return fmt.Errorf("the name %q is reserved: choose another one", name)
	}
	return nil
}

// ParseURL checks the URL of a target. The error does not contain the URL, which may have a secret.
func ParseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.New("invalid url")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New(`invalid url: want "http://" or "https://"`)
	case u.Hostname() == "":
		return nil, errors.New("invalid url: no host")
	case u.User != nil:
		return nil, errors.New("invalid url: it has a password; use secret_file to sign requests")
	}
	query, err := url.QueryUnescape(u.RawQuery)
	if err != nil || strings.ContainsFunc(s+u.Host+u.Path+query, unicode.IsControl) {
		return nil, errors.New("invalid url: it has a control character")
	}
	return u, nil
}

func (t *Target) covers(repo git.RepoPath) bool { return t.Covers == nil || t.Covers(repo) }

// Delivers reports whether a target is notified after pushes.
func (h *Hooks) Delivers() bool { return len(h.queues) > 0 }

// Decides reports whether a target is asked before refs change.
func (h *Hooks) Decides() bool {
	return slices.ContainsFunc(h.o.Targets, func(t Target) bool { return t.Pre })
}

// Start begins the deliveries, the oldest first. Call it at most once.
func (h *Hooks) Start() {
	for _, q := range h.queues {
		h.running.Go(q.run)
	}
	if h.shared != nil && h.Delivers() {
		h.running.Go(h.shared.run)
	}
}

// Close ends the deliveries in progress. They are repeated after the next Start.
func (h *Hooks) Close() error {
	h.mu.Lock() // nothing begins after this
	h.stop()
	h.mu.Unlock()
	h.running.Wait()
	if h.shared != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		_ = h.shared.flush(ctx) // otherwise another node repeats these deliveries
	}
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
	response, err := h.post(ctx, t, "pre-receive", p.ID, inflight.TraceParent(traced), body, maxReason)
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
