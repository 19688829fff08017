// Package store keeps repositories in object storage, and copies of them on this node.
//
// The bucket is the truth. Each repository has a log of numbered records (package replog), and its head is the state of
// the repository. Nodes are caches and do not know each other. This package knows the head of a repository as of its
// last freshness check. Package hydrate has the files. Package storage serves them through the interface Places.
//
//	identity.go    which store this is, and which store the local cache belongs to
//	monitor.go     is the store reachable, and still the same one?
//	names.go       from a path to a repository
//	known.go       the repositories in memory
//	repository.go  one repository: its latest known state
//	check.go       freshness checks
//	outage.go      what this node had before its start, for a start while the store is down
//	change.go      appends records
//	shadow.go, upload.go, commit.go, batch.go
//	               pushes: temporary repositories, uploads, and records with several pushes
//	create.go, delete.go, rename.go
//	index.go, list.go                    lists from memory; names in the bucket
//	events.go, eventlog.go              events of all repositories in one order
//	fork.go        forks, which name packs of other repositories
//	access.go      tokens and rules that gateways share
//	place.go       what package storage sees of a repository
//	import.go, importdir.go, export.go  plain repositories, in and out
//	verify.go, promote.go               checks of a store; a new ID for a copy of it
//	lfs.go, lfsgc.go                    objects and locks of Git LFS, and collections of these objects
//	admin.go                            what these have in common
package store

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// Options configure a Store. Bucket, URL, Cache.Root and Node are required.
type Options struct {
	Bucket bucket.Bucket
	URL    string          // of the store, without secrets; the local cache belongs to it
	Cache  hydrate.Options // of the local copies; Open sets its Bucket
	Node   string          // name of this node in records

	// MaxStaleness is the maximum age of refs that are answered without a freshness check. Then the checks run in the
	// background. Zero means that each request for refs waits for a check.
	MaxStaleness time.Duration
	// StaleIfError is the maximum age of refs that are answered if the store cannot be reached. Zero means that such
	// requests fail.
	StaleIfError time.Duration
	MaxIdle      int // repositories in memory that no request uses. Zero means 1,000.

	Log     *slog.Logger // nil: not logged
	Metrics *Metrics     // nil: not counted
}

// Store is one store, as this node sees it. It is safe for concurrent use.
type Store struct {
	options  Options
	bucket   quickBucket
	identity Identity
	cache    *hydrate.Cache
	lock     *os.File // of the local cache
	log      *slog.Logger
	metrics  *Metrics

	known    knownTable
	names    *lru.Cache[git.RepoPath, reference] // what paths referred to when they were looked up
	lfsSizes *lru.Cache[lfsKey, lfsSize]         // of LFS objects that the bucket has
	listed   listedNames
	index    nameIndex
	access   accessHead
	local    localNames
	lookups  lookups
	events   *events
	lfsPuts  singleflight.Group // uploads of LFS objects to the bucket
	health   health
	hints    chan struct{} // has one element for each hint that is being followed

	changed  func(git.RepoPath)                        // see OnChange
	purged   func(context.Context, git.RepoPath) error // see OnPurge
	purges   purgeTimes
	started  time.Time
	staleLog rate.Sometimes // limits a message

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // goroutines in the background

	failPoint func(step string) error // tests: called before each step of a change; an error is a crash there
}

var _ places.Places = (*Store)(nil)

const (
	defaultIdle = 1000
	maxNames    = 50_000 // paths in memory
	maxHints    = 64     // hints that are followed at the same time
)

// identityTimeout is the time for which a node with a local cache waits for the store at its start.
const identityTimeout = 10 * time.Second

// Open opens the store of a bucket. It checks that the bucket has the properties that a store needs, and that the local
// cache belongs to this store.
//
// If the store cannot be reached and the local cache belongs to the store of Options.URL, Open succeeds nevertheless.
// Then the node serves what it has, Ready returns the reason, and the properties are checked once the store answers.
// No record is written before that.
func Open(ctx context.Context, o Options) (*Store, error) {
	cache, err := readCache(o.Cache.Root)
	isKnown := err == nil && cache.URL == o.URL
	id, err := admitted(ctx, o.Bucket, isKnown)
	outage := err
	switch {
	case err == nil:
	case isKnown && ctx.Err() == nil && isOutage(err):
		id = Identity{Format: cache.Format, ID: cache.ID}
	default:
		return nil, err
	}
	s, err := open(o, id, outage)
	if err != nil {
		return nil, err
	}
	s.running.Go(s.collectGarbage) // nodes only: a command must not delete anything on the side
	s.running.Go(s.removeExpired)
	s.running.Go(s.followPurges)
	return s, nil
}

// admitted reads the identity of a store and checks the properties of its bucket. With isQuick, it waits less for a
// store that does not answer.
func admitted(ctx context.Context, b bucket.Bucket, isQuick bool) (Identity, error) {
	limit := ctx
	if isQuick {
		var cancel context.CancelFunc
		limit, cancel = context.WithTimeout(ctx, identityTimeout)
		defer cancel()
	}
	id, err := ReadIdentity(limit, b)
	if err == nil {
		_, err = bucket.Probe(limit, b, bucket.ProbeOptions{})
	}
	return id, err
}

// isOutage reports whether an error of the store is temporary: no configuration has to change.
func isOutage(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) ||
		fault.Is(err, fault.Unavailable) && fault.RetryAfter(err) < fault.RetryMuchLater
}

// open opens the store without I/O in the bucket. outage is why the bucket could not be tested, or nil.
func open(o Options, id Identity, outage error) (opened *Store, err error) {
	lock, err := lockCache(o.Cache.Root)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if err := claimCache(o.Cache.Root, o.URL, id); err != nil {
		return nil, err
	}
	s := &Store{
		options: o, identity: id, lock: lock, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), metrics: o.Metrics,
		known: newKnownTable(cmp.Or(o.MaxIdle, defaultIdle)), hints: make(chan struct{}, maxHints),
		health: health{wake: make(chan struct{}, 1)}, lookups: newLookups(),
		changed: func(git.RepoPath) {}, started: time.Now(), staleLog: rate.Sometimes{Interval: time.Minute},
		purged:    func(context.Context, git.RepoPath) error { return nil },
		purges:    purgeTimes{interval: 20 * time.Second, wait: 40 * time.Second},
		failPoint: func(string) error { return nil }, listed: listedNames{names: map[git.RepoPath]nameHead{}},
		index: nameIndex{using: semaphore.NewWeighted(1)},
	}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	if s.names, err = lru.New[git.RepoPath, reference](maxNames); err != nil {
		return nil, err
	}
	if s.lfsSizes, err = lru.New[lfsKey, lfsSize](maxLFSSizes); err != nil {
		return nil, err
	}
	s.bucket = quickBucket{Bucket: o.Bucket, isDown: s.health.isDown}
	o.Cache.Bucket, o.Cache.Log = o.Bucket, s.log
	if s.cache, err = hydrate.Open(o.Cache); err != nil {
		return nil, err
	}
	if err := s.openShadows(); err != nil {
		return nil, errors.Join(err, s.cache.Close())
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.metrics.reachable.Set(1)
	if outage != nil {
		s.health.untested.Store(true)
		s.health.err.Store(&outage)
		s.metrics.reachable.Set(0)
	}
	s.events = newEvents(s)
	s.running.Go(s.events.run)
	s.running.Go(s.monitor)
	return s, nil
}

// OnChange sets a function that is called after this node has got a new state of a repository, with each path that it
// has or had. It must not block. Call OnChange before the Store is used.
func (s *Store) OnChange(changed func(git.RepoPath)) { s.changed = changed }

// Epoch implements places.Places. Those of repositories are the same on every node, and greater.
func (s *Store) Epoch() uint64 { return 0 }

// CheckInterval implements places.Places. Changes by this node, and those of which other nodes tell it, are found at
// once.
func (s *Store) CheckInterval() time.Duration { return 30 * time.Second }

// Bucket returns the bucket of the store.
func (s *Store) Bucket() bucket.Bucket { return s.bucket }

// Events returns the events of the store.
func (s *Store) Events() event.Log { return s.events }

// StoreID returns the ID of the store, which all its nodes have.
func (s *Store) StoreID() string { return s.identity.ID }

// CheckCopy makes the next use of a repository compare the packs on this node with their checksums, and download
// damaged ones again.
func (s *Store) CheckCopy(id string) { s.cache.Repository(id).Check() }

// Close ends the work in the background and closes the local cache, which another process may open then. No request may
// be running.
func (s *Store) Close() error {
	s.cancel()
	s.running.Wait()
	s.events.close()
	return errors.Join(s.cache.Close(), unlockCache(s.lock))
}
