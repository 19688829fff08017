package matrix

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// station is one process of a cell.
type station struct {
	*loadgen.Child
	label string // "gateway"
	kids  string // name of its children in the report
	ops   string // URL of its private listener, or ""
}

// lineup has the processes of a cell, which are ready. The first ones are those that clients connect to.
type lineup struct {
	url      string      // of the repository
	ssh      *sshAddress // its address over SSH, or nil
	stations []*station
}

func (l *lineup) stop() error {
	var errs []error
	for _, s := range l.stations {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}

// cellResult is the result of a cell.
type cellResult struct {
	cell
	out       *loadgen.Outcome
	stations  []stationResult
	watch     *cellWatch
	clientCPU time.Duration
}

type stationResult struct {
	label, kids   string
	usage         loadgen.TreeUsage
	own           time.Duration // its part without children
	before, after *loadgen.ServerCounters
}

// cell starts the processes, warms the cache, measures, and ends the processes.
func (o *matrixOptions) cell(ctx context.Context, env loadgen.Env, c cell, dir string) (r *cellResult, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	phase, began := "starting", time.Now()
	stop := loadgen.Progress(ctx, env.Stderr, func() string {
		return fmt.Sprintf("%v: %s (%v)", c, phase, time.Since(began).Round(time.Second))
	})
	defer func() { stop() }()
	l, err := o.start(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := l.stop(); err == nil && stopped != nil {
			r, err = nil, stopped
		}
	}()
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, s := range l.stations {
		go func() {
			select {
			case <-s.Ended:
				cancel(fmt.Errorf("%s ended before the cell did (%s)%s", s.Name, s.ExitStatus(), s.LastWords()))
			case <-run.Done():
			}
		}()
	}
	load, err := o.load(run, c, l)
	if err == nil {
		stop()
		began = time.Now()
		stop = loadgen.Progress(ctx, env.Stderr, func() string {
			return fmt.Sprintf("%v: measuring, %v of %v", c, time.Since(began).Round(time.Second), o.Duration)
		})
		r, err = o.measure(run, c, l, load)
	}
	if err != nil && ctx.Err() == nil && run.Err() != nil {
		err = context.Cause(run)
	}
	return r, err
}

// load returns the load of the clients. It sends one request, which warms caches.
func (o *matrixOptions) load(ctx context.Context, c cell, l *lineup) (loader, error) {
	if l.ssh != nil {
		return o.loadSSH(ctx, c, l)
	}
	t, err := loadgen.ParseTarget(l.url, false)
	if err != nil {
		return nil, err
	}
	s := c.subject
	if s.clone == nil {
		if s.clone, err = gitload.Record(ctx, t, gitload.FetchSpec{}, s.dir); err != nil {
			return nil, err
		}
	}
	request := t.Post("git-upload-pack", s.clone.Encoding, s.clone.Body)
	if s.request, err = gitload.Warm(ctx, t, request, s.clone, filepath.Join(s.dir, "repo.git"), o.Timeout); err != nil {
		return nil, err
	}
	return &loadgen.Replay{Target: t, Next: func() []byte { return request }, Check: gitload.FetchChecker(t, s.request),
		Clients: o.Clients, Duration: o.Duration, Timeout: o.Timeout}, nil
}

// loader is the load of the clients.
type loader interface {
	Run(ctx context.Context, stop <-chan struct{}) (*loadgen.Outcome, error)
}

// loadSSH returns the load of clients over SSH.
func (o *matrixOptions) loadSSH(ctx context.Context, c cell, l *lineup) (loader, error) {
	load, err := prepareSSH(ctx, l.ssh, c.subject)
	if err != nil {
		return nil, err
	}
	load.clients, load.duration, load.timeout = o.Clients, o.Duration, o.Timeout
	return load, nil
}

// measure runs the load and samples the processes during it.
func (o *matrixOptions) measure(ctx context.Context, c cell, l *lineup, load loader) (*cellResult, error) {
	r := &cellResult{cell: c}
	for _, s := range l.stations {
		before, err := s.counters(ctx)
		if err != nil {
			return nil, err
		}
		r.stations = append(r.stations, stationResult{label: s.label, kids: s.kids, before: before})
	}
	profiling, stopProfiles := context.WithCancel(ctx)
	defer stopProfiles()
	wait := o.profileCPU(profiling, c, l)
	var err error
	if r.watch, err = watchCell(l); err != nil {
		return nil, err
	}
	defer r.watch.stop()
	own := loadgen.OwnCPU()
	r.out, err = load.Run(ctx, nil)
	r.clientCPU = loadgen.OwnCPU() - own
	r.watch.stop()
	if err != nil {
		stopProfiles()
		return nil, errors.Join(err, ignoreCancelled(wait()))
	}
	for i, s := range l.stations {
		st := &r.stations[i]
		st.usage, st.own = r.watch.usage(i)
		if st.after, err = s.counters(ctx); err != nil {
			return nil, err
		}
	}
	if err := wait(); err != nil {
		return nil, err
	}
	return r, o.profileHeap(ctx, c, l)
}

func ignoreCancelled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// counters reads the metrics after a garbage collection, because the runtime then updates the cost of collections. The
// result is nil for a process without metrics.
func (s *station) counters(ctx context.Context) (*loadgen.ServerCounters, error) {
	if s.ops == "" {
		return nil, nil
	}
	if err := s.keep(ctx, "/debug/pprof/heap?gc=1", ""); err != nil {
		return nil, err
	}
	return loadgen.NewScraper(nil, s.ops).Read(ctx)
}

// keep reads a path of the private listener, and stores it in a file unless the name is empty.
func (s *station) keep(ctx context.Context, path, file string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %s of %s: %w", path, s.Name, err)
		}
	}()
	resp, err := loadgen.GetOps(ctx, s.ops+path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP status %d", resp.StatusCode)
	}
	if file == "" {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}

// longestProfile is the limit of the private listener.
const longestProfile = 100 * time.Second

// profileCPU starts CPU profiles, if wanted. The returned function waits for them.
func (o *matrixOptions) profileCPU(ctx context.Context, c cell, l *lineup) (wait func() error) {
	seconds := math.Ceil(max(min(o.Duration, longestProfile).Seconds(), 1))
	errs := make([]error, len(l.stations))
	var taking sync.WaitGroup
	for i, s := range l.stations {
		if o.profiles != "" && s.ops != "" {
			taking.Go(func() {
				errs[i] = s.keep(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%.0f", seconds), o.profile(c, s, "cpu"))
			})
		}
	}
	return func() error {
		taking.Wait()
		return errors.Join(errs...)
	}
}

func (o *matrixOptions) profileHeap(ctx context.Context, c cell, l *lineup) error {
	for _, s := range l.stations {
		if o.profiles == "" || s.ops == "" {
			continue
		}
		if err := s.keep(ctx, "/debug/pprof/heap", o.profile(c, s, "heap")); err != nil {
			return err
		}
	}
	return nil
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// profile returns the file name of a profile.
func (o *matrixOptions) profile(c cell, s *station, kind string) string {
	name := fmt.Sprintf("%s-%s-cache-%s-%s.%s.pprof", c.subject.name, c.transport, onOff(c.cache), s.label, kind)
	return filepath.Join(o.profiles, strings.TrimLeft(unfit.ReplaceAllString(name, "_"), "_"))
}

// start starts a cell's processes with state below dir, and waits until they are ready.
func (o *matrixOptions) start(ctx context.Context, c cell, dir string) (l *lineup, err error) {
	l = &lineup{}
	defer func() {
		if err != nil {
			l.stop() //nolint:errcheck // the start has failed
		}
	}()
	if o.ssh {
		if err := makeSSHKeys(ctx, dir); err != nil {
			return l, err
		}
	}
	switch path := "/" + url.PathEscape(c.subject.path); c.transport {
	case openSSH, openSSHDefault:
		err = o.startSSHD(ctx, c, l, dir)
	case oneServe:
		var a loadgen.Addresses
		if a, err = o.role(ctx, l, dir, "server", "serve", append(o.nodeConfig(c, nil), o.sshConfig(dir)...)); err == nil {
			err = o.setSSH(c, l, a.SSH, dir, c.subject.path)
		}
		l.url = a.HTTP + path
	default:
		err = o.startTwo(ctx, c, l, dir)
		l.url += path
	}
	return l, err
}

// startTwo starts a node, and a gateway in front of it.
func (o *matrixOptions) startTwo(ctx context.Context, c cell, l *lineup, dir string) error {
	listen := "unix:" + filepath.Join(dir, "node.sock")
	if o.tcp {
		listen = "127.0.0.1:0"
	}
	owned, known := table{{"listen", listen}, {"channels", max(4096, 2*o.Clients)}}, table{{"name", "node"},
		{"transport", c.transport}, {"files", o.files}}
	if o.tls {
		cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		if err := gitload.WriteSelfSigned(cert, key); err != nil {
			return err
		}
		owned = append(owned, table{{"tls_cert", cert}, {"tls_key", key}}...)
		known = append(known, table{{"tls_ca", cert}, {"server_name", "localhost"}}...)
	}
	node, err := o.role(ctx, l, dir, "node", "storage", o.nodeConfig(c, owned))
	if err != nil {
		return err
	}
	if o.tcp {
		listen = node.Listen
	}
	gateway, err := o.role(ctx, l, dir, "gateway", "gateway",
		append(gatewayConfig(append(known, table{{"address", listen}}...)), o.sshConfig(dir)...))
	l.url = gateway.HTTP
	slices.Reverse(l.stations)
	if err != nil {
		return err
	}
	return o.setSSH(c, l, gateway.SSH, dir, c.subject.path)
}

// role starts one process with a configuration, as the last station of the lineup.
func (o *matrixOptions) role(ctx context.Context, l *lineup, dir, label, role string,
	config []section) (loadgen.Addresses, error) {
	state, file := filepath.Join(dir, label), filepath.Join(dir, label+".toml")
	config = append([]section{{"", table{{"state", state}}}}, config...)
	if err := os.WriteFile(file, toml(config), 0o600); err != nil {
		return loadgen.Addresses{}, err
	}
	c, err := loadgen.StartChild(ctx, "the "+label, o.server.Program, []string{role, "--config", file},
		filepath.Join(dir, label+".log"))
	if err != nil {
		return loadgen.Addresses{}, err
	}
	s := &station{Child: c, label: label, kids: "git"}
	l.stations = append(l.stations, s)
	a, err := c.Addresses(ctx, state)
	s.ops = a.Ops
	return a, err
}

// A configuration file in TOML, with the features that the roles need here.
type (
	section struct {
		name string // "" at the top of the file
		keys table
	}
	table []struct {
		key   string
		value any // string, int, bool
	}
)

func toml(config []section) []byte {
	var b []byte
	for _, s := range config {
		if s.name != "" {
			b = fmt.Appendf(b, "[%s]\n", s.name)
		}
		for _, k := range s.keys {
			value, _ := json.Marshal(k.value) // JSON has the same syntax for such strings, numbers and booleans
			b = fmt.Appendf(b, "%s = %s\n", k.key, value)
		}
	}
	return b
}

// ample is more than the requests of a cell's clients, because a cell measures speed and not refusals.
func (o *matrixOptions) ample() int { return 1000 + 2*o.Clients }

// nodeConfig is the configuration of a storage node, or with a nil table that of the single process.
func (o *matrixOptions) nodeConfig(c cell, storage table) []section {
	config := []section{
		{"", table{{"root", c.subject.root}}},
		{"ops", table{{"address", "127.0.0.1:0"}}},
		{"cache", table{{"enabled", c.cache}}},
		{"git", table{{"queue", o.ample()}, {"wait", "1h"}}},
		{"log", table{{"level", "warn"}, {"format", "json"}}},
	}
	if storage == nil { // without a search index, like the other processes
		return append(config, section{"search", table{{"enabled", false}}},
			section{"http", table{{"address", "127.0.0.1:0"}, {"public_read", true}}})
	}
	return append(config, section{"storage", storage})
}

func gatewayConfig(node table) []section {
	return []section{
		{"http", table{{"address", "127.0.0.1:0"}, {"public_read", true}}},
		{"ops", table{{"address", "127.0.0.1:0"}}},
		{"log", table{{"level", "warn"}, {"format", "json"}}},
		{"[node]", node},
	}
}
