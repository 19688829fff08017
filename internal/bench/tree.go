package bench

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// treeUsage is what a process and its descendants used while they were watched.
type treeUsage struct {
	cpu  time.Duration // user and system
	anon int64         // greatest sum of anonymous resident bytes
	// The most resident bytes, mapped files included, of the process itself, and of all below it together, which may count a file more than once.
	rss, childRSS int64
}

// treeSample is how often a process tree is looked at: often enough for git's children, seldom enough to cost nothing.
const treeSample = 100 * time.Millisecond

// treeWatch samples a process tree until it is stopped.
type treeWatch struct {
	once   sync.Once
	quit   chan struct{}
	done   chan struct{}
	result *treeUsage
	cpu    atomic.Int64 // used so far, nanoseconds
}

// watchTree begins to watch; pid 0 watches nothing.
func watchTree(pid int) (*treeWatch, error) {
	w := &treeWatch{}
	if pid == 0 {
		return w, nil
	}
	if pid < 0 {
		return nil, errors.New("--server-pid: want a process ID")
	}
	tree, err := newProcTree(pid)
	if err != nil {
		return nil, err
	}
	start := tree.cpu()
	w.quit, w.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.done)
		peak := tree.anon()
		rss, childRSS := tree.rss()
		tick := time.NewTicker(treeSample)
		defer tick.Stop()
		for running := true; running; {
			select {
			case <-w.quit:
				running = false
			case <-tick.C:
			}
			tree.scan()
			peak = max(peak, tree.anon())
			own, children := tree.rss()
			rss, childRSS = max(rss, own), max(childRSS, children)
			w.cpu.Store(int64(tree.cpu() - start))
		}
		w.result = &treeUsage{cpu: tree.cpu() - start, anon: peak, rss: rss, childRSS: childRSS}
	}()
	return w, nil
}

// stop ends the watch and returns what was used; nil if nothing was watched. It may be called again.
func (w *treeWatch) stop() *treeUsage {
	if w.quit == nil {
		return nil
	}
	w.once.Do(func() { close(w.quit) })
	<-w.done
	return w.result
}

// sofar is the CPU time used so far; false if nothing is watched. It is as old as a sample.
func (w *treeWatch) sofar() (time.Duration, bool) {
	return time.Duration(w.cpu.Load()), w.quit != nil
}
