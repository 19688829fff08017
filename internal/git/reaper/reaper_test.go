package reaper

import (
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// The test program is the server too, and, as each program with this package, the reaper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		serve()
	}
	goleak.VerifyTestMain(m)
}

const limit = time.Minute

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, is)
}

func TestNone(t *testing.T) {
	t.Parallel()
	k := Keep(Options{})
	if k != nil || k.Env(0) != "" {
		t.Errorf("a keeper of nothing: %v", k)
	}
	k.Abandon()
	k.Close()
}

// watched records the calls of a Keeper's Metrics.
type watched struct {
	mu     sync.Mutex
	ups    []bool
	failed map[string]int
}

func (w *watched) Up(up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ups = append(w.ups, up)
}

func (w *watched) Failed(cause string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		w.failed = map[string]int{}
	}
	w.failed[cause]++
}

func (w *watched) is() (ups []bool, ended, start int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ups), w.failed["ended"], w.failed["start"]
}
