package graph

// queue is a heap of nodes: the highest key first, and among equal keys the first one added.
type queue struct {
	items []queued
	seq   uint32
}

type queued struct {
	key  uint64
	seq  uint32
	node uint32
}

func (a queued) before(b queued) bool { return a.key > b.key || a.key == b.key && a.seq < b.seq }

func (q *queue) len() int { return len(q.items) }

func (q *queue) push(node uint32, key uint64) {
	x := queued{key, q.seq, node}
	q.seq++
	q.items = append(q.items, x)
	i := len(q.items) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !x.before(q.items[up]) {
			break
		}
		q.items[i] = q.items[up]
		i = up
	}
	q.items[i] = x
}

func (q *queue) pop() uint32 {
	top := q.items[0].node
	n := len(q.items) - 1
	x := q.items[n]
	q.items = q.items[:n]
	i := 0
	for {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && q.items[down+1].before(q.items[down]) {
			down++
		}
		if !q.items[down].before(x) {
			break
		}
		q.items[i] = q.items[down]
		i = down
	}
	if n > 0 {
		q.items[i] = x
	}
	return top
}
