package loadgen

import (
	"errors"
	"sync"
	"time"
)

// TreeUsage is the resource usage of a process and its descendants.
type TreeUsage struct {
	Cpu  time.Duration // user and system
	Own  time.Duration // the part of the process without its descendants
	Load float64       // average number of running and runnable threads
	Anon int64         // maximum sum of anonymous resident bytes
	Rss  int64         // maximum of the resident bytes of the process, including mapped files
}

// TreeSample is the sampling interval. It is short enough to catch git's children, and long enough to cost little CPU.
const TreeSample = 100 * time.Millisecond

// TreeWatch samples a process tree until it is stopped.
type TreeWatch struct {
	once   sync.Once
	quit   chan struct{}
	done   chan struct{}
	result *TreeUsage
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
	start, own := tree.Cpu(), tree.Own()
	w.quit, w.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.done)
		peak := tree.Anon()
		rss := tree.rss()
		runnable, samples := 0, 0
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
			rss = max(rss, tree.rss())
			if running || samples == 0 { // not at the end of the last response
				runnable, samples = runnable+tree.Runnable(), samples+1
			}
		}
		w.result = &TreeUsage{Cpu: tree.Cpu() - start, Own: tree.Own() - own, Load: float64(runnable) / float64(samples),
			Anon: peak, Rss: rss}
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

// During returns the CPU time of the tree during a call.
func (t *ProcTree) During(call func()) time.Duration {
	t.Scan()
	before := t.Cpu()
	call()
	t.Scan()
	return t.Cpu() - before
}
