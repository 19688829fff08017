package ci

import (
	"container/heap"

	"github.com/packhorse-git/packhorse/internal/git"
)

// negotiator chooses the commits for have lines as git's default algorithm does (git-config(1),
// fetch.negotiationAlgorithm "consecutive"). It visits all commits that are reachable from the refs, the youngest
// first, without the ancestors of common commits.
type negotiator struct {
	h         *History
	cut       map[node]bool // the machine's boundary: commits without parents
	flags     map[node]flag
	queue     queue
	nonCommon int // commits in the queue that may be not common
}

type flag uint8

const (
	seen   flag = 1 << iota // was in the queue
	common                  // the server has it
	popped                  // was taken from the queue
)

// negotiate starts with the machine's refs.
func (h *History) negotiate(m *Machine) *negotiator {
	h.mu.RLock()
	defer h.mu.RUnlock()
	n := &negotiator{h: h, cut: m.shallow, flags: map[node]flag{}}
	for _, at := range m.tips() {
		n.push(at, seen)
	}
	return n
}

func (n *negotiator) push(at node, mark flag) {
	if n.flags[at]&mark != 0 {
		return
	}
	n.flags[at] |= mark
	heap.Push(&n.queue, entry{n.h.commits[at].date, n.queue.pushed, at})
	n.queue.pushed++
	if n.flags[at]&common == 0 {
		n.nonCommon++
	}
}

func (n *negotiator) parents(at node) []node {
	if n.cut[at] {
		return nil
	}
	return n.h.commits[at].parents
}

// markCommon marks a commit and its ancestors as common, or only the ancestors.
func (n *negotiator) markCommon(at node, ancestorsOnly bool) {
	for stack := []node{at}; len(stack) > 0; ancestorsOnly = false {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n.flags[at]&common != 0 {
			continue
		}
		if !ancestorsOnly {
			n.flags[at] |= common
		}
		if n.flags[at]&seen == 0 {
			n.push(at, seen)
			continue
		}
		if !ancestorsOnly && n.flags[at]&popped == 0 {
			n.nonCommon--
		}
		parents := n.parents(at)
		for i := len(parents) - 1; i >= 0; i-- {
			stack = append(stack, parents[i])
		}
	}
}

// next returns up to max further haves.
func (n *negotiator) next(max int) []git.ObjectID {
	n.h.mu.RLock()
	defer n.h.mu.RUnlock()
	var haves []git.ObjectID
	for len(haves) < max && len(n.queue.list) > 0 && n.nonCommon > 0 {
		at := heap.Pop(&n.queue).(entry).at
		n.flags[at] |= popped
		isCommon := n.flags[at]&common != 0
		mark := seen
		if isCommon {
			mark |= common
		} else {
			n.nonCommon--
			haves = append(haves, n.h.commits[at].id)
		}
		for _, p := range n.parents(at) {
			if n.flags[p]&seen == 0 {
				n.push(p, mark)
			}
			if isCommon {
				n.markCommon(p, true)
			}
		}
	}
	return haves
}

// acknowledged records that the server has a commit.
func (n *negotiator) acknowledged(id git.ObjectID) {
	n.h.mu.RLock()
	defer n.h.mu.RUnlock()
	if at, ok := n.h.index[id]; ok {
		n.markCommon(at, false)
	}
}

// queue returns the youngest commit first, and the first added of equally old ones.
type queue struct {
	list   []entry
	pushed int
}

type entry struct {
	date  int64
	order int
	at    node
}

func (q *queue) Len() int { return len(q.list) }
func (q *queue) Less(i, j int) bool {
	a, b := q.list[i], q.list[j]
	return a.date > b.date || a.date == b.date && a.order < b.order
}
func (q *queue) Swap(i, j int) { q.list[i], q.list[j] = q.list[j], q.list[i] }
func (q *queue) Push(x any)    { q.list = append(q.list, x.(entry)) }
func (q *queue) Pop() any {
	last := q.list[len(q.list)-1]
	q.list = q.list[:len(q.list)-1]
	return last
}
