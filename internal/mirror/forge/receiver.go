package forge

import (
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	replayWindow = 10 * time.Minute // for which a repeated delivery has no effect
	maxSeen      = 10_000           // deliveries that are known to be repeated
	maxPending   = 10_000           // repositories that wait for their refresh
	maxRefreshes = 8                // refreshes that run at once
)

// Table has the secret of the webhooks of one origin, and the repositories that they may name.
type Table struct {
	Secret func() string // of the webhooks, at present
	Base   string        // path of the origin's URL without slashes around it; "" is the root
	Prefix string        // of the paths of its mirrors
}

// path returns the path of the mirror of a repository at the origin. ok is false if it is not below the base.
func (t *Table) path(origin string) (path git.RepoPath, ok bool) {
	if t.Base != "" {
		if origin, ok = strings.CutPrefix(origin, t.Base+"/"); !ok {
			return path, false
		}
	}
	path, err := git.ParseRepoPath(t.Prefix + "/" + origin)
	return path, err == nil
}

// Options configures a Receiver.
type Options struct {
	// Refresh updates a mirror from its origin. It does nothing for a repository that is not mirrored.
	Refresh func(context.Context, git.RepoPath) error
	Log     *slog.Logger

	Registerer prometheus.Registerer // of metrics; may be nil
}

// Receiver verifies deliveries, and refreshes the mirrors that they name in the background. A mirror is refreshed by
// one goroutine at a time. All deliveries that arrive meanwhile cause one further refresh. It is safe for concurrent
// use.
type Receiver struct {
	Options
	deliveries *prometheus.CounterVec
	ctx        context.Context // ends with Close
	stop       context.CancelFunc
	work       sync.WaitGroup
	seen       *lru.Cache[[sha256.Size]byte, time.Time]

	mu      sync.Mutex
	tables  []Table
	pending map[git.RepoPath]refreshState
	queue   []git.RepoPath // with the state waiting
	workers int
	closed  bool
}

// refreshState is the state of a repository with a refresh that has not ended.
type refreshState uint8

const (
	waiting refreshState = iota
	running
	again // running, and a delivery arrived since its start
)

// NewReceiver makes a Receiver without tables. It refuses all deliveries until SetTables.
func NewReceiver(o Options) *Receiver {
	deliveries := promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_mirror_webhooks_total",
		Help: "Webhooks that forges sent, by forge and result: accepted, refused (no or a wrong signature), invalid, " +
			"replayed (the same delivery again), or dropped (too many mirrors wait).",
	}, []string{"forge", "result"})
	r := &Receiver{Options: o, deliveries: deliveries, pending: map[git.RepoPath]refreshState{}}
	r.seen, _ = lru.New[[sha256.Size]byte, time.Time](maxSeen) // the size is valid
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// SetTables replaces the tables.
func (r *Receiver) SetTables(tables []Table) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tables = tables
}

// Close cancels the refreshes and waits for their end.
func (r *Receiver) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	r.work.Wait()
}

// Accepts reports whether there are webhooks of a forge with that name in URLs.
func (r *Receiver) Accepts(forge string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tables) > 0 && slices.Contains(Kinds, Kind(forge))
}

// Receive accepts a delivery, and returns before any work. It reads no byte of the body of a delivery without a proof.
// The error is Unauthenticated if no table has the secret, and Invalid for a payload that is not understood. Neither
// the result nor its time depend on whether the repository is mirrored. repo is the path that its mirror has or would
// have, if the delivery has a proof and names one; otherwise zero.
func (r *Receiver) Receive(forge string, header http.Header, body func() ([]byte, error)) (repo git.RepoPath,
	err error) {
	kind := Kind(forge)
	result, repo, err := r.receive(kind, header, body)
	r.deliveries.WithLabelValues(string(kind), result).Inc()
	return repo, err
}

func (r *Receiver) receive(kind Kind, header http.Header, body func() ([]byte, error)) (result string,
	repo git.RepoPath, err error) {
	proof := kind.proof(header)
	if proof == "" {
		return refused, repo, fault.New(fault.Unauthenticated,
			"the delivery has no signature or token: set the secret of webhook_secret_file at the forge")
	}
	text, err := body()
	if err != nil {
		return invalid, repo, err
	}
	tables := r.verified(kind, proof, text)
	if len(tables) == 0 {
		return refused, repo, fault.New(fault.Unauthenticated,
			"the signature or token is wrong: the secret at the forge has to be that of webhook_secret_file")
	}
	origin, err := kind.repositories(header.Get("Content-Type"), text)
	if err != nil {
		return invalid, repo, err
	}
	var paths []git.RepoPath
	for _, table := range tables {
		for _, each := range origin {
			if path, ok := table.path(each); ok {
				paths = append(paths, path)
			}
		}
	}
	if len(paths) > 0 {
		repo = paths[0]
	}
	key, isReplay := r.remember(kind, kind.delivery(header), text)
	if isReplay {
		return replayed, repo, nil
	}
	for _, path := range paths {
		if !r.enqueue(path) {
			r.seen.Remove(key) // the forge may send it again
			return dropped, repo, fault.Retry(fault.Exhausted, fault.RetryLater,
				"too many mirrors wait for their refresh")
		}
	}
	return accepted, repo, nil
}

// verified returns the tables whose secret verifies a delivery. It tries all of them.
func (r *Receiver) verified(kind Kind, proof string, body []byte) (tables []Table) {
	r.mu.Lock()
	all := r.tables
	r.mu.Unlock()
	for _, table := range all {
		if kind.verify(proof, body, []byte(table.Secret())) {
			tables = append(tables, table)
		}
	}
	return tables
}

// remember remembers a delivery by its key, and reports whether the same was received within the replay window. Forges
// without an ID for deliveries can send two equal ones.
func (r *Receiver) remember(kind Kind, id string, body []byte) (key [sha256.Size]byte, isReplay bool) {
	if id == "" {
		return key, false
	}
	sum := sha256.New()
	_, _ = io.WriteString(sum, string(kind)+"\n"+id+"\n")
	sum.Write(body)
	key = [sha256.Size]byte(sum.Sum(nil))
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.seen.Get(key); ok && now.Sub(last) < replayWindow {
		return key, true
	}
	r.seen.Add(key, now)
	return key, false
}

// enqueue refreshes a repository soon. It returns false if too many repositories wait.
func (r *Receiver) enqueue(repo git.RepoPath) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	state, ok := r.pending[repo]
	switch {
	case r.closed, ok && state == waiting:
		return true
	case ok:
		r.pending[repo] = again
		return true
	case len(r.pending) == maxPending:
		return false
	}
	r.pending[repo] = waiting
	r.queue = append(r.queue, repo)
	if r.workers < maxRefreshes {
		r.workers++
		r.work.Go(r.refreshAll)
	}
	return true
}

// refreshAll refreshes the repositories of the queue until it is empty.
func (r *Receiver) refreshAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 && !r.closed {
		repo := r.queue[0]
		r.queue = r.queue[1:]
		r.pending[repo] = running
		r.mu.Unlock()
		if err := r.Refresh(r.ctx, repo); err != nil && r.ctx.Err() == nil {
			r.Log.Warn("cannot refresh a mirror after a webhook", "repository", repo.String(), "error", err)
		}
		r.mu.Lock()
		if r.pending[repo] == again {
			r.pending[repo] = waiting
			r.queue = append(r.queue, repo)
		} else {
			delete(r.pending, repo)
		}
	}
	r.workers--
}
