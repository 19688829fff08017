package app

import (
	"context"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
)

// Routing is what may change while a proxy runs: which workers there are, and which requests they get.
type Routing struct {
	Pools   []PoolOptions
	Queue   balance.Limits // of the requests that wait, of each pool
	Classes Classes
	Also    []Pattern // below /-/ and /.api/
	Sticky  Sticky
}

// PoolOptions describes some workers that are alike, and get a share of the requests.
type PoolOptions struct {
	Name    string
	Share   int // in proportion to those of the others
	Workers []WorkerOptions
}

// ParseWorker reads a worker's address, and the name before it if there is one: "unix:/run/app/w0.sock", "a=http://127.0.0.1:3001". Without one it is
// called as its socket is, without ".sock", or by host and port.
func ParseWorker(text string) (WorkerOptions, error) {
	w := WorkerOptions{Address: text}
	if name, address, named := strings.Cut(text, "="); named && !strings.ContainsAny(name, ":/") {
		w.Name, w.Address = name, address
		if !isWorkerName(name) {
			return w, fault.New(fault.Invalid, "the name in %.80q is not of letters, digits, \".\", \"_\" and \"-\", at most 64", text)
		}
	}
	c, err := newConns(w.Address, 1, new(Options))
	if err != nil {
		return w, err
	}
	w.Address = c.String()
	const maxSocketPath = 103 // unix(7); some systems have less room than Linux
	if c.network == "unix" && len(c.address) > maxSocketPath {
		return w, fault.New(fault.Invalid, "%s is longer than the %d bytes that the path of a socket may have", c.address, maxSocketPath)
	}
	if w.Name != "" {
		return w, nil
	}
	w.Name = c.address
	if c.network == "unix" {
		w.Name = strings.TrimSuffix(c.address[strings.LastIndexByte(c.address, '/')+1:], ".sock")
		if !isWorkerName(w.Name) {
			return w, fault.New(fault.Invalid, "%q would be the name of a worker, and is none; write one before the address, as in \"a=%s\"", w.Name, w.Address)
		}
	}
	return w, nil
}

// A worker's name is a metric label and a part of the admin socket's URLs.
func isWorkerName(name string) bool {
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

// table is a Routing and what was made of it.
type table struct {
	Routing
	pools []*pool
}

// Has tells whether a path below /-/ or /.api/ is the application's.
func (p *Proxy) Has(path string) bool {
	t := p.table.Load()
	return len(t.Also) > 0 && MatchAny(t.Also, path) && plain(path)
}

// Set puts a Routing in the place of the one that holds. A worker of the same pool, name and address keeps what is known of it; one that has another name, pool
// or number of slots keeps its connections, so that it never has more than slots, and stays drained. One that is left out ends what it has. After an error
// everything is as it was.
func (p *Proxy) Set(r Routing) error {
	p.setting.Lock()
	defer p.setting.Unlock()
	if p.stopped {
		return errClosed
	}
	before := map[string]*pool{}
	if t := p.table.Load(); t != nil {
		for _, pool := range t.pools {
			before[pool.name] = pool
		}
	}
	made, err := p.makeWorkers(r, before)
	if err != nil {
		for _, list := range made {
			for _, w := range list {
				if w.pool == nil {
					w.conns.retire()
					w.release()
				}
			}
		}
		return err
	}
	next := &table{Routing: r}
	for i, o := range r.Pools {
		pool := before[o.Name]
		if pool == nil {
			pool = p.newPool(o.Name)
		}
		delete(before, o.Name)
		pool.set(o, made[i], r.Queue, p)
		next.pools = append(next.pools, pool)
	}
	p.table.Store(next)
	if p.known == nil {
		p.known = map[string]*conns{}
	}
	for address, c := range p.known {
		if c.workers.Load() == 0 {
			delete(p.known, address)
		}
	}
	for _, list := range made {
		for _, w := range list {
			p.known[w.Address] = w.conns
		}
	}
	for _, pool := range before { // it has no more requests
		pool.leave()
		pool.set(PoolOptions{}, nil, r.Queue, p)
		p.Metrics.forgetPool(pool.name)
	}
	return nil
}

// makeWorkers gives the workers of each pool, and makes those that are not there yet. After an error it gives what it has made.
func (p *Proxy) makeWorkers(r Routing, before map[string]*pool) (made [][]*worker, err error) {
	named, at := map[string]*worker{}, map[string]*worker{}
	for _, pool := range before {
		for _, w := range pool.list() {
			named[w.Name], at[w.Address] = w, w
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
			one := &worker{WorkerOptions: w, due: make(chan struct{}, 1), handed: make(chan *balance.Seat, 1)}
			one.users.Store(1)
			one.begin(p.Health.Interval > 0, time.Now())
			if c := p.known[w.Address]; c != nil && c.share() {
				one.conns = c
			} else if one.conns, err = newConns(w.Address, w.Slots, &p.Options); err != nil {
				return append(made, list), err
			}
			if old := at[w.Address]; old != nil {
				one.drained = old.isDrained()
				old.pool.mu.Lock()
				one.vitals, one.changed = old.vitals, old.changed
				old.pool.mu.Unlock()
			}
			if old := named[w.Name]; old != nil { // as it is meant to be, whatever its address
				one.drained = old.isDrained()
			}
			list = append(list, one)
		}
		made = append(made, list)
	}
	return made, nil
}

func (p *Proxy) newPool(name string) *pool {
	gone, leave := context.WithCancel(p.running)
	return &pool{
		gone: gone, leave: leave, name: name, metrics: p.Metrics, counts: p.Metrics.ofPool(name), log: p.Log, now: time.Now, checked: p.Health.Interval > 0, blackout: p.Blackout,
		scheduler: balance.New(balance.Options{}),
	}
}

// find is the pool's worker of a name; nil: there is none.
func (p *pool) find(name string) *worker {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byName[name]
}

// isDrained tells whether the operator has drained the worker.
func (w *worker) isDrained() bool {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	return w.drained
}

// set gives the pool its workers.
func (p *pool) set(o PoolOptions, workers []*worker, queue balance.Limits, proxy *Proxy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.byName
	p.share.Store(int64(o.Share))
	p.drainShare, p.workers, p.byName = proxy.DrainShare, workers, map[string]*worker{}
	p.byAddress = map[string]*worker{}
	members := make([]balance.Member, len(workers))
	for i, w := range workers {
		p.byName[w.Name], p.byAddress[w.Address] = w, w
		if before[w.Name] != w {
			w.pool = p
			w.conns.resize(w.Slots)
			w.idle = p.now()
		}
		members[i] = w.describe(proxy.SlowStart)
	}
	p.scheduler.Limit(queue)
	p.settle()
	for i, member := range p.scheduler.Set(members) {
		workers[i].member = member
	}
	for _, w := range workers {
		if before[w.Name] != w && p.checked {
			var ctx context.Context
			ctx, w.stop = context.WithCancel(proxy.running)
			proxy.watching.Go(func() { proxy.watch(ctx, w) })
		}
	}
	for name, old := range before {
		if p.byName[name] == old {
			continue
		}
		if old.stop != nil {
			old.stop()
		}
		if p.byName[name] == nil {
			p.metrics.forgetWorker(name)
		}
		old.conns.retire()
		old.release()
	}
}
