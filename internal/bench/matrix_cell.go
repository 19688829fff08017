package bench

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
)

// station is one process of a cell.
type station struct {
	*child
	label string // "gateway"
	kids  string // what its children are
	ops   string // URL of its private listener; "": none
}

// lineup are the processes of a cell, up and ready: those that clients reach first stand first.
type lineup struct {
	url      string      // of what is asked for
	ssh      *sshAddress // where it is asked for over SSH; nil: it is not
	stations []*station
}

func (l *lineup) stop() error {
	var errs []error
	for _, s := range l.stations {
		errs = append(errs, s.stop())
	}
	return errors.Join(errs...)
}

// cellResult is what a cell measured.
type cellResult struct {
	cell
	out       *outcome
	stations  []stationResult
	watch     *cellWatch
	clientCPU time.Duration
}

type stationResult struct {
	label, kids   string
	usage         treeUsage
	own           time.Duration // of the CPU time, without children
	before, after *serverCounters
}

// cell starts the processes, warms the cache, measures, and ends the processes.
func (o *matrixOptions) cell(ctx context.Context, env Env, c cell, dir string) (r *cellResult, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	phase, began := "starting", time.Now()
	stop := progress(ctx, env.Stderr, func() string {
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
			case <-s.ended:
				cancel(fmt.Errorf("%s ended before the cell did (%s)%s", s.name, s.how(), s.lastWords()))
			case <-run.Done():
			}
		}()
	}
	load, err := o.load(run, c, l)
	if err == nil {
		stop()
		began = time.Now()
		stop = progress(ctx, env.Stderr, func() string {
			return fmt.Sprintf("%v: measuring, %v of %v", c, time.Since(began).Round(time.Second), o.duration)
		})
		r, err = o.measure(run, c, l, load)
	}
	if err != nil && ctx.Err() == nil && run.Err() != nil {
		err = context.Cause(run)
	}
	return r, err
}

// load makes what the clients do. It asks once, which leaves caches warm.
func (o *matrixOptions) load(ctx context.Context, c cell, l *lineup) (loader, error) {
	if l.ssh != nil {
		return o.loadSSH(ctx, c, l)
	}
	t, err := parseTarget(l.url, false)
	if err != nil {
		return nil, err
	}
	var load *replay
	if s := c.subject; c.transport == relaying {
		load, _, err = prepareRaw(ctx, t, o.timeout)
	} else {
		if s.clone == nil {
			if s.clone, err = record(ctx, t, what{}, s.dir); err != nil {
				return nil, err
			}
		}
		request := t.post("git-upload-pack", s.clone.encoding, s.clone.body)
		if s.request, err = warm(ctx, t, request, s.clone, filepath.Join(s.dir, "repo.git"), o.timeout); err == nil {
			load = &replay{target: t, next: func() []byte { return request }, check: fetchChecker(t, s.request)}
		}
	}
	if err != nil {
		return nil, err
	}
	load.clients, load.duration, load.timeout = o.clients, o.duration, o.timeout
	return load, nil
}

// loader is what the clients do.
type loader interface {
	run(ctx context.Context, stop <-chan struct{}) (*outcome, error)
}

// loadSSH makes what clients over SSH do.
func (o *matrixOptions) loadSSH(ctx context.Context, c cell, l *lineup) (loader, error) {
	load, err := prepareSSH(ctx, l.ssh, c.subject)
	if err != nil {
		return nil, err
	}
	load.clients, load.duration, load.timeout = o.clients, o.duration, o.timeout
	return load, nil
}

// measure runs the load and watches the processes meanwhile.
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
	own := ownCPU()
	r.out, err = load.run(ctx, nil)
	r.clientCPU = ownCPU() - own
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

// counters reads the metrics right after a garbage collection, which is when the runtime sums up what collections have cost. Nil for a
// process that has none.
func (s *station) counters(ctx context.Context) (*serverCounters, error) {
	if s.ops == "" {
		return nil, nil
	}
	if err := s.keep(ctx, "/debug/pprof/heap?gc=1", ""); err != nil {
		return nil, err
	}
	return newScraper(nil, s.ops).read(ctx)
}

// keep reads what the private listener has at a path, into a file unless its name is empty.
func (s *station) keep(ctx context.Context, path, file string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reading %s of %s: %w", path, s.name, err)
		}
	}()
	resp, err := opsGet(ctx, s.ops+path)
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

// longestProfile is what the private listener allows.
const longestProfile = 100 * time.Second

// profileCPU begins to take CPU profiles, if they are wanted, and returns what waits for them.
func (o *matrixOptions) profileCPU(ctx context.Context, c cell, l *lineup) (wait func() error) {
	seconds := math.Ceil(max(min(o.duration, longestProfile).Seconds(), 1))
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

// profile names a profile's file.
func (o *matrixOptions) profile(c cell, s *station, kind string) string {
	name := fmt.Sprintf("%s-%s-cache-%s-%s.%s.pprof", c.subject.name, c.transport, onOff(c.cache), s.label, kind)
	return filepath.Join(o.profiles, strings.TrimLeft(unfit.ReplaceAllString(name, "_"), "_"))
}

// start starts a cell's processes with state below dir, and waits until they are ready.
func (o *matrixOptions) start(ctx context.Context, c cell, dir string) (l *lineup, err error) {
	l = &lineup{}
	defer func() {
		if err != nil {
			l.stop() //nolint:errcheck // why it has to end is known
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
	case relaying:
		err = o.startRelay(ctx, c, l, dir)
	case oneServe:
		var a addresses
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
	owned, known := table{{"listen", listen}, {"channels", max(4096, 2*o.clients)}}, table{{"name", "node"}, {"transport", c.transport}, {"files", o.files}}
	if o.tls {
		cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		if err := writeSelfSigned(cert, key); err != nil {
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
	gateway, err := o.role(ctx, l, dir, "gateway", "gateway", append(gatewayConfig(append(known, table{{"address", listen}}...)), o.sshConfig(dir)...))
	l.url = gateway.HTTP
	slices.Reverse(l.stations)
	if err != nil {
		return err
	}
	return o.setSSH(c, l, gateway.SSH, dir, c.subject.path)
}

// role starts one process of this program with a configuration, as the last station of the lineup.
func (o *matrixOptions) role(ctx context.Context, l *lineup, dir, label, role string, config []section) (addresses, error) {
	state, file := filepath.Join(dir, label), filepath.Join(dir, label+".toml")
	config = append([]section{{"", table{{"state", state}}}}, config...)
	if err := os.WriteFile(file, toml(config), 0o600); err != nil {
		return addresses{}, err
	}
	c, err := startChild(ctx, "the "+label, o.server.program, []string{role, "--config", file}, filepath.Join(dir, label+".log"))
	if err != nil {
		return addresses{}, err
	}
	s := &station{child: c, label: label, kids: "git"}
	l.stations = append(l.stations, s)
	a, err := c.addresses(ctx, state)
	s.ops = a.Ops
	return a, err
}

// startRelay serves a file as long as the answers of the repository's cells.
func (o *matrixOptions) startRelay(ctx context.Context, c cell, l *lineup, dir string) error {
	file, log := filepath.Join(dir, "answer"), filepath.Join(dir, "relay.log")
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for left, block := c.subject.request.size, make([]byte, 1<<20); left > 0; left -= int64(len(block)) {
		if _, err := f.Write(block[:min(left, int64(len(block)))]); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	relay, err := startChild(ctx, "the relay", self, []string{"limit", file, "--relay", "--http", "127.0.0.1:0"}, log)
	if err != nil {
		return err
	}
	l.stations = append(l.stations, &station{child: relay, label: "sender", kids: "relay"})
	return relay.await(ctx, func() bool {
		b, _ := os.ReadFile(log)
		var ok bool
		l.url, _, ok = strings.Cut(string(b), " relays ")
		return ok
	})
}

// A configuration file in TOML, as far as the roles' need it here.
type (
	section struct {
		name string // "" for the top
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
			value, _ := json.Marshal(k.value) // such strings, numbers and truth values are TOML's too
			b = fmt.Appendf(b, "%s = %s\n", k.key, value)
		}
	}
	return b
}

// ample is more than a cell's clients ask for at once: a cell measures how fast, not whom it refuses.
func (o *matrixOptions) ample() int { return 1000 + 2*o.clients }

// nodeConfig is that of a storage node, or with a nil table that of the one process.
func (o *matrixOptions) nodeConfig(c cell, storage table) []section {
	config := []section{
		{"", table{{"root", c.subject.root}}},
		{"ops", table{{"address", "127.0.0.1:0"}}},
		{"cache", table{{"enabled", c.cache}}},
		{"git", table{{"queue", o.ample()}, {"wait", "1h"}}},
		{"log", table{{"level", "warn"}, {"format", "json"}}},
	}
	if storage == nil { // without an index for search, which the others have not, either
		return append(config, section{"search", table{{"enabled", false}}}, section{"http", table{{"address", "127.0.0.1:0"}, {"public_read", true}}})
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
