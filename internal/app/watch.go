package app

import (
	"context"
	"sync"
	"time"
)

// watch has the call on a connection interrupted when its client goes away. To ask a context for that costs more than all else that is done here for a
// small request, and hardly any client goes away in so short a time. So it is asked once a timer has found the same call twice; the timer, too, is set
// for many calls at once.
type watch struct {
	mu    sync.Mutex
	call  *call       // that runs; nil: none
	calls uint64      // that there were
	found uint64      // of calls, by the timer
	timer *time.Timer // nil: none was needed
	set   bool        // the timer is
	stop  func() bool // of what interrupts the call; nil: nothing does
}

// lasting is how long a call may take, and twice as long, before its client is watched.
const lasting = 50 * time.Millisecond

func (w *watch) begin(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.call = c
	w.calls++
	switch {
	case w.set:
	case w.timer == nil:
		w.timer = time.AfterFunc(lasting, w.look)
	default:
		w.timer.Reset(lasting)
	}
	w.set = true
}

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set = w.call != nil && w.calls != w.found; w.set {
		w.found = w.calls
		w.timer.Reset(lasting)
	} else if w.call != nil {
		w.stop = context.AfterFunc(w.call.e.ctx, w.call.interrupt)
	}
}

// end ends it. The call may still be interrupted at that moment.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.call = nil; w.stop != nil {
		w.stop()
		w.stop = nil
	}
}
