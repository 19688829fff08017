package admit

import (
	"math"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Budget bounds how much of something, such as bytes of memory, all requests hold together. Like a Lane, it refuses at
// once what does not fit, and shares it among callers: a caller may hold as much as it leaves free. All anonymous
// callers together have a part of it. Safe for concurrent use.
type Budget struct {
	name      string
	limit     int64
	anonymous int64 // limit for all anonymous callers together, while known returns true
	known     func() bool

	mu              sync.Mutex
	used, strangers int64 // strangers: of used, what anonymous callers hold
	callers         map[balance.Caller]int64
}

// NewBudget makes a budget of limit. The name is that of what holds it, in the plural.
func NewBudget(name string, limit int64) *Budget {
	return &Budget{name: name, limit: limit, anonymous: math.MaxInt64, callers: map[balance.Caller]int64{}}
}

// Anonymous limits all anonymous callers together to a part of the budget, from 0 to 1, while known returns true:
// callers can be known at all. known is called concurrently and must not take from the budget. Call Anonymous before
// the first Take.
func (b *Budget) Anonymous(part float64, known func() bool) {
	b.anonymous, b.known = int64(part*float64(b.limit)), known
}

// most is how much one caller can have at all.
func (b *Budget) most(c balance.Caller) int64 {
	most := b.limit
	if c != "" {
		most /= 2
	}
	if c.Anonymous() && b.anonymous < most && b.known() {
		most = b.anonymous
	}
	return most
}

// Take takes n for a caller, or returns an error of kind Exhausted. Give returns it. The empty caller has no share of
// its own: it may take all that is left.
func (b *Budget) Take(c balance.Caller, n int64) error {
	stranger := c.Anonymous()
	known := stranger && b.known != nil && b.known()
	b.mu.Lock()
	defer b.mu.Unlock()
	free := b.limit - b.used - n
	switch {
	case known && b.strangers+n > b.anonymous:
		return fault.CallerLimit(fault.RetrySoon, "too many large %s of anonymous callers at the same time; try again, or "+
			"sign in", b.name)
	case free < 0:
		return fault.Retry(fault.Exhausted, fault.RetrySoon, "too many large %s at the same time; try again", b.name)
	case c != "" && b.callers[c]+n > free:
		return fault.CallerLimit(fault.RetrySoon, "too many large %s of yours at the same time; try again", b.name)
	}
	b.used += n
	if c != "" {
		b.callers[c] += n
	}
	if stranger {
		b.strangers += n
	}
	return nil
}

// Give gives n back that was taken for a caller.
func (b *Budget) Give(c balance.Caller, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if c != "" {
		if b.callers[c] -= n; b.callers[c] == 0 {
			delete(b.callers, c)
		}
	}
	if c.Anonymous() {
		b.strangers -= n
	}
}

// Used returns how much is taken now.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Holding is what one request holds of a budget. Not safe for concurrent use. The zero Holding is of no budget, and may
// grow without a bound.
type Holding struct {
	budget *Budget
	caller balance.Caller
	free   int64 // size that does not count against the budget
	size   int64 // including the free part
}

// Hold begins a request of a caller, which holds nothing yet. The first free bytes are not counted.
func (b *Budget) Hold(c balance.Caller, free int64) Holding {
	return Holding{budget: b, caller: c, free: free}
}

// Size returns the held size, including the free part.
func (h *Holding) Size() int64 { return h.size }

// Grow holds n more, or nothing more and gives an error: of kind Exhausted, or of kind Invalid if one caller can never
// have so much.
func (h *Holding) Grow(n int64) error {
	if h.budget == nil {
		return nil
	}
	if counted := h.counted(h.size + n); counted > 0 {
		if counted > h.budget.most(h.caller) {
			return fault.New(fault.Invalid, "the request takes more memory than the %d bytes that one caller may have; ask "+
				"for less at a time",
				h.budget.most(h.caller))
		}
		if err := h.budget.Take(h.caller, counted-h.counted(h.size)); err != nil {
			return err
		}
	}
	h.size += n
	return nil
}

// Shrink gives back all but size.
func (h *Holding) Shrink(size int64) {
	if less := h.counted(h.size) - h.counted(size); less > 0 {
		h.budget.Give(h.caller, less)
	}
	h.size = min(h.size, size)
}

// counted is how much of a size counts against the budget.
func (h *Holding) counted(size int64) int64 {
	if h.budget == nil {
		return 0
	}
	return max(0, size-h.free)
}
