package loadgen

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Monotonic reads the clock that all processes share.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// StandstillCommand is the process that watches until its standard input is closed.
func StandstillCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:    "standstills",
		Short:  "Watch when the machine stands still",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := ReadJob(cmd, new(any)) // an empty job
			if err != nil {
				return err
			}
			spans, err := standStills(func() error {
				fmt.Fprintln(env.Stdout, LoadReady)
				_, err := io.Copy(io.Discard, in)
				return err
			})
			if err != nil {
				return err
			}
			return json.NewEncoder(env.Stdout).Encode(spans)
		},
	}
}

// standStills watches each CPU of this process while during runs.
func standStills(during func() error) ([]Span, error) {
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(len(cpus) + 2)) // a thread that wakes never waits for another
	found, errs := make([][]Span, len(cpus)), make([]error, len(cpus))
	var stop atomic.Bool
	var up, watching sync.WaitGroup
	for i, cpu := range cpus {
		up.Add(1)
		watching.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread keeps its real-time priority
			errs[i] = pin(cpu)
			up.Done()
			if errs[i] == nil {
				found[i] = lateTicks(&stop)
			}
		})
	}
	up.Wait()
	err = errors.Join(errs...)
	if err == nil {
		err = during()
	}
	stop.Store(true)
	watching.Wait()
	return union(slices.Concat(found...)), err
}

// allowedCPUs returns the CPUs that this process may use.
func allowedCPUs() (list []int, err error) {
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	for cpu := 0; len(list) < cpus.Count(); cpu++ {
		if cpus.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list, nil
}

// pin binds the calling thread to one CPU, with a real-time priority.
func pin(cpu int) error {
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1},
		0); err != nil {
		return fmt.Errorf("sched_setattr: %w", err)
	}
	return nil
}

// lateTicks returns the times when the calling thread woke late.
func lateTicks(stop *atomic.Bool) []Span {
	found := make([]Span, 0, 1<<10)
	for due := Monotonic(); !stop.Load(); {
		due += standstillTick
		until := unix.NsecToTimespec(int64(due))
		for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &until, nil) == unix.EINTR {
		}
		if now := Monotonic(); now-due >= standstillLeast {
			found = append(found, Span{due, now})
			due = now
		}
	}
	return found
}
