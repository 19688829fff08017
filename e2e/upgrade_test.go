package e2e

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// TestUpgrade starts servers of this version on the files of the previous release, and the other way round. Nothing
// gets lost, and each serves the changes of the other (docs/reference/compatibility.md).
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"disk", "store"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			u := newUpgrade(t, kind == "store")
			if *update {
				u.make(buildPrevious(t))
				u.pack(kind + ".tar.gz")
				return
			}
			u.unpack(kind + ".tar.gz")
			u.through(binDir, "new", u.noted())
			left := u.left
			u.through(buildPrevious(t), "old", left)
			u.through(binDir, "again", u.left)
			if u.bucket != nil {
				u.beside(buildPrevious(t))
			}
		})
	}
}

// upgradeRepos are the repositories of a fixture, below team/, with their formats.
var upgradeRepos = map[string]string{"app": "sha1", "wide": "sha256", "table": "reftable", "stuck": "sha1"}

// upgrade is a server with everything that its state can hold. Different versions run it one after the other.
type upgrade struct {
	*testing.T
	*serverProcess
	dir          string             // the only one that the server uses
	bucket       *buckettest.Server // of a store; nil: repositories are on disk
	origin, hook *httptest.Server
	notes        upgradeNotes
	left         map[string]string // what the last server had
	cookie       string            // of a session on pages
	purged       *gittest.Repo     // has an object that was purged; nil: there is no such object

	mu         sync.Mutex
	isHookDown bool
	told       string // bodies of deliveries
}

// upgradeNotes are in a fixture, for the test.
type upgradeNotes struct {
	Token, Reader, Revoked string         // access tokens
	Position               string         // of an early event
	Objects                map[string]int // sizes of LFS objects
	Seen                   map[string]string
}

func newUpgrade(t *testing.T, isStore bool) *upgrade {
	t.Helper()
	u := &upgrade{T: t, dir: t.TempDir()}
	if err := os.Mkdir(u.path("origin"), 0o755); err != nil {
		t.Fatal(err)
	}
	backend, err := gitload.BackendHandler(context.WithoutCancel(t.Context()), filepath.Join(u.dir, "origin"),
		originSettings...)
	if err != nil {
		t.Fatal(err)
	}
	u.origin = httptest.NewServer(backend)
	u.hook = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.isHookDown {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		u.told += string(body)
	}))
	if isStore {
		u.bucket = buckettest.Versitygw(t)
	}
	t.Cleanup(func() {
		killAll(t, u.serverProcess)
		u.origin.Close()
		u.hook.Close()
	})
	return u
}

func (u *upgrade) path(name string) string { return filepath.Join(u.dir, name) }

// hasTables reports whether the server can use reftables.
func (u *upgrade) hasTables() bool { return u.bucket == nil && os.Getenv(newerGit) != "" }

// repos are the repositories that the server can use.
func (u *upgrade) repos() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(upgradeRepos)) {
		if name != "table" || u.hasTables() {
			names = append(names, "team/"+name)
		}
	}
	names = append(names, "team/fork")
	if u.bucket == nil {
		names = append(names, "origin/up")
	}
	return names
}

// start starts the server with the programs in a directory.
func (u *upgrade) start(programs string) {
	u.Helper()
	args := []string{"serve", "--config", u.path("config.toml"), "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0",
		"--log-format", "json"}
	if u.hasTables() {
		args = append(args, "--git", os.Getenv(newerGit))
	}
	p, err := startProcess("serve", exec.Command(filepath.Join(programs, "packhorse"), args...), u.dir, gittest.Env())
	if err != nil {
		u.Fatal(err)
	}
	u.serverProcess = p
}

func (u *upgrade) stop() {
	u.Helper()
	_ = u.cmd.Process.Signal(syscall.SIGTERM)
	err := u.wait()
	for line := range strings.Lines(u.logged()) {
		isSlow := strings.Contains(line, "an identity source failed") // a read of the store took over 300 ms
		if err != nil || strings.Contains(line, `"level":"ERROR"`) && !isSlow {
			u.Errorf("the server ended with %v: %s", err, line)
		}
	}
}

// call sends a request with the admin's token, and returns the response.
func (u *upgrade) call(method, target, body string) string {
	u.Helper()
	status, text := u.as(u.notes.Token, method, target, body)
	if status >= 300 {
		u.Fatalf("%s %s %s: %d %s\n%s", method, target, body, status, text, tail(u.logged(), 3000))
	}
	return text
}

func (u *upgrade) as(token, method, target, body string) (status int, text string) {
	u.Helper()
	if strings.HasPrefix(target, "/") {
		target = u.http + target
	}
	r, err := http.NewRequestWithContext(u.Context(), method, target, strings.NewReader(body))
	if err != nil {
		u.Fatal(err)
	}
	if token != "" {
		r.SetBasicAuth("x", token)
	}
	if strings.HasSuffix(target, "?cookie") {
		r.Header.Set("Cookie", u.cookie)
		r.Header.Set("Accept", "text/html")
	}
	if strings.Contains(target, "/packhorse.v1.") {
		r.Header.Set("Content-Type", "application/json")
	}
	if strings.Contains(target, "/info/lfs/") && method == http.MethodPost {
		r.Header.Set("Content-Type", wire.MediaType)
		r.Header.Set("Accept", wire.MediaType)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}).Do(r)
	if err != nil {
		u.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		u.Fatal(err)
	}
	return answer.StatusCode, string(content)
}

// get decodes the response of a GET.
func (u *upgrade) get(target string, v any) {
	u.Helper()
	if err := json.Unmarshal([]byte(u.call("GET", target, "")), v); err != nil {
		u.Fatal(err)
	}
}

// fields returns parts of a JSON document that do not change by themselves.
func (u *upgrade) fields(text string) string {
	u.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		u.Fatalf("%v: %s", err, text)
	}
	var prune func(v any)
	prune = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				prune(e)
			}
		case map[string]any:
			for _, key := range []string{"used", "size", "objects", "version", "position", "settings_version", "incarnation"} {
				delete(v, key)
			}
			if at, ok := v["pushed_at"].(string); ok { // after a restart it is less exact
				v["pushed_at"] = at[:len("2006-01-02T15:04:05")]
			}
			for _, e := range v {
				prune(e)
			}
		}
	}
	prune(v)
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		u.Fatal(err)
	}
	return string(b)
}

// observe returns all that users of the server can see, and some secrets, by name.
func (u *upgrade) observe() map[string]string {
	u.Helper()
	seen := map[string]string{}
	for _, repo := range u.repos() {
		token := u.notes.Token
		if repo == "origin/up" { // the origin knows no tokens
			token = ""
		} else {
			seen["describe "+repo] = u.fields(u.call("GET", "/-/api/v1/repos/"+repo, ""))
		}
		status, refs := u.as(token, "GET", "/"+repo+"/info/refs?service=git-upload-pack", "")
		_, refs, _ = strings.Cut(refs, "0000")
		if first, rest, ok := strings.Cut(refs, "\n"); ok {
			first, _, _ = strings.Cut(first, "\x00") // and the capabilities, with the version
			refs = first[4:] + "\n" + rest
		}
		seen["refs "+repo] = fmt.Sprintln(status, refs)
	}
	for _, list := range []string{"tokens", "rules", "webhooks"} {
		seen[list] = u.fields(u.call("GET", "/-/api/v1/"+list, ""))
	}
	for after := u.notes.Position; after != ""; {
		var page struct {
			Events []struct{ ID, Kind, Repository string }
			Next   string
		}
		u.get("/-/api/v1/events?after="+url.QueryEscape(after), &page)
		if after = page.Next; len(page.Events) == 0 {
			break
		}
		for _, e := range page.Events {
			seen["events"] += fmt.Sprintln(e.ID, e.Kind, e.Repository)
		}
	}
	for id, size := range u.notes.Objects {
		seen["object "+id] = u.call("GET", u.object("download", id, size).Download.Href, "")
	}
	seen["locks"] = u.fields(u.call("GET", "/team/app/info/lfs/locks", ""))
	for _, secret := range []string{"lfs.key", "pages.key", "ssh"} {
		_ = filepath.WalkDir(u.path("state/"+secret), func(path string, _ os.DirEntry, _ error) error {
			if text, err := os.ReadFile(path); err == nil {
				seen["secret "+strings.TrimPrefix(path, u.dir)] = fmt.Sprintf("%x", sha256.Sum256(text))
			}
			return nil
		})
	}
	if u.cookie != "" {
		_, page := u.as("", "GET", "/?cookie", "")
		seen["session"] = fmt.Sprint(strings.Contains(page, "team/app"))
	}
	for name, token := range map[string]string{"reader": u.notes.Reader, "revoked": u.notes.Revoked, "nobody": ""} {
		status, _ := u.as(token, "GET", "/team/app/info/refs?service=git-upload-pack", "")
		write, _ := u.as(token, "GET", "/team/app/info/refs?service=git-receive-pack", "")
		seen["rights of "+name] = fmt.Sprint(status, write)
	}
	return seen
}

// compare reports differences from an earlier observation.
func (u *upgrade) compare(who string, want, got map[string]string) {
	u.Helper()
	for name := range maps.Keys(want) {
		if strings.HasSuffix(name, "team/table") && !u.hasTables() {
			continue
		}
		if got[name] != want[name] {
			u.Errorf("%s: the server of %s programs has\n%s\nwant\n%s", name, who, got[name], want[name])
		}
	}
}

// noted returns what the fixture had.
func (u *upgrade) noted() map[string]string {
	u.Helper()
	text, err := os.ReadFile(u.path("notes.json"))
	if err == nil {
		err = json.Unmarshal(text, &u.notes)
	}
	if err != nil {
		u.Fatal(err)
	}
	return u.notes.Seen
}

// through has one version serve what another one has left, use all of it, and stop.
func (u *upgrade) through(programs, who string, want map[string]string) {
	u.Helper()
	u.start(programs)
	u.compare(who, want, u.observe())
	for _, repo := range u.repos() {
		u.clone(repo)
	}
	u.finds("zebra")
	u.hears("late")
	u.change(who)
	u.purge()
	u.finds("zebra-" + who)
	u.hears("refs/heads/" + who)
	if u.cookie == "" {
		u.signIn()
	}
	u.left = u.observe()
	u.stop()
}

// beside has nodes of both versions serve a store at the same time.
func (u *upgrade) beside(old string) {
	u.Helper()
	u.start(binDir)
	config, err := os.ReadFile(u.path("config.toml"))
	if err != nil {
		u.Fatal(err)
	}
	write(u.T, u.path("other.toml"), strings.NewReplacer(u.path("root"), u.path("root-two"), u.path("state"),
		u.path("state-two"), `node = "one"`, `node = "two"`).Replace(string(config)))
	other, err := startProcess("serve", exec.Command(filepath.Join(old, "packhorse"), "serve", "--config",
		u.path("other.toml"), "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"), u.dir, gittest.Env())
	if err != nil {
		u.Fatal(err)
	}
	defer killAll(u.T, other)
	work := gittest.Init(u)
	work.Git("update-ref", "refs/heads/main", work.Commit("beside").String())
	for i, urls := range [][2]string{{u.http, other.http}, {other.http, u.http}} {
		u.git(work.Dir, "push", "-q", urls[0]+"/team/app", fmt.Sprint("main:refs/heads/beside-", i))
		if out := u.git("", "ls-remote", urls[1]+"/team/app"); !strings.Contains(out, fmt.Sprint("refs/heads/beside-", i)) {
			u.Errorf("the other node has not got push %d: %s", i, out)
		}
	}
	u.clone("team/app")
	u.stop()
}

// signIn begins a session on pages, which later versions know.
func (u *upgrade) signIn() {
	u.Helper()
	r, err := http.NewRequestWithContext(u.Context(), http.MethodPost, u.http+"/-/sign-in",
		strings.NewReader(url.Values{"token": {u.notes.Token}}.Encode()))
	if err != nil {
		u.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", u.http)
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		u.Fatal(err)
	}
	answer.Body.Close()
	if u.cookie, _, _ = strings.Cut(answer.Header.Get("Set-Cookie"), ";"); answer.StatusCode != http.StatusSeeOther {
		u.Fatalf("sign-in: %s", answer.Status)
	}
}

// purge removes an object, which no version takes back.
func (u *upgrade) purge() {
	u.Helper()
	work := cmp.Or(u.purged, gittest.InitAt(u, u.TempDir()))
	if u.purged == nil {
		tree := work.GitIn("100644 blob "+work.Blob("a secret").String()+"\tsecret\n", "mktree")
		work.Git("update-ref", "refs/heads/main", work.Git("commit-tree", "-m", "secret", tree))
		u.git(work.Dir, "push", "-q", u.http+"/team/stuck", "main:secret")
		u.git(work.Dir, "push", "-q", u.http+"/team/stuck", ":secret")
		u.call("POST", "/-/api/v1/repos/team/stuck/purge", `{"object_ids": ["`+work.ID("main:secret").String()+`"]}`)
		u.purged = work
	}
	u.refuses(work, "team/stuck", "purged")
}

// refuses checks that a push fails for a reason.
func (u *upgrade) refuses(work *gittest.Repo, repo, reason string) {
	u.Helper()
	out, err := clientGit(u.T, basicHeader("x", u.notes.Token), work.Dir, "push", u.http+"/"+repo, "main:refused")
	if err == nil || !strings.Contains(out, reason) {
		u.Errorf("a push to %s has the result %v, want an error that contains %q: %s", repo, err, reason, out)
	}
}

// clone clones a repository and checks it.
func (u *upgrade) clone(repo string) {
	u.Helper()
	dir := u.TempDir()
	u.git(dir, "clone", "-q", "--mirror", u.http+"/"+repo, ".")
	u.git(dir, "fsck", "--full", "--strict")
}

// git runs git as the admin, whose token is not for the origin.
func (u *upgrade) git(dir string, args ...string) string {
	u.Helper()
	header := basicHeader("x", u.notes.Token)
	if strings.Contains(strings.Join(args, " "), "/origin/") {
		header = "X-None: none"
	}
	out, err := clientGit(u.T, header, dir, args...)
	if err != nil {
		u.Fatalf("git %q: %v\n%s\n%s", args, err, out, tail(u.logged(), 4000))
	}
	return out
}

// finds waits until a search has a result.
func (u *upgrade) finds(text string) {
	u.Helper()
	eventually(u.T, "a search finds "+text, func() bool {
		_, body := u.as(u.notes.Token, "GET", "/-/api/v1/search?q="+url.QueryEscape(`"`+text+`"`), "")
		isFound := strings.Contains(body, "notes.txt")
		if !isFound {
			time.Sleep(100 * time.Millisecond) // a search costs more than other conditions
		}
		return isFound
	})
}

// hears waits until the webhook has got a text.
func (u *upgrade) hears(text string) {
	u.Helper()
	eventually(u.T, "the webhook gets "+text, func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return strings.Contains(u.told, text)
	})
}

// change makes a change of each kind. who is a part of all new names.
func (u *upgrade) change(who string) {
	u.Helper()
	for name, format := range upgradeRepos {
		if name == "table" && !u.hasTables() {
			continue
		}
		if format == "reftable" {
			format = "sha1"
		}
		work := gittest.InitAt(u, u.TempDir(), "--object-format="+format)
		work.Git("update-ref", "refs/heads/main", work.Commit("of "+who).String())
		work.Git("tag", "-a", "-m", who, "v-"+who, "main")
		u.git(work.Dir, "push", "-q", u.http+"/team/"+name, "main:refs/heads/"+who, "v-"+who)
		if name == "stuck" { // the killed push had locked the ref
			u.git(work.Dir, "push", "-q", "-f", u.http+"/team/stuck", "main:refs/heads/stick")
		}
		if name == "app" {
			u.refuses(work, "team/full", "quota")
			u.git(work.Dir, "push", "-q", u.http+"/team/fork", "main:refs/heads/"+who)
		}
	}
	app := "/-/api/v1/repos/team/app"
	u.call("POST", app+"/commits", `{"branch": "main", "message": "By a call", "changes": [{"put": {"path": "notes.txt", "text": "zebra zebra-`+
		who+`\n"}}]}`)
	u.call("POST", app+"/forks", `{"target": "team/fork-`+who+`"}`)
	u.call("PATCH", app, `{"settings": {"description": "`+who+`", "labels": {"by": "`+who+`"}}}`)
	u.call("POST", "/-/api/v1/repos", `{"repository": "team/new-`+who+`", "object_format": "sha256"}`)
	u.call("POST", "/-/api/v1/repos/team/new-"+who+"/rename", `{"to": "team/moved-`+who+`"}`)
	u.call("DELETE", "/-/api/v1/repos/team/moved-"+who+"?force=true", "")
	u.call("POST", app+"/maintain", "{}")
	u.call("POST", app+"/collect", `{"older_than": "0s"}`)
	u.call("POST", "/-/api/v1/tokens", `{"name": "t-`+who+`", "scope": "write", "repositories": ["team/**"], "refs": ["refs/heads/`+who+`"]}`)
	u.setRules(who)
	u.call("POST", "/-/api/v1/webhooks", u.webhook(who))
	u.putObject("object of " + who)
	u.call("POST", "/team/app/info/lfs/locks", `{"path": "`+who+`.bin"}`)
	if u.bucket == nil {
		origin := gittest.At(u, u.path("origin/up.git"))
		origin.Git("update-ref", "refs/heads/"+who, origin.Commit(who, origin.ID("main")).String())
		if out := u.git("", "ls-remote", u.http+"/origin/up"); !strings.Contains(out, "refs/heads/"+who) {
			u.Errorf("the mirror has %s, want %s", out, who)
		}
	}
}

func (u *upgrade) webhook(name string) string {
	return fmt.Sprintf(`{"webhook": {"name": %q, "url": %q, "allow_private": true}, "secret": "sixteen bytes at least"}`, name,
		u.hook.URL)
}

// setRules adds a group and a rule to the stored ones.
func (u *upgrade) setRules(who string) {
	u.Helper()
	var now struct {
		Version any
		Stored  struct{ Groups, Rules []any }
	}
	u.get("/-/api/v1/rules", &now)
	now.Stored.Groups = append(now.Stored.Groups, map[string]any{"name": "g-" + who, "members": []string{"m-" + who}})
	now.Stored.Rules = append(now.Stored.Rules, map[string]any{"who": []string{"group:g-" + who},
		"repositories": []string{"team/**"}, "may": "write"})
	text, err := json.Marshal(map[string]any{"expected_version": now.Version, "set": map[string]any{
		"groups": now.Stored.Groups, "rules": now.Stored.Rules}})
	if err != nil {
		u.Fatal(err)
	}
	u.call("PUT", "/-/api/v1/rules", string(text))
}

// object asks for the transfer of an LFS object.
func (u *upgrade) object(operation, id string, size int) *wire.Actions {
	u.Helper()
	var answer wire.BatchResponse
	text := u.call("POST", "/team/app/info/lfs/objects/batch",
		fmt.Sprintf(`{"operation": %q, "objects": [{"oid": %q, "size": %d}]}`, operation, id, size))
	err := json.Unmarshal([]byte(text), &answer)
	if err != nil || len(answer.Objects) != 1 || answer.Objects[0].Actions == nil {
		u.Fatalf("%s of LFS object %s: %s", operation, id, text)
	}
	return answer.Objects[0].Actions
}

func (u *upgrade) putObject(content string) {
	u.Helper()
	sum := sha256.Sum256([]byte(content))
	id := hex.EncodeToString(sum[:])
	u.call("PUT", u.object("upload", id, len(content)).Upload.Href, content)
	u.notes.Objects[id] = len(content)
}
