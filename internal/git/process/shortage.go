package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// Shortage is the error of a command that could not be started, even after retries, because the system had no room for
// another process or for its descriptors.
type Shortage struct {
	Of  string // "processes", "memory", "files"
	Err error
}

func (s *Shortage) Error() string { return fmt.Sprintf("the system is short of %s: %v", s.Of, s.Err) }
func (s *Shortage) Unwrap() error { return s.Err }

// shortageOf returns which resource was short, by the error of a start; "" for other errors. The limit of processes may
// be that of the user (RLIMIT_NPROC), the control group (pids.max) or the machine (fork(2), "ERRORS").
func shortageOf(err error) string {
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return "processes"
	case errors.Is(err, syscall.ENOMEM):
		return "memory"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "files"
	}
	return ""
}

const (
	firstPause    = 50 * time.Millisecond // between the first two attempts during a shortage; it doubles each time
	longestWait   = 2 * time.Second       // between them
	startPatience = 5 * time.Second       // maximum time that a command with a slot waits for the end of a shortage
	startLimit    = 30 * time.Second      // maximum time that it waits in total, if starts hang
)

// starter limits how many processes start at the same time, because each start keeps a CPU of the Go runtime until the
// child's exec. During a shortage it tries one start at a time, with growing pauses. Safe for concurrent use.
type starter struct {
	metrics *metrics
	room    chan struct{} // has room for one token for each concurrent start
	try     chan struct{} // has room for one token, for the attempt during a shortage
	longest time.Duration // pause between two tries
	patient time.Duration
	limit   time.Duration

	mu       sync.Mutex
	short    error     // the last failure, while there is a shortage
	failures int       // consecutive tries that failed
	next     time.Time // when the next try may be
}

func newStarter(m *metrics) *starter {
	return &starter{
		metrics: m, room: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), try: make(chan struct{}, 1),
		longest: longestWait, patient: startPatience, limit: startLimit,
	}
}

// start calls spawn, repeatedly during a shortage until startPatience has passed. The errors are those of spawn and of
// ctx, and *Shortage.
func (s *starter) start(ctx context.Context, spawn func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, errImpatient)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var patience *time.Timer // runs from the first shortage on
	for {
		if patience == nil && s.why() != nil {
			patience = time.AfterFunc(s.patient, func() { giveUp(errImpatient) })
			defer patience.Stop()
		}
		done, err := s.admit(ctx)
		if err == errImpatient {
			return cmp.Or(s.why(), err)
		} else if err != nil {
			return err
		}
		err = spawn()
		of := shortageOf(err)
		s.record(of, err)
		done()
		if of == "" {
			return err
		}
		s.metrics.shortage(of)
	}
}

// errImpatient is the cause of a context that waited too long for a start.
var errImpatient = errors.New("a process could not be started in time")

// admit waits until a start may be tried; done is called after it.
func (s *starter) admit(ctx context.Context) (done func(), err error) {
	if s.why() == nil {
		if err := take(ctx, s.room); err != nil {
			return nil, err
		}
		if s.why() == nil {
			return func() { <-s.room }, nil
		}
		<-s.room
	}
	if err := take(ctx, s.try); err != nil {
		return nil, err
	}
	s.mu.Lock()
	pause := time.Until(s.next)
	s.mu.Unlock()
	if retry.Sleep(ctx, pause) != nil {
		<-s.try
		return nil, context.Cause(ctx)
	}
	return func() { <-s.try }, nil
}

func take(ctx context.Context, places chan<- struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// why returns the shortage; nil: there is none.
func (s *starter) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short == nil {
		return nil
	}
	return s.short
}

// record records the result of an attempt.
func (s *starter) record(of string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.short, s.failures = nil, 0
		return
	case of == "": // the error is not about a shortage
		return
	}
	now := time.Now()
	if s.short == nil || !now.Before(s.next) { // of several concurrent failures the first one counts
		s.failures++
		s.next = now.Add(retry.Policy{First: firstPause, Max: s.longest}.Pause(s.failures))
	}
	s.short = &Shortage{Of: of, Err: err}
}
