package watchdog

import (
	"fmt"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"time"
)

// Signs of missing progress. They are causes of dumps and values of a metric label.
const (
	signScheduler = "scheduler" // runnable goroutines do not run
	signSpawn     = "spawn"     // the start of a git process takes too long
	signMutex     = "mutex"     // many goroutines wait for locks
	signSyscall   = "syscall"   // many goroutines are in system calls
	signProbe     = "probe"     // a probe gets no answer
)

var allSigns = []string{signScheduler, signSpawn, signMutex, signSyscall, signProbe}

// reading has the measurements of one moment.
type reading struct {
	at   time.Time
	late time.Duration // delay of the watchdog's own timer
	// share of goroutine switches that came after a wait of a second or more: 0 to 1
	slow     float64
	switches float64 // goroutine switches since the last reading, per second and CPU
	locks    int     // goroutines that wait for locks
	syscalls int     // goroutines in system calls or in C
	starting time.Duration
	probes   []probing
}

// probing is the time since when a probe has had no answer.
type probing struct {
	name string
	d    time.Duration
}

// slowPart is the share of switches that may come after a wait of a second.
const slowPart = 0.01

// finding is a sign that deserves a dump.
type finding struct{ sign, why string }

// signs records since when each sign has been present. A sign that lasts by its nature (a probe, a start) counts as
// soon as it has lasted for stall. Numbers vary, so they count when each reading was bad for that long.
type signs struct {
	stall   time.Duration
	blocked int
	since   map[string]time.Time
}

func newSigns(stall time.Duration, blocked int) signs {
	return signs{stall, blocked, map[string]time.Time{}}
}

// findings returns the signs that deserve a dump now, the most specific ones first.
func (s *signs) findings(r reading) (found []finding) {
	add := func(bad bool, sign, format string, args ...any) {
		if bad {
			found = append(found, finding{sign, fmt.Sprintf(format, args...)})
		}
	}
	ms := time.Millisecond
	add(r.starting >= s.stall, signSpawn, "a git process has been starting for %v", r.starting.Round(ms))
	add(s.lasts(signMutex, r.at, r.locks >= s.blocked), signMutex, "%d goroutines wait for locks", r.locks)
	add(s.lasts(signSyscall, r.at, r.syscalls >= s.blocked), signSyscall, "%d goroutines are in system calls", r.syscalls)
	for _, p := range r.probes {
		add(p.d >= s.stall, signProbe, "the probe %q has had no answer for %v", p.name, p.d.Round(ms))
	}
	add(r.late >= s.stall, signScheduler, "the watchdog itself did not run for %v", r.late.Round(ms))
	add(s.lasts(signScheduler, r.at, r.slow > slowPart), signScheduler,
		"%.0f %% of the goroutines that could run waited for more than a second", r.slow*100)
	return found
}

// lasts reports whether a sign has been present for stall.
func (s *signs) lasts(sign string, now time.Time, bad bool) bool {
	if !bad {
		delete(s.since, sign)
		return false
	}
	began, ok := s.since[sign]
	if !ok {
		s.since[sign], began = now, now
	}
	return now.Sub(began) >= s.stall
}

// ruler reads the runtime's measurements.
type ruler struct {
	stall   time.Duration
	samples []metrics.Sample
	at      time.Time
	counts  []uint64 // of the histogram of latencies
	waited  float64  // seconds of all completed waits for locks

	records  []runtime.StackRecord
	waits    map[uintptr]bool // whether an address is in a function that waits for a lock
	nextLook time.Time
	locks    int // result of the last reading of stacks
}

const (
	latencies  = "/sched/latencies:seconds"
	lockWaits  = "/sync/mutex/wait/total:seconds"
	inSyscalls = "/sched/goroutines/not-in-go:goroutines"
)

// read takes a reading. Reading stacks stops the world for a moment.
func (l *ruler) read(now time.Time, blocked int, stacks bool) reading {
	if l.samples == nil {
		l.samples = []metrics.Sample{{Name: latencies}, {Name: lockWaits}, {Name: inSyscalls}}
	}
	metrics.Read(l.samples)
	r := reading{at: now}
	if v := l.samples[0].Value; v.Kind() == metrics.KindFloat64Histogram {
		var all uint64
		all, r.slow = l.scheduled(v.Float64Histogram())
		if d := now.Sub(l.at).Seconds(); !l.at.IsZero() && d > 0 {
			r.switches = float64(all) * sampled / d / float64(runtime.GOMAXPROCS(0))
		}
	}
	if v := l.samples[2].Value; v.Kind() == metrics.KindUint64 {
		r.syscalls = int(v.Uint64())
	}
	// Current waits are not in the runtime's sum, and completed ones are in no stack. The larger number counts.
	if stacks {
		r.locks = l.waiting(now, blocked)
	}
	if v := l.samples[1].Value; v.Kind() == metrics.KindFloat64 {
		if d := now.Sub(l.at).Seconds(); !l.at.IsZero() && d > 0 {
			r.locks = max(r.locks, int((v.Float64()-l.waited)/d))
		}
		l.waited = v.Float64()
	}
	l.at = now
	return r
}

// sampled is the number of switches of which the runtime records one (gTrackingPeriod).
const sampled = 8

// scheduled returns the number of latencies since the last call, and the share of those of a second or more.
func (l *ruler) scheduled(h *metrics.Float64Histogram) (all uint64, part float64) {
	var slow uint64
	first := l.counts == nil
	for i, n := range h.Counts {
		if i < len(l.counts) {
			n -= l.counts[i]
		}
		all += n
		if from := h.Buckets[i]; from >= 1 && !math.IsInf(from, 0) {
			slow += n
		}
	}
	l.counts = append(l.counts[:0], h.Counts...)
	if first || all == 0 {
		return 0, 0
	}
	return all, float64(slow) / float64(all)
}

// Limits for the cost of reading stacks: a share of the time, and a larger one on a busy machine, where reading takes
// long and its result is needed soon.
const (
	lookCost     = 500
	lookCostBusy = 50
)

// manyStacks is the number of goroutines above which stacks are not read, because that would take 29 MB of memory and a
// pause for all of them. Completed waits for locks still count.
const manyStacks = 100_000

// waiting returns the number of goroutines that wait for locks, if there are enough goroutines for a sign.
func (l *ruler) waiting(now time.Time, blocked int) int {
	n := runtime.NumGoroutine()
	if n < blocked {
		return 0
	}
	if n > manyStacks {
		l.records = nil
		return l.locks
	}
	if now.Before(l.nextLook) {
		return l.locks
	}
	if l.waits == nil {
		l.waits = map[uintptr]bool{}
	}
	if cap(l.records) < n+n/8 {
		l.records = make([]runtime.StackRecord, n+n/8+64)
	}
	l.records = l.records[:cap(l.records)]
	count, ok := runtime.GoroutineProfile(l.records)
	if !ok {
		return l.locks
	}
	l.locks = 0
	for i := range l.records[:count] {
		if l.waitsForLock(&l.records[i]) {
			l.locks++
		}
	}
	took := time.Since(now)
	l.nextLook = now.Add(min(took*lookCost, max(took*lookCostBusy, l.stall/2)))
	return l.locks
}

// lockFunctions are the functions that wait for a sync.Mutex or a sync.RWMutex.
var lockFunctions = []string{"runtime_SemacquireMutex", "runtime_SemacquireRWMutex", "runtime_SemacquireRWMutexR"}

// waitsForLock checks the innermost functions of a stack.
func (l *ruler) waitsForLock(r *runtime.StackRecord) bool {
	for _, pc := range r.Stack0[:6] {
		if pc == 0 {
			return false
		}
		is, known := l.waits[pc]
		if !known {
			if f := runtime.FuncForPC(pc - 1); f != nil {
				name := f.Name()
				is = slices.Contains(lockFunctions, name[strings.LastIndexByte(name, '.')+1:])
			}
			l.waits[pc] = is
		}
		if is {
			return true
		}
	}
	return false
}
