// Package watchdog notices that its process gets no work done, and writes down what it looked like at that moment:
// stacks, profiles, the last seconds of the execution trace, the tree of processes. Afterwards is too late: a process
// that is locked up accepts no connection for a profiler.
//
// It looks every second or two at signs that cost next to nothing (see signs): goroutines that were runnable and did
// not run, goroutines that wait for locks, threads that are in the kernel, the start of a git process that does not
// come to an end, and probes: small requests through the process's own listeners, small accesses to its disks. A sign
// that lasts makes a dump.
//
// It has to work when nothing else does. So it shares no lock with anything it watches; what it writes is put together
// in memory first; each part has a time limit and is given up when it is over; files are written by goroutines that may
// hang in a disk, and then another directory is tried; and it logs last, from a goroutine of its own. What it cannot
// survive is a runtime that runs no goroutine at all, as with a thread that waits in a page fault while the collector
// stops the world: docs/explanation/watchdog.md says what helps then.
//
// Dumps are bounded in number and bytes, leave a part of the disk free, and come at intervals that grow while a sign
// lasts.
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
)

// Options of a Watchdog.
type Options struct {
	Dir   string // for dumps; made with mode 0700
	Spare string // for those that Dir does not take; "": there is none

	Stall    time.Duration // how long a sign lasts before there is a dump
	Blocked  int           // goroutines that wait for locks, or are in system calls, so many of them are a sign
	Interval time.Duration // the least time between two dumps that nobody asked for; it doubles while signs last
	Count    int           // of dumps that are kept
	MaxBytes int64         // of them all
	MinFree  int64         // bytes that stay free on their disk
	Trace    int64         // bytes of memory for the last seconds of the execution trace; 0: none is kept
	Profile  time.Duration // how long a dump's CPU profile takes

	Probes   []Probe
	Starting func() time.Duration // for how long a git process has been started and is not; nil: there are none
	Parts    []Part               // more for each dump
	Redact   func(string) string  // takes out of command lines what no log may show; nil: nothing
	About    string               // the process, for people: its role and version
	Log      *slog.Logger
	Stderr   io.Writer // gets stacks that no directory takes; nil: nobody does
	Metrics  *Metrics  // nil: nobody looks

	patience     time.Duration // how long making a part of a dump may take; 0: partPatience
	diskPatience time.Duration // how long a directory may take for anything; 0: partPatience
}

// Part is a file of a dump. Write is given up when it takes too long, and not called again before it has returned.
type Part struct {
	Name  string
	Write func(io.Writer) error
}

// The causes of dumps that have no sign.
const (
	CauseAsked  = "asked"  // over the admin socket, or the private listener
	CauseSignal = "signal" // SIGQUIT
)

// Watchdog watches over its process until Close. It is safe for concurrent use.
type Watchdog struct {
	Options
	recorder *recorder
	places   []*place
	probes   []*probe

	stop    context.CancelFunc
	stopped context.Context
	work    sync.WaitGroup // goroutines that end soon after stop
	lines   chan func()    // for the log, in order

	mu      sync.Mutex // held for steps only
	running *attempt
	busy    map[string]bool // parts that are being written, perhaps since an earlier dump

	// Of the goroutine that looks.
	signs     signs
	bad       bool // the last look found a sign
	notBefore time.Time
	lasted    int       // dumps in a row without a quiet interval between them
	lastSign  time.Time // when one was seen that is worth a dump
}

// Start begins to watch.
func Start(o Options) *Watchdog {
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	o.patience, o.diskPatience = cmp.Or(o.patience, partPatience), cmp.Or(o.diskPatience, partPatience)
	if o.Redact == nil {
		o.Redact = func(s string) string { return s }
	}
	w := &Watchdog{Options: o, busy: map[string]bool{}, lines: make(chan func(), 16)}
	w.stopped, w.stop = context.WithCancel(context.Background())
	for _, dir := range []string{o.Dir, o.Spare} {
		if dir != "" {
			w.places = append(w.places, newPlace(dir, &w.Options, len(w.places) > 0))
		}
	}
	sampleLocks()
	if o.Trace > 0 {
		var err error
		if w.recorder, err = newRecorder(o.Trace, o.Stall); err != nil {
			o.Log.Warn("no execution trace is kept for dumps", "error", err)
		}
	}
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

// sampleLocks has the runtime note who waits for whom: one of a hundred waits for a lock, and what was blocked for 10
// ms and more (of what was for less, a part that is as large as it is to 10 ms).
func sampleLocks() {
	runtime.SetMutexProfileFraction(100)
	runtime.SetBlockProfileRate(int((10 * time.Millisecond).Nanoseconds()))
}

// closePatience is how long Close waits for what may hang.
const closePatience = 2 * time.Second

// Close ends the watching. It waits for a dump that is being written, and for probes, but not for those that hang.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.stop() // no dump begins after it
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
	w.recorder.stop()
}

// tick is the time between two looks.
func (w *Watchdog) tick() time.Duration {
	return min(max(w.Stall/5, 50*time.Millisecond), 2*time.Second)
}

// look takes a reading at each tick, and has a dump written when it is bad for too long.
func (w *Watchdog) look() {
	w.signs = newSigns(w.Stall, w.Blocked)
	ruler := ruler{stall: w.Stall}
	for {
		due := time.Now().Add(w.tick())
		select {
		case <-w.stopped.Done():
			return
		case <-time.After(w.tick()):
		}
		now := time.Now()
		r := ruler.read(now, w.Blocked, !w.startHangs())
		r.late = now.Sub(due)
		if w.Starting != nil {
			r.starting = w.Starting()
		}
		for _, p := range w.probes {
			r.probes = append(r.probes, probing{p.Name, p.waiting(now)})
		}
		w.Metrics.traces(w.recorder.pace(now, r.switches))
		found := w.signs.judge(r)
		w.Metrics.looked(r, found)
		w.bark(now, found)
	}
}

// startHangs reports whether the start of a process takes long. While it does, the goroutine that starts it cannot be
// stopped (a child of vfork(2) has its memory), and whatever stops the world waits for it, with all others: that must
// not be ours.
func (w *Watchdog) startHangs() bool { return w.Starting != nil && w.Starting() >= time.Second }

// bark has a dump written for signs, unless there was one for them a short time ago.
func (w *Watchdog) bark(now time.Time, found []finding) {
	begins := !w.bad
	if w.bad = len(found) > 0; !w.bad {
		return
	}
	again := now.Sub(w.lastSign) < w.Interval && !w.lastSign.IsZero()
	w.lastSign = now
	if again && now.Before(w.notBefore) { // after a quiet interval it is another incident, and gets a dump
		if begins {
			w.Metrics.skipped.Inc()
		}
		return
	}
	w.lasted++
	if !again {
		w.lasted = 0
	}
	w.notBefore = now.Add(w.Interval << min(w.lasted, 6))
	why := make([]string, len(found))
	for i, f := range found {
		why[i] = f.why
	}
	w.begin(found[0].sign, slices.Clip(why))
}

// Dump writes one now, or waits for the one that is being written, until ctx ends.
func (w *Watchdog) Dump(ctx context.Context, cause, why string) (Dump, error) {
	a := w.begin(cause, []string{why})
	select {
	case <-a.done:
		return a.dump, a.err
	case <-ctx.Done():
		return Dump{}, context.Cause(ctx)
	}
}

// attempt is a dump that is being written.
type attempt struct {
	dump Dump
	err  error
	done chan struct{}
}

var errEnded = errors.New("the watchdog has ended")

// begin starts to write a dump unless one is being written, or the watchdog has ended.
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
		w.Metrics.wrote(cause, a.err)
		close(a.done)
		w.tell(cause, why, a)
	})
	return a
}

// tell logs a dump.
func (w *Watchdog) tell(cause string, why []string, a *attempt) {
	attrs := []any{"cause", cause, "why", strings.Join(why, "; ")}
	switch asked := cause == CauseAsked || cause == CauseSignal; {
	case a.err != nil:
		w.say(func() { w.Log.Error("cannot write a dump", append(attrs, "error", a.err)...) })
	case asked:
		w.say(func() { w.Log.Info("a dump was written", append(attrs, "dir", a.dump.Dir)...) })
	default:
		w.say(func() {
			w.Log.Warn("the process gets too little done; a dump was written", append(attrs, "dir", a.dump.Dir)...)
		})
	}
}

// say has a line logged, when the log takes it.
func (w *Watchdog) say(line func()) {
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
			for { // what was said before the end
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
