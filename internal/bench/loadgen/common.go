package loadgen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Env is what the commands have of the world outside. Reports go to Stdout, progress and complaints to Stderr.
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
	f.DurationVar(&o.Duration, "duration", 10*time.Second, "how long new requests are begun")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "give up on a response that brings no byte for this long")
	f.BoolVar(&o.Insecure, "insecure", false, "accept any TLS certificate, self-signed ones too")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object")
}

func (o *Common) Check() error {
	switch {
	case o.Clients < 1 || o.Clients > MaxClients:
		return fmt.Errorf("--clients %d: from 1 to %d", o.Clients, MaxClients)
	case o.Duration <= 0:
		return fmt.Errorf("--duration %v: has to be positive", o.Duration)
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout %v: has to be positive", o.Timeout)
	}
	return nil
}

// MaxClients bounds the connections of one run: beyond it one machine's ports and file descriptors are what is
// measured.
const MaxClients = 10000

func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Failures counts errors and keeps the first few to print. Safe for concurrent use.
type Failures struct {
	mu    sync.Mutex
	N     int
	First []string
	first error
}

func (f *Failures) Add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.N++
	if f.first == nil {
		f.first = err
	}
	if len(f.First) < keptFailures {
		f.First = append(f.First, err.Error())
	}
}

// Join adds those of another, which nobody uses any more.
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

// only is the error of a run of one request.
func (f *Failures) only() error {
	return f.first
}

// Err is the command's own result: a measurement with errors is not a good one, and scripts should notice.
func (f *Failures) Err() error {
	if n := f.Count(); n > 0 {
		return fmt.Errorf("%d requests failed", n)
	}
	return nil
}

// keptFailures is how many errors of a run are printed.
const keptFailures = 5

// Progress shows on a terminal that something happens; elsewhere it says nothing. The function that it returns clears
// the line and waits until nothing more is written.
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

// Interrupted turns the errors that a cancelled context causes all over into one plain sentence.
func Interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// MaxSearchRate bounds what one run may ask for: beyond it this machine's clocks are what is measured.
const MaxSearchRate = 100_000
