package process

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
	startPatience = 5 * time.Second  // maximum time that a command with a slot waits for the end of a shortage
	startLimit    = 30 * time.Second // maximum time that it waits in total, if starts hang
)

// starter limits how many processes start at the same time, because each start keeps a CPU of the Go runtime until the
// child's exec. During a shortage it repeats a start, with growing pauses. Safe for concurrent use.
type starter struct {
	metrics *metrics
	room    chan struct{} // has room for one token for each concurrent start
	pauses  retry.Policy  // between the attempts of a command
	patient time.Duration
	limit   time.Duration
}

func newStarter(m *metrics) *starter {
	return &starter{
		metrics: m, room: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		pauses: retry.Policy{First: 50 * time.Millisecond, Max: 2 * time.Second}, patient: startPatience, limit: startLimit,
	}
}

// start calls spawn, repeatedly during a shortage until startPatience has passed. The errors are those of spawn and of
// ctx, and *Shortage.
func (s *starter) start(ctx context.Context, spawn func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, errImpatient)
	defer cancel()
	var first time.Time // the first shortage
	for failures := 1; ; failures++ {
		if err := take(ctx, s.room); err != nil {
			return err
		}
		err := spawn()
		<-s.room
		of := shortageOf(err)
		if of == "" {
			return err
		}
		s.metrics.shortage(of)
		if failures == 1 {
			first = time.Now()
		}
		pause := s.pauses.Jitter(failures)
		if time.Since(first)+pause > s.patient {
			return &Shortage{Of: of, Err: err}
		}
		if retry.Sleep(ctx, pause) != nil {
			return context.Cause(ctx)
		}
	}
}

// errImpatient is the cause of a context that waited too long for a start.
var errImpatient = errors.New("a process could not be started in time")

func take(ctx context.Context, places chan<- struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
