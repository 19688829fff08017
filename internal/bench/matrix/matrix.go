// Package matrix measures a gateway and a storage node, with and without the cache, and with each way of transferring
// packs.
package matrix

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// matrixOptions are the flags of `packhorse-bench matrix`.
type matrixOptions struct {
	loadgen.Common
	repos         []string
	tcp, tls, ssh bool

	program world.Program
}

const matrixHelp = `Starts a storage node and a gateway as two processes, on free ports of the loopback and with their own state
directories. Clients clone a repository in full, one clone after the other, as fast as possible. The run has four cells:
packs within the control call ("inband") or on a side channel ("channel"), each with the node's pack cache off and on.
With the cache on it is warm. The run does not write to the repository, which is bare or a directory with ".git".

The peer in the same run and with the same client is "serve", one process ("packhorse serve", cache on).

With --ssh the clients clone over SSH. Each clone is a process of OpenSSH's client with AES-GCM, as git would start it.
Its CPU time is not in the table, and its speed limits that of few clients. The peer is OpenSSH's sshd with git
upload-pack, if this machine has it. It runs as the current user, once with AES-GCM and once with chacha20-poly1305,
which OpenSSH's clients prefer.

Gateway and node use a Unix socket, as on one machine, and the node hands the gateway the files of packs. With
--tcp they communicate as between two machines.

With --tls the bytes between gateway and node are encrypted, which takes them through user space in both processes. This
does not change the peer.

Git verifies the pack of the first response, and that of each cell if it differs. For
every response the status, the length, the side-bands and the final flush are checked.

The table:

  MB/s       bytes that the clients received, from the first request to the end of the last response. No request starts
             after --duration
  load       average number of running and runnable threads of gateway, node and their children, for each CPU. Above 1
             there is more work than CPUs. The clients' threads do not count.
  CPU %      CPU time of gateway, node and their children. 100 is all CPUs of the machine, which the clients also use
  s/GB       the same for each GB that the clients received, and below it for each process. That of git is of the node's
             children
  MB/GB      bytes allocated on the heap for each GB, of both processes and of each
  GC %       share of the garbage collector in the CPU time of gateway and node, without children
  kernel     share of the sent bytes that only the kernel copied

CPU time is read from /proc ten times per second (Linux only), the other values from the processes' private listeners.`

func Command(env loadgen.Env) *cobra.Command {
	var o matrixOptions
	cmd := &cobra.Command{
		Use:   "matrix --repo PATH",
		Short: "Measure a gateway and a node with each transfer of packs, with and without the cache",
		Long:  matrixHelp,
		Example: `  packhorse-bench matrix --repo /srv/git/www.git --repo /srv/git/app.git --clients 30 --duration 60s
  packhorse-bench matrix --repo . --duration 10s --json
  packhorse-bench matrix --repo demo.git --tcp
  packhorse-bench matrix --repo demo.git --tcp --tls
  packhorse-bench matrix --repo demo.git --ssh --clients 8`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.repos, "repo", nil, "path of a repository; may be repeated (required)")
	f.IntVar(&o.Clients, "clients", 30, "clients that clone at the same time")
	f.DurationVar(&o.Duration, "duration", time.Minute, "how long each cell starts clones")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "give up on a response when no byte arrives for this long")
	f.BoolVar(&o.tcp, "tcp", false, "gateway and node use TCP instead of a Unix socket")
	f.BoolVar(&o.tls, "tls", false, "gateway and node use TLS, with a certificate for this run")
	f.BoolVar(&o.ssh, "ssh", false, "clone over SSH, and compare with OpenSSH's sshd and git upload-pack")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object")
	o.program.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(o.repos) == 0 {
			return errors.New("no repository: give its path with --repo PATH")
		}
		if err := cmp.Or(loadgen.AreClients(f, "clients"), loadgen.Positive(f, "duration", "timeout")); err != nil {
			return err
		}
		if err := o.program.Find(); err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

// subject is a measured repository.
type subject struct {
	name       string // in reports
	root, path string // its directory is root/path

	seen map[[sha256.Size]byte]bool // packs that git has checked
}

// findSubjects checks the paths of --repo.
func findSubjects(paths []string) ([]*subject, error) {
	var list []*subject
	seen := map[string]bool{}
	for _, path := range paths {
		dir, err := filepath.EvalSymlinks(gitload.Absolute(path))
		if err != nil {
			return nil, fmt.Errorf("--repo: %w", err)
		}
		if filepath.Base(dir) == ".git" {
			dir = filepath.Dir(dir)
		}
		_, bare := os.Stat(filepath.Join(dir, "objects"))
		if _, err := os.Stat(filepath.Join(dir, ".git")); err != nil && bare != nil {
			return nil, fmt.Errorf("--repo %s: not a bare repository and not a directory with .git", path)
		}
		s := &subject{root: filepath.Dir(dir), path: filepath.Base(dir), name: strings.TrimSuffix(filepath.Base(dir), ".git")}
		if s.root == dir {
			return nil, fmt.Errorf("--repo %s: the root of the file system cannot be served", path)
		}
		if seen[s.name] {
			s.name = dir
		}
		if seen[s.name] {
			return nil, fmt.Errorf("--repo %s: given twice", path)
		}
		seen[s.name] = true
		list = append(list, s)
	}
	return list, nil
}

// cell is one measurement.
type cell struct {
	subject   *subject
	transport string // "inband", "channel", or a peer
	cache     bool
}

// The transports of cells. The first two are values of the key transport of a gateway's node.
const (
	inband   = "inband"
	channel  = "channel"
	oneServe = "serve"
)

// plan returns a repository's cells in their order. Cells that are compared are neighbours, so that a change of the
// machine's speed does little harm.
func plan(s *subject) []cell {
	return []cell{{s, oneServe, true}, {s, channel, true}, {s, inband, true}, {s, channel, false},
		{s, inband, false}}
}

func (c cell) String() string {
	switch c.transport {
	case oneServe:
		return c.subject.name + ", one process, cache on"
	case openSSH, openSSHDefault:
		return c.subject.name + ", OpenSSH's sshd, " + c.cipher()
	}
	return fmt.Sprintf("%s, %s, cache %s", c.subject.name, c.transport, onOff(c.cache))
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// run measures all cells in a temporary directory, and reports.
func (o *matrixOptions) run(ctx context.Context, env loadgen.Env) error {
	if !canWatch() {
		return errors.New("packhorse-bench matrix reads CPU times from /proc: it needs Linux")
	}
	subjects, err := findSubjects(o.repos)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var results []*cellResult
	failed := &loadgen.Failures{}
	for i, s := range subjects {
		s.seen = map[[sha256.Size]byte]bool{}
		cells := plan(s)
		if o.ssh {
			_, err := findSSHD()
			if err != nil {
				fmt.Fprintln(env.Stderr, "note: no sshd to compare with (openssh-server)")
			}
			cells = planSSH(s, err == nil)
		}
		for j, c := range cells {
			r, err := o.cell(ctx, env, c, filepath.Join(dir, strconv.Itoa(i*len(cells)+j)))
			if err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
			results = append(results, r)
			for _, msg := range r.out.Failures.First {
				failed.Add(fmt.Errorf("%v: %s", c, msg))
			}
			failed.N += r.out.Failures.Count() - len(r.out.Failures.First)
		}
	}
	report := o.report(results)
	failed.Print(env.Stderr)
	if o.JSON {
		err = loadgen.WriteJSON(env.Stdout, report)
	} else {
		err = report.print(env.Stdout)
	}
	return errors.Join(err, failed.Err())
}
