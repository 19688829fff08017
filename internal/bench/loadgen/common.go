package loadgen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Env is the environment of a command. Reports go to Stdout, progress and warnings to Stderr.
type Env struct {
	Stdout, Stderr io.Writer
	Version        string // of the program
}

// Common holds the flags that all load generators share.
type Common struct {
	Clients  int
	Duration time.Duration
	Timeout  time.Duration
	Insecure bool
	JSON     bool
}

func (o *Common) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&o.Clients, "clients", 8, "connections that work at the same time")
	f.DurationVar(&o.Duration, "duration", 10*time.Second, "how long the run starts requests")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "give up on a response when no byte arrives for this long")
	f.BoolVar(&o.Insecure, "insecure", false, "accept any TLS certificate, self-signed ones too")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object")
}

func (o *Common) Check(f *pflag.FlagSet) error {
	return cmp.Or(AreClients(f, "clients"), Positive(f, "duration", "timeout"))
}

// Positive returns an error unless these flags, which are numbers or durations, are positive.
func Positive(f *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if text := f.Lookup(name).Value.String(); text == "0" || text == "0s" || text == "NaN" || text[0] == '-' {
			return fmt.Errorf("--%s %s: must be positive", name, text)
		}
	}
	return nil
}

// AreClients returns an error unless these flags are numbers of clients of a run.
func AreClients(f *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if n, err := f.GetInt(name); err != nil || n < 1 || n > MaxClients {
			return fmt.Errorf("--%s %d: from 1 to %d", name, n, MaxClients)
		}
	}
	return nil
}

// MaxClients is the maximum number of connections of one run. Beyond it a run would measure the ports and file
// descriptors of this machine.
const MaxClients = 10000

// Failures counts errors and keeps the first ones for the report. Safe for concurrent use.
type Failures struct {
	mu    sync.Mutex
	N     int
	First []string
}

func (f *Failures) Add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.N++
	if len(f.First) < keptFailures {
		f.First = append(f.First, err.Error())
	}
}

// Join adds the errors of another Failures, which is no longer in use.
func (f *Failures) Join(other *Failures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.N += other.N
	f.First = append(f.First, other.First[:min(len(other.First), keptFailures-len(f.First))]...)
}

func (f *Failures) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.N
}

func (f *Failures) Print(w io.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, msg := range f.First {
		fmt.Fprintf(w, "error: %s\n", msg)
	}
	if more := f.N - len(f.First); more > 0 {
		fmt.Fprintf(w, "error: and %d more\n", more)
	}
}

// Err returns the error of a run with failed requests, so that scripts notice them.
func (f *Failures) Err() error {
	if n := f.Count(); n > 0 {
		return fmt.Errorf("%d requests failed", n)
	}
	return nil
}

// Detail is Err with the first errors.
func (f *Failures) Detail() error {
	if err := f.Err(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(f.First, "; "))
	}
	return nil
}

// keptFailures is the number of errors of a run that the report prints.
const keptFailures = 5

// Progress shows a line of progress on a terminal, and does nothing elsewhere. The returned function clears the line
// and waits for the last write.
func Progress(ctx context.Context, w io.Writer, line func() string) (stop func()) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				fmt.Fprint(w, "\r\x1b[K")
				return
			case <-tick.C:
				fmt.Fprintf(w, "\r\x1b[K%s", line())
			}
		}
	}()
	return func() { cancel(); <-done }
}

// Interrupted replaces the errors that a cancelled context causes by one short error.
func Interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// MaxRate is the maximum rate of one run. Beyond it a run would measure the clocks of this machine.
const MaxRate = 100_000

// Measuring is Progress for a measurement that takes a known time.
func Measuring(ctx context.Context, w io.Writer, duration time.Duration) (stop func()) {
	began := time.Now()
	return Progress(ctx, w, func() string {
		return fmt.Sprintf("measuring: %v of %v", time.Since(began).Round(time.Second), duration)
	})
}

// Sleep sleeps for d. It returns false if the context ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
