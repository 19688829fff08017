// Package bench measures a Git server from outside: any server that speaks smart HTTP, ours or another, in protocol v2 unless
// told otherwise. And application servers, which a gateway may stand in front of (app.go).
//
// A load generator that is dearer than the server measures itself, so the loops here speak HTTP/1.1 by hand: a request is
// made once and written as it is, a response's head is parsed in place, and bulk is dropped in the kernel (recv with
// MSG_TRUNC; elsewhere and under TLS it is read into a buffer). Cheap does not mean unchecked: of every response the status,
// the length, the side-bands and the final flush are looked at.
//
// A fleet of CI machines (ci.go) is made of models of git's requests (package fleet) over the same connections.
//
// Two engines do the rest: replay (replay.go) moves bulk on one goroutine for each connection; pings (ping.go) sends small
// requests, on Linux from one thread with its own poll loop, because the Go runtime's timers are a millisecond coarse and a
// small request takes less. What goes by a node's control API (rpc.go) is sent by the package that other programs use, but beside
// clones by pings.
//
// Some benches start servers of their own: the packhorse program (child.go).
//
// A run's figures cover everything from its first request to the end of its last response: no request begins after the
// duration is over, those that run are waited for, and rates are over the time that really passed.
package bench

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

	"github.com/packhorse-git/packhorse/internal/cli"
	"github.com/packhorse-git/packhorse/internal/compare"
)

// Env is what the commands have of the world outside. Reports go to Stdout, progress and complaints to Stderr.
type Env struct {
	Stdout, Stderr io.Writer
	Version        string // of the program
}

// Main runs the command that args name until it ends or ctx does, and returns the exit code.
func Main(ctx context.Context, env Env, args []string, stdin io.Reader) int {
	return cli.Run(ctx, Command(env), args, stdin, env.Stdout, env.Stderr)
}

// Command is `packhorse-bench` with its subcommands. Every one ends cleanly when its context does.
func Command(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "packhorse-bench",
		Short: "Measure Git servers, code search and application servers, and compare access logs",
		Long: `Measure any server that speaks Git's protocol v2 over smart HTTP, Packhorse or another.

A first tour, with a server at 127.0.0.1:8080 whose process ID is 4711:

  packhorse-bench fetch http://127.0.0.1:8080/demo.git --clients 30 --server-pid 4711
  packhorse-bench mkrefs /srv/git/refs.git --count 200000
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main
  packhorse-bench neighbour http://127.0.0.1:8080/demo.git --clients 30 --mbps 400
  packhorse-bench storm http://127.0.0.1:8080/demo.git --server-pid 4711
  packhorse-bench ci --repo /srv/git/demo.git --html report.html

A gateway and a storage node, started for the purpose:

  packhorse-bench matrix --repo /srv/git/demo.git --html matrix.html

An application server, with requests at random times:

  packhorse-bench app http://127.0.0.1:3000/work --rate 27

The best that this machine could do:

  packhorse-bench limit BIGFILE &
  packhorse-bench fetch --raw http://127.0.0.1:8081/ --clients 30

Git's own server:

  packhorse-bench backend /srv/git --http 127.0.0.1:8082 &
  packhorse-bench ci http://127.0.0.1:8082/demo.git --repo /srv/git/demo.git --server-pid PID

Two access logs:

  packhorse-bench compare old.log new.log

Megabytes and gigabytes are 10^6 and 10^9 bytes.`,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version: env.Version,
	}
	lab := &cobra.Command{
		Use:   "lab",
		Short: "Experiments behind design decisions: simulations, and what starting git costs",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	lab.AddCommand(schedCommand(env), spawnCommand(env), existsCommand(env))
	root.AddCommand(fetchCommand(env), refsCommand(env), mkrefsCommand(env), neighbourCommand(env), limitCommand(env),
		ciCommand(env), matrixCommand(env), stormCommand(env), searchCommand(env), appCommand(env), backendCommand(env),
		compare.Command(), lab,
		loadCommand(env), spawnWorkerCommand(env), relayCommand(env), standstillCommand(env), echoCommand(env))
	return root
}

// common holds the flags that all load generators share.
type common struct {
	clients  int
	duration time.Duration
	timeout  time.Duration
	insecure bool
	json     bool
}

func (o *common) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&o.clients, "clients", 8, "connections that work at the same time")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "how long new requests are begun")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "give up on a response that brings no byte for this long")
	f.BoolVar(&o.insecure, "insecure", false, "accept any TLS certificate, self-signed ones too")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
}

func (o *common) check() error {
	switch {
	case o.clients < 1 || o.clients > maxClients:
		return fmt.Errorf("--clients %d: from 1 to %d", o.clients, maxClients)
	case o.duration <= 0:
		return fmt.Errorf("--duration %v: has to be positive", o.duration)
	case o.timeout <= 0:
		return fmt.Errorf("--timeout %v: has to be positive", o.timeout)
	}
	return nil
}

// maxClients bounds the connections of one run: beyond it one machine's ports and file descriptors are what is measured.
const maxClients = 10000

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// failures counts errors and keeps the first few to print. Safe for concurrent use.
type failures struct {
	mu    sync.Mutex
	n     int
	first []string
}

// keptFailures is how many errors of a run are printed.
const keptFailures = 5

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	if len(f.first) < keptFailures {
		f.first = append(f.first, err.Error())
	}
}

// join adds those of another, which nobody uses any more.
func (f *failures) join(other *failures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n += other.n
	f.first = append(f.first, other.first[:min(len(other.first), keptFailures-len(f.first))]...)
}

func (f *failures) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

func (f *failures) print(w io.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, msg := range f.first {
		fmt.Fprintf(w, "error: %s\n", msg)
	}
	if more := f.n - len(f.first); more > 0 {
		fmt.Fprintf(w, "error: and %d more\n", more)
	}
}

// err is the command's own result: a measurement with errors is not a good one, and scripts should notice.
func (f *failures) err() error {
	if n := f.count(); n > 0 {
		return fmt.Errorf("%d requests failed", n)
	}
	return nil
}

// progress shows on a terminal that something happens; elsewhere it says nothing. The function that it returns clears the
// line and waits until nothing more is written.
func progress(ctx context.Context, w io.Writer, line func() string) (stop func()) {
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

// interrupted turns the errors that a cancelled context causes all over into one plain sentence.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}
