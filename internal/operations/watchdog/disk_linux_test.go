package watchdog

import (
	"bytes"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestStoppedDisk: a disk stops, and it is the one that dumps go to. The stacks go to standard error.
func TestStoppedDisk(t *testing.T) {
	t.Parallel()
	disk := gittest.NewDisk(t)
	o := options(t)
	o.Stall, o.Interval, o.diskPatience = 200*time.Millisecond, 10*time.Millisecond, time.Second
	o.Dir = filepath.Join(disk.Dir, "dumps")
	o.Probes = []Probe{Readable("repositories", disk.Dir), Writable("state", o.Dir)}
	var said bytes.Buffer
	var mu sync.Mutex
	o.Stderr = writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return said.Write(b)
	})
	w := start(t, o)
	disk.Stop()
	eventually(t, "stacks with waits for the disk", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(said.String(), ".Readable.func") &&
			strings.Contains(said.String(), o.Dir+" does not take a dump (it does not answer)")
	})
	disk.Release()
	w.Close()
	// Operations that hung continue now. They would create directories below the mount point after the unmount.
	w.work.Wait()
	eventually(t, "nothing to hang in "+o.Dir, func() bool { return !w.place.busy.Load() })
}
