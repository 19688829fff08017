package admit

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// TestPressureNarrows: slots become fewer while the machine suffers, one is left, and all come back.
func TestPressureNarrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := balance.NewSlots(8, balance.Limits{Queue: 8}, balance.Clock{})
		var suffers atomic.Bool
		p := &Pressure{queues: []*balance.Slots{slots}, stop: make(chan struct{})}
		p.suffers = suffers.Load
		p.done.Go(p.run)
		defer p.Close()
		after := func(d time.Duration, least, most int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n := slots.Limit(); n < least || n > most || slots.Size() != 8 {
				t.Errorf("%d of %d slots, want %d to %d", n, slots.Size(), least, most)
			}
		}
		suffers.Store(true)
		after(time.Minute, 8, 8) // no slot is in use, so the pressure has another cause
		release, _, err := slots.Acquire(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		after(2*pressureStep, 2, 6)
		after(time.Hour, 1, 1)
		suffers.Store(false)
		after(5*pressureStep, 2, 7)
		after(time.Minute, 8, 8)
		release()
	})
}

func TestPressureStaysWithinBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		part := 1.0
		for _, suffers := range rapid.SliceOf(rapid.Bool()).Draw(t, "suffers") {
			was := part
			if part = next(part, suffers); part <= 0 || part > 1 || suffers && part > was || !suffers && part < was {
				t.Fatalf("%v after %v", part, was)
			}
		}
	})
}

func TestLateness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where time passes as it should
		l := &lateness{busy: func() bool { return true }, stop: make(chan struct{})}
		go l.run()
		time.Sleep(time.Minute)
		synctest.Wait()
		if l.look() {
			t.Error("nobody was late")
		}
		l.late.Add(lateMost + 1)
		if !l.look() || l.look() {
			t.Error("what was late is told once")
		}
		close(l.stop)
	})
}

func TestMemory(t *testing.T) {
	t.Parallel()
	const calm = "some avg10=0.50 avg60=40.00 avg300=0.00 total=1\nfull avg10=90.00 avg60=0 avg300=0 total=1\n"
	most := map[string]int64{"calm": 1_024_000, "machine full": 1_024_000, "group full": 100, "group above full": 100,
		"group full of files": 100}
	const info = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 500 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  bool
	}{
		{"nothing is told", nil, false},
		{"calm", map[string]string{"proc/pressure/memory": calm, "proc/meminfo": info}, false},
		{"stalled", map[string]string{"proc/pressure/memory": "some avg10=10.01 avg60=0\n"}, true},
		{"machine full", map[string]string{"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 49 kB\n"}, true},
		{"group without a limit", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/b/memory.current": "100\n",
		}, false},
		{"group full", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "100\n", "sys/fs/cgroup/a/b/memory.current": "91\n",
		}, true},
		{"group full of files", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "100\n",
			"sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 50\n",
		}, false},
		{"group stalled", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n",
			"sys/fs/cgroup/memory.pressure": "some avg10=80.00 avg60=0\n",
			"proc/pressure/memory":          calm,
		}, true},
		{"group above full", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/memory.max": "100\n", "sys/fs/cgroup/a/memory.current": "95\n",
		}, true},
		{"no way out", map[string]string{"proc/self/cgroup": "0::/../../..\n"}, false},
		{"nonsense", map[string]string{"proc/self/cgroup": "x\n:\n::\n", "proc/pressure/memory": "some avg10=",
			"proc/meminfo": "MemTotal:\n"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m := newMemory(root)
			if got := m.short(); got != c.want {
				t.Errorf("short: %v, want %v", got, c.want)
			}
			if got := m.most(); got != most[c.name] {
				t.Errorf("there are %d bytes, want %d", got, most[c.name])
			}
		})
	}
}
