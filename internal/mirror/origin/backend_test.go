package origin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend is git http-backend on a directory of repositories.
type backend struct {
	*httptest.Server
	root string
	v0   bool // it knows only version 0

	mu       sync.Mutex
	requests []string // "METHOD path"
	// Before, if set, can answer a request instead of git.
	before func(w http.ResponseWriter, r *http.Request) bool
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{root: t.TempDir()}
	var env []string
	for _, v := range gittest.Env() {
		if !strings.HasPrefix(v, "GIT_CONFIG_COUNT=") {
			env = append(env, v)
		}
	}
	git := &cgi.Handler{Path: path, Args: []string{"http-backend"}, Stderr: io.Discard,
		Env: append(env, "GIT_PROJECT_ROOT="+b.root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1",
			"GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true")}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.requests = append(b.requests, r.Method+" "+r.URL.Path)
		before := b.before
		b.mu.Unlock()
		if before != nil && before(w, r) {
			return
		}
		if b.v0 {
			r.Header.Del("Git-Protocol")
		}
		git.ServeHTTP(w, r)
	}))
	t.Cleanup(b.Close)
	return b
}

// seen returns the requests since the last call.
func (b *backend) seen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.requests
	b.requests = nil
	return seen
}

func (b *backend) repo(t *testing.T, name string, args ...string) *gittest.Repo {
	t.Helper()
	return gittest.InitAt(t, filepath.Join(b.root, name), args...)
}

// origin returns a client of a server.
func open(t *testing.T, address string, change ...func(*Options)) *Origin {
	t.Helper()
	u, err := ParseURL(address)
	if err != nil {
		t.Fatalf("ParseURL(%q) error = %v, want none", address, err)
	}
	o := Options{URL: u}
	for _, f := range change {
		f(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatalf("New(%q) error = %v, want none", address, err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close error = %v, want none", err)
		}
	})
	return c
}

var none Secret

// listOf returns a function that takes the results of Refs.
func listOf(t *testing.T) func(*Refs, error) *List {
	return func(r *Refs, err error) *List { return mustList(t, r, err) }
}

func mustList(t *testing.T, r *Refs, err error) *List {
	t.Helper()
	if err != nil {
		t.Fatalf("Refs error = %v, want none", err)
	}
	list, err := r.List()
	if err != nil {
		t.Fatalf("List error = %v, want none", err)
	}
	return list
}

// forEachRef formats a list as git for-each-ref does for oracle.
func forEachRef(list *List) string {
	var b strings.Builder
	for _, r := range list.Refs {
		peeled := ""
		if !r.Peeled.IsZero() {
			peeled = r.Peeled.String()
		}
		fmt.Fprintf(&b, "%v %v %s\n", r.ID, r.Name, peeled)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// bothVersions runs a test with an origin that knows version 2 and one that does not.
func bothVersions(t *testing.T, f func(t *testing.T, b *backend)) {
	for _, v0 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v0=%v", v0), func(t *testing.T) {
			t.Parallel()
			b := newBackend(t)
			b.v0 = v0
			f(t, b)
		})
	}
}

func TestRefs(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, b *backend) {
		for _, format := range []string{"sha1", "sha256"} {
			repo := b.repo(t, format+".git", "--object-format="+format)
			o := open(t, b.URL)
			ctx := t.Context()

			list := listOf(t)(o.Refs(ctx, format+".git", none, nil))
			if len(list.Refs) != 0 || !list.HeadID.IsZero() {
				t.Errorf("%s: empty repository has %d refs, HEAD %v, want none", format, len(list.Refs), list.HeadID)
			}
			if want := git.RefName("refs/heads/main"); !b.v0 && list.Head != want {
				t.Errorf("%s: unborn HEAD is %q, want %q", format, list.Head, want)
			}

			id := repo.Commit("one")
			var updates strings.Builder
			for i := range 1500 {
				fmt.Fprintf(&updates, "create refs/heads/branch%04d %v\n", i, id)
			}
			fmt.Fprintf(&updates, "create refs/heads/main %v\ncreate refs/pull/1/head %v\n", id, id)
			repo.GitIn(updates.String(), "update-ref", "--stdin")
			repo.Git("tag", "-a", "-m", "x", "v1", id.String())
			repo.Git("tag", "-a", "-m", "x", "v2", "v1")
			repo.Git("tag", "light", id.String())

			refs, err := o.Refs(ctx, format+".git", none, nil)
			list = mustList(t, refs, err)
			const line = "--format=%(objectname) %(refname) %(*objectname)"
			want := repo.Git("for-each-ref", line)
			want = strings.ReplaceAll(want, repo.Git("rev-parse", "v2")+" refs/tags/v2 "+repo.Git("rev-parse", "v1"),
				repo.Git("rev-parse", "v2")+" refs/tags/v2 "+id.String()) // git peels completely on the wire only
			if got := forEachRef(list); got != want {
				t.Errorf("%s: refs = %.300s\nwant %.300s", format, got, want)
			}
			if list.Head != "refs/heads/main" || list.HeadID != id || refs.Format.String() != format {
				t.Errorf("%s: HEAD %q %v, format %v, want refs/heads/main %v", format, list.Head, list.HeadID, refs.Format, id)
			}
			if wantVersion := map[bool]protocol.Version{true: protocol.V0,
				false: protocol.V2}[b.v0]; refs.Version != wantVersion {
				t.Errorf("version = %v, want %v", refs.Version, wantVersion)
			}

			tags, err := o.Refs(ctx, format+".git", none, []string{"refs/tags/", "refs/pull/"})
			list = mustList(t, tags, err)
			if got, want := forEachRef(list), strings.Join(slices.DeleteFunc(strings.Split(want, "\n"), func(l string) bool {
				return strings.Contains(l, "refs/heads/")
			}), "\n"); got != want || list.HeadID != id {
				t.Errorf("%s: with prefixes refs = %s, HEAD %v\nwant %s", format, got, list.HeadID, want)
			}

			again, err := o.Refs(ctx, format+".git", none, nil)
			if err != nil || again.Digest != refs.Digest || tags.Digest == refs.Digest {
				t.Errorf("%s: digests %x, %x, of tags %x, error %v; want the first two equal", format, refs.Digest,
					again.Digest, tags.Digest, err)
			}
			repo.Git("update-ref", "--no-deref", "HEAD", id.String())
			detached, err := o.Refs(ctx, format+".git", none, nil)
			list = mustList(t, detached, err)
			if list.Head != "" || list.HeadID != id || detached.Digest == refs.Digest {
				t.Errorf("%s: detached HEAD is %q %v, want \"\" %v and another digest", format, list.Head, list.HeadID, id)
			}
		}
	})
}

// After the first request each check of the refs is one request.
func TestRefsIsOneRequest(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	repo := b.repo(t, "a.git")
	repo.Git("update-ref", "refs/heads/main", repo.Commit("one").String())
	o := open(t, b.URL)
	for i, want := range [][]string{{"GET /a.git/info/refs", "POST /a.git/git-upload-pack"},
		{"POST /a.git/git-upload-pack"}} {
		if _, err := o.Refs(t.Context(), "a.git", none, []string{"refs/heads/"}); err != nil {
			t.Fatal(err)
		}
		if got := b.seen(); !slices.Equal(got, want) {
			t.Errorf("request %d: sent %q, want %q", i, got, want)
		}
	}
}

func TestFetch(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, b *backend) {
		for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
			name := format.String() + ".git"
			repo := b.repo(t, name, "--object-format="+format.String())
			one := repo.Commit("one")
			two := repo.Commit("two", one)
			repo.Git("update-ref", "refs/heads/main", two.String())
			o := open(t, b.URL, func(o *Options) { o.Metrics = NewMetrics(nil) })
			var progress bytes.Buffer
			unknown := git.MustParseObjectID(strings.Repeat("12", format.Size()))
			for _, f := range []FetchRequest{
				{Format: format, Wants: []git.ObjectID{two}},
				{Format: format, Wants: []git.ObjectID{two}, Haves: []git.ObjectID{unknown, one},
					Progress: func(p []byte) { progress.Write(p) }},
			} {
				pack, err := o.Fetch(t.Context(), name, none, f)
				if err != nil {
					t.Fatalf("%v: Fetch error = %v, want none", format, err)
				}
				content, err := io.ReadAll(pack)
				if err != nil || pack.Close() != nil {
					t.Fatalf("%v: reading the pack: %v", format, err)
				}
				got := inspect(t, repo, format, content)
				want := len(strings.Fields(repo.Git(append([]string{"rev-list", "--objects", "--no-object-names", two.String()},
					negated(f.Haves, unknown)...)...)))
				if got != want {
					t.Errorf("%v, haves %v: pack of %d objects, want %d", format, f.Haves, got, want)
				}
			}
			if !strings.Contains(progress.String(), "Total ") {
				t.Errorf("progress = %q, want that of pack-objects", &progress)
			}
			if n := testutil.ToFloat64(o.metrics.requests.WithLabelValues(o.Host(), opFetch, "ok")); n != 2 {
				t.Errorf("fetch requests = %v, want 2", n)
			}

			_, err := o.Fetch(t.Context(), name, none, FetchRequest{Format: format, Wants: []git.ObjectID{unknown}})
			if !fault.Is(err, fault.Unavailable) || IsDown(err) || !strings.Contains(err.Error(), "not our ref") {
				t.Errorf("%v: Fetch of an unknown object: %v, want \"not our ref\" from the origin", format, err)
			}
			other := git.SHA1 + git.SHA256 - format
			_, err = o.Fetch(t.Context(), name, none, FetchRequest{Format: other, Wants: []git.ObjectID{two}})
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "object format") {
				t.Errorf("%v: Fetch in another object format: %v, want an error about it", format, err)
			}
		}
	})
}

// Some servers of version 0 refuse clients that do not offer multi_ack_detailed. Then each have has an acknowledgment.
func TestFetchWithManyHaves(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	b.v0 = true
	repo := b.repo(t, "a.git")
	var haves []git.ObjectID
	for i := range 60 {
		haves = append(haves, repo.Commit(fmt.Sprint(i), haves[max(len(haves)-1, 0):]...))
	}
	tip := repo.Commit("tip", haves[len(haves)-1])
	repo.Git("update-ref", "refs/heads/main", tip.String())
	b.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(" multi_ack_detailed ")) {
			return false
		}
		w.WriteHeader(http.StatusBadRequest)
		return true
	}
	pack, err := open(t, b.URL).Fetch(t.Context(), "a.git", none, FetchRequest{Format: git.SHA1,
		Wants: []git.ObjectID{tip}, Haves: haves})
	if err != nil {
		t.Fatalf("Fetch error = %v, want none", err)
	}
	content, err := io.ReadAll(pack)
	if err != nil || pack.Close() != nil {
		t.Fatalf("reading the pack: %v", err)
	}
	if n := inspect(t, repo, git.SHA1, content); n != 3 {
		t.Errorf("pack of %d objects, want a commit, a tree and a file", n)
	}
}

// Parameters and the case of a content type mean nothing, as for Git.
func TestContentType(t *testing.T) {
	t.Parallel()
	for header, isOK := range map[string]bool{"application/x-git-upload-pack-advertisement; charset=utf-8": true,
		"Application/X-Git-Upload-Pack-Advertisement ;x": true, "application/x-git-upload-pack-advertisements": false,
		"text/html": false, "": false} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", header)
			_, _ = io.WriteString(w, lines("version 2"))
		}))
		t.Cleanup(s.Close)
		err := open(t, s.URL).Probe(t.Context(), "a", protocol.UploadPack, none)
		if (err == nil) != isOK {
			t.Errorf("Content-Type %q: error = %v, want success %t", header, err, isOK)
		}
	}
}

func negated(haves []git.ObjectID, unknown git.ObjectID) (args []string) {
	for _, id := range haves {
		if id != unknown {
			args = append(args, "^"+id.String())
		}
	}
	return args
}

// inspect returns the number of objects of a pack that git index-pack accepts.
func inspect(t *testing.T, repo *gittest.Repo, format git.ObjectFormat, pack []byte) int {
	t.Helper()
	if len(pack) < 12 || string(pack[:4]) != "PACK" {
		t.Fatalf("%v: not a pack: %.20q", format, pack)
	}
	if out, err := repo.TryIn(string(pack), "index-pack", "--stdin", "--fix-thin"); err != nil {
		t.Fatalf("%v: git index-pack: %v\n%s", format, err, out)
	}
	return int(pack[8])<<24 | int(pack[9])<<16 | int(pack[10])<<8 | int(pack[11])
}

func TestRelay(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	repo := b.repo(t, "team/a.git")
	id := repo.Commit("one")
	repo.Git("update-ref", "refs/heads/main", id.String())
	o := open(t, b.URL+"/team/")
	ctx := t.Context()

	request := (&FetchRequest{Format: git.SHA1, Wants: []git.ObjectID{id}}).v2("test")
	for name, body := range map[string]struct {
		r      io.Reader
		length int64
	}{
		"known length":   {bytes.NewReader(request), int64(len(request))},
		"unknown length": {io.MultiReader(bytes.NewReader(request)), -1},
	} {
		r, err := o.Relay(ctx, "a.git", protocol.UploadPack, none, "version=2", body.r, body.length)
		if err != nil {
			if name == "unknown length" { // net/http/cgi does not accept chunked requests
				continue
			}
			t.Fatalf("%s: Relay error = %v, want none", name, err)
		}
		pack := newPack(r.Body, pktline.NewReader(r.Body), protocol.V2, nil)
		content, err := io.ReadAll(pack)
		if err != nil || pack.Close() != nil || !bytes.HasPrefix(content, []byte("PACK")) {
			t.Errorf("%s: pack %.10q, %v", name, content, err)
		}
	}
	push, err := o.Advertisement(ctx, "a.git", none, "")
	if err != nil {
		t.Fatalf("Advertisement of receive-pack: %v", err)
	}
	if body, err := io.ReadAll(push.Body); err != nil || push.Body.Close() != nil ||
		!bytes.Contains(body, []byte("report-status")) {
		t.Errorf("Advertisement of receive-pack = %.100q, %v", body, err)
	}
}

// secretSource is a mirror's own credential.
type secretSource string

func (s secretSource) Authorization(context.Context) (Secret, error) {
	return node.NewSecret(string(s)), nil
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	repo := b.repo(t, "a.git")
	repo.Git("update-ref", "refs/heads/main", repo.Commit("one").String())
	accepted := "Basic own"
	b.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch auth := r.Header.Get("Authorization"); {
		case auth == "Basic caller" && strings.HasPrefix(r.URL.Path, "/a.git/"), auth == accepted:
			return false
		case auth == "Basic other":
			w.WriteHeader(http.StatusForbidden)
		case auth == "Basic hidden":
			w.WriteHeader(http.StatusNotFound)
		case auth == "Basic limited":
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = w.Write(pktline.AppendLine(nil, "ERR no\tway"))
		case auth == "Basic page":
			_, _ = io.WriteString(w, "<html>Sign in</html>")
		default:
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
		}
		return true
	}
	o := open(t, b.URL, func(o *Options) { o.Credential = secretSource("Basic own") })
	ctx := t.Context()
	ok := fault.Kind(100)
	for auth, want := range map[string]fault.Kind{"": fault.Unauthenticated, "Basic caller": ok,
		"Basic wrong": fault.Unauthenticated,
		"Basic other": fault.Denied, "Basic hidden": fault.NotFound, "Basic limited": fault.Denied,
		"Basic page":         fault.Unavailable,
		"Basic evil\r\nX: y": fault.Unauthenticated} {
		for _, service := range []protocol.Service{protocol.UploadPack, protocol.ReceivePack} {
			if service == protocol.ReceivePack && auth == "Basic limited" {
				continue
			}
			err := o.Probe(ctx, "a.git", service, node.NewSecret(auth))
			if got := fault.KindOf(err); err == nil && want != ok || err != nil && got != want || IsDown(err) {
				t.Errorf("Probe(%s) with %q: %v, want %v", service, auth, err, want)
			}
			if err != nil && strings.Contains(err.Error(), "Basic") {
				t.Errorf("Probe error %q contains the credential", err)
			}
		}
	}
	if _, err := o.Refs(ctx, "a.git", none, nil); err != nil {
		t.Errorf("Refs with the mirror's own credential: %v", err)
	}
	if _, err := o.Refs(ctx, "a.git", node.NewSecret("Basic wrong"), nil); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("Refs with a caller's wrong credential: %v, want unauthenticated", err)
	}
	if _, err := o.Advertisement(ctx, "a.git", none, ""); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("advertisement of receive-pack without a caller's credential: %v, want unauthenticated", err)
	}
	b.mu.Lock()
	accepted = "Basic new"
	b.mu.Unlock()
	if _, err := o.Refs(ctx, "a.git", none, nil); !fault.Is(err, fault.Unavailable) || IsDown(err) {
		t.Errorf("Refs with a revoked own credential: %v, want unavailable and no outage", err)
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	repo := b.repo(t, "team/new.git")
	repo.Git("update-ref", "refs/heads/main", repo.Commit("one").String())
	stranger := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the other host got %s %s with %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	t.Cleanup(stranger.Close)
	b.before = func(w http.ResponseWriter, r *http.Request) bool {
		to, status := "", http.StatusMovedPermanently
		switch name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/team/"), ".git/"); name {
		case "old":
			to = "/team/new.git/info/refs?service=git-upload-pack"
		case "older":
			to, status = "/team/old.git/info/refs?service=git-upload-pack", http.StatusTemporaryRedirect
		case "loop":
			to = r.URL.String()
		case "see-other":
			to, status = "/team/new.git/info/refs", http.StatusSeeOther
		case "host":
			to = stranger.URL + "/team/new.git/info/refs"
		case "scheme":
			to = strings.Replace(b.URL, "http:", "https:", 1) + "/team/new.git/info/refs"
		case "user":
			to = strings.Replace(b.URL, "://", "://x:y@", 1) + "/team/new.git/info/refs"
		case "base":
			to = "/other/new.git/info/refs"
		case "dots":
			to = "/team/%2e%2e/other/new.git/info/refs"
		case "page":
			to = "/users/sign_in"
		default:
			return false
		}
		w.Header().Set("Location", to)
		w.WriteHeader(status)
		return true
	}
	o := open(t, b.URL+"/team")
	caller := node.NewSecret("Basic caller")
	for name, hops := range map[string]int{"old": 1, "older": 2} {
		refs, err := o.Refs(t.Context(), name+".git", caller, nil)
		if err != nil || refs.Moved != "new.git" {
			t.Errorf("%s: Refs = %+v, %v, want moved to new.git", name, refs, err)
		}
		if got := len(b.seen()); got != hops+2 {
			t.Errorf("%s: %d requests, want %d", name, got, hops+2)
		}
		if refs, err = o.Refs(t.Context(), name+".git", caller, nil); err != nil || refs.Moved != "new.git" {
			t.Errorf("%s again: Refs = %+v, %v, want moved to new.git", name, refs, err)
		}
		if got := len(b.seen()); got != hops+2 { // the old path can belong to another repository by now
			t.Errorf("%s again: %d requests, want %d", name, got, hops+2)
		}
		err = o.Probe(t.Context(), name+".git", protocol.UploadPack, caller)
		if path, ok := o.MovedPath(err); !fault.Is(err, fault.NotFound) || !ok || !strings.HasSuffix(path, ".git") {
			t.Errorf("%s: Probe error = %v, moved to %q, want not found and a path", name, err, path)
		}
		if got := len(b.seen()); got != 1 {
			t.Errorf("%s: Probe sent %d requests, want 1", name, got)
		}
	}
	for _, name := range []string{"see-other", "host", "scheme", "user", "base", "dots", "page"} {
		_, err := o.Refs(t.Context(), name+".git", caller, nil)
		if _, ok := o.MovedPath(err); !fault.Is(err, fault.Denied) || ok {
			t.Errorf("%s: Refs error = %v, want denied without a new path", name, err)
		}
		if got := len(b.seen()); got != 1 {
			t.Errorf("%s: %d requests, want 1", name, got)
		}
	}
	u, _ := url.Parse(stranger.URL)
	if _, err := o.Refs(t.Context(), "host.git", caller, nil); err == nil || !strings.Contains(err.Error(), u.Host) {
		t.Errorf("error = %v, want the name of the other host", err)
	}
	if _, err := o.Refs(t.Context(), "loop.git", caller, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("loop: Refs error = %v, want unavailable", err)
	}
}

// A repository that is renamed, created again in another format, or served by an older git is asked again.
func TestRefsAfterChange(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	repo := b.repo(t, "a.git")
	repo.Git("update-ref", "refs/heads/main", repo.Commit("one").String())
	o := open(t, b.URL)
	before := listOf(t)(o.Refs(t.Context(), "a.git", none, nil))
	gittest.Run(t, b.root, "", "init", "-q", "--bare", "--object-format=sha256", "b.git")
	other := gittest.At(t, filepath.Join(b.root, "b.git"))
	other.Git("update-ref", "refs/heads/main", other.Commit("one").String())
	b.mu.Lock()
	b.before = func(_ http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = strings.Replace(r.URL.Path, "/a.git/", "/b.git/", 1)
		return false
	}
	b.mu.Unlock()
	refs, err := o.Refs(t.Context(), "a.git", none, nil)
	after := mustList(t, refs, err)
	if refs.Format != git.SHA256 || after.HeadID == before.HeadID {
		t.Errorf("Refs = %v %v, want those of the SHA-256 repository", refs.Format, after.HeadID)
	}
	b.v0 = true
	if refs, err := o.Refs(t.Context(), "a.git", none, nil); err != nil || refs.Version != protocol.V0 {
		t.Errorf("Refs = %+v, %v, want version 0", refs, err)
	}
}
