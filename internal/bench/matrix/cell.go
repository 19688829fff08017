package matrix

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// station is one process of a cell.
type station struct {
	*world.Process
	label string // "gateway"
}

// lineup has the processes of a cell, which are ready. The first ones are those that clients connect to.
type lineup struct {
	*world.World
	url      string      // of the repository
	ssh      *sshAddress // its address over SSH, or nil
	stations []*station
}

// cellResult is the result of a cell.
type cellResult struct {
	cell
	out       *loadgen.Outcome
	stations  []stationResult
	clientCPU time.Duration
}

type stationResult struct {
	label         string
	usage         loadgen.TreeUsage
	before, after loadgen.Metrics
}

// cell starts the processes, warms the cache, measures, and ends the processes.
func (o *matrixOptions) cell(ctx context.Context, env loadgen.Env, c cell, dir string) (r *cellResult, err error) {
	phase, began := "starting", time.Now()
	defer loadgen.Progress(ctx, env.Stderr, func() string {
		return fmt.Sprintf("%v: %s (%v)", c, phase, time.Since(began).Round(time.Second))
	})()
	w, err := world.New(dir, o.program)
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil {
		return nil, err
	}
	l := &lineup{World: w}
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, err = func() (r *cellResult, err error) {
		defer world.Rescue(&err)
		o.start(ctx, c, l)
		for _, s := range l.stations {
			go func() {
				select {
				case <-s.Ended:
					cancel(fmt.Errorf("%s ended before the cell did%s", s.Name, s.LastWords()))
				case <-run.Done():
				}
			}()
		}
		load := o.load(run, c, l)
		phase, began = "measuring", time.Now()
		return o.measure(run, c, l, load), nil
	}()
	if err != nil && ctx.Err() == nil {
		loadgen.Sleep(run, 100*time.Millisecond) // the end of a process may be the cause, and is noticed later
		if run.Err() != nil {
			err = context.Cause(run)
		}
	}
	return r, err
}

// loader is the load of the clients.
type loader interface {
	Run(ctx context.Context) (*loadgen.Outcome, error)
}

// load returns the load of the clients. It sends one request, which warms caches.
func (o *matrixOptions) load(ctx context.Context, c cell, l *lineup) loader {
	if l.ssh != nil {
		load := prepareSSH(ctx, l.ssh, c.subject)
		load.clients, load.duration = o.Clients, o.Duration
		return load
	}
	t := world.Must(loadgen.ParseTarget(l.url, false))
	load, _, err := gitload.PrepareFetch(ctx, t, 0, "", o.Timeout, c.subject.seen)
	world.Check(err)
	load.Conns, load.Duration = o.Clients, o.Duration
	return load
}

// measure runs the load and samples the processes during it.
func (o *matrixOptions) measure(ctx context.Context, c cell, l *lineup, load loader) *cellResult {
	r := &cellResult{cell: c}
	var watches []*loadgen.TreeWatch
	for _, s := range l.stations {
		before := s.counters(ctx)
		watch := world.Must(loadgen.WatchTree(s.Pid))
		defer watch.Stop()
		r.stations, watches = append(r.stations, stationResult{label: s.label, before: before}), append(watches, watch)
	}
	own := loadgen.OwnCPU()
	r.out = world.Must(load.Run(ctx))
	r.clientCPU = loadgen.OwnCPU() - own
	for i, s := range l.stations {
		r.stations[i].usage = *watches[i].Stop()
		r.stations[i].after = s.counters(ctx)
	}
	return r
}

// counters reads the metrics after a garbage collection, because the runtime then updates the cost of collections. The
// result is nil for a process without metrics.
func (s *station) counters(ctx context.Context) loadgen.Metrics {
	if s.Ops == "" {
		return nil
	}
	world.Check(loadgen.CollectGarbage(ctx, s.Ops))
	return world.Must(s.Metrics(ctx))
}

// start starts a cell's processes, and waits until they are ready.
func (o *matrixOptions) start(ctx context.Context, c cell, l *lineup) {
	if o.ssh {
		makeSSHKeys(ctx, l.Dir)
	}
	var front *world.Process
	switch c.transport {
	case openSSH, openSSHDefault:
		o.startSSHD(ctx, c, l)
		return
	case oneServe:
		front = o.role(ctx, l, "server", "serve", world.Public+world.NoSearch+o.sshConfig(l.Dir)+o.nodeConfig(c), "--root",
			c.subject.root)
	default:
		front = o.startTwo(ctx, c, l)
	}
	l.url = front.URL + "/" + url.PathEscape(c.subject.path)
	o.setSSH(c, l, front.SSH)
}

// startTwo starts a node, and a gateway in front of it.
func (o *matrixOptions) startTwo(ctx context.Context, c cell, l *lineup) *world.Process {
	listen := "unix:" + filepath.Join(l.Dir, "node.sock")
	if o.tcp {
		listen = "127.0.0.1:0"
	}
	storage := fmt.Sprintf("[storage]\nlisten = %q\n", listen)
	node := fmt.Sprintf("[[node]]\nname = \"node\"\ntransport = %q\n", c.transport)
	if o.tls {
		cert, key := filepath.Join(l.Dir, "cert.pem"), filepath.Join(l.Dir, "key.pem")
		world.Check(gitload.WriteSelfSigned(cert, key))
		storage += fmt.Sprintf("tls_cert = %q\ntls_key = %q\n", cert, key)
		node += fmt.Sprintf("tls_ca = %q\nserver_name = \"localhost\"\n", cert)
	}
	s := o.role(ctx, l, "node", "storage", o.nodeConfig(c)+storage, "--root", c.subject.root)
	if o.tcp {
		listen = s.Listen
	}
	gateway := o.role(ctx, l, "gateway", "gateway", world.Public+o.sshConfig(l.Dir)+node+
		fmt.Sprintf("address = %q\n", listen))
	slices.Reverse(l.stations)
	return gateway
}

// role starts one process, as the last station of the lineup.
func (o *matrixOptions) role(ctx context.Context, l *lineup, label, role, settings string,
	args ...string) *world.Process {
	p := world.Must(l.Start(ctx, role, label, settings, args...))
	l.stations = append(l.stations, &station{Process: p, label: label})
	return p
}

// nodeConfig is a part of the configuration of a process that makes packs.
func (o *matrixOptions) nodeConfig(c cell) string {
	return fmt.Sprintf("[cache]\nenabled = %t\n", c.cache)
}

// canWatch reports whether CPU times can be read.
func canWatch() bool {
	_, err := loadgen.NewProcTree(os.Getpid())
	return err == nil
}
