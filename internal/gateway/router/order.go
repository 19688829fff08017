package router

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// sharing is how the nodes of a route have its repositories.
type sharing int

const (
	unknown  sharing = iota // no node has answered a health check
	copies                  // without an object store, or in different ones; one node alone is always this
	oneStore                // in one object store, so that any of its nodes may take a push
)

// sharing returns how the nodes of a route have its repositories, and the ID of the route's object store if it has one.
//
// That is the store of all ready nodes. Without a ready node, it is that of all nodes that can be reached. The route
// keeps it until all its nodes report another one, or one is taken out of the route. So a node that was started with
// another store takes no push while the others are away.
func (r *route) sharing() (sharing, string) {
	if len(r.members) == 1 {
		return copies, ""
	}
	how, id := r.reported((*member).isReady)
	if how == unknown {
		how, id = r.reported((*member).isUsable)
	}
	before := ""
	if known := r.store.Load(); known != nil {
		before = *known
	}
	switch {
	case how == unknown || id == before:
		return how, before
	case before != "" && len(r.in(id).members) < len(r.members):
		return copies, before
	}
	r.store.Store(&id)
	return how, id
}

// reported returns what the nodes of a state report, and the ID of their object store if all are in the same one.
func (r *route) reported(hasState func(*member) bool) (how sharing, id string) {
	for _, m := range r.members {
		if !hasState(m) {
			continue
		}
		switch store, ok := m.storeID(); {
		case !ok:
		case how == unknown && store == "":
			how = copies
		case how == unknown:
			how, id = oneStore, store
		case store != id:
			return copies, ""
		}
	}
	return how, id
}

// in returns the part of a route whose nodes are known to be in an object store; "" stands for none.
func (r *route) in(id string) *route {
	isIn := func(m *member) bool {
		store, ok := m.storeID()
		return ok && store == id
	}
	if !slices.ContainsFunc(r.members, func(m *member) bool { return !isIn(m) }) {
		return r
	}
	part := &route{}
	for i, m := range r.members {
		if isIn(m) {
			part.members, part.workers = append(part.members, m), append(part.workers, r.workers[i])
		}
	}
	return part
}

func (m *member) isReady() bool  { return m.Ready == nil || m.Ready() == nil }
func (m *member) isUsable() bool { return m.Usable != nil && m.Usable() }

// storeID returns the ID of the node's object store, "" if it has none. It reports false before the node's first
// health check.
func (m *member) storeID() (string, bool) {
	if m.Store == nil {
		return "", true
	}
	return m.Store()
}

// refusePush returns the error for a push to a route whose nodes do not share an object store. Its message is for the
// client, and its cause for the log.
func (r *route) refusePush(repo git.RepoPath) error {
	return fault.Wrap(fault.Denied, "this server does not accept pushes to "+repo.String()+
		" at the moment, because of its configuration; its operator finds the reason in the log",
		errors.New(r.whyRefused()+": "+AllowPushes))
}

// AllowPushes is what an operator can do about Status.Refused.
const AllowPushes = "start all of them with the same --store, or name one node in the route"

// whyRefused returns why pushes to the route are refused; "" if they are not.
func (r *route) whyRefused() string {
	how, store := r.sharing()
	if len(r.members) == 1 || how != copies {
		return ""
	}
	var stores []string
	isPlain := store == ""
	for _, m := range r.members[:min(len(r.members), maxNamed)] {
		id, ok := m.storeID()
		isPlain = isPlain && id == ""
		switch {
		case !ok:
			id = "not known"
		case id == "":
			id = "none"
		}
		stores = append(stores, m.Name+": "+id)
	}
	problem := "have different object stores"
	if isPlain {
		problem = "have no common object store, so the others would not get the push"
	}
	if store != "" {
		stores = append(stores, "the route until now: "+store)
	}
	return "the storage nodes of the route " + problem + " (" + strings.Join(stores, ", ") + ")"
}

// score is the rank of a node for a repository. The node with the highest score comes first (rendezvous hashing,
// Thaler and Ravishankar 1998). It depends on nothing else, so that all gateways agree, and a node that leaves or
// comes changes the order of the others nowhere. Nodes come first in proportion to their weights.
func (m *member) score(repo string) float64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(m.Name)
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(repo)
	const bits = 53 // of a float64's mantissa
	uniform := (float64(d.Sum64()>>(64-bits)) + 0.5) / (1 << bits)
	return float64(max(m.Weight, 1)) / -math.Log(uniform)
}

// order returns the route with its nodes in the order of a repository.
func (r *route) order(repo git.RepoPath) *route {
	path := trimPrefix(repo.String())
	type scored struct {
		*member
		score float64
	}
	all := make([]scored, len(r.members))
	for i, m := range r.members {
		all[i] = scored{m, m.score(path)}
	}
	slices.SortFunc(all, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.Name, b.Name))
	})
	to := &route{members: make([]*member, len(all)), workers: make([]*balance.Worker, len(all))}
	for i, s := range all {
		to.members[i], to.workers[i] = s.member, s.worker
	}
	return to
}

// homes returns the nodes among which the homes of a route's repositories are. With an object store these are all of
// its nodes that accept requests, otherwise the first that does. If no node accepts requests, it is the first, of those
// known to be in the object store if there are any.
func (r *Router) homes(found *route) []*member {
	var ready []*member
	among, store := found, ""
	if _, store = found.sharing(); store != "" {
		among = found.in(store)
	}
	for i, worker := range among.workers {
		if s := r.workers.State(worker); s.Draining || s.Down != nil {
			continue
		}
		ready = append(ready, among.members[i])
		if store == "" {
			break
		}
	}
	switch {
	case len(ready) > 0:
		return ready
	case len(among.members) > 0:
		return among.members[:1]
	}
	return found.members[:1]
}

// homeAmong returns a repository's home among some nodes: the first of its order.
func homeAmong(homes []*member, repo git.RepoPath) *member {
	if len(homes) == 1 {
		return homes[0]
	}
	path := trimPrefix(repo.String())
	return slices.MaxFunc(homes, func(a, b *member) int { return cmp.Compare(a.score(path), b.score(path)) })
}
