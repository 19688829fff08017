package search

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// Options configure an Engine.
type Options struct {
	Dir      string // directory of the index; created if it is missing
	Source   Source
	Program  func() (string, error) // returns the path of packhorse-search, which runs the workers
	Build    ipc.Build              // build of this program; workers of another one are refused
	Branches []string               // full names of indexed refs, besides HEAD

	MaxFile      int64 // maximum size of an indexed file in bytes; of larger ones only the path is indexed
	MaxFiles     int64 // maximum number of files of an indexed repository; zero means no limit
	MaxBytes     int64 // the same for the bytes of its files of up to MaxFile
	ShardSize    int64 // bytes of content in one index file
	SearchMemory int64 // heap limit of the searching process in bytes
	IndexMemory  int64 // heap limit of an indexing process in bytes
	SearchNice   int
	IndexNice    int
	Ctags        string // path of universal-ctags; empty means no symbols

	Delay    time.Duration // time before the first process is started
	Debounce time.Duration // minimum time from a change to its index
	Scan     time.Duration // interval between scans for new repositories
	Deltas   int           // number of deltas before an index is rebuilt
	Results  int           // maximum number of results of a search
	Timeout  time.Duration // maximum time of a search

	Log        *slog.Logger
	Registerer prometheus.Registerer // of metrics; may be nil
	// Account is called with each process that has ended. It must not block. It may be nil.
	Account func(*os.ProcessState)
}

// Engine indexes the repositories of a source and searches them. It is a Searcher.
type Engine struct {
	o            Options
	log          *slog.Logger
	metrics      *metrics
	searchWorker *searchWorker
	indexSpec    childSpec
	catalogue    *catalogue // set once the directory exists

	ctx         context.Context
	cancel      context.CancelFunc
	running     sync.WaitGroup
	wakeSignals [lanes]chan struct{}
	loadSignal  chan struct{}       // there are shards to load
	opened      chan struct{}       // closed when the index is open
	spares      [lanes]*indexWorker // waits for the lane's next job; used only by the lane's goroutine

	mu          sync.Mutex // guards all below, and each repository
	repos       map[git.RepoPath]*repository
	byID        map[uint32]*repository
	ready       bool   // all repositories that existed at the start are in repos
	unavailable string // reason for a missing index
	unwatched   int    // repositories

	queues    [lanes]waiting
	jobs      map[*repository]*job // running jobs
	slowStart time.Time            // when the slow lane began its job; zero: it has none
	unloaded  map[*repository]int  // shards of repositories with a first index that is not loaded yet; see load.go

	// Lists and counts for searches. They have to be made again if recount is set.
	recount      bool
	indexedCount int            // repositories with an index
	bareCount    int            // non-empty ones without
	candidates   []git.RepoPath // both
	candidateIDs []uint32       // their numbers; zero without an index
}

// repository is the record of a repository. It is guarded by Engine.mu.
type repository struct {
	id          uint32 // zero if not yet assigned
	path        git.RepoPath
	incarnation string
	version     git.Version

	// The index.
	indexed      []*workerv1.Branch // branches in its shards
	shards       int
	seal         string // expected seal of its shards; empty if it is not known yet
	deltas       int    // number of deltas
	namesOnly    int    // files found by name only; one that changed since the last full index may count twice
	files        int64  // in the index since the start of this process, like bytes
	bytes        int64
	needsRebuild bool // its shards cannot be extended, or have no symbols

	// The branches, as of the last check.
	current       []Head
	hasCurrent    bool // current is valid
	inCheck       bool // current is being determined
	lastCheck     time.Time
	checkFailures int       // consecutive failed checks
	lag           int       // commits of the first branch that are not in the index; -1 if unknown
	firstChange   time.Time // first change that is not in the index; zero if none

	// Jobs.
	due           [lanes]time.Time // due time in each lane; zero if it does not wait there
	jobs          int              // number of started jobs
	indexFailures int              // consecutive failures of indexing
	nextAttempt   time.Time
	err           string             // last error
	isBig         bool               // too large for the fast lane
	tooLarge      []*workerv1.Branch // branches that are too large for the index; nil: not known to be
	hasCrashed    bool               // its last job ended with the death of the process
	noSymbols     bool               // the indexing process crashed with them
}

// New creates and starts an Engine. It does not fail if its program is missing or its directory is unusable: the engine
// tries again and reports it.
func New(o Options) *Engine {
	e := &Engine{
		o: o, log: o.Log, repos: map[git.RepoPath]*repository{}, byID: map[uint32]*repository{},
		jobs: map[*repository]*job{}, unloaded: map[*repository]int{}, loadSignal: make(chan struct{}, 1),
		opened: make(chan struct{}),
		indexSpec: childSpec{work: WorkIndex, rest: []string{itoa(o.IndexMemory)},
			nice: o.IndexNice, cpus: 1, log: o.Log, account: o.Account},
	}
	for l := range e.wakeSignals {
		e.wakeSignals[l] = make(chan struct{}, 1)
	}
	e.searchWorker = &searchWorker{
		spec: childSpec{work: WorkSearch, rest: []string{itoa(o.SearchMemory), e.shards()},
			nice: o.SearchNice, log: o.Log, account: o.Account},
		build: o.Build, onCrash: e.searcherCrashed,
	}
	e.unavailable = "the search index is being opened; try again in a moment"
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.metrics = newMetrics(o.Registerer, e)
	e.running.Go(e.run)
	return e
}

// Close ends all processes.
func (e *Engine) Close() error {
	e.cancel()
	e.running.Wait()
	if e.catalogue != nil {
		return e.catalogue.close()
	}
	return nil
}

const (
	// retryDir is the pause before an unusable directory is tried again, retryProgram that before a missing program is.
	retryDir     = 15 * time.Second
	retryProgram = time.Second
)

// failedAgain has the pauses before a failed repository is indexed again.
var failedAgain = retry.Policy{First: 2 * time.Second, Max: 10 * time.Minute}

// run starts the parts once the program and the directory exist, and waits for their end.
func (e *Engine) run() {
	if e.o.Delay > 0 && !e.sleep(e.o.Delay) {
		return
	}
	program, err := e.o.Program()
	if err != nil {
		e.setUnavailable("code search is not installed on the server: see its log")
		e.log.Warn("code search starts when its program is installed", "error", err)
	}
	for ; err != nil; program, err = e.o.Program() {
		if !e.sleep(retryProgram) {
			return
		}
	}
	e.indexSpec.program, e.searchWorker.spec.program = program, program
	for {
		err := e.open()
		if err == nil {
			break
		}
		if e.ctx.Err() != nil {
			return
		}
		e.setUnavailable("the search index cannot be opened: see the server's log")
		e.log.Warn("cannot open the search index; searches are refused until it is open", "dir", e.o.Dir,
			"error", err)
		if !e.sleep(retryDir) {
			return
		}
	}
	e.setUnavailable("")
	close(e.opened)
	var parts sync.WaitGroup
	parts.Go(func() { e.searchWorker.run(e.ctx) })
	parts.Go(e.discover)
	parts.Go(e.awaitLoads)
	parts.Go(func() { e.work(laneCheck) })
	parts.Go(func() { e.work(laneFast) })
	parts.Go(func() { e.work(laneSlow) })
	parts.Wait()
}

func (e *Engine) setUnavailable(reason string) {
	e.mu.Lock()
	e.unavailable = reason
	e.mu.Unlock()
}

// sleep waits. It returns false if the engine is closed.
func (e *Engine) sleep(d time.Duration) bool {
	return retry.Sleep(e.ctx, d) == nil
}

// open creates the directory, reads the catalogue and examines the shards. Invalid ones are removed and rebuilt later.
func (e *Engine) open() error {
	if err := os.MkdirAll(e.shards(), 0o700); err != nil {
		return err
	}
	if e.catalogue == nil {
		c, known, err := openCatalogue(e.o.Dir)
		if err != nil {
			return err
		}
		e.catalogue = c
		e.mu.Lock()
		for id, k := range known {
			path, err := git.ParseRepoPath(k.Repository)
			if err != nil || e.repos[path] != nil && e.repos[path].id > id {
				continue
			}
			if old := e.repos[path]; old != nil {
				delete(e.byID, old.id)
			}
			r := &repository{id: id, path: path, incarnation: k.Incarnation, seal: k.Seal, namesOnly: k.NamesOnly}
			e.repos[path], e.byID[id] = r, r
		}
		e.mu.Unlock()
	}
	return e.inspectShards()
}

// inspectShards examines every shard and removes broken and unused ones. No indexing process runs meanwhile.
func (e *Engine) inspectShards() error {
	e.sweep()
	shards, err := e.inspect(e.ctx)
	if err != nil {
		return err
	}
	groups := map[string][]*workerv1.Shard{}
	for _, s := range shards {
		groups[shardGroup(s.File)] = append(groups[shardGroup(s.File)], s)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recount = true
	for _, r := range e.repos {
		r.indexed, r.shards, r.deltas, r.needsRebuild = nil, 0, 0, false
	}
	for _, group := range groups {
		r := e.byID[group[0].Id]
		reason := shardFault(group)
		if reason == "" && (r == nil || r.path.String() != group[0].Repository) {
			reason = "its repository does not exist"
		}
		if reason == "" {
			if seal, err := e.sealOf(names(group)); err != nil || seal != r.seal {
				reason = "it is incomplete, or was changed after it was written"
			}
		}
		if reason == "" {
			r.indexed, r.shards, r.deltas = group[0].Branches, len(group), builds(group)-1
			for _, s := range group {
				r.needsRebuild = r.needsRebuild || e.o.Ctags != "" && !s.Symbols // ctags was missing then
			}
			continue
		}
		e.log.Warn("index shards removed; their repository is indexed again if it still exists", "file",
			group[0].File, "reason", reason)
		for i := len(group) - 1; i >= 0; i-- {
			if err := e.removeShard(group[i].File); err != nil {
				return err
			}
		}
	}
	return nil
}

func names(group []*workerv1.Shard) []string {
	list := make([]string, len(group))
	for i, s := range group {
		list[i] = s.File
	}
	return list
}

// shardGroup returns the common part of the names of a repository's shards.
func shardGroup(file string) string {
	if len(file) > len(shardSuffix) {
		return file[:len(file)-len(shardSuffix)]
	}
	return file
}

// shardSuffix has the length of the suffix in zoekt's names of shards: the number has five digits.
const shardSuffix = "00000.zoekt"

// shardFault returns the fault of a repository's shards, which are sorted by name.
func shardFault(group []*workerv1.Shard) string {
	for i, s := range group {
		switch {
		case s.Error != "":
			return s.Error
		case s.Id != group[0].Id || s.Repository != group[0].Repository || !sameBranches(s.Branches, group[0].Branches):
			return "its shards are from different jobs"
		case i >= 100_000 || s.File != shardGroup(s.File)+pad(i)+".zoekt":
			return "a shard is missing"
		}
	}
	return ""
}

func builds(group []*workerv1.Shard) int {
	ids := map[string]bool{}
	for _, s := range group {
		ids[s.Build] = true
	}
	return len(ids)
}

func sameBranches(a, b []*workerv1.Branch) bool {
	return slices.EqualFunc(a, b, func(a, b *workerv1.Branch) bool { return a.Name == b.Name && a.Commit == b.Commit })
}

// searcherCrashed searches for a truncated shard, which may have crashed the searching process.
func (e *Engine) searcherCrashed() {
	e.metrics.deaths.WithLabelValues(string(WorkSearch)).Inc()
	shards, err := e.inspect(e.ctx)
	if err != nil {
		return
	}
	for _, s := range shards {
		if s.Error == "" {
			continue
		}
		e.log.Warn("index shard is damaged; its repository is indexed again", "file", s.File, "error", s.Error)
		if err := e.removeBroken(s.File); err != nil {
			e.log.Warn("cannot remove a damaged index shard", "error", err)
		}
	}
}

// removeBroken removes a broken shard with its group, and schedules its repository. If the repository is being indexed,
// its files may only be changing places. The next crash then finds the broken shard.
func (e *Engine) removeBroken(file string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !exists(filepath.Join(e.shards(), file)) {
		return nil
	}
	for _, r := range e.repos {
		if !isShardOf(file, shardPrefix(r.path)+"_v") {
			continue
		}
		if e.jobs[r] != nil {
			return nil
		}
		r.indexed, r.shards, r.deltas, e.recount = nil, 0, 0, true
		e.enqueue(r, laneCheck, time.Now())
	}
	return e.removeShards(shardGroup(file))
}
