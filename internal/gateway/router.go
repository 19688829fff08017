package gateway

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/resolve"
)

// Replica is a node that is asked for the repositories of a route.
type Replica struct {
	Name string // in messages to clients, logs, and metric labels
	Node Node
	// Revisions is the node for those who resolve revisions; nil: it does not.
	Revisions resolve.Node
	Files     Files // the node for pages that show files; nil: it shows none
	Weight    int   // share of the requests among replicas that are busy; less than 1 means 1
	// Ready tells why the node should not be asked; nil, or nil as its answer, if it should. Usable tells whether it can be asked all the
	// same if no other is ready, as one that is about to end; nil: no. Both answer from memory and at once: they are asked while a
	// lock is held.
	Ready  func() error
	Usable func() bool
	// Gone, unless nil, is called once, when the Router no longer has the replica and its last request has ended. It returns soon.
	Gone func()
}

// Route leads to the nodes that have all repositories whose path begins with a prefix.
type Route struct {
	// Prefix is a path of whole components: "team" covers team, team.git and team/app, and not teamwork. "" covers all. The longest
	// one that covers a path holds.
	Prefix   string
	Replicas []*Replica
}

// NodeStatus is how a node is, as its Router sees it.
type NodeStatus struct {
	balance.State
	Prefixes []string // of the routes that name it, sorted
	Served   uint64   // requests that it has answered, refusals included
	Failed   uint64   // requests that it was the cause of a failure of, whether another one answered them or not
}

// Router finds the node for a request: by the repository's path the route, and of its replicas the least busy one that can be reached. Safe
// for concurrent use.
type Router struct {
	workers *balance.Scheduler
	table   atomic.Pointer[table]
	metrics routerMetrics

	mu sync.Mutex // one change of the routes at a time
}

// table is what a request is looked up in. Immutable.
type table struct {
	routes  map[string]*route // by prefix
	members []*member         // sorted by name
}

type route struct {
	members []*member
	workers []*balance.Worker // of the members
}

// member is a replica that some route names, or that requests are still at.
type member struct {
	*Replica
	worker   *balance.Worker
	prefixes []string
	*memberCounts
	*memberUse
}

// visit is one request's use of a replica.
type visit struct {
	*member
	seat *balance.Seat
}

// memberUse counts who uses a replica: each request, and the routes as one. At 0 it is gone, and never used again.
type memberUse struct{ users atomic.Int64 }

// memberCounts stay while routes name a node of that name.
type memberCounts struct {
	served, failed atomic.Uint64
	assigned       map[balance.Reason]prometheus.Counter
	next           prometheus.Counter // assigned after another one failed
}

// NewRouter makes a Router without routes.
func NewRouter() *Router {
	r := &Router{workers: balance.New(balance.Options{}), metrics: newRouterMetrics()}
	r.table.Store(&table{})
	return r
}

// Set puts other routes in the place of all that there are, at once for requests that come from now on; those that run go on. A node
// that stays, by its name, keeps its counts and its drain mark; if it is another Replica of that name, its first one goes. Idle are
// nodes that no route needs to name; they are seen in Status, and can be drained. After an error the routes are as they were.
func (r *Router) Set(routes []Route, idle ...*Replica) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	replicas, prefixes, err := checkRoutes(routes, idle)
	if err != nil {
		return err
	}
	old := r.table.Load()
	workers := make([]balance.Member, len(replicas))
	for i, p := range replicas {
		workers[i] = balance.Member{Name: p.Name, Weight: p.Weight, Ready: p.Ready, Usable: p.Usable}
	}
	t := &table{routes: make(map[string]*route, len(routes)), members: make([]*member, len(replicas))}
	for i, worker := range r.workers.Set(workers) {
		t.members[i] = r.newMember(old.member(replicas[i].Name), replicas[i], worker, prefixes[replicas[i].Name])
	}
	for _, from := range routes {
		to := &route{}
		for _, p := range from.Replicas {
			m := t.member(p.Name)
			to.members, to.workers = append(to.members, m), append(to.workers, m.worker)
		}
		t.routes[trimPrefix(from.Prefix)] = to
	}
	r.table.Store(t)
	for _, m := range old.members {
		now := t.member(m.Name)
		if now == nil {
			r.metrics.forget(m.Name)
		}
		if now == nil || now.Replica != m.Replica {
			m.release()
		}
	}
	return nil
}

// newMember makes the member for a replica; before is what had its name, or nil.
func (r *Router) newMember(before *member, replica *Replica, worker *balance.Worker, prefixes []string) *member {
	m := &member{Replica: replica, worker: worker, prefixes: prefixes}
	if before != nil {
		m.memberCounts = before.memberCounts
	} else {
		m.memberCounts = r.metrics.newCounts(replica.Name)
	}
	if before != nil && before.Replica == replica {
		m.memberUse = before.memberUse
	} else {
		m.memberUse = &memberUse{}
		m.users.Store(1)
	}
	return m
}

// checkRoutes lists the replicas, sorted by name, and for each name the prefixes that lead to it.
func checkRoutes(routes []Route, idle []*Replica) (replicas []*Replica, prefixes map[string][]string, err error) {
	byName := map[string]*Replica{}
	prefixes = map[string][]string{}
	add := func(p *Replica) error {
		if p.Name == "" || byName[p.Name] != nil && byName[p.Name] != p {
			return fault.New(fault.Invalid, "nodes need names that differ: there are two called %.80q", p.Name)
		}
		byName[p.Name] = p
		return nil
	}
	for _, p := range idle {
		if err := add(p); err != nil {
			return nil, nil, err
		}
	}
	seen := map[string]bool{}
	for _, route := range routes {
		prefix := trimPrefix(route.Prefix)
		if _, err := git.ParseRepoPath(prefix); err != nil && prefix != "" {
			return nil, nil, fault.Wrap(fault.Invalid, fmt.Sprintf("the route for %.80q can cover nothing", route.Prefix), err)
		}
		if seen[prefix] {
			return nil, nil, fault.New(fault.Invalid, "there are two routes for %.80q; name all of their nodes in one", prefix)
		}
		seen[prefix] = true
		if len(route.Replicas) == 0 {
			return nil, nil, fault.New(fault.Invalid, "the route for %.80q names no node", prefix)
		}
		for _, p := range route.Replicas {
			if err := add(p); err != nil {
				return nil, nil, err
			}
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

// trimPrefix brings a path, or the prefix of paths, into the one form in which they are compared.
func trimPrefix(path string) string {
	path = strings.Trim(path, "/")
	if short, ok := strings.CutSuffix(path, ".git"); ok && short != "" && !strings.HasSuffix(short, "/") {
		return short
	}
	return path
}

// Drain keeps new requests from a node; those that run go on. It holds until Undrain. An unknown name is an error of kind NotFound that
// says which there are.
func (r *Router) Drain(name string) error { return r.workers.Drain(name, true) }

// Undrain ends what Drain began.
func (r *Router) Undrain(name string) error { return r.workers.Drain(name, false) }

// Status tells of each node how it is, sorted by name.
func (r *Router) Status() []NodeStatus {
	t := r.table.Load()
	list := make([]NodeStatus, len(t.members))
	for i, m := range t.members {
		list[i] = NodeStatus{State: r.workers.State(m.worker), Prefixes: slices.Clone(m.prefixes), Served: m.served.Load(), Failed: m.failed.Load()}
	}
	return list
}

func (t *table) member(name string) *member {
	i, ok := slices.BinarySearchFunc(t.members, name, func(m *member, name string) int { return strings.Compare(m.Name, name) })
	if !ok {
		return nil
	}
	return t.members[i]
}

// find gives the route with the longest prefix that covers a repository, or nil.
func (t *table) find(repo git.RepoPath) *route {
	for path := trimPrefix(repo.String()); path != ""; {
		if found := t.routes[path]; found != nil {
			return found
		}
		path = path[:max(0, strings.LastIndexByte(path, '/'))]
	}
	return t.routes[""]
}

// assign gives a replica for a request, none of those that it has tried already. The caller calls done. The error is for the client: of
// kind NotFound without a route, Unavailable if no replica takes requests.
func (r *Router) assign(repo git.RepoPath, tried []string) (*visit, error) {
	return r.assignFrom(repo, tried, math.MaxInt)
}

// primary is assign for pushes: all of them go to the first node that a route names, so that replicas have one who decides.
func (r *Router) primary(repo git.RepoPath, tried []string) (*visit, error) {
	return r.assignFrom(repo, tried, 1)
}

// assignFrom is assign for the first few nodes of a route.
func (r *Router) assignFrom(repo git.RepoPath, tried []string, most int) (*visit, error) {
	for {
		t := r.table.Load()
		found := t.find(repo)
		if found == nil {
			return nil, fault.New(fault.NotFound, "no storage node serves repositories at %s; check the path", repo)
		}
		found = found.first(most)
		seat, err := r.workers.Acquire(context.Background(), balance.Work{Among: found.workers, Tried: tried, NoWait: true})
		if err != nil && r.latest() == t {
			return nil, r.unavailable(found, tried)
		}
		if err != nil {
			continue
		}
		m := found.members[slices.Index(found.workers, seat.Worker())]
		if !m.hold() { // the routes have changed since
			seat.Done(balance.Cut)
			continue
		}
		if len(tried) > 0 {
			m.next.Inc()
		} else {
			m.assigned[seat.Reason()].Inc()
		}
		return &visit{member: m, seat: seat}, nil
	}
}

// latest is the table after a change of the routes that goes on.
func (r *Router) latest() *table {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.Load()
}

// first is the route as if it named no more than n nodes.
func (r *route) first(n int) *route {
	if len(r.members) <= n {
		return r
	}
	return &route{members: r.members[:n], workers: r.workers[:n]}
}

// done ends a request's use of a replica.
func (r *Router) done(m *visit, v verdict) {
	if v.failed {
		m.failed.Add(1)
	} else {
		m.served.Add(1)
	}
	how := balance.OK
	if v.rests {
		how = balance.Failed
	}
	m.seat.Done(how)
	m.release()
}

// hold keeps a replica in use, unless it is gone.
func (m *member) hold() bool {
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

const (
	retryDown     = time.Second // a node that is back is found within this time
	retryDraining = 10 * time.Second
	maxNamed      = 5 // nodes named in a message
)

// unavailable tells the client why none of a route's replicas takes its request.
func (r *Router) unavailable(route *route, tried []string) error {
	var names, states []string
	var cause error
	down, draining := 0, 0
	for i, worker := range route.workers {
		s := r.workers.State(worker)
		state := ""
		switch {
		case s.Draining:
			draining++
			state = "is being taken out of service"
		case s.Down != nil:
			down++
			state, cause = "cannot be reached", s.Down
		case slices.Contains(tried, s.Name):
			state = "failed"
		default: // it came back this moment
			state = "was away"
		}
		if i < maxNamed {
			names, states = append(names, s.Name), append(states, s.Name+" "+state)
		}
	}
	all, after := len(route.workers), retryDown
	which := "the storage node " + names[0] + ", which has"
	if all > 1 {
		which = "the storage nodes " + list(names, all) + ", which have"
	}
	msg := ""
	switch all {
	case down:
		msg = which + " this repository, cannot be reached; try again"
	case draining:
		msg = which + " this repository, " + plural(all, "is", "are") + " being taken out of service; try again later"
		after = retryDraining
	default:
		msg = "no storage node that has this repository takes requests now: " + list(states, all) + "; try again"
	}
	return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: after, Err: cause}
}

// list puts names into a sentence; all is how many there are, if more than the names.
func list(names []string, all int) string {
	if more := all - len(names); more > 0 {
		return strings.Join(names, ", ") + fmt.Sprintf(" and %d more", more)
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
