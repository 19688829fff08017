package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

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

// Part is a measurement that can run alone, in a world of its own.
type Part[W io.Closer] struct {
	Name    string
	Measure func(w W, ctx context.Context) ([]Figure, error)
}

// Names returns the names of parts.
func Names[W io.Closer](parts []Part[W]) (names []string) {
	for _, p := range parts {
		names = append(names, p.Name)
	}
	return names
}

// Measure measures the parts in only, or all. open makes the world of a part in a directory.
func Measure[W io.Closer](ctx context.Context, env loadgen.Env, parts []Part[W], only []string,
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
			found, err = p.Measure(w, ctx)
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

// WriteFigures writes a table of figures.
func WriteFigures(w io.Writer, figures []Figure) error {
	for _, f := range figures {
		verdict := "reached"
		if !f.Reached {
			verdict = "MISSED"
		}
		if _, err := fmt.Fprintf(w, "%-11s %-62s %-8s %s\n", f.Part, f.What+": "+f.Goal, verdict, f.Got); err != nil {
			return err
		}
	}
	return nil
}

// Compare measures a peer and ours in turn, and returns the medians of the values and of their ratio, ours to the
// peer's.
func Compare(rounds int, peer, ours func() (float64, error)) (p, o, ratio float64, err error) {
	var ps, os, ratios []float64
	for range rounds {
		if p, err = peer(); err == nil {
			o, err = ours()
		}
		if err != nil {
			return 0, 0, 0, err
		}
		ps, os, ratios = append(ps, p), append(os, o), append(ratios, o/p)
	}
	return loadgen.Median(ps), loadgen.Median(os), loadgen.Median(ratios), nil
}

// Together calls a function n times in parallel, and returns the time until the last one returned.
func Together(ctx context.Context, n int, call func(ctx context.Context) error) (time.Duration, error) {
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
	if failures.Count() > 0 {
		return 0, fmt.Errorf("%w: %v", failures.Err(), failures.First)
	}
	return took, nil
}
