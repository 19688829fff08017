package search_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/search"
)

// One process indexes many small repositories.
func TestManyJobsTakeFewProcesses(t *testing.T) {
	t.Parallel()
	s := newSource()
	const n = 40
	for i := range n {
		s.push(fmt.Sprintf("team/app%d", i), main, files{"f": fmt.Sprintf("needle %d", i)})
	}
	o := options(t, s)
	var ended atomic.Int64
	o.Account = func(*os.ProcessState) { ended.Add(1) }
	e := search.New(o)
	await(t, e, "needle", has(n))
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	// one has examined the index, one searches, and one has done the jobs, unless it had to wait for long
	if got := ended.Load(); got < 3 || got > n/2 {
		t.Errorf("got %d ended processes for %d jobs, want 3 to %d", got, n, n/2)
	}
}

// A process that dies takes no more than its own job with it, and none while it waits for one.
//
// Not parallel: it kills the processes of other tests as well.
func TestIndexerOfManyIsKilled(t *testing.T) {
	needLinux(t)
	s := newSource()
	s.push("one", main, files{"f": "needle"})
	s.push("two", main, files{"f": "needle"})
	o := options(t, s)
	e := start(t, o)
	await(t, e, "needle", has(2))
	kill := func() {
		for _, pid := range children(t, search.WorkIndex, o.Dir) {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	kill()
	s.push("three", main, files{"f": "needle"})
	await(t, e, "needle", has(3))

	hold := make(chan struct{})
	s.mu.Lock()
	s.hold = hold
	s.mu.Unlock()
	s.push("four", main, files{"f": "needle", "g": "needle"})
	eventually(t, "a job runs", func() bool { return len(e.Status(nil).Jobs) == 1 })
	kill()
	close(hold)
	await(t, e, "needle", has(5))
	if status := e.Status(nil); status.Deaths != 0 {
		t.Errorf("%+v", status)
	}
}

// A process that ends before it has taken the next job has not failed at that.
//
// Not parallel: it kills the processes of other tests as well.
func TestIdleIndexerIsKilled(t *testing.T) {
	needLinux(t)
	s := newSource()
	s.push("one", main, files{"f": "needle"})
	o := options(t, s)
	log := newSaying(o.Log)
	o.Log = slog.New(log)
	e := start(t, o)
	await(t, e, "needle", has(1))
	eventually(t, "nothing is indexed", func() bool { return len(e.Status(nil).Jobs) == 0 })
	idle := children(t, search.WorkIndex, o.Dir)
	for _, pid := range idle { // so that it does not read its next job
		unix.Kill(pid, unix.SIGSTOP)
	}
	s.push("two", main, files{"f": "needle"})
	// or it is being retired
	for end := time.Now().Add(10 * time.Second); len(e.Status(nil).Jobs) == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, pid := range idle {
		unix.Kill(pid, unix.SIGKILL)
	}
	await(t, e, "needle", has(2))
	if text := log.String(); strings.Contains(text, "could not be indexed") {
		t.Errorf("with %d idle processes the log says:\n%s", len(idle), text)
	}
}
