package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// target is a server that stores the received requests.
type target struct {
	*httptest.Server
	mu   sync.Mutex
	got  []message
	raw  [][]byte
	head []http.Header
	came chan struct{}
}

// newTarget answers as a test says; nil: 200.
func newTarget(t *testing.T, answer http.HandlerFunc) *target {
	s := &target{came: make(chan struct{}, 1000)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var m message
		_ = json.Unmarshal(body, &m) // another format
		if err != nil || !json.Valid(body) {
			t.Errorf("the body is %q: %v", body, err)
		}
		s.mu.Lock()
		s.got, s.raw, s.head = append(s.got, m), append(s.raw, body), append(s.head, r.Header)
		s.mu.Unlock()
		select {
		case s.came <- struct{}{}:
		default: // a target that is asked again and again does not stop
		}
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// seen lists the pushes that the target received.
func (s *target) seen() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.got {
		ids = append(ids, m.Push)
	}
	return ids
}

func (s *target) wait(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-s.came:
		case <-time.After(time.Minute):
			t.Fatalf("nothing comes after %v", s.seen())
		}
	}
}

// log is the output of a Hooks.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// openEvents opens the journal of a directory.
func openEvents(t *testing.T, dir string) *event.Journal {
	t.Helper()
	j, err := event.OpenJournal(event.JournalOptions{Dir: filepath.Join(dir, "events")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// open makes a Hooks over a directory, without a long pause between tries.
func open(t *testing.T, dir string, targets ...Target) (*Hooks, *log) {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	return openOn(t, openEvents(t, dir), Directory(filepath.Join(dir, "webhooks")), targets...)
}

func openOn(t *testing.T, j *event.Journal, states States, targets ...Target) (*Hooks, *log) {
	t.Helper()
	l := &log{}
	h, err := New(t.Context(), Options{Targets: targets, Agent: "packhorse/test", Events: j, States: states,
		Log: slog.New(slog.NewTextHandler(l, nil)), Retry: time.Millisecond, AllowPrivate: true,
		Patterns: func(patterns []string) (func(git.RepoPath) bool, error) {
			if patterns[0] == "bad" {
				return nil, errors.New("a bad pattern")
			}
			return func(p git.RepoPath) bool { return p.String() == patterns[0] }, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h, l
}

// reopen is open after Close, on the same journal.
func reopen(t *testing.T, h *Hooks) (*Hooks, *log) {
	t.Helper()
	h.Close()
	return openOn(t, h.o.Events.(*event.Journal), h.o.States, h.o.Targets...)
}

func private(name, url string) Target {
	return Target{Name: name, URL: url, AllowPrivate: true, Timeout: time.Minute}
}

func told(name, url string) Target { t := private(name, url); t.Post = true; return t }
func asked(name, url string) Target {
	t := private(name, url)
	t.Pre = true
	return t
}

func id(c string) git.ObjectID {
	o, err := git.ParseObjectID(strings.Repeat(c, 40))
	if err != nil {
		panic(err)
	}
	return o
}

// push changes main from one ID to another.
func push(name, old, new string) *receivepack.Push {
	repo, _ := git.ParseRepoPath("team/app")
	return &receivepack.Push{
		ID: name, Repo: repo, Pusher: node.Pusher{Name: "ada", Address: "192.0.2.1"}, Options: []string{"a=b\";\n"},
		Updates: []receivepack.Update{{Ref: "refs/heads/main", Old: id(old), New: id(new), Kind: receivepack.Forced}},
	}
}

// do pushes: begun, and ended with these updates.
func do(t *testing.T, h *Hooks, p *receivepack.Push, done []receivepack.Update) {
	t.Helper()
	j := h.o.Events.(*event.Journal)
	if err := errors.Join(j.Begin(p), j.End(receivepack.Result{Push: p, Made: done})); err != nil {
		t.Fatal(err)
	}
}

// value is the sum of a metric's values.
func value(c prometheus.Collector) (sum float64) {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// dead reports whether the metric counts exactly one abandoned delivery.
func dead(h *Hooks) bool {
	d, err := h.metrics.deliveries.CurryWith(prometheus.Labels{"result": "dead"})
	return err == nil && value(d.WithLabelValues("a")) == 1
}

func eventually(is func() bool) bool { return gittest.Eventually(is) }

func TestDeliveries(t *testing.T) {
	t.Parallel()
	a, b := newTarget(t, nil), newTarget(t, nil)
	dir := t.TempDir()
	signed := told("a", a.URL)
	signed.Secret = func() string { return "a secret of some length" }
	other := told("b", b.URL+"/x?token=sesame")
	other.Repositories = []string{"other"}
	h, l := open(t, dir, signed, other)
	h.Start()
	do(t, h, push("P1", "1", "2"), nil) // changed nothing
	second := push("P2", "2", "3")
	second.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	do(t, h, second, second.Updates)
	a.wait(t, 1)
	if got := a.seen(); len(got) != 1 || got[0] != "P2" || len(b.seen()) > 0 {
		t.Fatalf("told of %v and %v", got, b.seen())
	}
	m := a.got[0]
	if m.Event != "post-receive" || m.Repository != "team/app" || m.Pusher != (pusher{"ada", "192.0.2.1"}) ||
		len(m.Options) != 1 || m.Options[0] != "a=b\";\n" ||
		!reflect.DeepEqual(m.Updates, []update{{Ref: "refs/heads/main", Old: id("2").String(), New: id("3").String(),
			Kind: "forced"}}) ||
		bytes.Contains(a.raw[0], []byte("_bytes")) {
		t.Errorf("the message is %+v", m)
	}
	mac := hmac.New(sha256.New, []byte("a secret of some length"))
	mac.Write(a.raw[0])
	for key, want := range map[string]string{
		"Packhorse-Signature": "sha256=" + hex.EncodeToString(mac.Sum(nil)), "Packhorse-Delivery": "P2",
		"Packhorse-Event": "post-receive",
		"Content-Type":    "application/json", "User-Agent": "packhorse/test", "Traceparent": second.Trace,
	} {
		if got := a.head[0].Get(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if !eventually(func() bool { return value(h.metrics.pending) == 0 }) {
		t.Errorf("%v deliveries are pending", value(h.metrics.pending))
	}
	if strings.Contains(l.String(), "secret") || strings.Contains(l.String(), "sesame") {
		t.Errorf("the log tells secrets: %s", l)
	}
}

// Pending pushes are delivered after a restart in order, and nothing is lost while a target is down.
func TestRestart(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	s := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	dir := t.TempDir()
	h, l := open(t, dir, told("a", s.URL))
	h.Start()
	var want []string
	for i := range 20 {
		p := push(fmt.Sprint("P", i), "1", "2")
		want = append(want, p.ID)
		do(t, h, p, p.Updates)
	}
	s.wait(t, 3)
	h.Close()
	if got := value(h.metrics.pending); got < 1 {
		t.Errorf("%v deliveries are pending", got)
	}
	if !strings.Contains(l.String(), "trying again") || strings.Contains(l.String(), s.URL) {
		t.Errorf("the log: %s", l)
	}
	s.mu.Lock()
	s.got = nil
	s.mu.Unlock()
	up.Store(true)
	h, _ = reopen(t, h)
	h.Start()
	// A request that Close canceled may arrive late, so the first push can be seen twice.
	seen := func() []string { return slices.Compact(s.seen()) }
	if !eventually(func() bool { return len(seen()) == 20 && value(h.metrics.pending) == 0 }) {
		t.Errorf("the target got %v", seen())
	}
	if got := seen(); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("told of %v", got)
	}
}

// A delivery that a target does not want holds up no other, and is abandoned when it is too old.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := newTarget(t, nil)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Packhorse-Delivery") == "Bad" {
			w.WriteHeader(http.StatusBadRequest)
		} else {
			s.came <- struct{}{}
		}
	})
	dir := t.TempDir()
	to := told("a", s.URL)
	to.GiveUp = 500 * time.Millisecond
	h, l := open(t, dir, to)
	h.Start()
	for _, name := range []string{"Bad", "Good"} {
		p := push(name, "1", "2")
		do(t, h, p, p.Updates)
	}
	s.wait(t, 1)
	if !eventually(func() bool { return dead(h) }) || !strings.Contains(l.String(), "abandoned a delivery of a webhook") {
		t.Errorf("the log: %s", l)
	}
	var recent []*packhorsev1.WebhookDelivery
	var err error
	if !eventually(func() bool {
		recent, err = h.Deliveries(t.Context(), "a")
		return err != nil || len(recent) == 2
	}) || recent[1].Id != "Bad" || recent[1].Result != "dead" || recent[1].Status != 400 || recent[1].Tries < 2 ||
		recent[0].Result != "delivered" {
		t.Errorf("the latest deliveries are %+v, %v", recent, err)
	}
}

// TestOrder checks that a refused delivery delays only those of its own repository, and only until it is abandoned.
// The order survives a restart.
func TestOrder(t *testing.T) {
	t.Parallel()
	var wanted atomic.Bool
	s := newTarget(t, nil)
	var mu sync.Mutex
	var taken []string
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Header.Get("Packhorse-Delivery")
		if strings.HasPrefix(name, "Bad") && !wanted.Load() {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		taken = append(taken, name)
	})
	got := func() string {
		mu.Lock()
		defer mu.Unlock()
		// A request that Close canceled may reach the handler late: deliveries are at least once.
		return strings.Join(slices.Compact(slices.Clone(taken)), " ")
	}
	dir := t.TempDir()
	h, _ := open(t, dir, told("a", s.URL))
	for _, name := range []string{"Bad1", "Next", "Bad2", "Last", "Other"} {
		p := push(name, "1", "2")
		if name == "Other" {
			p.Repo, _ = git.ParseRepoPath("other")
		}
		do(t, h, p, p.Updates)
	}
	h.Start()
	for _, q := range []string{"before", "after"} {
		if !eventually(func() bool {
			return got() == map[string]string{"before": "Other", "after": "Again"}[q] && value(h.metrics.deliveries) > 5
		}) {
			t.Fatalf("%s the restart: %s, %v tries", q, got(), value(h.metrics.deliveries))
		}
		h, _ = reopen(t, h)
		if q == "before" {
			h.Start()
		}
		p := push("Again", "1", "2")
		p.Repo, _ = git.ParseRepoPath("other")
		if q == "before" {
			mu.Lock()
			taken = nil
			mu.Unlock()
			do(t, h, p, p.Updates)
		}
	}
	wanted.Store(true)
	h.Start()
	if !eventually(func() bool { return got() == "Again Bad1 Next Bad2 Last" }) {
		t.Errorf("order of deliveries is %q, want %q", got(), "Again Bad1 Next Bad2 Last")
	}

	wanted.Store(false)
	h, l := reopen(t, h)
	h.o.Hold = time.Millisecond
	for _, name := range []string{"Bad3", "End"} {
		p := push(name, "1", "2")
		do(t, h, p, p.Updates)
	}
	h.Start()
	if !eventually(func() bool { return strings.HasSuffix(got(), "Last End") && dead(h) }) ||
		!strings.Contains(l.String(), "abandoned a delivery of a webhook") {
		t.Errorf("order of deliveries is %q, want the end %q; log: %s", got(), "Last End", l)
	}
}

// TestBytes checks that names and options that are not UTF-8 reach the target unchanged.
func TestBytes(t *testing.T) {
	t.Parallel()
	s := newTarget(t, nil)
	dir := t.TempDir()
	h, _ := open(t, dir, told("a", s.URL))
	p := push("P", "1", "2")
	p.Updates[0].Ref = "refs/heads/m\xe4rz<&>"
	p.Options = []string{"gr\xfc\xdfe", "plain"}
	p.Repo, _ = git.ParseRepoPath("team/gr\xfcn")
	do(t, h, p, p.Updates)
	h.Start()
	s.wait(t, 1)
	var m struct {
		Repository string   `json:"repository"`
		Exact      []byte   `json:"repository_bytes"`
		Options    [][]byte `json:"options_bytes"`
		Updates    []struct {
			Ref      string `json:"ref"`
			RefBytes []byte `json:"ref_bytes"`
		} `json:"updates"`
	}
	if err := json.Unmarshal(s.raw[0], &m); err != nil {
		t.Fatal(err)
	}
	if string(m.Exact) != "team/gr\xfcn" || m.Repository != "team/gr\ufffdn" || len(m.Options) != 2 ||
		string(m.Options[0]) != "gr\xfc\xdfe" ||
		string(m.Options[1]) != "plain" || string(m.Updates[0].RefBytes) != "refs/heads/m\xe4rz<&>" ||
		m.Updates[0].Ref != "refs/heads/m\ufffdrz<&>" {
		t.Errorf("%s", s.raw[0])
	}
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		kind   fault.Kind // Internal: the push is taken
		says   string
	}{
		"yes": {nil, fault.Internal, ""},
		"no": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			fmt.Fprint(w, "no \x1b[31mred\x00 pushes\r\non Fridays\u202e\n")
		}, fault.Denied, "no [31mred pushes\non Fridays"},
		"no reason": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(422) }, fault.Denied, "refused by t"},
		"broken": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, fault.Unavailable,
			"cannot ask t"},
		"hangs": {func(_ http.ResponseWriter, r *http.Request) { <-hang }, fault.Unavailable, "cannot ask t"},
		"redirects": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://127.0.0.1:1/", 307) },
			fault.Unavailable, ""},
		"floods": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			for i := 0; i < 1<<30; i += 1 << 20 {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 1<<20)); err != nil {
					return
				}
			}
		}, fault.Denied, strings.Repeat("x", maxReason)},
		"drips": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			fmt.Fprint(w, "half a sen")
			_ = http.NewResponseController(w).Flush()
			<-hang
		}, fault.Denied, "refused by t"},
		"headers": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) },
			fault.Unavailable, ""},
	} {
		s := newTarget(t, test.answer)
		for _, fails := range []bool{false, true} {
			to := asked("t", s.URL)
			to.Open = fails
			switch name {
			case "hangs":
				to.Timeout = 300 * time.Millisecond
			case "drips":
				to.Timeout = 3 * time.Second // long enough for the header
			}
			h, l := open(t, "", to)
			err := h.Decide(t.Context(), push("P", "1", "2"))
			switch {
			case test.kind == fault.Internal || fails && test.kind == fault.Unavailable:
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			case !fault.Is(err, test.kind) || !strings.Contains(fault.Message(err), test.says) ||
				len(fault.Message(err)) > maxReason:
				t.Errorf("%s: %v (%v)", name, fault.Message(err), fault.KindOf(err))
			}
			if strings.Contains(l.String(), s.URL) {
				t.Errorf("%s: the log tells the URL: %s", name, l)
			}
			h.Close()
		}
	}
	close(hang)
	// A client that disconnects does not count as a failure of the target.
	ctx, cancel := context.WithCancel(t.Context())
	s := newTarget(t, func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })
	to := asked("t", s.URL)
	to.Open = true
	h, _ := open(t, "", to)
	if err := h.Decide(ctx, push("P", "1", "2")); !errors.Is(err, context.Canceled) {
		t.Errorf("a push that is given up: %v", err)
	}
}

// Addresses that are not public are refused when the connection is made, for every name that resolves to them.
func TestGuard(t *testing.T) {
	t.Parallel()
	s := newTarget(t, nil)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1.2.3"} {
		to := asked("t", "http://"+host+":"+port)
		to.AllowPrivate = false
		h, l := open(t, "", to)
		if err := h.Decide(t.Context(), push("P", "1", "2")); !fault.Is(err, fault.Unavailable) ||
			!strings.Contains(l.String(), "allow_private") && host != "[::1]" && host != "localhost" {
			t.Errorf("%s: %v; %s", host, err, l)
		}
	}
	if len(s.seen()) > 0 {
		t.Error("the target received a request, want none")
	}
	for address, public := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true,
		"10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "100.64.0.1": false, "169.254.169.254": false,
		"0.0.0.0": false, "224.0.0.1": false,
		"255.255.255.255": false, "198.18.0.1": false, "192.0.2.1": false, "fd00::1": false, "fe80::1": false,
		"fe80::1%eth0": false, "::": false, "::1": false,
		"::ffff:10.0.0.1": false, "::ffff:169.254.169.254": false, "64:ff9b::a00:1": false, "2002:a00:1::": false,
		"::10.0.0.1": false, "ff02::1": false,
		"2001:0:1::1": false, "2001:db8::1": false, "fec0::1": false, "::ffff:0:7f00:1": false, "3fff::1": false,
		"5f00::1": false,
	} {
		if got := IsPublic(netip.MustParseAddr(address)); got != public {
			t.Errorf("%s: public is %v, want %v", address, got, public)
		}
	}
}

func TestURLsAndNames(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"https://ci.example/x?y=z", "http://[::1]:80/"} {
		if _, err := ParseURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "ci.example", "file:///etc/passwd", "ext::sh -c x", "gopher://x", "https://", "https:///x",
		"https://user:sesame@x/", "https://x/a\nb", "https://x/a%0ab",
		"https://x/?a=%0d%0aHost:y", "https://x/\x7f", "https://x%00y/", "https://x/?%zz",
	} {
		if _, err := ParseURL(bad); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/b", "x.target", "a b", strings.Repeat("a", 65)} {
		if CheckName(bad) == nil {
			t.Errorf("%q is a name", bad)
		}
	}
}

func TestMessageHasTheRecord(t *testing.T) {
	t.Parallel()
	p := push("P1", "1", "2")
	for record, want := range map[uint64]bool{0: false, 7: true} {
		p.Record = record
		body := encodeMessage("post-receive", time.Now(), p, p.Updates)
		if got := bytes.Contains(body, []byte(`"record":7,`)); got != want ||
			!want && bytes.Contains(body, []byte("record")) {
			t.Errorf("record %d: message %s", record, body)
		}
	}
}
