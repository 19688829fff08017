package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// Figure is a measured value that has a goal.
type Figure struct {
	Part    string  `json:"part"`
	What    string  `json:"what"`
	Goal    string  `json:"goal"`
	Value   float64 `json:"value"`
	Got     string  `json:"got"` // the value with its unit, and what it is made of
	Reached bool    `json:"reached"`
}

// NewFigure formats what a value is made of.
func NewFigure(what, goal string, value float64, reached bool, got string, args ...any) Figure {
	return Figure{What: what, Goal: goal, Value: value, Reached: reached, Got: fmt.Sprintf(got, args...)}
}

// Ratio is a figure of ours against a peer, with a goal for the ratio.
func Ratio(what, unit string, goal, ours, peer float64) Figure {
	r := ours / peer
	return NewFigure(what, fmt.Sprintf("<= %.2f", goal), r, r <= goal, "%.3f (%.2f %s, peer %.2f)", r, ours, unit, peer)
}

// TimeOf returns the time of a call.
func TimeOf(call func()) time.Duration {
	begun := time.Now()
	call()
	return time.Since(begun)
}

// failure is the panic that ends a measurement.
type failure struct{ err error }

// Check ends the measurement with an error, unless it is nil. Measurements are long lists of steps that all have to
// succeed. Only the goroutine of the measurement may call it.
func Check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Must is Check for a function with a result.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Rescue sets the error with which a measurement ended. The function that began it defers Rescue.
func Rescue(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.err
	default:
		panic(r)
	}
}

// Part is a measurement that can run alone, in a world of its own. It ends with Check.
type Part[W io.Closer] struct {
	Name    string
	Measure func(w W, ctx context.Context) []Figure
}

// Command completes a command whose arguments choose parts. check validates its flags, and open makes the world of a
// part in a directory.
func Command[W io.Closer](cmd *cobra.Command, env loadgen.Env, program *Program, parts []Part[W], check func() error,
	open func(ctx context.Context, part, dir string) (W, error)) *cobra.Command {
	cmd.Use, cmd.Args = cmd.Use+" [PART...]", cobra.OnlyValidArgs
	for _, p := range parts {
		cmd.ValidArgs = append(cmd.ValidArgs, p.Name)
	}
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	program.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, only []string) error {
		if err := cmp.Or(check(), program.Find()); err != nil {
			return err
		}
		figures, err := measure(cmd.Context(), env, parts, only, open)
		if err != nil {
			return loadgen.Interrupted(cmd.Context(), err)
		}
		if *asJSON {
			return loadgen.WriteJSON(env.Stdout, map[string]any{"figures": figures})
		}
		for _, f := range figures {
			verdict := "reached"
			if !f.Reached {
				verdict = "MISSED"
			}
			fmt.Fprintf(env.Stdout, "%-11s %-62s %-8s %s\n", f.Part, f.What+": "+f.Goal, verdict, f.Got)
		}
		return nil
	}
	return cmd
}

// measure measures the parts in only, or all.
func measure[W io.Closer](ctx context.Context, env loadgen.Env, parts []Part[W], only []string,
	open func(ctx context.Context, part, dir string) (W, error)) ([]Figure, error) {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	state := ""
	defer loadgen.Progress(ctx, env.Stderr, func() string { return state })()
	figures := []Figure{}
	for _, p := range parts {
		if len(only) > 0 && !slices.Contains(only, p.Name) {
			continue
		}
		state = p.Name
		w, err := open(ctx, p.Name, filepath.Join(dir, p.Name))
		var found []Figure
		if err == nil {
			func() {
				defer Rescue(&err)
				found = p.Measure(w, ctx)
			}()
		}
		if err := errors.Join(err, w.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		for _, f := range found {
			f.Part = p.Name
			figures = append(figures, f)
		}
	}
	return figures, nil
}

// Compare measures a peer and ours in turn, and returns the medians of the values and of their ratio, ours to the
// peer's.
func Compare(rounds int, peer, ours func() float64) (p, o, ratio float64) {
	var ps, os, ratios []float64
	for range rounds {
		p, o := peer(), ours()
		ps, os, ratios = append(ps, p), append(os, o), append(ratios, o/p)
	}
	return loadgen.Median(ps), loadgen.Median(os), loadgen.Median(ratios)
}

// Together calls a function n times in parallel, and returns the time until the last one returned.
func Together(ctx context.Context, n int, call func(ctx context.Context) error) time.Duration {
	failures := &loadgen.Failures{}
	var running sync.WaitGroup
	begun := time.Now()
	for range n {
		running.Go(func() {
			if err := call(ctx); err != nil {
				failures.Add(err)
			}
		})
	}
	running.Wait()
	took := time.Since(begun)
	Check(failures.Detail())
	return took
}

// Every calls a function at a rate, in goroutines, for a time. It returns the number of calls.
func Every(ctx context.Context, rate int, duration time.Duration, call func(i int) error) (n int,
	failures *loadgen.Failures) {
	failures = &loadgen.Failures{}
	var running sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < duration && ctx.Err() == nil; <-tick.C {
		i := n
		n++
		running.Go(func() {
			if err := call(i); err != nil {
				failures.Add(err)
			}
		})
	}
	running.Wait()
	return n, failures
}
