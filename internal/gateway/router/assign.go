package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// MaxTries is the maximum number of nodes that are tried for one request. A request that crashes a node must not crash
// them all.
const MaxTries = 4

// Assignment is one request's use of a node. Done ends it.
type Assignment struct {
	*member
	StoreID string // ID of the object store in which the node has to commit a push; "" without one
	seat    *balance.Seat
}

// purpose is what a request needs a node for.
type purpose int

const (
	toRead purpose = iota
	toPush
	toPassOn
	toAskHome
)

// Assign assigns a node to a request, none of those that it has tried already. The caller calls Done. The error is for
// the client: NotFound without a route, Unavailable if no node accepts requests.
//
// It is the least busy node. If the nodes of the route share an object store, only those count that are known to have
// the repository on their disks. Without such a node, it is the first in the repository's order.
func (r *Router) Assign(repo git.RepoPath, tried []string) (*Assignment, error) {
	return r.assign(repo, tried, toRead)
}

// AssignPush is Assign for pushes. It assigns the first node in the repository's order. The error is Denied if the
// route has several nodes that do not share an object store.
func (r *Router) AssignPush(repo git.RepoPath, tried []string) (*Assignment, error) {
	return r.assign(repo, tried, toPush)
}

// AssignPrimary is Assign for pushes that a node passes on to the server that it mirrors. All of them go to the first
// node of the route.
func (r *Router) AssignPrimary(repo git.RepoPath, tried []string) (*Assignment, error) {
	return r.assign(repo, tried, toPassOn)
}

// CheckSame returns an error of kind Denied unless the nodes that take pushes to one repository have the other one,
// too.
func (r *Router) CheckSame(a, b git.RepoPath) error {
	t := r.routing.Load()
	one, other := t.find(a), t.find(b)
	if one == other || one == nil || other == nil { // without a route the request fails anyway
		return nil
	}
	_, store := one.sharing()
	_, same := other.sharing()
	if store != "" && store == same ||
		len(one.members) == 1 && len(other.members) == 1 && one.members[0].Name == other.members[0].Name {
		return nil
	}
	return fault.New(fault.Denied, "%s and %s are on different storage nodes: choose a path beside the repository", a, b)
}

// assign repeats an assignment while the routes change.
func (r *Router) assign(repo git.RepoPath, tried []string, what purpose) (*Assignment, error) {
	for {
		t := r.routing.Load()
		found := t.find(repo)
		if found == nil {
			return nil, fault.New(fault.NotFound, "no storage node serves repositories at %s; check the path", repo)
		}
		a, err := r.assignAt(found, repo, tried, what)
		if a != nil || err != nil && r.current() == t {
			return a, err
		}
	}
}

// assignAt assigns a node of a route. Without one and without an error, the routes have changed.
func (r *Router) assignAt(found *route, repo git.RepoPath, tried []string, what purpose) (*Assignment, error) {
	if what == toPassOn {
		return r.assignAmong(found.first(1), tried, false)
	}
	how, store := found.sharing()
	switch {
	case how == unknown:
		return nil, r.unavailable(found, tried)
	case what == toPush && how == copies && len(found.members) > 1:
		return nil, found.refusePush(repo)
	case store != "":
		return r.assignInStore(found, store, repo, tried, what)
	case what == toAskHome:
		return r.assignFirst(found, tried)
	}
	return r.assignAmong(found, tried, false)
}

// assignInStore assigns a node of a route that is known to be in the route's object store. The others have other
// repositories of the same names.
func (r *Router) assignInStore(found *route, store string, repo git.RepoPath, tried []string,
	what purpose) (*Assignment, error) {
	among := found.in(store)
	if len(among.members) == 0 {
		return nil, r.unavailable(found, tried)
	}
	if holders := r.holdings.among(among, repo); what == toRead && holders != nil {
		if a, err := r.assignAmong(holders, tried, false); err == nil {
			return a, nil
		}
	}
	a, err := r.assignAmong(among.order(repo), tried, true)
	if a != nil {
		a.StoreID = store
	}
	return a, err
}

// assignAmong assigns one of the nodes: the least busy one, or if isOrdered the first that is ready.
func (r *Router) assignAmong(found *route, tried []string, isOrdered bool) (*Assignment, error) {
	seat, err := r.workers.Acquire(context.Background(), balance.Work{Among: found.workers, Ordered: isOrdered,
		Tried: tried, NoWait: true})
	if err != nil {
		return nil, r.unavailable(found, tried)
	}
	m := found.members[slices.Index(found.workers, seat.Worker())]
	if !m.acquire() { // the routes have changed meanwhile
		seat.Done(balance.Cut)
		return nil, nil
	}
	if len(tried) > 0 {
		m.failover.Inc()
	} else {
		m.assigned[seat.Reason()].Inc()
	}
	return &Assignment{member: m, seat: seat}, nil
}

// assignFirst assigns the first node of a route that can be reached and was not tried.
func (r *Router) assignFirst(found *route, tried []string) (a *Assignment, err error) {
	for n := range found.members {
		if a, err = r.assignAmong(found.first(n+1), tried, false); err == nil {
			return a, nil
		}
	}
	return nil, err
}

// current returns the routing table after a change of the routes that is in progress.
func (r *Router) current() *routingTable {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.routing.Load()
}

// Done ends the request's use of the node.
func (a *Assignment) Done(blame Blame) {
	if blame.Failed {
		a.failed.Add(1)
	} else {
		a.served.Add(1)
	}
	result := balance.OK
	if blame.Avoid {
		result = balance.Failed
	}
	a.seat.Done(result)
	a.release()
}

// Blame is the share of the node in an error. The zero value means that another node would answer the same.
type Blame struct {
	Failed bool // the node caused the failure
	Avoid  bool // other nodes are preferred for a moment
}

// Panicked is the Blame of a request that has not ended normally.
var Panicked = Blame{Failed: true, Avoid: true}

// BlameFor returns the share of the node in an error.
func BlameFor(err error) Blame {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Internal:
		return Blame{Failed: true, Avoid: true}
	case fault.Exhausted:
		return Blame{Avoid: !fault.IsCallerLimit(err)} // the node is not full for other callers
	case fault.Corrupt: // one repository of many
		return Blame{Failed: true}
	}
	return Blame{}
}

// try calls do for nodes that assign returns, one after the other, until one succeeds or fails with an error that is
// not its fault. It returns the first error.
func try(ctx context.Context, assign func(tried []string) (*Assignment, error), do func(*Replica) error) error {
	var first error
	var tried []string
	for len(tried) < MaxTries && ctx.Err() == nil {
		a, err := assign(tried)
		if err != nil {
			return cmp.Or(first, err)
		}
		blame, err := a.try(ctx, do)
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
		if blame == (Blame{}) {
			return first
		}
		tried = append(tried, a.Name)
	}
	return cmp.Or(first, ctx.Err())
}

// try calls do for one node and ends the assignment.
func (a *Assignment) try(ctx context.Context, do func(*Replica) error) (blame Blame, err error) {
	blame = Panicked
	defer func() { a.Done(blame) }()
	err = do(a.Replica)
	if blame = (Blame{}); err != nil && ctx.Err() == nil {
		blame = BlameFor(err)
	}
	return blame, err
}

const maxNamed = 5 // nodes named in a message

// unavailable is the error for a client whose request none of a route's nodes accepts.
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
	all, after := len(route.workers), fault.RetrySoon
	which := "the storage node " + names[0] + ", which has"
	verb := "is"
	if all > 1 {
		which, verb = "the storage nodes "+joinNames(names, all)+", which have", "are"
	}
	msg := ""
	switch all {
	case down:
		msg = which + " this repository, cannot be reached; try again"
	case draining:
		msg = which + " this repository, " + verb + " being taken out of service; try again later"
		after = fault.RetryMuchLater
	default:
		msg = "no storage node that has this repository takes requests now: " + joinNames(states, all) + "; try again"
	}
	return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: after, Err: cause}
}

// joinNames joins names for a sentence. all is the total number, of which names may be the first few.
func joinNames(names []string, all int) string {
	if more := all - len(names); more > 0 {
		return strings.Join(names, ", ") + fmt.Sprintf(" and %d more", more)
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
