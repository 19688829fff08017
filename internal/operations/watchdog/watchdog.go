// Package watchdog detects that its process makes no progress, and writes a dump of it: stacks, profiles, and the tree
// of processes. Afterwards would be too late, because a process that is locked up accepts no connection of a profiler.
//
// Every second or two the watchdog checks whether runnable goroutines run. It also sends probes: small requests through
// the process's own listeners, and small accesses to its disks. A sign that lasts causes a dump.
//
// The watchdog has to work when nothing else does. It shares no lock with the code that it watches. It makes a part of
// a dump in memory first, and gives it up after a time limit. Goroutines that may hang in a disk write the files; if
// they do, the stacks go to standard error. It logs last, from a separate goroutine. It cannot work if the runtime runs
// no goroutine at all, for example with a thread in a page fault while the collector stops the world.
// docs/explanation/watchdog.md names the remedy.
//
// Dumps are limited in number and bytes, leave free space on the disk, and become rarer while a sign lasts.
package watchdog

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// Options configure a Watchdog.
type Options struct {
	Dir      string        // directory of dumps, created with mode 0700
	Stall    time.Duration // time that a sign lasts before a dump
	Interval time.Duration // minimum time between two automatic dumps, doubles while signs last
	Profile  time.Duration // duration of a dump's CPU profile

	Probes   []Probe
	Starting func() time.Duration // age of the oldest unfinished start of a git process, may be nil
	Parts    []Part               // further parts of each dump
	Redact   func(string) string  // removes secrets from command lines, may be nil
	About    string               // role and version of the process
	Log      *slog.Logger
	Stderr   io.Writer // receives stacks if the directory does not take a dump, may be nil
	Metrics  *Metrics  // may be nil

	patience     time.Duration // time limit for one part of a dump, by default partPatience
	diskPatience time.Duration // time limit for one disk operation, by default partPatience
	maxDump      int64         // by default maxDump
}

// Part is a file of a dump. A call of Write that takes too long is abandoned. Write is not called again before it
// returns.
type Part struct {
	Name  string
	Write func(io.Writer) error
}

// Causes of dumps without a sign.
const (
	CauseAsked  = "asked"  // requested over the admin socket
	CauseSignal = "signal" // SIGQUIT
)

// Watchdog watches over its process until Close. It is safe for concurrent use.
type Watchdog struct {
	Options
	place  *place
	probes []*probe

	stop    context.CancelFunc
	stopped context.Context
	work    sync.WaitGroup // goroutines that end soon after stop
	lines   chan func()    // log lines, in order

	mu      sync.Mutex // held for short steps only
	running *attempt
	busy    map[string]bool // parts that are being written, possibly since an earlier dump

	// Used by the goroutine that reads signs.
	signs     signs
	notBefore time.Time
	lasted    int       // consecutive dumps without a quiet interval
	lastSign  time.Time // time of the last sign that deserved a dump
}

// Start starts a watchdog.
func Start(o Options) *Watchdog {
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	o.patience, o.diskPatience = cmp.Or(o.patience, partPatience), cmp.Or(o.diskPatience, partPatience)
	if o.Redact == nil {
		o.Redact = func(s string) string { return s }
	}
	w := &Watchdog{Options: o, busy: map[string]bool{}, lines: make(chan func(), 16)}
	w.stopped, w.stop = context.WithCancel(context.Background())
	w.place = &place{dir: o.Dir, maxDump: cmp.Or(o.maxDump, maxDump), patience: o.diskPatience}
	runtime.SetMutexProfileFraction(100) // one of a hundred waits for a mutex
	for _, p := range o.Probes {
		one := &probe{Probe: p, made: time.Now()}
		w.probes = append(w.probes, one)
		o.Metrics.probe(one)
		w.work.Go(func() { one.run(w.stopped, w.tick(), 2*o.Stall) })
	}
	w.work.Go(w.logLines)
	w.work.Go(w.look)
	return w
}

// closePatience is the time limit of Close for operations that may hang.
const closePatience = 2 * time.Second

// Close stops the watchdog. It waits for a running dump and for probes, but not for operations that hang.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.stop() // no dump starts afterwards
	w.mu.Unlock()
	done := make(chan struct{})
	go func() {
		w.work.Wait()
		close(done)
	}()
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}

// tick returns the time between two readings.
func (w *Watchdog) tick() time.Duration {
	return min(max(w.Stall/5, 50*time.Millisecond), 2*time.Second)
}

// look takes a reading at each tick, and starts a dump when a sign lasts too long.
func (w *Watchdog) look() {
	w.signs = signs{stall: w.Stall}
	var ruler ruler
	for {
		due := time.Now().Add(w.tick())
		select {
		case <-w.stopped.Done():
			return
		case <-time.After(w.tick()):
		}
		now := time.Now()
		r := reading{at: now, late: now.Sub(due), slow: ruler.read()}
		for _, p := range w.probes {
			r.probes = append(r.probes, probing{p.Name, p.waiting(now)})
		}
		found := w.signs.findings(r)
		w.Metrics.looked(r, found)
		w.bark(now, found)
	}
}

// startHangs reports whether the start of a process takes long. Meanwhile its goroutine cannot be stopped, because a
// child of vfork(2) has its memory. An operation that stops the world would wait for it together with all goroutines,
// so the watchdog must not start one.
func (w *Watchdog) startHangs() bool { return w.Starting != nil && w.Starting() >= time.Second }

// bark starts a dump for signs, unless there was a recent one.
func (w *Watchdog) bark(now time.Time, found []finding) {
	if len(found) == 0 {
		return
	}
	again := now.Sub(w.lastSign) < w.Interval && !w.lastSign.IsZero()
	w.lastSign = now
	if again && now.Before(w.notBefore) { // after a quiet interval it is a new incident, which gets a dump
		return
	}
	w.lasted++
	if !again {
		w.lasted = 0
	}
	w.notBefore = now.Add(retry.Policy{First: w.Interval, Max: 64 * w.Interval}.Pause(w.lasted + 1))
	why := make([]string, len(found))
	for i, f := range found {
		why[i] = f.why
	}
	w.begin(found[0].sign, slices.Clip(why))
}

// Dump writes a dump, or waits for the running one, until ctx ends.
func (w *Watchdog) Dump(ctx context.Context, cause, why string) (Dump, error) {
	a := w.begin(cause, []string{why})
	select {
	case <-a.done:
		return a.dump, a.err
	case <-ctx.Done():
		return Dump{}, context.Cause(ctx)
	}
}

// attempt is a running dump.
type attempt struct {
	dump Dump
	err  error
	done chan struct{}
}

var errEnded = errors.New("the watchdog has ended")

// begin starts a dump, unless one is running or the watchdog is closed.
func (w *Watchdog) begin(cause string, why []string) *attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running != nil {
		return w.running
	}
	a := &attempt{done: make(chan struct{})}
	if w.stopped.Err() != nil {
		a.err = errEnded
		close(a.done)
		return a
	}
	w.running = a
	w.work.Go(func() {
		a.dump, a.err = w.write(cause, why)
		w.mu.Lock()
		w.running = nil
		w.mu.Unlock()
		if a.err == nil {
			w.Metrics.dumps.WithLabelValues(cause).Inc()
		}
		close(a.done)
		w.logDump(cause, why, a)
	})
	return a
}

// logDump logs a dump.
func (w *Watchdog) logDump(cause string, why []string, a *attempt) {
	attrs := []any{"cause", cause, "reason", strings.Join(why, "; ")}
	switch asked := cause == CauseAsked || cause == CauseSignal; {
	case a.err != nil:
		w.enqueue(func() { w.Log.Error("cannot write a dump", append(attrs, "error", a.err)...) })
	case asked:
		w.enqueue(func() { w.Log.Info("a dump was written", append(attrs, "dir", a.dump.Dir)...) })
	default:
		w.enqueue(func() {
			w.Log.Warn("the process makes too little progress; a dump was written", append(attrs, "dir", a.dump.Dir)...)
		})
	}
}

// enqueue adds a log line. It is written when the log accepts it.
func (w *Watchdog) enqueue(line func()) {
	select {
	case w.lines <- line:
	default:
	}
}

func (w *Watchdog) logLines() {
	for {
		select {
		case line := <-w.lines:
			line()
		case <-w.stopped.Done():
			for { // lines from before the end
				select {
				case line := <-w.lines:
					line()
				default:
					return
				}
			}
		}
	}
}
