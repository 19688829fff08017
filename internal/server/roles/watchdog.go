package roles

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/operations/top"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// cpuProfile is the duration of the CPU profile of a dump.
const cpuProfile = 3 * time.Second

// quitInterval is the time after a SIGQUIT in which a second one has its default effect: Go prints all stacks and ends
// the process.
const quitInterval = 5 * time.Second

// startWatchdog starts the watchdog unless it is disabled. The returned function stops it.
func (s *server) startWatchdog(l listeners, reg prometheus.Gatherer) (end func()) {
	metrics := watchdog.NewMetrics(s.reg)
	c := s.cfg.Watchdog
	if !c.Enabled {
		return func() {}
	}
	o := watchdog.Options{
		Dir: config.DumpDir(s.cfg.State), Stall: c.Stall.Duration, Interval: 60 * c.Stall.Duration,
		Profile: cpuProfile,
		Probes:  s.probes(l), Redact: auth.Redact, Log: s.log, Stderr: s.process.Stderr, Metrics: metrics,
		About: fmt.Sprintf("packhorse %s %s", s.role, s.process.Version),
		Parts: []watchdog.Part{{Name: "metrics.txt",
			Write: func(to io.Writer) error { return observe.WriteMetrics(to, reg) }}},
	}
	// Without the cache and origins: requests may be stuck because of their locks.
	running := top.Sources{Role: string(s.role), Version: s.process.Version, Board: s.lanes.board, Redact: auth.Redact}
	if s.node != nil {
		running.Runner = s.node.packs.runner
		o.Starting = running.Runner.Starting
		o.Probes = append(o.Probes, startProbe(running.Runner))
	}
	o.Parts = append(o.Parts, watchdog.Part{Name: "top.json", Write: func(to io.Writer) error {
		return json.NewEncoder(to).Encode(top.New(running).State(maxDumpRequests))
	}})
	w := watchdog.Start(o)
	s.dumps.set(w)
	endQuits := followQuits(s.process, w)
	return func() {
		endQuits()
		s.dumps.set(nil)
		w.Close()
	}
}

// probes returns a small request to each listener, and an access to each directory.
func (s *server) probes(l listeners) (all []watchdog.Probe) {
	role, cfg := s.role, &s.cfg
	nodeTLS := cfg.Storage.TLSCert != ""
	if role == config.RoleSearch {
		nodeTLS = cfg.Search.TLSCert != ""
	}
	proxies, _ := cfg.Proxies() // checked before
	preface := func(on bool) watchdog.Preface {
		if !on {
			return nil
		}
		return proxies.LocalHeader
	}
	for _, one := range []struct {
		name string
		net.Listener
		tls, proxied bool
	}{{"http", l.public, cfg.HTTP.TLSCert != "", cfg.HTTP.ProxyProtocol}, {"node", l.node, nodeTLS, false},
		{"ops", l.private, false, false}, {"admin", l.admin, false, false}} {
		if one.Listener != nil {
			all = append(all, watchdog.HTTP(one.name, one.Addr(), preface(one.proxied), one.tls))
		}
	}
	if l.ssh != nil {
		all = append(all, watchdog.SSH("ssh", l.ssh.Addr(), preface(cfg.SSH.ProxyProtocol)))
	}
	if role.OwnsRepositories() {
		all = append(all, watchdog.Readable("repositories", cfg.Root))
	}
	// Requests wait for the lock of a log whose reader does not read.
	log := watchdog.Probe{Name: "log", Do: func(context.Context) error {
		_, err := s.process.Stderr.Write(nil)
		return err
	}}
	return append(all, watchdog.Writable("state", config.DumpDir(cfg.State)), log)
}

// startProbe is answered unless the start of a git process hangs, because a disk or the kernel does.
func startProbe(runner *process.Runner) watchdog.Probe {
	return watchdog.Probe{Name: "git", Do: func(context.Context) error {
		if runner.Starting() > time.Second {
			return os.ErrDeadlineExceeded
		}
		return nil
	}}
}

// maxDumpRequests is the maximum number of requests, and of git commands, in a dump.
const maxDumpRequests = 10_000

// followQuits writes a dump at each SIGQUIT. A second one within quitInterval has its default effect, which works even
// if this process hangs.
func followQuits(p Process, w *watchdog.Watchdog) (end func()) {
	if p.Quits == nil {
		return func() {}
	}
	quits, stop := p.Quits()
	ended := make(chan struct{})
	var following sync.WaitGroup
	following.Go(func() {
		var last time.Time
		for {
			select {
			case <-ended:
				return
			case <-quits:
			}
			if !last.IsZero() && time.Since(last) < quitInterval {
				stop()
				syscall.Kill(os.Getpid(), syscall.SIGQUIT)
				return
			}
			last = time.Now()
			go w.Dump(context.Background(), watchdog.CauseSignal, "SIGQUIT") // logs its result
		}
	})
	return func() {
		stop()
		close(ended)
		following.Wait()
	}
}

// dumps passes the watchdog to the handlers of a server, which exist before it. Safe for concurrent use.
type dumps struct {
	mu sync.Mutex
	w  *watchdog.Watchdog
}

func (d *dumps) set(w *watchdog.Watchdog) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.w = w
}

// dumpLimit is the maximum time of a dump. Its parts have additional limits.
const dumpLimit = 5 * time.Minute

// write writes a dump.
func (d *dumps) write(ctx context.Context) (watchdog.Dump, error) {
	d.mu.Lock()
	w := d.w
	d.mu.Unlock()
	if w == nil {
		return watchdog.Dump{}, fault.New(fault.NotFound,
			"dumps are not available: watchdog.enabled is false, or the process is starting or stopping")
	}
	ctx, cancel := context.WithTimeout(ctx, dumpLimit)
	defer cancel()
	return w.Dump(ctx, watchdog.CauseAsked, "packhorse debug dump")
}
