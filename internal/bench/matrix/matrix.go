// Package matrix measures a gateway and a storage node, with and without the cache, and by each way in which packs
// travel.
package matrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// matrixOptions are the flags of `packhorse-bench matrix`.
type matrixOptions struct {
	loadgen.Common
	repos          []string
	tcp, tls, ssh  bool
	files          bool // by a Unix socket
	profiles, html string

	server gitload.Server
}

const matrixHelp = `Starts a storage node and a gateway of this program as two processes, on free ports of the loopback and with state of their own,
and has clients clone a repository in full, one clone after the other, each as fast as it goes. That four times: packs within the control
call ("inband") or on a side channel ("channel"), each with the node's pack cache off and on. With the cache on it is warm.
Nothing is written to the repository: a bare one, or a directory with ".git".

Beside them, in the same run and with the same client, stand what to compare with: one process that does all ("packhorse serve", cache
on), and the least that two processes can do with the same bytes ("relay": a sender and a splicing relay, see "packhorse-bench limit --relay").

With --ssh the clients clone over SSH, each clone by a process of OpenSSH's client with AES-GCM, as git would start it: its CPU time is not in the
table, and its speed bounds that of few clients. What it is compared with is OpenSSH's sshd with git upload-pack, if this machine has it: started for
this run as the user who runs it, once with AES-GCM and once with chacha20-poly1305, which OpenSSH's clients prefer.

Gateway and node talk over a Unix socket, as they do where they share a machine: the node hands the gateway the files of packs. --files=false has it send their
bytes; --tcp has them go as between two machines.

With --tls the bytes between gateway and node are encrypted, which takes them through user space in both processes; the one process and the
relay have no such way, and stay as they are.

The clone is recorded once as git makes it. Git verifies its pack, and again the first answer in each cell where it is another pack. Of
every answer the status, the length, the side-bands and the final flush are checked.

What the table says:

  MB/s       bytes that the clients received, from the first request to the end of the last answer. None begins after --duration
  load       threads of gateway, node and their children that ran or waited for a CPU (or a disk), on average, for each CPU. Above 1
             more is to do than there are CPUs. The clients' own are not in it; --json has the whole machine's as machine_load
  CPU %      CPU time of gateway, node and their children; 100 is all CPUs of the machine, on which the clients run too
  s/GB       the same for each GB that the clients received, and below it for each process; git's is that of the node's children
  MB/GB      bytes allocated on the heap for each GB, of both processes and of each
  GC %       share of the garbage collector in the CPU time of gateway and node, without children
  kernel     share of the bytes that the process sent which were copied by the kernel alone

CPU time is read from /proc ten times a second (Linux only), the rest from the processes' private listeners.

--html writes one page with the table and, for each cell, the CPU time of each process and its children over time, in one chart.
--profiles keeps a CPU profile (of the cell's first 100 seconds at most) and a heap profile of each process in each cell, for "go tool pprof".
Profiling costs some CPU time itself.`

func Command(env loadgen.Env) *cobra.Command {
	var o matrixOptions
	cmd := &cobra.Command{
		Use:   "matrix --repo PATH",
		Short: "Measure a gateway and a node: how packs travel between them, and the cache, two by two",
		Long:  matrixHelp,
		Example: `  packhorse-bench matrix --repo /srv/git/www.git --repo /srv/git/app.git --clients 30 --duration 60s --html matrix.html
  packhorse-bench matrix --repo . --duration 10s --json
  packhorse-bench matrix --repo demo.git --profiles /tmp/profiles
  packhorse-bench matrix --repo demo.git --tcp
  packhorse-bench matrix --repo demo.git --tcp --tls
  packhorse-bench matrix --repo demo.git --ssh --clients 8`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.repos, "repo", nil, "path of a repository; may be given again (required)")
	f.IntVar(&o.Clients, "clients", 30, "clients that clone at the same time")
	f.DurationVar(&o.Duration, "duration", time.Minute, "how long new clones are begun, in each cell")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "give up on a response that brings no byte for this long")
	f.BoolVar(&o.tcp, "tcp", false, "gateway and node talk over TCP instead of a Unix socket")
	f.BoolVar(&o.files, "files", true, "by a Unix socket: the node hands the gateway the files of packs")
	f.BoolVar(&o.tls, "tls", false, "gateway and node talk by TLS, with a certificate made for this run")
	f.BoolVar(&o.ssh, "ssh", false, "clone over SSH, and compare with OpenSSH's sshd and git upload-pack")
	f.StringVar(&o.profiles, "profiles", "", "keep profiles in this directory")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object")
	f.StringVar(&o.html, "html", "", "write a page with charts to this file")
	o.server.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(o.repos) == 0 {
			return errors.New("which repository? give its path with --repo PATH")
		}
		bytes := o.tcp || o.tls
		if bytes && o.files && cmd.Flags().Changed("files") {
			return errors.New("--files is for Unix sockets without TLS: only there can files be handed over")
		}
		o.files = o.files && !bytes
		if err := o.Check(); err != nil {
			return err
		}
		if err := o.server.Find(); err != nil {
			return err
		}
		return loadgen.Interrupted(cmd.Context(), o.run(cmd.Context(), env))
	}
	return cmd
}

// subject is a repository that is measured.
type subject struct {
	name       string // in reports
	root, path string // its directory is root/path

	dir     string             // of the recording
	clone   *gitload.Recording // nil until the first cell has made it
	request *gitload.Reference // the layout of the answer in the latest cell
}

// findSubjects looks at the paths of --repo.
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
			return nil, fmt.Errorf("--repo %s: no bare repository and no directory with .git", path)
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
	transport string // "inband", "channel"; of what is compared with: "serve", "relay"
	cache     bool
}

// The transports of cells. The first two are values of the key transport of a gateway's node.
const (
	inband   = "inband"
	channel  = "channel"
	oneServe = "serve"
	relaying = "relay"
)

// plan is the order of a repository's cells: what is compared stands side by side, so that a machine that changes its
// speed does little harm.
func plan(s *subject) []cell {
	return []cell{{s, oneServe, true}, {s, relaying, true}, {s, channel, true}, {s, inband, true}, {s, channel, false},
		{s, inband, false}}
}

func (c cell) String() string {
	switch c.transport {
	case oneServe:
		return c.subject.name + ", one process, cache on"
	case relaying:
		return c.subject.name + ", bare relay"
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

// run measures all cells in a directory of its own, and reports.
func (o *matrixOptions) run(ctx context.Context, env loadgen.Env) error {
	if _, err := loadgen.NewProcTree(os.Getpid()); err != nil {
		return errors.New("packhorse-bench matrix reads CPU times from /proc: it needs Linux")
	}
	subjects, err := findSubjects(o.repos)
	if err != nil {
		return err
	}
	if o.profiles != "" {
		if err := os.MkdirAll(o.profiles, 0o777); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var results []*cellResult
	failed := &loadgen.Failures{}
	for i, s := range subjects {
		s.dir = filepath.Join(dir, fmt.Sprintf("clone%d", i))
		if err := os.Mkdir(s.dir, 0o777); err != nil {
			return err
		}
		cells := plan(s)
		if o.ssh {
			_, err := findSSHD()
			if err != nil {
				fmt.Fprintln(env.Stderr, "There is no sshd to compare with (openssh-server).")
			}
			cells = planSSH(s, err == nil)
		}
		for j, c := range cells {
			r, err := o.cell(ctx, env, c, filepath.Join(dir, fmt.Sprintf("cell%d", i*len(cells)+j)))
			if err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
			results = append(results, r)
			for _, msg := range r.out.Failures.First {
				failed.Add(fmt.Errorf("%v: %s", c, msg))
			}
			failed.N += r.out.Failures.Count() - len(r.out.Failures.First)
		}
		os.RemoveAll(s.dir)
	}
	report := o.report(results)
	failed.Print(env.Stderr)
	if o.JSON {
		err = loadgen.WriteJSON(env.Stdout, report)
	} else {
		err = report.print(env.Stdout)
	}
	if o.html != "" && err == nil {
		err = writeMatrixHTML(o.html, report, results)
	}
	return errors.Join(err, failed.Err())
}
