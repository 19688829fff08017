package balance

// heap is a binary heap whose elements know their places in it, so that one that changed is found at once.
type heap[E any] struct {
	all    []E
	before func(a, b E) bool
	place  func(E) *int // where an element keeps its place; 0: it is not in the heap
}

// top is the first element; false if there is none.
func (h *heap[E]) top() (e E, ok bool) {
	if len(h.all) == 0 {
		return e, false
	}
	return h.all[0], true
}

// put adds an element, or brings one that has changed where it belongs.
func (h *heap[E]) put(e E) {
	at := *h.place(e)
	if at == 0 {
		h.all = append(h.all, e)
		at = len(h.all)
		*h.place(e) = at
	}
	if !h.down(at) {
		h.up(at)
	}
}

// remove takes an element out, if it is in.
func (h *heap[E]) remove(e E) {
	at := *h.place(e)
	if at == 0 {
		return
	}
	last := len(h.all)
	h.swap(at, last)
	var none E
	h.all[last-1] = none
	h.all = h.all[:last-1]
	*h.place(e) = 0
	if at < last && !h.down(at) {
		h.up(at)
	}
}

func (h *heap[E]) swap(i, j int) {
	h.all[i-1], h.all[j-1] = h.all[j-1], h.all[i-1]
	*h.place(h.all[i-1]), *h.place(h.all[j-1]) = i, j
}

func (h *heap[E]) up(at int) {
	for at > 1 && h.before(h.all[at-1], h.all[at/2-1]) {
		h.swap(at, at/2)
		at /= 2
	}
}

func (h *heap[E]) down(at int) (moved bool) {
	for {
		child := 2 * at
		if child < len(h.all) && h.before(h.all[child], h.all[child-1]) {
			child++
		}
		if child > len(h.all) || !h.before(h.all[child-1], h.all[at-1]) {
			return moved
		}
		h.swap(at, child)
		at, moved = child, true
	}
}

// ascend visits elements in order until one says that it is enough. The heap does not change meanwhile. It costs by those visited, not by all.
func (h *heap[E]) ascend(enough func(E) bool) {
	var nowhere int
	next := heap[int]{before: func(a, b int) bool { return h.before(h.all[a-1], h.all[b-1]) }, place: func(int) *int { return &nowhere }}
	add := func(at int) {
		if at <= len(h.all) {
			nowhere = 0
			next.put(at)
		}
	}
	add(1)
	for {
		at, ok := next.top()
		if !ok || enough(h.all[at-1]) {
			return
		}
		nowhere = 1
		next.remove(at)
		add(2 * at)
		add(2*at + 1)
	}
}
