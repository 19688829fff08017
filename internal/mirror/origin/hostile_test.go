package origin

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

const (
	capabilitiesV2 = "000eversion 2\n000cls-refs\n000afetch\n0000"
	idOne          = "1111111111111111111111111111111111111111"
	idTwo          = "2222222222222222222222222222222222222222"
)

// fake is an origin whose answers a test writes. It answers a GET with advertisement.
func fake(t *testing.T, advertisement string, post http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := "result"
		if r.Method == http.MethodGet {
			kind = "advertisement"
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-"+kind)
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, advertisement)
			return
		}
		post(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func lines(list ...string) string {
	var b []byte
	for _, l := range list {
		b = pktline.AppendLine(b, l)
	}
	return string(pktline.AppendFlush(b))
}

func TestInvalidAnswers(t *testing.T) {
	t.Parallel()
	const valid = idOne + " refs/heads/main"
	for name, test := range map[string]struct {
		advertisement, refs string
		want                string // in the error
		isDown              bool
	}{
		"empty":              {"", "", "early", true},
		"text":               {"hello", "", "invalid answer", false},
		"cut":                {"000eversion 2\n000cls", "", "early", true},
		"length 3":           {"0003", "", "invalid answer", false},
		"error":              {lines("ERR \x1b[31mno such repository"), "", "reports: [31mno such", false},
		"no capabilities":    {lines(valid), "", "no capabilities", false},
		"unknown format":     {lines("version 2", "object-format=md5"), "", "md5", false},
		"delimiter":          {"0001", "", "delim packet", false},
		"shallow":            {lines(valid+"\x00x", "shallow "+idOne), "", "shallow", false},
		"peeled first":       {lines(valid+"\x00x", idTwo+" refs/tags/v1^{}"), "", "without its tag", false},
		"another hash":       {lines(valid + "\x00object-format=sha256"), "", "invalid", false},
		"newline":            {lines(valid+"\x00x", idOne+" refs/heads/a\nrefs/heads/b"), "", "invalid", false},
		"service":            {lines("# service=git-upload-pack", "x"), "", "flush", false},
		"many capabilities":  {"000eversion 2\n" + strings.Repeat("0006a\n", 2000) + "0000", "", "capabilities", false},
		"refs: no ID":        {capabilitiesV2, lines("main refs/heads/main"), "invalid", false},
		"refs: zero ID":      {capabilitiesV2, lines(strings.Repeat("0", 40) + " refs/heads/main"), "invalid", false},
		"refs: SHA-256":      {capabilitiesV2, lines(strings.Repeat("1", 64) + " refs/heads/main"), "invalid", false},
		"refs: unborn":       {capabilitiesV2, lines("unborn refs/heads/main"), "invalid", false},
		"refs: bad peeled":   {capabilitiesV2, lines(valid + " peeled:x"), "invalid", false},
		"refs: twice":        {capabilitiesV2, lines(valid, valid), "twice", false},
		"refs: error":        {capabilitiesV2, lines("ERR go away"), "go away", false},
		"refs: not complete": {capabilitiesV2, strings.TrimSuffix(lines(valid), "0000"), "early", true},
		"refs: too many": {capabilitiesV2, strings.Repeat(strings.TrimSuffix(lines(valid), "0000"), 101), "more than",
			false},
		"refs: too long": {capabilitiesV2,
			strings.Repeat(strings.TrimSuffix(lines(valid+strings.Repeat(" x", 10000)), "0000"),
				20), "more than", false},
	} {
		s := fake(t, test.advertisement, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.refs) })
		o := open(t, s.URL, func(o *Options) { o.MaxRefs = 100 })
		refs, err := o.Refs(t.Context(), "a", none, nil)
		if err == nil {
			_, err = refs.List()
		}
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), test.want) || IsDown(err) != test.isDown {
			t.Errorf("%s: error = %v, outage %v, want %q, outage %v", name, err, IsDown(err), test.want, test.isDown)
		}
	}
}

// Names that git does not allow are left out, and the others are kept.
func TestInvalidNames(t *testing.T) {
	t.Parallel()
	answer := lines(idOne+" HEAD symref-target:../../etc/passwd", idOne+" refs/heads/../x", idOne+" refs/heads/b",
		idOne+" refs/heads/a.lock", idOne+" MERGE_HEAD", idOne+" refs/heads/a unknown:x", idOne+" -x")
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
	list := listOf(t)(open(t, s.URL).Refs(t.Context(), "a", none, nil))
	if got, want := forEachRef(list), idOne+" refs/heads/a \n"+idOne+" refs/heads/b "; got != want || list.Invalid != 4 ||
		list.Head != "" {
		t.Errorf("refs = %q, %d invalid, HEAD %q, want %q, 4 invalid, HEAD \"\"", got, list.Invalid, list.Head, want)
	}
}

func TestInvalidPacks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ answer, want string }{
		"error":       {lines("ERR upload-pack: not our ref"), "not our ref"},
		"no section":  {lines("NAK"), "invalid answer"},
		"shallow":     {lines("shallow-info"), "shallow"},
		"flush":       {"0000", "invalid answer"},
		"cut":         {"000dpackfile\n0009\x01PACK", "early"},
		"band 3":      {"000dpackfile\n000c\x03killed\n0000", "reports: killed"},
		"band 4":      {"000dpackfile\n0005\x040000", "side-band 4"},
		"no band":     {"000dpackfile\n00040000", "packet of 0 bytes"},
		"delimiter":   {"000dpackfile\n0001", "delim packet"},
		"wrong digit": {"000dpackfile\nzzzz", "invalid answer"},
	} {
		s := fake(t, capabilitiesV2, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.answer) })
		o := open(t, s.URL)
		pack, err := o.Fetch(t.Context(), "a", none, FetchRequest{Format: git.SHA1, Wants: []git.ObjectID{{}}})
		if err == nil {
			_, err = io.Copy(io.Discard, pack)
			_ = pack.Close()
		}
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error = %v, want %q", name, err, test.want)
		}
	}
}

// trickle sends a byte again and again, much slower than the minimum rate, until the client leaves.
func trickle(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		_, _ = w.Write([]byte("0"))
		_ = http.NewResponseController(w).Flush()
		time.Sleep(10 * time.Millisecond)
	}
}

func silent(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		post  http.HandlerFunc
		fetch bool
		want  string
	}{
		"no answer":   {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, false, "no answer in time"},
		"silent refs": {silent, false, "too slow"},
		"silent pack": {silent, true, "too slow"},
		"refs that trickle": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "fff0")
			trickle(w, r)
		}, false, "too slow"},
		"pack that trickles": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "000dpackfile\nfff0")
			trickle(w, r)
		}, true, "too slow"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fake(t, capabilitiesV2, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // net/http notices that the client left after the end of the body
				test.post(w, r)
			})
			o := open(t, s.URL, func(o *Options) {
				if test.want == "too slow" {
					o.Stall = 100 * time.Millisecond
				} else {
					o.AnswerTimeout = 100 * time.Millisecond
				}
			})
			var err error
			if test.fetch {
				var pack *Pack
				pack, err = o.Fetch(t.Context(), "a", none, FetchRequest{Format: git.SHA1, Wants: []git.ObjectID{{}}})
				if err == nil {
					_, err = io.Copy(io.Discard, pack)
					_ = pack.Close()
				}
			} else {
				_, err = o.Refs(t.Context(), "a", none, nil)
			}
			if !IsDown(err) || !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want an outage: %s", err, test.want)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		after  string // Retry-After
		kind   fault.Kind
		isDown bool
		pauses bool
	}{
		"400":           {400, "", fault.Unavailable, false, false},
		"403":           {403, "", fault.Denied, false, false},
		"403, later":    {403, "60", fault.Exhausted, true, true},
		"410":           {410, "", fault.NotFound, false, false},
		"429":           {429, "", fault.Exhausted, true, false},
		"429, later":    {429, "120", fault.Exhausted, true, true},
		"429, date":     {429, time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), fault.Exhausted, true, true},
		"429, nonsense": {429, "soon", fault.Exhausted, true, false},
		"451":           {451, "", fault.Denied, false, false},
		"500":           {500, "", fault.Unavailable, true, false},
		"503, later":    {503, "99999999", fault.Unavailable, true, true},
	} {
		var requests atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			if test.after != "" {
				w.Header().Set("Retry-After", test.after)
			}
			w.WriteHeader(test.status)
		}))
		t.Cleanup(s.Close)
		o := open(t, s.URL)
		for want := int32(1); want <= 2; want++ {
			_, err := o.Refs(t.Context(), "a", none, nil)
			if fault.KindOf(err) != test.kind || IsDown(err) != test.isDown {
				t.Errorf("%s: error = %v of kind %v, outage %v, want %v, %v", name, err, fault.KindOf(err), IsDown(err),
					test.kind, test.isDown)
			}
			if test.pauses {
				want = 1
				if after := fault.RetryAfter(err); after < 50*time.Second || after > 70*time.Minute {
					t.Errorf("%s: retry after %v, want that of the origin", name, after)
				}
			}
			if got := requests.Load(); got != want {
				t.Errorf("%s: %d requests sent, want %d", name, got, want)
			}
			if test.pauses {
				break
			}
		}
		if test.pauses {
			_, err := o.Refs(t.Context(), "other", none, nil)
			if got := requests.Load(); got != 1 || !IsDown(err) || fault.RetryAfter(err) < 50*time.Second {
				t.Errorf("%s: during the pause %d requests and error %v, want 1 request and an outage", name, got, err)
			}
		}
	}
}

// The body of an error is in the log, bounded and without control characters. A client gets the text of a refused push.
func TestErrorBody(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status          int
		mediaType, body string
		log             string // in the error
		push            string // message of a push
	}{
		"refused push": {403, "text/plain; charset=utf-8", "This repository was archived\nso it is read-only.\n",
			"status 403 Forbidden: This repository was archived so it is read-only.",
			" denies access: This repository was archived so it is read-only."},
		"page": {403, "text/html", "<p>no", "status 403 Forbidden: <p>no", " denies access"},
		"no multi_ack": {400, "text/plain", "Clients must support \x1b[1mmulti-ack.",
			"status 400 Bad Request: Clients must support  [1mmulti-ack.", " answered with status 400"},
		"long":  {404, "text/plain", strings.Repeat("x", 1<<20), strings.Repeat("x", 500) + "...", " has no such repository"},
		"empty": {403, "text/plain", "", "status 403 Forbidden", " denies access"},
		"echo":  {403, "text/plain", "no: Bearer c2VjcmV0", "no: Bearer ***", " denies access: no: Bearer ***"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", test.mediaType)
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.body)
		}))
		t.Cleanup(s.Close)
		o := open(t, s.URL)
		for _, service := range []protocol.Service{protocol.UploadPack, protocol.ReceivePack} {
			err := o.Probe(t.Context(), "a", service, node.NewSecret("Bearer c2VjcmV0"))
			if !strings.HasSuffix(err.Error(), test.log) {
				t.Errorf("%s: error of %s = %.600v, want it to end with %.600q", name, service, err, test.log)
			}
			message := fault.Message(err)
			if service == protocol.ReceivePack && !strings.Contains(message, test.push) {
				t.Errorf("%s: message of a push = %q, want %q", name, message, test.push)
			}
			if service == protocol.UploadPack && strings.Contains(message, "archived") {
				t.Errorf("%s: message of a fetch = %q, want none of the origin's words", name, message)
			}
		}
	}
}

// A caller who has used up the own limit at the origin waits alone.
func TestPauseOfOneCaller(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Header.Get("Authorization") == "Bearer greedy" {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = io.WriteString(w, "0000")
	})
	o := open(t, s.URL)
	for range 2 * failures {
		_, err := o.Refs(t.Context(), "a", node.NewSecret("Bearer greedy"), nil)
		if !IsDown(err) || !IsOfCaller(err) || fault.RetryAfter(err) < 50*time.Second {
			t.Errorf("greedy caller: %v, want an outage of the caller with the pause of the origin", err)
		}
	}
	if got := requests.Load(); got != 1 {
		t.Errorf("%d requests of the greedy caller, want 1", got)
	}
	for _, auth := range []Secret{none, node.NewSecret("Bearer modest")} {
		if _, err := o.Refs(t.Context(), "a", auth, nil); err != nil {
			t.Errorf("another caller: %v, want no error", err)
		}
	}
}

func TestCircuitBreaker(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	var up atomic.Bool
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		if !up.Load() {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "0000")
	})
	o := open(t, s.URL)
	o.limits.firstPause = time.Hour
	o.known.Add("a", repository{advertisement: &advertisement{version: protocol.V2, format: git.SHA1}})
	for i := range 20 {
		_, err := o.Refs(t.Context(), "a", none, nil)
		if !IsDown(err) {
			t.Fatalf("request %d: error = %v, want an outage", i, err)
		}
		if i >= failures && fault.RetryAfter(err) < 30*time.Second {
			t.Errorf("request %d: retry after %v, want the pause of the breaker", i, fault.RetryAfter(err))
		}
	}
	if got := requests.Load(); got > 2*failures { // net/http tries each again once
		t.Errorf("%d requests sent, want at most %d", got, 2*failures)
	}
	o.limits.pause(time.Hour)
	if s := StatusOf([]*Origin{o, o}); len(s) != 1 || s[0].Host != o.Host() || s[0].Pause < 3590_000 ||
		!strings.Contains(s[0].Error, "circuit breaker open, last failure: ") {
		t.Errorf("StatusOf = %+v, want one host with the failure and the pause", s)
	}
	o.limits.paused = time.Time{}
	up.Store(true)
	o.limits.breaker.HalfOpen()
	for range 2 {
		if _, err := o.Refs(t.Context(), "a", none, nil); err != nil {
			t.Errorf("Refs after the outage: %v", err)
		}
	}
	if !o.limits.breaker.IsClosed() || o.limits.openings.Load() != 0 {
		t.Errorf("breaker is %v after %d openings, want closed after 0", o.limits.breaker.State(), o.limits.openings.Load())
	}
	if s := StatusOf([]*Origin{o}); s[0].Error != "" || s[0].Pause != 0 {
		t.Errorf("StatusOf = %+v, want no failure", s)
	}
}

// A repository that the origin cannot read does not stop requests for others, whatever the status.
func TestBrokenRepository(t *testing.T) {
	t.Parallel()
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/500/"):
			w.WriteHeader(http.StatusInternalServerError)
		case strings.HasPrefix(r.URL.Path, "/good/"):
			_, _ = io.WriteString(w, "0000")
		}
	})
	o := open(t, s.URL)
	for _, path := range []string{"500", "empty"} {
		for range 2 * failures {
			if _, err := o.Refs(t.Context(), path, none, nil); !IsDown(err) {
				t.Errorf("%s: error = %v, want an outage of it", path, err)
			}
		}
	}
	if _, err := o.Refs(t.Context(), "good", none, nil); err != nil {
		t.Errorf("Refs of another repository: %v, want no error", err)
	}
}

func BenchmarkCheck(b *testing.B) {
	answer := strings.Repeat(strings.TrimSuffix(lines(idOne+" refs/heads/main"), "0000"), 50) + "0000"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = io.WriteString(w, capabilitiesV2)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	u, _ := ParseURL(s.URL)
	o, err := New(Options{URL: u})
	if err != nil {
		b.Fatal(err)
	}
	defer o.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := o.Refs(b.Context(), "a", none, []string{"refs/heads/"}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestPauseOfBreakerGrows(t *testing.T) {
	t.Parallel()
	l := newLimits(1, 0, func(bool, error) {})
	outage := &Error{Down: true, Err: io.ErrUnexpectedEOF}
	for range failures {
		_ = l.run(func() error { return outage })
	}
	for want := time.Second; want < 2*maxPause; want *= 2 {
		if got, least := l.breaker.RemainingDelay(), min(want, maxPause); got < least*7/10 || got > least*13/10 {
			t.Errorf("pause = %v, want about %v", got, least)
		}
		l.breaker.HalfOpen()
		_ = l.run(func() error { return outage })
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte("command=fetch")) {
			_, _ = io.WriteString(w, "000dpackfile\n")
			silent(w, r)
			return
		}
		_, _ = io.WriteString(w, "0000")
	})
	o := open(t, s.URL, func(o *Options) { o.Requests = 4 })
	f := FetchRequest{Format: git.SHA1, Wants: []git.ObjectID{{}}}
	for range 3 {
		pack, err := o.Fetch(t.Context(), "a", none, f)
		if err != nil {
			t.Fatal(err)
		}
		defer pack.Close()
	}
	if _, err := o.Refs(t.Context(), "a", none, nil); err != nil {
		t.Errorf("Refs beside three packs: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := o.Fetch(ctx, "a", none, f); err == nil {
		t.Error("a fourth pack has begun, want it to wait")
	}
	for range 20 { // a request that ends early frees its slot
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := o.Refs(ctx, "a", none, nil); !fault.Is(err, fault.Cancelled) || IsDown(err) {
			t.Fatalf("Refs of a cancelled caller: %v, want cancelled and no outage", err)
		}
	}
	if _, err := o.Refs(t.Context(), "a", none, nil); err != nil {
		t.Errorf("Refs after cancelled requests: %v", err)
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	s := fake(t, capabilitiesV2, func(http.ResponseWriter, *http.Request) {})
	o := open(t, s.URL, func(o *Options) { o.PerMinute = 1 })
	_, err := o.Refs(t.Context(), "a", none, nil)
	if !fault.Is(err, fault.Exhausted) || !IsDown(err) || fault.RetryAfter(err) == 0 {
		t.Errorf("second request in a minute: %v, want exhausted with a hint", err)
	}
	if !o.limits.breaker.IsClosed() {
		t.Error("the budget counts as a failure of the origin")
	}
	another := open(t, s.URL, func(other *Options) { other.Share = o })
	if _, err := another.Refs(t.Context(), "b", none, nil); !fault.Is(err, fault.Exhausted) {
		t.Errorf("request of another client of the same host: %v, want exhausted", err)
	}
}

// Connections that the origin has closed meanwhile cause no failures.
func TestDeadConnections(t *testing.T) {
	t.Parallel()
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "0000") })
	o := open(t, s.URL)
	for i := range 10 {
		if _, err := o.Refs(t.Context(), "a", none, nil); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		s.CloseClientConnections()
	}
}

func TestRelayEnds(t *testing.T) {
	t.Parallel()
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		silent(w, r)
	})
	o := open(t, s.URL)
	left := fault.New(fault.Cancelled, "the client left")
	body := io.MultiReader(strings.NewReader("some"), iotestErr{left})
	_, err := o.Relay(t.Context(), "a", protocol.UploadPack, none, "version=2", body, -1)
	if !fault.Is(err, fault.Cancelled) || IsDown(err) || !errors.Is(err, left) {
		t.Errorf("Relay of a body that fails: %v, want cancelled and no outage", err)
	}
	r, err := o.Relay(t.Context(), "a", protocol.UploadPack, none, "version=2", strings.NewReader("some"), 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Close(); err != nil {
		t.Errorf("Close error = %v, want none", err)
	}
	if _, err := io.ReadAll(r.Body); !errors.Is(err, errClosed) || IsDown(err) {
		t.Errorf("reading after Close: %v, want %v and no outage", err, errClosed)
	}
	_ = r.Body.Close()
}

type iotestErr struct{ err error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.err }

// An answer with endless headers is refused.
func TestLongHeader(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for err == nil {
			_, err = io.WriteString(c, "X: "+strings.Repeat("x", 1000)+"\r\n")
		}
	}()
	o := open(t, "http://"+l.Addr().String())
	if _, err := o.Refs(t.Context(), "a", none, nil); !IsDown(err) {
		t.Errorf("error = %v, want an outage", err)
	}
	_ = l.Close()
	<-done
}

// Prefixes hold even if the origin ignores them.
func TestPrefixesHold(t *testing.T) {
	t.Parallel()
	answer := lines(idOne+" HEAD symref-target:refs/heads/main", idOne+" refs/heads/main", idOne+" refs/pull/1/head",
		idTwo+" refs/tags/v1 peeled:"+idOne)
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
	list := listOf(t)(open(t, s.URL).Refs(t.Context(), "a", none, []string{"refs/heads/", "refs/tags/"}))
	want := idOne + " refs/heads/main \n" + idTwo + " refs/tags/v1 " + idOne
	if got := forEachRef(list); got != want || list.Head != "refs/heads/main" {
		t.Errorf("refs = %q, HEAD %q, want %q, main", got, list.Head, want)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = io.WriteString(w, capabilitiesV2)
	}))
	t.Cleanup(s.Close)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	if err := open(t, s.URL).Probe(t.Context(), "a", protocol.UploadPack, none); !IsDown(err) {
		t.Errorf("Probe of an unknown authority: %v, want an outage", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	o := open(t, s.URL, func(o *Options) { o.Authorities = pool })
	if err := o.Probe(t.Context(), "a", protocol.UploadPack, none); err != nil {
		t.Errorf("Probe of a known authority: %v, want no error", err)
	}
}

// A proxy is used only if it is configured, and may have a private address.
func TestProxy(t *testing.T) {
	t.Parallel()
	var asked atomic.Pointer[string]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target := r.URL.String()
		asked.Store(&target)
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = io.WriteString(w, capabilitiesV2)
	}))
	t.Cleanup(proxy.Close)
	u, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := open(t, "http://forge.example/x", func(o *Options) { o.Proxy = u })
	if err := o.Probe(t.Context(), "a", protocol.UploadPack, none); err != nil {
		t.Errorf("Probe through a proxy: %v, want no error", err)
	}
	want := "http://forge.example/x/a/info/refs?service=git-upload-pack"
	if got := asked.Load(); got == nil || *got != want {
		t.Errorf("the proxy was asked for %v, want %s", got, want)
	}
}

// 500,000 refs are read and parsed, and recognized without parsing.
func TestManyRefs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a second")
	}
	const n = 500_000
	var b []byte
	for i := range n {
		b = pktline.AppendLine(b, fmt.Sprintf("%040x refs/heads/%06d", i+1, i))
	}
	b = pktline.AppendFlush(b)
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) })
	if list := listOf(t)(open(t, s.URL).Refs(t.Context(), "a", none, nil)); len(list.Refs) != n {
		t.Errorf("%d refs, want %d", len(list.Refs), n)
	}
}

func BenchmarkRefs(b *testing.B) {
	const n = 12_744
	var answer []byte
	for i := range n {
		answer = pktline.AppendLine(answer, fmt.Sprintf("%040x refs/heads/some/branch/%06d", i+1, i))
	}
	answer = pktline.AppendFlush(answer)
	known := &advertisement{version: protocol.V2, format: git.SHA1}
	for _, parse := range []bool{false, true} {
		b.Run(fmt.Sprintf("parse=%v", parse), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l := &listing{maxRefs: n}
				if err := l.readLsRefs(pktline.NewReader(bytes.NewReader(answer))); err != nil {
					b.Fatal(err)
				}
				if r := l.result(known); parse {
					if list, err := r.List(); err != nil || len(list.Refs) != n {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// An origin that takes requests and answers nothing is down as one that refuses them: two silent requests open the
// circuit breaker before their timeout. Its errors and its log line name the reason.
func TestSilentOrigin(t *testing.T) {
	t.Parallel()
	var isSilent atomic.Bool
	s := fake(t, capabilitiesV2, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice the client's end
		if isSilent.Load() {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, "0000")
	})
	var lines bytes.Buffer
	o := open(t, s.URL, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
	o.limits.maxSilence, o.limits.firstPause = 20*time.Millisecond, time.Hour
	for _, path := range []string{"a", "b"} {
		o.known.Add(path, repository{advertisement: &advertisement{version: protocol.V2, format: git.SHA1}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	isSilent.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = o.Refs(ctx, "a", none, nil)
	}()
	gittest.WaitFor(t, "the origin is silent", o.IsSilent)
	if !o.limits.breaker.IsClosed() {
		t.Error("the breaker opened after one silent request, which can be the fault of one repository")
	}
	go func() { _, _ = o.Refs(ctx, "b", none, nil) }()
	gittest.WaitFor(t, "the breaker is open", o.limits.breaker.IsOpen)
	_, err := o.Refs(t.Context(), "a", none, nil)
	if !IsDown(err) || !strings.Contains(err.Error(), errNoAnswer.Error()) {
		t.Errorf("error of a request that is not sent: %v, want an outage with %q", err, errNoAnswer)
	}
	cancel()
	<-ended
	if !strings.Contains(lines.String(), errNoAnswer.Error()) {
		t.Errorf("log = %q, want the reason", &lines)
	}
	isSilent.Store(false)
	o.limits.breaker.HalfOpen()
	if _, err := o.Refs(t.Context(), "a", none, nil); err != nil || o.IsSilent() {
		t.Errorf("Refs after the outage: %v, silent: %v, want no error and false", err, o.IsSilent())
	}
}

// A pack that gets no slot uses up no request.
func TestRefusedPackCostsNoRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(1, 600, func(bool, error) {})
		leave, err := l.enter(t.Context(), "a", true)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		time.Sleep(time.Minute)
		before := l.budget.Tokens()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { synctest.Wait(); cancel() }()
		if _, err := l.enter(ctx, "b", true); err == nil || l.budget.Tokens() != before {
			t.Errorf("pack without a slot: %v, %v requests left, want an error and %v", err, l.budget.Tokens(), before)
		}
	})
}

// One stranger with many names does not keep repositories, accepted callers and other strangers from the budget.
func TestShareOfTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(4, 60, func(bool, error) {})
		enter := func(c balance.Caller) error {
			leave, err := l.enter(t.Context(), c, false)
			if err == nil {
				leave()
			}
			return err
		}
		for range l.budget.Burst() {
			if err := enter("greedy/"); err != nil {
				t.Fatal(err)
			}
		}
		var greedy sync.WaitGroup
		for range 100 {
			greedy.Go(func() { _ = enter("greedy/") })
		}
		defer greedy.Wait()
		synctest.Wait()
		for _, c := range []balance.Caller{"repository:app", "origin-1", "modest/", "repository:app"} {
			began := time.Now()
			if err := enter(c); err != nil || time.Since(began) > 3*time.Second {
				t.Errorf("request of %s: %v after %v, want its turn within 3 s", c, err, time.Since(began))
			}
		}
	})
}

// The lists of refs of all origins have a bound of memory together. It is free again when they are not in use.
func TestListMemory(t *testing.T) {
	t.Parallel()
	m := NewListMemory(16 << 20)
	m.wait = 50 * time.Millisecond
	fill := func() (*listing, error) {
		l := &listing{maxRefs: 1 << 20, charge: m.newCharge()}
		for i := range 20_000 { // 2 MB, which cost 10 MB
			if err := l.append(fmt.Appendf(nil, "%s refs/heads/%050d", idOne, i)); err != nil {
				return nil, err
			}
		}
		return l, nil
	}
	small := func() error {
		l := &listing{maxRefs: 100, charge: m.newCharge()}
		return l.append([]byte(idOne + " refs/heads/main"))
	}
	first, err := fill()
	if err != nil {
		t.Fatal(err)
	}
	refs := first.result(&advertisement{format: git.SHA1})
	first = nil
	if _, err := fill(); !fault.Is(err, fault.Unavailable) || small() != nil {
		t.Errorf("a second long list: %v, a small one: %v, want Unavailable and none", err, small())
	}
	if list, err := refs.List(); err != nil || len(list.Refs) != 20_000 {
		t.Errorf("List() = %v, want all refs", err)
	}
	runtime.KeepAlive(refs)
	refs = nil
	m.wait = time.Minute
	if _, err := fill(); err != nil {
		t.Errorf("a long list after the first: %v, want no error", err)
	}
}
