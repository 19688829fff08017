// Package router finds the storage node for a request: the repository's path selects a route, and the route's least
// busy node that can be reached takes the request. Routes can be replaced and nodes drained while requests are in
// flight.
//
// If the nodes of a route share an object store, any of them can serve any repository. Each repository then has an
// order of the nodes, the same at all gateways. Pushes, and fetches of a repository that no node is known to have on
// its disk, go to the first node that is ready.
package router

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Node serves sessions on the repositories that it owns. Errors have a fault kind; BlameFor classifies them.
type Node interface {
	node.Sessions
	// Wait returns when requests see the state. Errors: NotFound if there is no such repository, Deadline or Cancelled
	// when ctx ends, Invalid if the state is impossible, Exhausted if too many callers wait.
	Wait(ctx context.Context, repo git.RepoPath, condition node.WaitCondition) (git.Version, error)
}

// Replica is a node that serves the repositories of a route.
type Replica struct {
	Name      string // in messages to clients, logs, and metric labels
	Node      Node
	Revisions node.Resolver // the node for callers that resolve revisions
	Weight    int           // share of the requests among busy replicas; values below 1 mean 1
	// Ready returns why the node should not be asked, or nil. A nil Ready means always ready. Usable reports whether a
	// node that is not ready, for example because it shuts down, may be asked if no other node is ready; a nil Usable
	// means no. Both answer from memory and at once: they are called while a lock is held.
	Ready  func() error
	Usable func() bool
	// Store returns the ID of the object store that has the node's repositories, "" if it has none. It reports false if
	// that is not known yet. It answers from memory. Nil means that the node has no store.
	Store func() (id string, isKnown bool)
	// Hint announces to the node that a record of a repository was written to the store. It reports whether the node has
	// the packs of an earlier record on its disk. Nil means that the node takes no hints.
	Hint func(ctx context.Context, repo git.RepoPath, record uint64) (isHeld bool, err error)
	// Gone, unless nil, is called once, when the Router no longer has the replica and its last request has ended. It
	// must not block.
	Gone func()
}

// Route leads to the nodes that have all repositories whose path begins with a prefix.
type Route struct {
	// Prefix is a path of whole components: "team" covers team, team.git and team/app, but not teamwork. "" covers all.
	// If several prefixes cover a path, the longest is used.
	Prefix   string
	Replicas []*Replica
}

// Status is the state of a node as its Router sees it.
type Status struct {
	balance.State
	Prefixes []string `json:"prefixes"` // of the routes that name the node, sorted; "" is all repositories
	Served   uint64   `json:"served"`   // requests that the node answered, refusals included
	// Failed is the number of requests that failed because of the node, whether or not another node answered them.
	Failed  uint64 `json:"failed"`
	Store   string `json:"store,omitempty"`          // ID of its object store; "" if it has none, or if that is not known
	Held    int    `json:"held,omitempty"`           // repositories of the store that it is known to have on its disk
	Refused string `json:"pushes_refused,omitempty"` // why pushes to one of its routes are refused
}

// Router finds the node for a request. Safe for concurrent use.
type Router struct {
	workers  *balance.Scheduler
	routing  atomic.Pointer[routingTable]
	holdings *holdings
	metrics  *metrics

	mu sync.Mutex // held while the routes change
}

// routingTable is what requests are looked up in. Immutable.
type routingTable struct {
	routes  map[string]*route // by prefix
	members []*member         // sorted by name
}

type route struct {
	members []*member
	workers []*balance.Worker      // of the members
	store   atomic.Pointer[string] // ID of the object store that the nodes shared last; nil or "": none
}

// member is a replica that a route names or that still has requests.
type member struct {
	*Replica
	worker   *balance.Worker
	prefixes []string
	*counters
	*useCount
	hints *hints
}

// useCount counts the users of a replica: each request is one, and the routes together are one. At zero the replica is
// gone and is never used again.
type useCount struct{ users atomic.Int64 }

// counters count the requests of a node. They last as long as routes name a node of that name.
type counters struct {
	served, failed atomic.Uint64
	assigned       map[balance.Reason]prometheus.Counter
	failover       prometheus.Counter // assigned after another node failed
}

// New makes a Router without routes. reg, which may be nil, registers its metrics.
func New(reg prometheus.Registerer) *Router {
	r := &Router{workers: balance.New(balance.Options{}), holdings: newHoldings(maxHoldings), metrics: newMetrics(reg)}
	r.routing.Store(&routingTable{})
	if reg != nil {
		reg.MustRegister(nodeCollector{r})
	}
	return r
}

// Set replaces all routes. Later requests use the new routes; requests in flight continue. A node that stays, by its
// name, keeps its counters and stays drained if it is; if it is another Replica of that name, the previous one goes.
// A route keeps its object store unless a node was taken out of it. After an error the routes are as before.
func (r *Router) Set(routes []Route) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	replicas, prefixes, err := checkRoutes(routes)
	if err != nil {
		return err
	}
	old := r.routing.Load()
	workers := make([]balance.Member, len(replicas))
	for i, p := range replicas {
		workers[i] = balance.Member{Name: p.Name, Weight: p.Weight, Ready: p.Ready, Usable: p.Usable}
	}
	t := &routingTable{routes: make(map[string]*route, len(routes)), members: make([]*member, len(replicas))}
	for i, worker := range r.workers.Set(workers) {
		t.members[i] = r.newMember(old.member(replicas[i].Name), replicas[i], worker, prefixes[replicas[i].Name])
	}
	for _, from := range routes {
		to := &route{}
		for _, p := range from.Replicas {
			m := t.member(p.Name)
			to.members, to.workers = append(to.members, m), append(to.workers, m.worker)
		}
		prefix := trimPrefix(from.Prefix)
		if was := old.routes[prefix]; was != nil && to.hasAllOf(was) {
			to.store.Store(was.store.Load())
		}
		t.routes[prefix] = to
	}
	r.routing.Store(t)
	for _, m := range old.members {
		current := t.member(m.Name)
		if current == nil {
			r.metrics.forget(m.Name)
			r.holdings.forget(m.Name)
		}
		if current == nil || current.Replica != m.Replica {
			m.release()
		}
	}
	return nil
}

// newMember makes the member for a replica. previous is the member of that name so far, or nil.
func (r *Router) newMember(previous *member, replica *Replica, worker *balance.Worker, prefixes []string) *member {
	m := &member{Replica: replica, worker: worker, prefixes: prefixes}
	if previous != nil {
		m.counters = previous.counters
	} else {
		m.counters = r.metrics.newCounters(replica.Name)
	}
	if previous != nil && previous.Replica == replica {
		m.useCount, m.hints = previous.useCount, previous.hints
	} else {
		m.useCount, m.hints = &useCount{}, &hints{pending: map[git.RepoPath]uint64{}}
		m.users.Store(1)
	}
	return m
}

// checkRoutes returns the replicas, sorted by name, and for each name the prefixes that lead to it.
func checkRoutes(routes []Route) (replicas []*Replica, prefixes map[string][]string, err error) {
	byName := map[string]*Replica{}
	prefixes = map[string][]string{}
	seen := map[string]bool{}
	for _, route := range routes {
		prefix := trimPrefix(route.Prefix)
		if _, err := git.ParseRepoPath(prefix); err != nil && prefix != "" {
			return nil, nil, fault.Wrap(fault.Invalid, fmt.Sprintf("the route for %.80q can cover no repository",
				route.Prefix), err)
		}
		if seen[prefix] {
			return nil, nil, fault.New(fault.Invalid,
				"there are two routes for %.80q: name all of their nodes in one", prefix)
		}
		seen[prefix] = true
		if len(route.Replicas) == 0 {
			return nil, nil, fault.New(fault.Invalid, "the route for %.80q names no node", prefix)
		}
		for _, p := range route.Replicas {
			if p.Name == "" || byName[p.Name] != nil && byName[p.Name] != p {
				return nil, nil, fault.New(fault.Invalid, "nodes need distinct names: there are two called %.80q", p.Name)
			}
			byName[p.Name] = p
			if slices.Contains(prefixes[p.Name], prefix) {
				return nil, nil, fault.New(fault.Invalid, "the route for %.80q names the node %s twice", prefix, p.Name)
			}
			prefixes[p.Name] = append(prefixes[p.Name], prefix)
		}
	}
	for name, p := range byName {
		slices.Sort(prefixes[name])
		replicas = append(replicas, p)
	}
	slices.SortFunc(replicas, func(a, b *Replica) int { return strings.Compare(a.Name, b.Name) })
	return replicas, prefixes, nil
}

// trimPrefix returns a path, or a prefix of paths, in the form in which they are compared.
func trimPrefix(path string) string {
	path = strings.Trim(path, "/")
	if short, ok := strings.CutSuffix(path, ".git"); ok && short != "" && !strings.HasSuffix(short, "/") {
		return short
	}
	return path
}

// Drain keeps new requests from a node until Undrain; requests in flight continue. An unknown name is an error of kind
// NotFound that lists the known names.
func (r *Router) Drain(name string) error { return r.workers.Drain(name, true) }

// Undrain returns a drained node to service.
func (r *Router) Undrain(name string) error { return r.workers.Drain(name, false) }

// Status returns the state of each node, sorted by name.
func (r *Router) Status() []Status {
	t := r.routing.Load()
	list := make([]Status, len(t.members))
	for i, m := range t.members {
		list[i] = Status{State: r.workers.State(m.worker), Prefixes: slices.Clone(m.prefixes), Served: m.served.Load(),
			Failed: m.failed.Load(), Held: r.holdings.of(m.Name)}
		list[i].Store, _ = m.storeID()
		for _, prefix := range m.prefixes {
			list[i].Refused = cmp.Or(list[i].Refused, t.routes[prefix].whyRefused())
		}
	}
	return list
}

func (t *routingTable) member(name string) *member {
	i, ok := slices.BinarySearchFunc(t.members, name, func(m *member,
		name string) int {
		return strings.Compare(m.Name, name)
	})
	if !ok {
		return nil
	}
	return t.members[i]
}

// find returns the route with the longest prefix that covers a repository, or nil.
func (t *routingTable) find(repo git.RepoPath) *route { return t.routes[t.prefixOf(repo)] }

// prefixOf returns the longest prefix that covers a repository, or "".
func (t *routingTable) prefixOf(repo git.RepoPath) string {
	path := trimPrefix(repo.String())
	for path != "" && t.routes[path] == nil {
		path = path[:max(0, strings.LastIndexByte(path, '/'))]
	}
	return path
}

// PrefixOf returns the prefix of the route of a repository.
func (r *Router) PrefixOf(repo git.RepoPath) string { return r.routing.Load().prefixOf(repo) }

// Prefixes returns the prefixes of all routes, sorted.
func (r *Router) Prefixes() []string { return slices.Sorted(maps.Keys(r.routing.Load().routes)) }

// first returns the route limited to its first n nodes.
func (r *route) first(n int) *route {
	if len(r.members) <= n {
		return r
	}
	return &route{members: r.members[:n], workers: r.workers[:n]}
}

// hasAllOf reports whether the route has all nodes of another one, by their names.
func (r *route) hasAllOf(other *route) bool {
	return !slices.ContainsFunc(other.members, func(m *member) bool {
		return !slices.ContainsFunc(r.members, func(own *member) bool { return own.Name == m.Name })
	})
}

// acquire keeps a replica in use; it reports false if the replica is gone.
func (m *member) acquire() bool {
	for n := m.users.Load(); n > 0; n = m.users.Load() {
		if m.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (m *member) release() {
	if m.users.Add(-1) == 0 && m.Gone != nil {
		m.Gone()
	}
}
