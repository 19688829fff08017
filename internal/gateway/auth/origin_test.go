package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// forge is an origin of the repositories below "forge". It has the users alice and bob, whose passwords are "secret-"
// and their name.
type forge struct {
	mu      sync.Mutex
	readers map[string]string // by the name of a repository; "everybody" includes anonymous callers
	writers map[string]string
	down    bool
	base    string // of its URL
	silent  atomic.Bool
	limited bool     // it wants fewer requests
	asked   []string // questions
	payer   string   // of the last one
	begun   chan struct{}
	proceed chan struct{} // each question waits for it; nil: none does
}

// FoldsCase is true for the repositories below "any" and "forge/any".
func (f *forge) FoldsCase(repo git.RepoPath) bool { return strings.Contains(repo.String(), "any/") }

func (f *forge) Hosts() []string {
	if _, ok := f.readers["far-app"]; ok {
		return []string{"near", "far", "near"}
	}
	return []string{"near"}
}

func (f *forge) Find(repo git.RepoPath) *node.Origin {
	if !strings.HasPrefix(repo.String(), "forge/") {
		return nil
	}
	host := "near"
	if strings.HasPrefix(repo.String(), "forge/far-") {
		host = "far"
	}
	return &node.Origin{Host: host, URL: "https://" + host + "/" + f.base, StaleFor: time.Hour, IsSilent: f.silent.Load(),
		Probe: func(_ context.Context, service protocol.Service, authorization node.Secret, caller string) error {
			return f.probe(repo, service, authorization, caller)
		}}
}

// question is the question whether a caller may read a repository.
func (f *forge) question(s *Origins, id Identity, repo git.RepoPath) originQuestion {
	return s.question(f.Find(repo), id, repo, protocol.UploadPack)
}

func (f *forge) probe(repo git.RepoPath, service protocol.Service, authorization node.Secret, caller string) error {
	if f.proceed != nil {
		f.begun <- struct{}{}
		<-f.proceed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	user := ""
	for _, name := range []string{"alice", "bob"} {
		if authorization.Reveal() == basic(name, "secret-"+name) {
			user = name
		}
	}
	f.asked, f.payer = append(f.asked, fmt.Sprint(user, " ", repo, " ", service)), caller
	name := strings.TrimPrefix(repo.String(), "forge/")
	may := f.readers[name]
	if service == protocol.ReceivePack {
		may = f.writers[name]
	}
	switch {
	case f.down:
		// an address that may not be used, which is a failure despite its kind
		return &net.OpError{Op: "dial", Net: "tcp", Err: fault.New(fault.Denied, "not a public address")}
	case f.limited:
		return &fault.Error{Kind: fault.Exhausted, Msg: "the origin limits requests", RetryAfter: 7 * time.Second}
	case user == "" && !authorization.IsZero():
		return fault.New(fault.Unauthenticated, "wrong password")
	case may == "everybody", user != "" && strings.Contains(may, user):
		return nil
	case user == "":
		return fault.New(fault.Unauthenticated, "log in")
	case f.readers[name] != "":
		return fault.New(fault.Denied, "not for %s", user)
	}
	return fault.New(fault.NotFound, "no such repository")
}

// questions returns the number of questions since the last call.
func (f *forge) questions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.asked)
	f.asked = nil
	return n
}

func newForge() *forge {
	return &forge{
		readers: map[string]string{"public": "everybody", "app": "alice", "other": "bob", "both": "alice bob"},
		writers: map[string]string{"app": "alice"},
	}
}

func newOriginWorld(t *testing.T, f *forge, o Options) *world {
	t.Helper()
	w := &world{}
	o.Metrics = NewMetrics(nil)
	o.Origins = NewOrigins(OriginOptions{Probers: []Prober{f}, TTL: time.Minute, Metrics: o.Metrics,
		Now: func() time.Time { return w.clock }})
	*w = *newWorld(t, o)
	return w
}

// may returns the kind of the error of a caller with a credential; "" is an anonymous one.
func (w *world) may(authorization, repo string, op Operation) string {
	w.Helper()
	err, _ := w.try("192.0.2.1", authorization, repo, op)
	return says(err)
}

func (w *world) try(address, authorization, repo string, op Operation) (error, Identity) {
	w.Helper()
	var headers []string
	if authorization != "" {
		headers = []string{authorization}
	}
	id, err := w.from(address, headers...)
	if err == nil {
		err = w.May(context.Background(), id, repoPath(w.T, repo), op)
	}
	return err, id
}

var alice, bob = basic("alice", "secret-alice"), basic("bob", "secret-bob")

func TestOriginDecides(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{Guesses: 10, OpenRead: true, OpenUntilKnown: true})
	for range 2 { // the second time from the cache
		for _, test := range []struct {
			authorization, repo string
			op                  Operation
			want                string
		}{
			{"", "forge/public", Read, "ok"},
			{"", "forge/public", Write, "unauthenticated"},
			{"", "forge/app", Read, "unauthenticated"},
			{"", "forge/missing", Read, "unauthenticated"},
			{alice, "forge/app", Read, "ok"},
			{alice, "forge/app", Write, "ok"},
			{alice, "forge/app", Admin, "denied"},
			{alice, "forge/both", Read, "ok"},
			{alice, "forge/both", Write, "denied"},
			{alice, "forge/other", Read, "not_found"}, // right for one repository, tried on another
			{alice, "forge/other", Write, "not_found"},
			{alice, "forge/missing", Read, "not_found"},
			{alice, "forge/public", Read, "ok"},
			{bob, "forge/app", Read, "not_found"},
			{bob, "forge/other", Read, "ok"},
			{basic("alice", "wrong"), "forge/app", Read, "unauthenticated"},
			{basic("alice", "wrong"), "forge/missing", Read, "unauthenticated"},
			{basic("alice", ""), "forge/app", Read, "unauthenticated"},
			{"", "own", Read, "ok"}, // not covered
			{"", "own", Write, "denied"},
			{basic("alice", ""), "own", Read, "ok"},
			{alice, "own", Read, "unauthenticated"},
		} {
			if got := w.may(test.authorization, test.repo, test.op); got != test.want {
				t.Errorf("%s %s %s: %s, want %s", test.authorization, test.op, test.repo, got, test.want)
			}
		}
	}
	if err, id := w.try("192.0.2.1", alice, "forge/app", Read); err != nil || id.Authorization().Reveal() != alice ||
		id.By != ByOrigin || CheckName(id.Name) != nil || strings.Contains(id.Name, "alice") {
		t.Errorf("alice: identity = %+v, error = %v, want the credential and an invented name", id, err)
	}
	if !w.Configured() {
		t.Error("Configured() = false with an origin, want true")
	}
}

// TestOriginSameAnswer checks that a refused and a missing repository have the same answer, and cost the same
// questions.
func TestOriginSameAnswer(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{})
	for _, authorization := range []string{"", alice, basic("alice", "wrong")} {
		for _, op := range []Operation{Read, Write} {
			var texts []string
			var asked []int
			for _, repo := range []string{"forge/other", "forge/nothing"} {
				for range 2 {
					err, _ := w.try("192.0.2.1", authorization, repo, op)
					texts = append(texts, strings.ReplaceAll(fault.Message(err), repo, "REPO"))
					asked = append(asked, f.questions())
				}
			}
			if texts[0] != texts[2] || texts[1] != texts[3] || asked[0] != asked[2] || asked[1] != asked[3] {
				t.Errorf("%q %s: messages %q and questions %v, want equal ones", authorization, op, texts, asked)
			}
		}
	}
}

func TestOriginAnswersExpire(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{})
	if got := w.may(alice, "forge/app", Read); got != "ok" {
		t.Fatalf("alice: %s, want ok", got)
	}
	if got := w.may(bob, "forge/app", Read); got != "not_found" {
		t.Fatalf("bob: %s, want not_found", got)
	}
	f.readers["app"] = "bob"
	f.questions()
	w.clock = w.clock.Add(refusalTTL)
	if got := w.may(bob, "forge/app", Read); got != "ok" { // soon after he gets access
		t.Errorf("bob after %v: %s, want ok", refusalTTL, got)
	}
	if got := w.may(alice, "forge/app", Read); got != "ok" || f.questions() != 1 {
		t.Errorf("alice within the TTL: %s, want ok from the cache", got)
	}
	w.clock = w.clock.Add(time.Minute - refusalTTL)
	if got := w.may(alice, "forge/app", Read); got != "not_found" {
		t.Errorf("alice after the TTL: %s, want not_found", got)
	}
	f.down = true
	w.clock = w.clock.Add(time.Minute)
	if got := w.may(alice, "forge/app", Read); got != "unavailable" {
		t.Errorf("alice, refused before the outage: %s, want unavailable", got)
	}
}

func TestOriginDown(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{})
	for _, authorization := range []string{alice, ""} {
		if got := w.may(authorization, "forge/public", Read); got != "ok" {
			t.Fatalf("%q: %s, want ok", authorization, got)
		}
	}
	f.down = true
	w.clock = w.clock.Add(time.Hour - time.Second)
	for _, test := range []struct {
		authorization, repo string
		op                  Operation
		want                string
	}{
		{alice, "forge/public", Read, "ok"},
		{"", "forge/public", Read, "ok"},
		{alice, "forge/public", Write, "unavailable"},
		{alice, "forge/app", Read, "unavailable"},
		{bob, "forge/public", Read, "unavailable"},
		{basic("alice", "guess"), "forge/public", Read, "unavailable"},
		{"", "forge/app", Read, "unauthenticated"}, // git sends a credential only after a challenge
	} {
		if got := w.may(test.authorization, test.repo, test.op); got != test.want {
			t.Errorf("%q %s %s: %s, want %s", test.authorization, test.op, test.repo, got, test.want)
		}
	}
	w.clock = w.clock.Add(time.Second)
	if got := w.may(alice, "forge/public", Read); got != "unavailable" {
		t.Errorf("after the permission became too old: %s, want unavailable", got)
	}
	err, _ := w.try("192.0.2.1", alice, "forge/public", Read)
	if fault.RetryAfter(err) == 0 {
		t.Errorf("error = %v, want a retry hint", err)
	}
}

// A limit of the origin is not an outage: callers get its pause, unless an earlier answer holds.
func TestOriginLimits(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{})
	for repo, want := range map[string]string{"forge/both": "unauthenticated", "forge/public": "ok"} {
		if got := w.may("", repo, Read); got != want {
			t.Fatalf("anonymous at %s: %s, want %s", repo, got, want)
		}
	}
	w.may(alice, "forge/app", Read)
	f.limited = true
	w.clock = w.clock.Add(2 * time.Minute)
	for _, test := range []struct{ authorization, repo, want string }{
		{alice, "forge/app", "ok"},
		{"", "forge/public", "ok"},
		{bob, "forge/both", "exhausted"},
		{"", "forge/both", "unauthenticated"}, // an earlier permission of a credential may hold
		{"", "forge/app", "unauthenticated"},  // even without an earlier anonymous request
	} {
		err, _ := w.try("192.0.2.1", test.authorization, test.repo, Read)
		if says(err) != test.want || test.want == "exhausted" && fault.RetryAfter(err) != 7*time.Second {
			t.Errorf("%q at %s: %v, retry after %v; want %s", test.authorization, test.repo, err, fault.RetryAfter(err),
				test.want)
		}
	}
	w.clock = w.clock.Add(2 * time.Hour) // longer than StaleFor
	if got := w.may("", "forge/public", Read); got != "exhausted" {
		t.Errorf("anonymous at what was public: %s, want exhausted", got)
	}
}

// The origin's own words reach a caller who may read the repository.
func TestOriginDeniesPush(t *testing.T) {
	t.Parallel()
	w := newOriginWorld(t, newForge(), Options{})
	for range 2 {
		err, _ := w.try("192.0.2.1", bob, "forge/public", Write)
		if !fault.Is(err, fault.Denied) || fault.Message(err) != "not for bob" {
			t.Errorf("push of bob: %v, want the origin's denial", err)
		}
	}
	if err, _ := w.try("192.0.2.1", bob, "forge/app", Write); !fault.Is(err, fault.NotFound) {
		t.Errorf("push of bob, who may not read: %v, want NotFound", err)
	}
}

// TestOriginSilent checks that only earlier permissions are used while the origin does not answer a question.
func TestOriginSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newForge()
		s := NewOrigins(OriginOptions{Probers: []Prober{f}, TTL: time.Minute, Metrics: NewMetrics(nil)})
		defer s.Close()
		ask := func(name string) (error, time.Duration) {
			began := time.Now()
			err := s.ask(t.Context(), f.question(s, Identity{}, repoPath(t, "forge/"+name)))
			return err, time.Since(began)
		}
		if err, _ := ask("public"); err != nil {
			t.Fatalf("ask() = %v, want nil", err)
		}
		time.Sleep(time.Minute)
		f.begun, f.proceed = make(chan struct{}, 20), make(chan struct{})
		time.AfterFunc(time.Second*25, func() { close(f.proceed) })
		if err, took := ask("public"); err != nil || took != originPatience {
			t.Errorf("ask() = %v after %v, want nil after %v", err, took, originPatience)
		}
		if err, took := ask("public"); err != nil || took != 0 {
			t.Errorf("ask() again = %v after %v, want nil at once", err, took)
		}
		if err, took := ask("app"); !fault.Is(err, fault.Unavailable) || took != originPatience {
			t.Errorf("ask() without an earlier permission = %v after %v, want Unavailable after %v", err, took, originPatience)
		}
		if err, took := ask("app"); !fault.Is(err, fault.Unauthenticated) || took != 5*time.Second {
			t.Errorf("ask() until the answer = %v after %v, want Unauthenticated after 5s", err, took)
		}
		// While the origin answers nothing at all, callers who got an answer before do not wait for it.
		synctest.Wait() // for the end of earlier questions
		f.proceed = make(chan struct{})
		f.silent.Store(true)
		time.Sleep(time.Minute)
		for name, want := range map[string]time.Duration{"public": silentPatience, "app": silentPatience,
			"new": originPatience} {
			err, took := ask(name)
			if took != want || name == "public" && err != nil || name != "public" && !fault.Is(err, fault.Unavailable) {
				t.Errorf("ask(%s) of a silent origin = %v after %v, want %v", name, err, took, want)
			}
		}
		// All questions of one request share one bound.
		ctx, r := inflight.NewBoard().Begin(t.Context(), "fetch", "")
		defer r.End()
		end := r.WaitForOrigin()
		time.Sleep(7 * time.Second)
		end()
		began := time.Now()
		err := s.ask(ctx, f.question(s, Identity{}, repoPath(t, "forge/another")))
		if took := time.Since(began); !fault.Is(err, fault.Unavailable) || took != originPatience-7*time.Second {
			t.Errorf("ask() after another question = %v after %v, want Unavailable after 3s", err, took)
		}
		close(f.proceed)
	})
}

// TestOriginRestart restarts the server. While the origin does not answer, permissions of before hold as long as they
// would have without the restart, and no others do.
func TestOriginRestart(t *testing.T) {
	t.Parallel()
	f, file, clock := newForge(), filepath.Join(t.TempDir(), "permissions"), time.Unix(1_700_000_000, 0)
	now := func() time.Time { return clock }
	var s *Origins
	start := func() {
		s = NewOrigins(OriginOptions{Probers: []Prober{f}, TTL: time.Minute, File: file, Metrics: NewMetrics(nil), Now: now})
	}
	ask := func(authorization, name string) error {
		id := Identity{}
		if authorization != "" {
			id = s.caller(Identity{}, &Credential{}, authorization)
		}
		return s.ask(t.Context(), f.question(s, id, repoPath(t, "forge/"+name)))
	}
	check := func(when string, want ...error) {
		t.Helper()
		for i, got := range []error{ask("", "public"), ask(alice, "app"), ask(bob, "app"), ask(bob, "other")} {
			if fault.KindOf(got) != fault.KindOf(want[i]) {
				t.Errorf("%s: answer %d = %v, want %v", when, i, got, want[i])
			}
		}
	}
	unavailable := fault.New(fault.Unavailable, "")
	denied := fault.New(fault.Denied, "")
	start()
	check("first", nil, nil, denied, nil)
	s.Close()
	text, err := os.ReadFile(file)
	if info, _ := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || bytes.Contains(text, []byte("secret")) ||
		bytes.Contains(text, []byte(alice)) || bytes.Contains(text, []byte("app")) {
		t.Errorf("file %v, error %v:\n%s\nwant mode 0600 and no credential or name", info, err, text)
	}
	f.down = true
	start()
	check("after a restart", nil, nil, unavailable, nil)
	f.down, f.readers["other"] = false, "nobody"
	clock = clock.Add(time.Minute)
	if err := ask(bob, "other"); !isRefusal(err) {
		t.Errorf("a withdrawn permission: %v, want a refusal", err)
	}
	f.down = true
	defer s.Close()
	start() // the old process did not end: it crashed
	check("after a withdrawal and a crash", nil, nil, unavailable, unavailable)
	f.base = "elsewhere/"
	check("with another origin", unavailable, unavailable, unavailable, unavailable)
	f.base = ""
	clock = clock.Add(time.Hour)
	check("later than stale_for", unavailable, unavailable, unavailable, unavailable)
	s.Close()
	clock = clock.Add(-2 * time.Hour)
	start()
	check("with permissions of the future", unavailable, unavailable, unavailable, unavailable)
	s.Close()
	if err := os.WriteFile(file, text[:len(text)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	start()
	check("with a damaged file", unavailable, unavailable, unavailable, unavailable)
	s.Close()
}

// TestOriginAndOtherIdentities checks who but the origin can give access: rules and grants that name the repository.
func TestOriginAndOtherIdentities(t *testing.T) {
	t.Parallel()
	listed := &Grant{Operation: Read, Repositories: patterns(t, "forge/app")}
	for _, test := range []struct {
		name, repo string
		id         Identity
		rules      []Rule
		op         Operation
		want       string
	}{
		{"token", "forge/app", Identity{Name: "ci", By: ByToken, Grant: &Grant{Operation: Write}}, nil, Read, "not_found"},
		{"token", "forge/public", Identity{Name: "ci", By: ByToken, Grant: &Grant{Operation: Write}}, nil, Read, "ok"},
		{"token", "forge/public", Identity{Name: "ci", By: ByToken, Grant: &Grant{Operation: Write}}, nil, Write, "denied"},
		{"listed", "forge/app", Identity{Name: "ci", By: ByToken, Grant: listed}, nil, Read, "ok"},
		{"listed", "forge/app", Identity{Name: "ci", By: ByToken, Grant: listed}, nil, Write, "denied"},
		{"listed", "forge/other", Identity{Name: "ci", By: ByToken, Grant: listed}, nil, Read, "not_found"},
		{"key", "forge/app", Identity{Name: "eve", By: ByKey}, nil, Read, "not_found"},
		{"rule", "forge/app", Identity{Name: "eve", By: ByKey},
			[]Rule{rule(t, "eve", "forge/app", "read")}, Read, "ok"},
		{"rule", "forge/other", Identity{Name: "eve", By: ByKey},
			[]Rule{rule(t, "eve", "forge/app", "read")}, Read, "not_found"},
		{"rule, grant", "forge/other", Identity{Name: "ci", By: ByToken, Grant: listed},
			[]Rule{rule(t, "*", "forge/**", "read")}, Read, "not_found"},
		{"forbidden", "forge/app", Identity{Name: "ci", By: ByToken, Grant: listed},
			[]Rule{rule(t, "ci", "forge/**", "none")}, Read, "not_found"},
		{"anonymous rule", "forge/app", Identity{}, []Rule{rule(t, "anonymous", "forge/app", "read")}, Read, "ok"},
		{"anonymous rule", "forge/public", Identity{}, []Rule{rule(t, "anonymous", "forge/**", "none")}, Read,
			"unauthenticated"},
	} {
		w := newOriginWorld(t, newForge(), Options{Rules: test.rules, OpenRead: true, OpenUntilKnown: true})
		err := w.May(context.Background(), test.id, repoPath(t, test.repo), test.op)
		if got := says(err); got != test.want {
			t.Errorf("%s %s %s: %s, want %s", test.name, test.op, test.repo, got, test.want)
		}
		if test.op == Read {
			got, complete := w.Reader(context.Background(), test.id)([]git.RepoPath{repoPath(t, test.repo)})
			if got[0] != (test.want == "ok") || !complete {
				t.Errorf("%s %s: Reader = %v, %v, want %s", test.name, test.repo, got, complete, test.want)
			}
		}
	}
	// Rules forbid, but never permit, what the origin decides about its own users.
	w := newOriginWorld(t, newForge(), Options{Rules: []Rule{rule(t, "*", "forge/app", "read"),
		rule(t, "*", "forge/both", "none"), rule(t, "*", "**", "write")}})
	for repo, want := range map[string][2]string{"forge/app": {"ok", "denied"}, "forge/both": {"not_found", "not_found"},
		"forge/other": {"not_found", "not_found"}} {
		for op, want := range want {
			if got := w.may(alice, repo, Operation(op)); got != want {
				t.Errorf("alice %s %s: %s, want %s", Operation(op), repo, got, want)
			}
		}
	}
}

func patterns(t *testing.T, list ...string) []Pattern {
	t.Helper()
	all, err := ParsePatterns(list)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func rule(t *testing.T, who, repositories, may string) Rule {
	t.Helper()
	r, err := parseOne([]string{who}, []string{repositories}, may)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOriginReader(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{OpenRead: true})
	var repos []git.RepoPath
	for _, name := range []string{"own", "forge/public", "forge/app", "forge/other", "forge/missing"} {
		repos = append(repos, repoPath(t, name))
	}
	read := func(authorization ...string) (string, bool) {
		t.Helper()
		id, err := w.who(authorization...)
		if err != nil {
			t.Fatal(err)
		}
		got, complete := w.Reader(context.Background(), id)(repos)
		return fmt.Sprint(got), complete
	}
	for _, test := range []struct {
		authorization []string
		want          string
		complete      bool
	}{
		{nil, "[true true false false false]", true},
		{[]string{alice}, "[true true true false false]", true},
		{[]string{bob}, "[true true false true false]", true},
		{[]string{basic("alice", "wrong")}, "[true false false false false]", false},
	} {
		if got, complete := read(test.authorization...); got != test.want || complete != test.complete {
			t.Errorf("%q: Reader = %s, %v, want %s, %v", test.authorization, got, complete, test.want, test.complete)
		}
	}
	f.questions()
	if got, complete := read(alice); got != "[true true true false false]" || !complete || f.questions() != 0 {
		t.Errorf("again: Reader = %s, %v, want the same from the cache", got, complete)
	}
	f.down = true
	w.clock = w.clock.Add(2 * time.Minute)
	if got, complete := read(bob); complete || strings.HasPrefix(got, "[true true true") {
		t.Errorf("while the origin is down: Reader = %s, %v, want no further permission and incomplete", got, complete)
	}
	many := make([]git.RepoPath, maxOriginReadable+10)
	for i := range many {
		many[i] = repoPath(t, fmt.Sprintf("forge/x%d", i))
	}
	f.down = false
	f.questions()
	if _, complete := w.Reader(context.Background(), Identity{})(many); complete || f.questions() != maxOriginReadable {
		t.Errorf("for %d repositories: complete = %v, want false after %d questions", len(many), complete,
			maxOriginReadable)
	}
}

// If there are several hosts, a request that names none sends a credential only to a host that has accepted it before.
func TestOriginReaderOfSeveralHosts(t *testing.T) {
	t.Parallel()
	f := newForge()
	f.readers["far-public"], f.readers["far-app"] = "everybody", "alice"
	w := newOriginWorld(t, f, Options{})
	var repos []git.RepoPath
	for _, name := range []string{"forge/app", "forge/far-public", "forge/far-app"} {
		repos = append(repos, repoPath(t, name))
	}
	for _, test := range []struct{ first, want, asked string }{
		{"", "[false true false]", ""},
		{"forge/app", "[true true false]", "forge/app"},
	} {
		if test.first != "" && w.may(alice, test.first, Read) != "ok" {
			t.Fatalf("alice may not read %s", test.first)
		}
		id, err := w.who(alice)
		if err != nil {
			t.Fatal(err)
		}
		w.clock = w.clock.Add(30 * time.Second)
		if got, _ := w.Reader(context.Background(), id)(repos[2:]); got[0] {
			t.Errorf("after %q: the other host is readable with the credential", test.first)
		}
		got, complete := w.Reader(context.Background(), id)(repos)
		if fmt.Sprint(got) != test.want || !complete {
			t.Errorf("after %q: Reader = %v, %v, want %s, true", test.first, got, complete, test.want)
		}
		for _, question := range f.asked {
			if strings.HasPrefix(question, "alice") && !strings.Contains(question, " "+test.asked+" ") {
				t.Errorf("after %q: question %q with the credential, want only about %q", test.first, question, test.asked)
			}
		}
	}
}

func TestOriginQuestionsAreShared(t *testing.T) {
	t.Parallel()
	f := newForge()
	f.begun, f.proceed = make(chan struct{}, 100), make(chan struct{})
	w := newOriginWorld(t, f, Options{})
	id, err := w.who(alice)
	if err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	ask := func(ctx context.Context, want error) {
		callers.Go(func() {
			if err := w.May(ctx, id, repoPath(t, "forge/app"), Read); !errors.Is(err, want) {
				t.Errorf("May error = %v, want %v", err, want)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	ask(ctx, context.Canceled)
	<-f.begun
	for range 20 {
		ask(context.Background(), nil)
	}
	cancel() // the first caller does not take the answer away from the others
	for len(f.proceed) == 0 && len(f.begun) == 0 {
		select {
		case f.proceed <- struct{}{}:
			callers.Wait()
			if n := f.questions(); n != 1 {
				t.Errorf("questions = %d, want 1", n)
			}
			return
		case <-time.After(10 * time.Second):
			t.Fatal("no question")
		}
	}
}

// TestOriginGuesses checks that wrong credentials wait, and do not reach the origin any more.
func TestOriginGuesses(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{Guesses: 3})
	if got := w.may(alice, "forge/app", Read); got != "ok" {
		t.Fatalf("alice: %s, want ok", got)
	}
	f.questions()
	for i := range 10 {
		want := "unauthenticated"
		if i >= 3 {
			want = "exhausted"
		}
		if got := w.may(basic("alice", fmt.Sprint(i)), fmt.Sprint("forge/x", i), Read); got != want {
			t.Errorf("guess %d: %s, want %s", i, got, want)
		}
	}
	if n := f.questions(); n != 3 {
		t.Errorf("questions = %d, want 3", n)
	}
	if got := w.may(alice, "forge/app", Read); got != "ok" {
		t.Errorf("alice after guesses: %s, want ok", got)
	}
	for i := range 20 { // names of repositories are not guesses of a credential
		if got := w.may(alice, fmt.Sprint("forge/y", i), Read); got != "not_found" {
			t.Errorf("alice on a missing repository: %s, want not_found", got)
		}
	}
}

// TestOurTokensStayHere checks that tokens of this server do not reach an origin.
func TestOurTokensStayHere(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{})
	token := w.token("ci", Write)
	for _, authorization := range []string{basic("x", token), basic(token, ""), "Bearer " + token,
		basic("x", newToken()), "Bearer " + newToken(), basic("x", tokenPrefix+"mistyped")} {
		w.may(authorization, "forge/app", Read)
	}
	for _, question := range f.asked {
		if !strings.HasPrefix(question, " ") {
			t.Errorf("question of %q, want anonymous ones only", question)
		}
	}
	if n := f.questions(); n > 1 {
		t.Errorf("questions = %d, want at most the anonymous one", n)
	}
}

// TestOriginSecretsAreHidden searches all that the package prints, logs and measures for the credential.
func TestOriginSecretsAreHidden(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{Guesses: 2})
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.o.Metrics.credentials, w.o.Metrics.questions, w.o.Metrics.sources)
	for _, down := range []bool{false, true} {
		f.down = down
		for _, authorization := range []string{alice, basic("alice", "wrong-secret"), "Bearer bearer-secret"} {
			for _, repo := range []string{"forge/app", "forge/other", "own"} {
				err, id := w.try("192.0.2.1", authorization, repo, Read)
				fmt.Fprintf(&out, "%v %+v %#v %v %s\n", id, id, id, err, fault.Message(err))
				log.Info("request", "identity", id, "error", err)
			}
		}
		w.clock = w.clock.Add(time.Minute)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&out, families, w.log.String())
	for _, secret := range []string{"secret-alice", "wrong-secret", "bearer-secret", strings.TrimPrefix(alice, "Basic ")} {
		if at := strings.Index(out.String(), secret); at >= 0 {
			t.Errorf("output has %q: %.200s", secret, out.String()[max(0, at-100):])
		}
	}
}

// TestOriginPayers checks the callers that questions count for: only those with an earlier permission do not count for
// a stranger. The answer that a repository does not exist is remembered.
func TestOriginPayers(t *testing.T) {
	t.Parallel()
	f := newForge()
	w := newOriginWorld(t, f, Options{})
	for _, test := range []struct{ authorization, repo, payer string }{
		{"", "forge/public", "192.0.2.1/"},
		{"", "forge/missing", "192.0.2.1/"},
		{alice, "forge/app", "192.0.2.1/"},
		{alice, "forge/both", "origin-"},
		{alice, "forge/missing", "origin-"},
		{basic("alice", "wrong"), "forge/app", "192.0.2.1/"},
	} {
		w.may(test.authorization, test.repo, Read)
		if !strings.HasPrefix(f.payer, test.payer) || test.payer == "" && f.payer != "" {
			t.Errorf("%q reads %s: counts for %q, want %q", test.authorization, test.repo, f.payer, test.payer)
		}
	}
	w.clock = w.clock.Add(absentTTL - time.Second)
	f.questions()
	if w.may(alice, "forge/missing", Read); f.questions() != 0 {
		t.Error("a missing repository was asked for again, want the remembered answer")
	}
	w.clock = w.clock.Add(time.Minute)
	if w.may(alice, "forge/app", Read); f.payer != "" {
		t.Errorf("a permission that is renewed counts for %q, want the repository", f.payer)
	}
	if w.may("", "forge/public", Read); f.payer != "192.0.2.1/" {
		t.Errorf("that of an anonymous caller counts for %q, want its network", f.payer)
	}
}
