package app

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Routing is the part of the options that can change while a proxy runs.
type Routing struct {
	Pools []PoolOptions
	Queue balance.Limits // of each pool
	Also  []string       // paths below /-/ and /.api/ that are the application's, with all paths below them
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

// Has reports whether a path below /-/ or /.api/ is the application's. Paths with empty segments, or with segments that
// begin with a dot, are not: a worker could read them as another path.
func (p *Proxy) Has(path string) bool {
	if strings.Contains(path, "//") || strings.Contains(path, "/.") || strings.Contains(path, "\\") {
		return false
	}
	for _, also := range p.table.Load().Also {
		rest, ok := strings.CutPrefix(path, strings.TrimSuffix(also, "/"))
		if ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

var errClosed = errors.New("the proxy was closed")

// Set replaces the Routing. A worker with the same address keeps its state, its connections and its drain. A new
// address with the name of a drained worker is drained, too. A worker that is left out finishes its requests. After an
// error nothing has changed.
func (p *Proxy) Set(r Routing) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed {
		return errClosed
	}
	for _, o := range r.Pools {
		for _, w := range o.Workers {
			if _, err := parseAddress(w.Address); err != nil {
				return err
			}
		}
	}
	gone, left, isDrained := map[string]*pool{}, map[string]*worker{}, map[string]bool{}
	if t := p.table.Load(); t != nil {
		for _, pool := range t.pools {
			gone[pool.name] = pool
			for _, w := range pool.workers {
				left[w.address.String()], isDrained[w.name] = w, w.isDrained
			}
		}
	}
	next, names := &table{Routing: r}, map[string]bool{}
	for _, o := range r.Pools {
		pool := gone[o.Name]
		delete(gone, o.Name)
		if pool == nil {
			pool = newPool(o.Name, p.Metrics)
		}
		pool.share.Store(int64(o.Share))
		pool.scheduler.Limit(r.Queue)
		pool.workers = nil
		for _, o := range o.Workers {
			a, _ := parseAddress(o.Address)
			w := left[a.String()]
			delete(left, a.String())
			if w == nil {
				w = p.newWorker(a)
				w.isDrained = isDrained[o.Name]
			}
			w.name, w.slots, w.pool = o.Name, max(o.Slots, 1), pool
			names[o.Name] = true
			pool.workers = append(pool.workers, w)
		}
		next.pools = append(next.pools, pool)
	}
	p.table.Store(next)
	for _, pool := range next.pools {
		p.enlist(pool)
	}
	for _, pool := range gone { // requests that wait there move on
		pool.isGone.Store(true)
		pool.workers = nil
		p.enlist(pool)
		p.Metrics.forgetPool(pool.name)
	}
	for _, w := range left {
		w.stop()
		w.transport.CloseIdleConnections()
		if !names[w.name] {
			p.Metrics.failures.DeleteLabelValues(w.name)
		}
	}
	return nil
}

// These limit the log lines about one worker.
const (
	logRate  = rate.Limit(0.1) // a second
	logBurst = 6
)

func newPool(name string, m *Metrics) *pool {
	return &pool{name: name, counts: m.ofPool(name), scheduler: balance.New(balance.Options{})}
}

// newWorker returns a worker and starts its checks. They wait for mu, which the caller holds.
func (p *Proxy) newWorker(a address) *worker {
	w := &worker{address: a, transport: newTransport(a, &p.Options), due: make(chan struct{}, 1),
		logs: rate.NewLimiter(logRate, logBurst), idleSince: p.now()}
	p.resetHealth(w)
	var ctx context.Context
	ctx, w.stop = context.WithCancel(p.running)
	if p.Health.Interval > 0 {
		p.checking.Go(func() { p.watch(ctx, w) })
	}
	return w
}

// resetHealth forgets the checks of a worker. Without checks it is up.
func (p *Proxy) resetHealth(w *worker) {
	w.vitals, w.changed = vitals{why: "not checked yet"}, p.now()
	if p.Health.Interval <= 0 {
		w.vitals = vitals{health: up}
	}
}

// enlist gives the scheduler of a pool its workers. The caller holds mu.
func (p *Proxy) enlist(pool *pool) {
	p.settle(pool)
	members := make([]balance.Member, len(pool.workers))
	for i, w := range pool.workers {
		members[i] = w.describe()
	}
	pool.byMember = map[*balance.Worker]*worker{}
	for i, member := range pool.scheduler.Set(members) {
		pool.workers[i].member = member
		pool.byMember[member] = pool.workers[i]
	}
}
