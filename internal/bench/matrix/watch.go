package matrix

import (
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// sample has the usage of a cell's processes at one time.
type sample struct {
	at   time.Duration // since the start of the watch
	cpu  []cpuTimes    // of each station, since the watch began
	run  int           // running and runnable threads of all stations
	busy int           // the same of the whole machine
}

// cpuTimes are the CPU times of a process and of its children.
type cpuTimes struct{ own, children time.Duration }

// cellWatch samples at a cell's processes again and again until it is stopped.
type cellWatch struct {
	quit chan struct{}
	done chan struct{}
	once sync.Once

	// The fields below may be read after done is closed.
	samples []sample
	anon    []int64
}

// watchCell starts watching.
func watchCell(l *lineup) (*cellWatch, error) {
	w := &cellWatch{quit: make(chan struct{}), done: make(chan struct{}), anon: make([]int64, len(l.stations))}
	var trees []*loadgen.ProcTree
	var first []cpuTimes
	for _, s := range l.stations {
		tree, err := loadgen.NewProcTree(s.Pid)
		if err != nil {
			return nil, err
		}
		trees, first = append(trees, tree), append(first, treeTimes(tree))
	}
	start := time.Now()
	go func() {
		defer close(w.done)
		tick := time.NewTicker(loadgen.TreeSample)
		defer tick.Stop()
		for running := true; running; {
			select {
			case <-w.quit:
				running = false
			case <-tick.C:
			}
			k := sample{at: time.Since(start), busy: loadgen.MachineRunnable()}
			for i, tree := range trees {
				tree.Scan()
				k.run += tree.Runnable()
				now := treeTimes(tree)
				k.cpu = append(k.cpu, cpuTimes{now.own - first[i].own, max(now.children-first[i].children, 0)})
				w.anon[i] = max(w.anon[i], tree.Anon())
			}
			w.samples = append(w.samples, k)
		}
	}()
	return w, nil
}

func treeTimes(t *loadgen.ProcTree) cpuTimes {
	own := t.Own()
	return cpuTimes{own, max(t.Cpu()-own, 0)}
}

// stop ends the watch with a last sample. It may be called again.
func (w *cellWatch) stop() {
	w.once.Do(func() { close(w.quit) })
	<-w.done
}

// usage returns the usage of a station, and its CPU time without its children.
func (w *cellWatch) usage(station int) (loadgen.TreeUsage, time.Duration) {
	t := w.samples[len(w.samples)-1].cpu[station]
	return loadgen.TreeUsage{Cpu: t.own + t.children, Anon: w.anon[station]}, t.own
}

// load returns the average number of running and runnable threads of the stations and of the whole machine. The last
// sample, at the end of the last response, does not count if there are others.
func (w *cellWatch) load() (stations, machine float64) {
	samples := w.samples
	if len(samples) > 1 {
		samples = samples[:len(samples)-1]
	}
	for _, k := range samples {
		stations += float64(k.run)
		machine += float64(k.busy)
	}
	n := float64(len(samples))
	return stations / n, machine / n
}
