package loadgen

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// TreeUsage is what a process and its descendants used while they were watched.
type TreeUsage struct {
	Cpu  time.Duration // user and system
	Anon int64         // greatest sum of anonymous resident bytes
	// The most resident bytes, mapped files included, of the process itself, and of all below it together, which may count
	// a file more than once.
	Rss, ChildRSS int64
}

// TreeSample is how often a process tree is looked at: often enough for git's children, seldom enough to cost nothing.
const TreeSample = 100 * time.Millisecond

// TreeWatch samples a process tree until it is stopped.
type TreeWatch struct {
	once   sync.Once
	quit   chan struct{}
	done   chan struct{}
	result *TreeUsage
	cpu    atomic.Int64 // used so far, nanoseconds
}

// WatchTree begins to watch; pid 0 watches nothing.
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

// Stop ends the watch and returns what was used; nil if nothing was watched. It may be called again.
func (w *TreeWatch) Stop() *TreeUsage {
	if w.quit == nil {
		return nil
	}
	w.once.Do(func() { close(w.quit) })
	<-w.done
	return w.result
}

// Sofar is the CPU time used so far; false if nothing is watched. It is as old as a sample.
func (w *TreeWatch) Sofar() (time.Duration, bool) {
	return time.Duration(w.cpu.Load()), w.quit != nil
}
