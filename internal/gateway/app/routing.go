package app

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Routing is the part of the options that can change while a proxy runs.
type Routing struct {
	Pools []PoolOptions
	Queue balance.Limits // of each pool
	Slow  []Pattern      // paths of requests of class Slow
	Also  []Pattern      // paths below /-/ and /.api/ that are the application's
}

// PoolOptions describe a pool.
type PoolOptions struct {
	Name    string
	Share   int // of the requests, in proportion to those of the other pools
	Workers []WorkerOptions
}

// table is a Routing with its pools. It is immutable.
type table struct {
	Routing
	pools []*pool
}

// Has reports whether a path below /-/ or /.api/ is the application's.
func (p *Proxy) Has(path string) bool {
	return matchAny(p.table.Load().Also, path) && isPlain(path)
}

var errClosed = errors.New("the proxy was closed")

// Set replaces the Routing. A worker with the same pool, name, address and slots keeps its state. A worker that only
// has another name, pool or number of slots keeps its connections and its drain. A worker that is left out finishes its
// requests. After an error nothing has changed.
func (p *Proxy) Set(r Routing) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed {
		return errClosed
	}
	before := map[string]*pool{}
	if t := p.table.Load(); t != nil {
		for _, pool := range t.pools {
			before[pool.name] = pool
		}
	}
	workers, err := p.makeWorkers(r, before)
	if err != nil {
		return err
	}
	next := &table{Routing: r}
	for i, o := range r.Pools {
		pool := before[o.Name]
		if pool == nil {
			pool = p.newPool(o.Name)
		}
		delete(before, o.Name)
		pool.set(o, workers[i], r.Queue, p)
		next.pools = append(next.pools, pool)
	}
	p.table.Store(next)
	for _, pool := range before { // requests that wait there move on
		pool.isGone.Store(true)
		pool.set(PoolOptions{}, nil, r.Queue, p)
		p.Metrics.forgetPool(pool.name)
	}
	p.dropBackends(workers)
	return nil
}

// These limit the log lines about one worker.
const (
	logRate  = rate.Limit(0.1) // a second
	logBurst = 6
)

// makeWorkers returns the workers of each pool, and makes those that are new.
func (p *Proxy) makeWorkers(r Routing, before map[string]*pool) (pools [][]*worker, err error) {
	byName, byAddress := map[string]*worker{}, map[string]*worker{}
	for _, pool := range before {
		for _, w := range pool.list() {
			byName[w.Name], byAddress[w.Address] = w, w
		}
	}
	for _, o := range r.Pools {
		var list []*worker
		for _, w := range o.Workers {
			w.Slots = max(w.Slots, 1)
			if old := before[o.Name].find(w.Name); old != nil && old.WorkerOptions == w {
				list = append(list, old)
				continue
			}
			next := &worker{WorkerOptions: w, due: make(chan struct{}, 1), logs: rate.NewLimiter(logRate, logBurst)}
			next.reset(p.Health.Interval > 0, time.Now())
			if next.backend, err = p.backend(w.Address); err != nil {
				return nil, err
			}
			if old := byAddress[w.Address]; old != nil {
				next.inherit(old)
			}
			if old := byName[w.Name]; old != nil { // the operator drained this name
				next.isDrained = old.drained()
			}
			list = append(list, next)
		}
		pools = append(pools, list)
	}
	return pools, nil
}

// inherit takes the state of the worker that had the same address.
func (w *worker) inherit(old *worker) {
	old.pool.mu.Lock()
	defer old.pool.mu.Unlock()
	w.vitals, w.changed, w.isDrained = old.vitals, old.changed, old.isDrained
}

// drained reports whether the operator has drained the worker.
func (w *worker) drained() bool {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	return w.isDrained
}

// backend returns the backend of an address, and makes it if it is new. The caller holds mu.
func (p *Proxy) backend(text string) (*backend, error) {
	if b := p.backends[text]; b != nil {
		return b, nil
	}
	a, err := parseAddress(text)
	if err != nil {
		return nil, err
	}
	b := newBackend(a, &p.Options)
	p.backends[text] = b
	return b, nil
}

// dropBackends forgets the backends that no worker uses. The caller holds mu.
func (p *Proxy) dropBackends(workers [][]*worker) {
	used := map[*backend]bool{}
	for _, list := range workers {
		for _, w := range list {
			used[w.backend] = true
		}
	}
	for text, b := range p.backends {
		if !used[b] {
			b.transport.CloseIdleConnections()
			if b.requests.Load() == 0 {
				delete(p.backends, text)
			}
		}
	}
}

func (p *Proxy) newPool(name string) *pool {
	return &pool{
		name: name, metrics: p.Metrics, counts: p.Metrics.ofPool(name), log: p.Log, now: time.Now,
		isChecked: p.Health.Interval > 0, blackout: p.Blackout, scheduler: balance.New(balance.Options{}),
	}
}

// set replaces the workers of the pool.
func (p *pool) set(o PoolOptions, workers []*worker, queue balance.Limits, proxy *Proxy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.workers
	p.share.Store(int64(o.Share))
	p.drainShare, p.workers = proxy.DrainShare, workers
	isKept, isNamed := map[*worker]bool{}, map[string]bool{}
	members := make([]balance.Member, len(workers))
	for i, w := range workers {
		isKept[w], isNamed[w.Name] = true, true
		if w.pool == nil {
			w.pool, w.idleSince = p, p.now()
		}
		members[i] = w.describe()
	}
	p.scheduler.Limit(queue)
	p.settle()
	p.byMember = map[*balance.Worker]*worker{}
	for i, member := range p.scheduler.Set(members) {
		workers[i].member = member
		p.byMember[member] = workers[i]
	}
	for _, w := range workers {
		if p.isChecked && w.stop == nil {
			var ctx context.Context
			ctx, w.stop = context.WithCancel(proxy.running)
			proxy.checking.Go(func() { proxy.watch(ctx, w) })
		}
	}
	for _, old := range before {
		if isKept[old] {
			continue
		}
		if old.stop != nil {
			old.stop()
		}
		if !isNamed[old.Name] {
			p.metrics.forgetWorker(old.Name)
		}
	}
}
