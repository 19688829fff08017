package loadgen

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// TreeUsage is the resource usage of a process and its descendants.
type TreeUsage struct {
	Cpu  time.Duration // user and system
	Anon int64         // maximum sum of anonymous resident bytes
	// Rss is the maximum number of resident bytes of the process, including mapped files. ChildRSS is that of all its
	// descendants together, and may count a file several times.
	Rss, ChildRSS int64
}

// TreeSample is the sampling interval. It is short enough to catch git's children, and long enough to cost little CPU.
const TreeSample = 100 * time.Millisecond

// TreeWatch samples a process tree until it is stopped.
type TreeWatch struct {
	once   sync.Once
	quit   chan struct{}
	done   chan struct{}
	result *TreeUsage
	cpu    atomic.Int64 // CPU time as of the last sample, in nanoseconds
}

// WatchTree starts watching a process. With pid 0 it watches nothing.
func WatchTree(pid int) (*TreeWatch, error) {
	w := &TreeWatch{}
	if pid == 0 {
		return w, nil
	}
	if pid < 0 {
		return nil, errors.New("--server-pid: want a process ID")
	}
	tree, err := NewProcTree(pid)
	if err != nil {
		return nil, err
	}
	start := tree.Cpu()
	w.quit, w.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.done)
		peak := tree.Anon()
		rss, childRSS := tree.rss()
		tick := time.NewTicker(TreeSample)
		defer tick.Stop()
		for running := true; running; {
			select {
			case <-w.quit:
				running = false
			case <-tick.C:
			}
			tree.Scan()
			peak = max(peak, tree.Anon())
			own, children := tree.rss()
			rss, childRSS = max(rss, own), max(childRSS, children)
			w.cpu.Store(int64(tree.Cpu() - start))
		}
		w.result = &TreeUsage{Cpu: tree.Cpu() - start, Anon: peak, Rss: rss, ChildRSS: childRSS}
	}()
	return w, nil
}

// Stop ends the watch and returns the usage, or nil if nothing was watched. It may be called again.
func (w *TreeWatch) Stop() *TreeUsage {
	if w.quit == nil {
		return nil
	}
	w.once.Do(func() { close(w.quit) })
	<-w.done
	return w.result
}

// CPUSoFar returns the CPU time as of the last sample. It returns false if nothing is watched.
func (w *TreeWatch) CPUSoFar() (time.Duration, bool) {
	return time.Duration(w.cpu.Load()), w.quit != nil
}
