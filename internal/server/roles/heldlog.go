package roles

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// holdLimit is the maximum time for which log lines are held back. The log of a slower start could help its operator.
const holdLimit = 2 * time.Second

// heldLog is the destination of the log. While a server with a log for people starts, it holds lines back, so that the
// addresses of the server come first. Safe for concurrent use.
type heldLog struct {
	to io.Writer

	mu      sync.Mutex
	holding bool
	lines   bytes.Buffer
	limit   *time.Timer
}

// hold holds lines back until release, for at most holdLimit.
func (h *heldLog) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holding = true
	h.limit = time.AfterFunc(holdLimit, func() { _ = h.release() })
}

// release writes the lines that were held back. Later lines are written at once.
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
