package search

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
)

// Options say what an engine indexes and searches, and with what.
type Options struct {
	Dir      string // the index; made if it is not there
	Source   Source
	Program  string   // our own, which finds Arguments and a Work among its arguments and does it; see worker
	Argument []string // before the work
	Branches []string // full names of refs that are indexed, of those there are; HEAD is one always

	MaxFile      int64 // bytes; of greater files only the path is indexed
	ShardSize    int64 // bytes of content in a file of the index
	SearchMemory int64 // bytes of heap for the process that searches
	IndexMemory  int64 // and for the one that indexes
	SearchNice   int
	IndexNice    int
	Ctags        string // program; empty: no symbols

	Delay    time.Duration // until the first process is started
	Debounce time.Duration // from a change to the index that has it, at least
	Scan     time.Duration // between looks for repositories that are new
	Deltas   int           // so many times changes are put on top of an index before it is made anew
	Results  int           // the most that a search may ask for
	Timeout  time.Duration // the most that a search may take

	Log     *slog.Logger
	Metrics *Metrics
	Account func(*os.ProcessState) // unless nil, is told of each process that has ended; it must not block
}

// Engine indexes the repositories of a source and searches them. It is a Searcher.
type Engine struct {
	o         Options
	log       *slog.Logger
	metrics   *Metrics
	searching *searching
	indexSpec childSpec
	catalogue *catalogue // set once the directory is there

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    [lanes]chan struct{}
	load    chan struct{}    // there is something to load
	spare   [lanes]*indexing // waits for the lane's next job; the goroutine of the lane alone uses it

	mu            sync.Mutex
	repos         map[git.RepoPath]*repository
	byID          map[uint32]*repository
	ready         bool                 // every repository that there was at the start is in repos
	why           string               // there is no index
	slow          *slowChild           // runs in the slow lane
	fast          bool                 // the fast lane works: the slow one is stopped
	stale         bool                 // what follows is to be counted again
	with, without int                  // repositories with an index, and without one that have something to index
	candidates    []git.RepoPath       // both
	ids           []uint32             // their numbers; 0: it has no index
	jobs          map[*repository]*job // that run
	// that were indexed first, and so many shards of them are not searched yet; see load.go
	unloaded  map[*repository]int
	queues    [lanes]waiting
	unwatched int // repositories
}

// repository is what is known of one. Guarded by Engine.mu.
type repository struct {
	id          uint32 // 0: none yet
	path        git.RepoPath
	incarnation string
	seal        string // at the start: what its shards are to be like
	version     git.Version

	indexed []*workerv1.Branch // that its shards hold
	shards  int
	size    int64 // of its shards, in bytes
	jobs    int   // that were begun for it
	// files that are found by their names only; one that changed since the last full index may count again
	namesOnly int
	deltas    int              // times that changes were put on top
	current   []Head           // where branches are
	looked    bool             // current is known
	looking   bool             // and is being found out
	lag       int              // commits that the first branch has and its index has not; -1: not counted
	changed   time.Time        // first change that is not in the index; zero: none
	due       [lanes]time.Time // when its turn is in each lane; zero: it does not wait there
	seen      time.Time        // when it was looked at last
	unseen    int              // times in a row that it could not be looked at
	failed    int              // times in a row that it could not be indexed
	again     time.Time        // when that may be tried again
	err       string           // the last time
	big       bool             // more than the fast lane is for
	died      bool             // the process did, the last time
	plain     bool             // without symbols: with them the process that indexes died
	rebuild   bool             // its shards cannot be built upon, or have no symbols
}

// New makes an engine and starts it. What is wrong with its directory does not fail: the engine tries again and says
// so.
func New(o Options) *Engine {
	e := &Engine{
		o: o, log: o.Log, metrics: o.Metrics, repos: map[git.RepoPath]*repository{}, byID: map[uint32]*repository{},
		jobs: map[*repository]*job{}, unloaded: map[*repository]int{}, load: make(chan struct{}, 1),
		indexSpec: childSpec{program: o.Program, args: o.Argument, work: WorkIndex, rest: []string{itoa(o.IndexMemory)},
			nice: o.IndexNice, cpus: 1, log: o.Log, account: o.Account},
	}
	for l := range e.wake {
		e.wake[l] = make(chan struct{}, 1)
	}
	e.searching = &searching{
		spec: childSpec{program: o.Program, args: o.Argument, work: WorkSearch,
			rest: []string{itoa(o.SearchMemory), e.shards()}, nice: o.SearchNice, log: o.Log, account: o.Account},
		died: e.searcherDied,
	}
	e.why = "the index is being opened; try again in a moment"
	e.ctx, e.cancel = context.WithCancel(context.Background())
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
	// retryDir is how long an index waits whose directory cannot be used.
	retryDir = 15 * time.Second
	// retryFailed is how long a repository waits that could not be indexed, the first time; then twice that, up to
	// maxRetry.
	retryFailed = 2 * time.Second
	maxRetry    = 10 * time.Minute
)

// run starts the parts, once there is a directory, and waits for their end.
func (e *Engine) run() {
	if e.o.Delay > 0 && !e.sleep(e.o.Delay) {
		return
	}
	for {
		err := e.open()
		if err == nil {
			break
		}
		if e.ctx.Err() != nil {
			return
		}
		e.say("the index cannot be used; the server's log says why")
		e.log.Warn("the directory of the search index cannot be used; searches are refused until it can", "dir", e.o.Dir,
			"error", err)
		if !e.sleep(retryDir) {
			return
		}
	}
	e.say("")
	var parts sync.WaitGroup
	parts.Go(func() { e.searching.run(e.ctx) })
	parts.Go(e.discover)
	parts.Go(e.awaitLoads)
	parts.Go(func() { e.work(laneLook) })
	parts.Go(func() { e.work(laneFast) })
	parts.Go(func() { e.work(laneSlow) })
	parts.Wait()
}

func (e *Engine) say(why string) {
	e.mu.Lock()
	e.why = why
	e.mu.Unlock()
}

// sleep tells whether the time is over, and not the engine.
func (e *Engine) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-e.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// open makes the directory, reads the catalogue and takes stock of the shards. What does not fit is removed, and made
// anew later.
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
	return e.takeStock()
}

// takeStock looks at every shard and removes what is broken or nobody's. No process that indexes runs.
func (e *Engine) takeStock() error {
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
	e.stale = true
	for _, r := range e.repos {
		r.indexed, r.shards, r.deltas, r.rebuild = nil, 0, 0, false
	}
	for _, group := range groups {
		r := e.byID[group[0].Id]
		reason := unsound(group)
		if reason == "" && (r == nil || r.path.String() != group[0].Repository) {
			reason = "it belongs to no repository"
		}
		if reason == "" {
			if seal, err := e.sealOf(names(group)); err != nil || seal != r.seal {
				reason = "its making was cut off, or somebody has changed it"
			}
		}
		if reason == "" {
			r.indexed, r.shards, r.deltas, r.size = group[0].Branches, len(group), builds(group)-1, 0
			for _, s := range group {
				r.size += s.Bytes
				r.rebuild = r.rebuild || e.o.Ctags != "" && !s.Symbols // ctags was not there then
			}
			continue
		}
		e.log.Warn("a part of the search index is removed; it is made anew if its repository is still there", "file",
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

// shardGroup is what the names of a repository's shards have in common.
func shardGroup(file string) string {
	if len(file) > len(shardSuffix) {
		return file[:len(file)-len(shardSuffix)]
	}
	return file
}

// shardSuffix is as long as what follows in zoekt's names of shards: the number, which has five digits.
const shardSuffix = "00000.zoekt"

// unsound tells what is wrong with the shards of one repository, in the order of their names.
func unsound(group []*workerv1.Shard) string {
	for i, s := range group {
		switch {
		case s.Error != "":
			return s.Error
		case s.Id != group[0].Id || s.Repository != group[0].Repository || !sameBranches(s.Branches, group[0].Branches):
			return "its parts do not belong together"
		case i >= 100_000 || s.File != shardGroup(s.File)+pad(i)+".zoekt":
			return "a part is missing"
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

// searcherDied looks for what may have killed the process that searches: a shard that somebody has cut off.
func (e *Engine) searcherDied() {
	e.metrics.deaths.WithLabelValues(string(WorkSearch)).Inc()
	shards, err := e.inspect(e.ctx)
	if err != nil {
		return
	}
	for _, s := range shards {
		if s.Error == "" {
			continue
		}
		e.log.Warn("a part of the search index is broken; its repository is indexed anew", "file", s.File, "error", s.Error)
		if err := e.removeBroken(s.File); err != nil {
			e.log.Warn("cannot remove a part of the search index", "error", err)
		}
	}
}

// removeBroken removes a broken shard with those that it belongs to, and has its repository indexed anew. If that is
// being indexed, its files may just change their places: the next death finds what is broken for good.
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
		r.indexed, r.shards, r.deltas, e.stale = nil, 0, 0, true
		e.enqueue(r, laneLook, time.Now())
	}
	return e.removeShards(shardGroup(file))
}
