package roles

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// forgeAnswers are the statuses with which a forge answers GET info/refs.
type forgeAnswers struct {
	anonymousPrivate, anonymousMissing int
	wrong                              int // the credential is unknown
	denied, missing                    int // for a user without access
	readOnly                           int // push by a user who may read
}

// forges have the answers of several forges, as far as they are known. The test demands the same result from all.
var forges = map[string]forgeAnswers{
	"GitHub":    {401, 401, 401, 404, 404, 403},
	"GitLab":    {401, 401, 401, 404, 404, 403},
	"Gitea":     {401, 401, 401, 404, 404, 200}, // and Forgejo; a hook refuses the push later
	"Bitbucket": {401, 404, 401, 403, 403, 403},
	"nginx":     {401, 401, 401, 403, 403, 403}, // basic authentication before git http-backend or cgit
	"sign-in":   {302, 302, 401, 404, 404, 403}, // redirects browsers to a page
}

// fakeForge answers as a forge does. The user "alice" may read team/app and may push to nothing; team/public is public.
type fakeForge struct {
	*httptest.Server
	answers forgeAnswers

	mu      sync.Mutex
	status  int      // of all responses; 0: as usual
	moved   string   // the URL to which team/moved redirects
	secrets []string // all Authorization headers
}

const (
	aliceSecret = "correct horse"
	wrongSecret = "battery staple"
)

func basicAuth(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

func newFakeForge(t *testing.T, answers forgeAnswers) *fakeForge {
	f := &fakeForge{answers: answers}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeForge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	authorization := r.Header.Get("Authorization")
	if authorization != "" {
		f.secrets = append(f.secrets, authorization)
	}
	name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/info/refs"), ".git")
	service := r.URL.Query().Get("service")
	alice := authorization == basicAuth("alice", aliceSecret)
	status := http.StatusOK
	switch public := name == "team/public"; {
	case f.status != 0:
		status = f.status
	case name == "team/moved":
		w.Header().Set("Location", f.moved)
		status = http.StatusMovedPermanently
	case authorization != "" && !alice:
		status = f.answers.wrong
	case !alice && (!public || service == "git-receive-pack"):
		status = f.answers.anonymousPrivate
		if name == "team/missing" {
			status = f.answers.anonymousMissing
		}
	case name == "team/missing":
		status = f.answers.missing
	case name == "team/secret":
		status = f.answers.denied
	case service == "git-receive-pack":
		status = f.answers.readOnly
	}
	if status == http.StatusFound {
		w.Header().Set("Location", f.moved)
	}
	if status != http.StatusOK {
		w.Header().Set("WWW-Authenticate", `Basic realm="forge"`)
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
	_, _ = w.Write(append(pktline.AppendFlush(pktline.AppendLine(nil, "# service="+service)),
		pktline.AppendFlush(pktline.AppendLine(nil, "version 2"))...))
}

func (f *fakeForge) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// sidecarAuth returns the Auth of a server beside a forge, without a cache, and its log.
func sidecarAuth(t *testing.T, url, more string) (*auth.Auth, *lockedLog) {
	t.Helper()
	cfg, err := loadTextAs(t, config.RoleServe, "root = \".\"\nhttp.public_read = true\npush.enabled = false\n"+
		"maintenance.enabled = false\n[auth]\nttl = \"1ns\"\nguesses = 0\n[auth.origin]\nurl = \""+url+"\"\n"+more)
	if err != nil {
		t.Fatal(err)
	}
	log := &lockedLog{}
	d := testDeps(t, config.RoleServe, cfg,
		slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		prometheus.NewRegistry())
	callers, err := newAuth(d, nil, newAccess(&d.cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	d.life.push("authentication", callers.Close)
	return callers, log
}

func try(t *testing.T, a *auth.Auth, authorization, repo string, op auth.Operation) error {
	t.Helper()
	r := &http.Request{RemoteAddr: "192.0.2.1:1", Header: http.Header{}}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	id, err := a.HTTP(r)
	if err != nil {
		return err
	}
	path, err := git.ParseRepoPath(repo)
	if err != nil {
		t.Fatal(err)
	}
	return a.May(context.Background(), id, path, op)
}

func kindOfError(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.KindOf(err).String()
}

// TestSidecarBesideForges checks that callers get the same answers, whatever forge decides.
func TestSidecarBesideForges(t *testing.T) {
	t.Parallel()
	for name, answers := range forges {
		f := newFakeForge(t, answers)
		f.moved = f.URL + "/users/sign_in"
		a, _ := sidecarAuth(t, f.URL+"/", "")
		alice, wrong := basicAuth("alice", aliceSecret), basicAuth("alice", wrongSecret)
		for _, test := range []struct {
			authorization, repo string
			op                  auth.Operation
			want                string
		}{
			{"", "team/public", auth.Read, "ok"},
			{"", "team/app", auth.Read, "unauthenticated"},
			{"", "team/missing", auth.Read, "unauthenticated"},
			{"", "team/public", auth.Write, "unauthenticated"},
			{alice, "team/public", auth.Read, "ok"},
			{alice, "team/app", auth.Read, "ok"},
			{alice, "team/app", auth.Write, map[bool]string{true: "ok", false: "denied"}[answers.readOnly == 200]},
			{alice, "team/secret", auth.Read, "not_found"},
			{alice, "team/missing", auth.Read, "not_found"},
			{alice, "team/secret", auth.Write, "not_found"},
			{alice, "team/missing", auth.Write, "not_found"},
			{wrong, "team/public", auth.Read, "unauthenticated"},
			{wrong, "team/app", auth.Read, "unauthenticated"},
			{wrong, "team/missing", auth.Read, "unauthenticated"},
		} {
			if got := kindOfError(try(t, a, test.authorization, test.repo, test.op)); got != test.want {
				t.Errorf("%s: %q %s %s: %s, want %s", name, test.authorization, test.op, test.repo, got, test.want)
			}
		}
		for _, status := range []int{429, 500, 502, 503} {
			f.set(func() { f.status = status })
			want := map[bool]string{true: "exhausted", false: "unavailable"}[status == 429]
			if got := kindOfError(try(t, a, alice, "team/secret", auth.Read)); got != want {
				t.Errorf("%s with status %d: %s, want %s", name, status, got, want)
			}
		}
	}
}

// TestSidecarRedirects checks that a redirect gets no credential, on the forge's host and elsewhere.
func TestSidecarRedirects(t *testing.T) {
	t.Parallel()
	f, other := newFakeForge(t, forges["GitHub"]), newFakeForge(t, forges["GitHub"])
	a, _ := sidecarAuth(t, f.URL, "")
	alice := basicAuth("alice", aliceSecret)
	for _, target := range []string{other.URL + "/team/app/info/refs?service=git-upload-pack",
		f.URL + "/team/app/info/refs?service=git-upload-pack"} {
		f.set(func() { f.moved, f.secrets = target, nil })
		if got := kindOfError(try(t, a, alice, "team/moved", auth.Read)); got != "not_found" {
			t.Errorf("redirect to %s: %s, want not_found", target, got)
		}
		if !slices.Equal(f.secrets, []string{alice}) || len(other.secrets) > 0 {
			t.Errorf("redirect to %s: credentials at the forge %q, elsewhere %q, want one and none", target, f.secrets,
				other.secrets)
		}
	}
}

// TestSidecarDown checks that nothing is readable while the forge is down, except what it permitted before.
func TestSidecarDown(t *testing.T) {
	t.Parallel()
	f := newFakeForge(t, forges["GitLab"])
	a, log := sidecarAuth(t, f.URL, "")
	alice := basicAuth("alice", aliceSecret)
	if got := kindOfError(try(t, a, alice, "team/app", auth.Read)); got != "ok" {
		t.Fatalf("alice: %s, want ok", got)
	}
	f.Close()
	texts := []string{log.String()}
	for _, test := range [][3]string{{alice, "team/app", "ok"}, {alice, "team/public", "unavailable"},
		{"", "team/app", "unauthenticated"}, {basicAuth("alice", wrongSecret), "team/app", "unavailable"}} {
		err := try(t, a, test[0], test[1], auth.Read)
		if got := kindOfError(err); got != test[2] {
			t.Errorf("%q %s: %s, want %s", test[0], test[1], got, test[2])
		}
		texts = append(texts, fmt.Sprintf("%v %+v %s", err, err, fault.Message(err)))
	}
	texts = append(texts, log.String())
	for _, text := range texts {
		for _, secret := range []string{aliceSecret, wrongSecret, strings.TrimPrefix(alice, "Basic ")} {
			if strings.Contains(text, secret) {
				t.Errorf("text has %q: %s", secret, text)
			}
		}
	}
}

func TestSidecarPaths(t *testing.T) {
	t.Parallel()
	path := func(s string) git.RepoPath {
		t.Helper()
		p, err := git.ParseRepoPath(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	fold := foldCase(config.OriginConfig{URL: "x", Prefix: "gitea", FoldCase: true})
	for in, want := range map[string]string{"gitea/Team/App.git": "gitea/team/app.git", "Own/App": "Own/App",
		"gitea/team/app": "gitea/team/app"} {
		if got := fold(path(in)); got.String() != want || fold(got) != got {
			t.Errorf("fold(%q) = %q, want %q", in, got, want)
		}
	}
	if foldCase(config.OriginConfig{URL: "x"}) != nil || foldCase(config.OriginConfig{FoldCase: true}) != nil {
		t.Error("foldCase without fold_case or a forge is not nil, want nil")
	}
	s := &sidecar{prefix: "gitea/", staleFor: time.Hour}
	for in, want := range map[string]bool{"gitea/team/app": true, "Gitea/team/app": true, "gitea": false, "own/app": false,
		"gitea2/app": false} {
		if got := s.covers(path(in)); got != want {
			t.Errorf("covers(%q) = %v, want %v", in, got, want)
		}
		folds := &sidecar{prefix: "gitea/", foldCase: true}
		if got := folds.FoldsCase(path(in)); got != want || s.FoldsCase(path(in)) {
			t.Errorf("FoldsCase(%q) = %v, want %v with fold_case only", in, got, want)
		}
	}
	n := &nodeMirrors{}
	n.rules.Store(&[]mirror.Rule{{Prefix: "a/b"}, {Prefix: "a", FoldCase: true}})
	for in, want := range map[string]bool{"a/App": true, "a/b/App": false, "b/app": false} {
		if got := n.FoldsCase(path(in)); got != want {
			t.Errorf("FoldsCase(%q) of a gateway = %v, want %v", in, got, want)
		}
	}
}

// TestForgottenMirrors removes the [[mirror]] tables: their repositories do not become public.
func TestForgottenMirrors(t *testing.T) {
	t.Parallel()
	root, state := t.TempDir(), t.TempDir()
	for _, name := range []string{"own.git", "host/private.git"} {
		gittest.InitAt(t, filepath.Join(root, name))
	}
	if err := os.WriteFile(filepath.Join(root, "host/private.git/packhorse-mirror.json"), []byte("{}"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(mirror.StateDir(state), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadTextAs(t, config.RoleServe, fmt.Sprintf("root = %q\nstate = %q\nhttp.public_read = true\n", root,
		state))
	if err != nil {
		t.Fatal(err)
	}
	d := testDeps(t, config.RoleServe, cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	node, err := newNodeParts(d)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAuth(d, node.mirrors, newAccess(&d.cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	d.life.push("authentication", a.Close)
	for repo, want := range map[string]string{"own": "ok", "host/private": "unauthenticated",
		"host/private.git": "unauthenticated", "host/missing": "ok"} {
		if got := kindOfError(try(t, a, "", repo, auth.Read)); got != want {
			t.Errorf("%s: %s, want %s", repo, got, want)
		}
	}
}

// TestGatewayAsksOrigins checks the [[mirror]] tables of a gateway, whose nodes have the mirrors.
func TestGatewayAsksOrigins(t *testing.T) {
	t.Parallel()
	f := newFakeForge(t, forges["GitHub"])
	f.moved = f.URL + "/team/app.git/info/refs?service=git-upload-pack"
	cfg, err := loadTextAs(t, config.RoleGateway, fmt.Sprintf("state = %q\nauth.ttl = \"1ns\"\n"+
		"[[node]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n"+
		"[[mirror]]\nfrom = %q\nto = \"forge\"\ndeny = [\"team/public\"]\n"+
		"[[mirror]]\nfrom = %q\nto = \"forge/open\"\nauth = \"rules\"\n", t.TempDir(), f.URL, f.URL))
	if err != nil {
		t.Fatal(err)
	}
	d := testDeps(t, config.RoleGateway, cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	a, err := newAuth(d, must(newNodeMirrors(d)), newAccess(&d.cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	d.life.push("authentication", a.Close)
	alice := basicAuth("alice", aliceSecret)
	for _, test := range []struct{ authorization, repo, want string }{
		{alice, "forge/team/app", "ok"},
		{alice, "forge/team/secret", "not_found"},
		{alice, "forge/team/moved", "ok"},            // renamed on the same host
		{"", "forge/team/public", "unauthenticated"}, // denied here
		{alice, "forge/team/public", "not_found"},
		{"", "forge/open/team/app", "ok"}, // as on a loopback address without callers
		{alice, "forge/open/team/app", "unauthenticated"},
	} {
		if got := kindOfError(try(t, a, test.authorization, test.repo, auth.Read)); got != test.want {
			t.Errorf("%q %s: %s, want %s", test.authorization, test.repo, got, test.want)
		}
	}
}

// TestGatewayFollowsTables applies changed tables to a gateway. The mirrors of a removed one do not become public.
func TestGatewayFollowsTables(t *testing.T) {
	t.Parallel()
	f := newFakeForge(t, forges["GitHub"])
	load := func(tables string) config.Config {
		t.Helper()
		cfg, err := loadTextAs(t, config.RoleGateway, fmt.Sprintf("state = %q\nauth.ttl = \"1ns\"\nhttp.public_read = true\n"+
			"[[node]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n%s", t.TempDir(), tables))
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	table := func(to, more string) string {
		return fmt.Sprintf("[[mirror]]\nfrom = %q\nto = %q\n%s", f.URL, to, more)
	}
	d := testDeps(t, config.RoleGateway, load(table("one", "")), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	a, err := newAuth(d, must(newNodeMirrors(d)), newAccess(&d.cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	d.life.push("authentication", a.Close)
	for _, test := range []struct{ tables, one, two string }{
		{table("one", ""), "unauthenticated", "ok"},
		{table("one", "") + table("two", ""), "unauthenticated", "unauthenticated"},
		{table("two", ""), "unauthenticated", "unauthenticated"},
		{"", "unauthenticated", "unauthenticated"},
		{table("one", "auth = \"rules\"\n"), "ok", "unauthenticated"},
	} {
		if err := d.life.reload(load(test.tables)); err != nil {
			t.Fatal(err)
		}
		for repo, want := range map[string]string{"one/team/secret": test.one, "two/team/secret": test.two} {
			if got := kindOfError(try(t, a, "", repo, auth.Read)); got != want {
				t.Errorf("%s with the tables\n%s%s, want %s", repo, test.tables, got, want)
			}
		}
		if got := kindOfError(try(t, a, basicAuth("alice", aliceSecret), "two/team/app", auth.Read)); test.two != "ok" &&
			(got == "ok") != strings.Contains(test.tables, "two") {
			t.Errorf("alice reads two/team/app with the tables\n%s%s", test.tables, got)
		}
	}
}
