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

// Signs that nothing gets done; the causes of dumps, and values of a label.
const (
	signScheduler = "scheduler" // goroutines that can run do not
	signSpawn     = "spawn"     // a git process is started and does not come to be
	signMutex     = "mutex"     // many wait for locks
	signSyscall   = "syscall"   // many are in system calls
	signProbe     = "probe"     // a probe is not answered
)

var allSigns = []string{signScheduler, signSpawn, signMutex, signSyscall, signProbe}

// reading is what the process looks like at one moment.
type reading struct {
	at   time.Time
	late time.Duration // how long after its time our own timer woke us
	// part of what was scheduled since the last reading that had waited for a second and more: 0 to 1
	slow     float64
	switches float64 // to goroutines since the last reading, in a second on each CPU
	locks    int     // goroutines that wait for locks
	syscalls int     // goroutines that are in system calls, or in C
	starting time.Duration
	probes   []probing
}

// probing is for how long a probe has not been answered.
type probing struct {
	name string
	d    time.Duration
}

// slowPart is how much of what is scheduled may wait for a second.
const slowPart = 0.01

// finding is a sign that is worth a dump.
type finding struct{ sign, why string }

// signs remembers since when there are which. What lasts by its nature (a probe, a start) counts as soon as it has
// lasted for stall; numbers, which come and go, when each reading for as long was bad.
type signs struct {
	stall   time.Duration
	blocked int
	since   map[string]time.Time
}

func newSigns(stall time.Duration, blocked int) signs {
	return signs{stall, blocked, map[string]time.Time{}}
}

// judge tells which signs are worth a dump now, those that say most about the cause first.
func (s *signs) judge(r reading) (found []finding) {
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

// lasts reports whether something has been bad for stall.
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

// ruler reads what the runtime tells of itself.
type ruler struct {
	stall   time.Duration
	samples []metrics.Sample
	at      time.Time
	counts  []uint64 // of the histogram of latencies
	waited  float64  // seconds, all waits for locks that are over

	records  []runtime.StackRecord
	waits    map[uintptr]bool // whether an address is in a function in which one waits for a lock
	nextLook time.Time
	locks    int // what the last look found
}

const (
	latencies  = "/sched/latencies:seconds"
	lockWaits  = "/sync/mutex/wait/total:seconds"
	inSyscalls = "/sched/goroutines/not-in-go:goroutines"
)

// read takes a reading; with stacks, which stop the world for a moment, or without.
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
	// What waits still is not in the runtime's sum, and what has waited is in no stack: whichever is more.
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

// sampled is of how many switches the runtime notes one (gTrackingPeriod).
const sampled = 8

// scheduled tells of the latencies since the last call how many there are, and which part is a second and more.
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

// What looking at stacks costs: a part of the time in so many, or of a busy machine's, where a look takes long and what
// it finds is wanted soon.
const (
	lookCost     = 500
	lookCostBusy = 50
)

// manyStacks are too many to look at: 29 MB of memory, and a pause for all of them. What has waited for locks still
// tells.
const manyStacks = 100_000

// waiting counts the goroutines that wait for locks now, as soon as there are enough goroutines for too many.
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

// lockFunctions are where one waits for a sync.Mutex or a sync.RWMutex.
var lockFunctions = []string{"runtime_SemacquireMutex", "runtime_SemacquireRWMutex", "runtime_SemacquireRWMutexR"}

// waitsForLock looks at the innermost functions of a stack.
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
