package matrix

import (
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// look is one look at the processes of a cell.
type look struct {
	at   time.Duration // since the watch began
	cpu  []cpuTimes    // of each station, since the watch began
	run  int           // threads of all stations that run or want to
	busy int           // the same of the whole machine
}

// cpuTimes are the CPU times of a process and of its children.
type cpuTimes struct{ own, children time.Duration }

// cellWatch looks at a cell's processes again and again until it is stopped.
type cellWatch struct {
	quit chan struct{}
	done chan struct{}
	once sync.Once

	// Below: to be read once done is closed.
	looks []look
	anon  []int64
}

// watchCell begins to watch.
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
			k := look{at: time.Since(start), busy: loadgen.MachineRunnable()}
			for i, tree := range trees {
				tree.Scan()
				k.run += tree.Runnable()
				now := treeTimes(tree)
				k.cpu = append(k.cpu, cpuTimes{now.own - first[i].own, max(now.children-first[i].children, 0)})
				w.anon[i] = max(w.anon[i], tree.Anon())
			}
			w.looks = append(w.looks, k)
		}
	}()
	return w, nil
}

func treeTimes(t *loadgen.ProcTree) cpuTimes {
	own := t.Own()
	return cpuTimes{own, max(t.Cpu()-own, 0)}
}

// stop ends the watch with a last look. It may be called again.
func (w *cellWatch) stop() {
	w.once.Do(func() { close(w.quit) })
	<-w.done
}

// usage is what a station used in all, and how much of the CPU time without its children.
func (w *cellWatch) usage(station int) (loadgen.TreeUsage, time.Duration) {
	t := w.looks[len(w.looks)-1].cpu[station]
	return loadgen.TreeUsage{Cpu: t.own + t.children, Anon: w.anon[station]}, t.own
}

// load is how many threads ran or wanted to on average: of the stations, and of the whole machine. The last look, at
// the end of the last answer, does not count if there are others.
func (w *cellWatch) load() (stations, machine float64) {
	looks := w.looks
	if len(looks) > 1 {
		looks = looks[:len(looks)-1]
	}
	for _, k := range looks {
		stations += float64(k.run)
		machine += float64(k.busy)
	}
	n := float64(len(looks))
	return stations / n, machine / n
}
