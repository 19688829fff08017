package roles

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// holdLimit is how long the log is held back at a start. A start that takes longer has something to tell.
const holdLimit = 2 * time.Second

// heldLog is where the log is written. While a server with people in front of it starts, its lines are held back, so
// that the first thing they read is where it listens.
type heldLog struct {
	to io.Writer

	mu      sync.Mutex
	holding bool
	lines   bytes.Buffer
	limit   *time.Timer
}

// hold begins to hold lines back, until release or for holdLimit.
func (h *heldLog) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holding = true
	h.limit = time.AfterFunc(holdLimit, func() { _ = h.release() })
}

// release writes what was held back, and from then on all at once.
func (h *heldLog) release() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.holding {
		return nil
	}
	h.holding = false
	h.limit.Stop()
	_, err := h.lines.WriteTo(h.to)
	return err
}

func (h *heldLog) Write(line []byte) (int, error) {
	h.mu.Lock()
	if h.holding {
		defer h.mu.Unlock()
		return h.lines.Write(line)
	}
	h.mu.Unlock()
	return h.to.Write(line)
}
