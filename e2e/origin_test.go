package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// origin is a Git host that mirrors follow: git http-backend behind nginx behind a link.
type origin struct {
	dir     string
	link    *world.Link
	nginx   *nginx
	backend *httptest.Server
	git     http.Handler
	lfs     http.Handler // nil: the host has no Git LFS

	mu       sync.Mutex
	asked    map[string]int    // requests by kind
	moved    map[string]string // new paths of repositories by their old ones
	status   int               // of all responses; 0: normal
	after    string            // Retry-After
	requests []string          // method, path and kind of each request
}

// originSettings is git's configuration at the origin: that of a forge.
var originSettings = []string{"GIT_CONFIG_COUNT=4",
	"GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true",
	"GIT_CONFIG_KEY_1=uploadpack.allowFilter", "GIT_CONFIG_VALUE_1=true",
	"GIT_CONFIG_KEY_2=uploadpack.allowAnySHA1InWant", "GIT_CONFIG_VALUE_2=true",
	"GIT_CONFIG_KEY_3=safe.directory", "GIT_CONFIG_VALUE_3=*"}

// newOrigin serves the repositories below root. Prefixes of private repositories have files of users.
func newOrigin(dir, root string, private []string) (*origin, error) {
	o := &origin{dir: dir, asked: map[string]int{}, moved: map[string]string{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if o.git, err = gitload.BackendHandler(context.Background(), root, originSettings...); err != nil {
		return nil, err
	}
	o.backend = httptest.NewServer(o)
	pass := fmt.Sprintf("proxy_pass %s;", o.backend.URL)
	locations := "location / { " + pass + " }\n"
	for _, prefix := range private {
		locations += fmt.Sprintf("location ~ ^/%s(\\.git)?/ { auth_basic origin; auth_basic_user_file %s; %s }\n", prefix,
			o.usersFile(prefix), pass)
	}
	if o.nginx, err = startNginx(filepath.Join(dir, "nginx"), locations); err != nil {
		o.backend.Close()
		return nil, err
	}
	if o.link, err = world.NewLink(o.nginx.address); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *origin) close() {
	if o.link != nil {
		o.link.Close()
	}
	o.nginx.stop()
	o.backend.Close()
}

func (o *origin) url() string { return "http://" + o.link.Addr() }

func (o *origin) usersFile(prefix string) string {
	return filepath.Join(o.dir, "users-"+strings.ReplaceAll(prefix, "/", "-"))
}

// setUsers writes the users of a private prefix, in the format of htpasswd. nginx reads the file at each request.
func (o *origin) setUsers(prefix, lines string) error {
	return os.WriteFile(o.usersFile(prefix), []byte(lines), 0o600)
}

// ServeHTTP is behind nginx.
func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := gitload.RequestKind(r)
	_, inLFS, isLFS := strings.Cut(r.URL.Path, "/info/lfs/")
	if isLFS {
		kind = "lfs-" + strings.ToLower(r.Method) + "-" + strings.Split(inLFS, "/")[0]
	}
	o.mu.Lock()
	o.asked[kind]++
	o.requests = append(o.requests, r.Method+" "+r.URL.Path+" "+kind)
	status, after := o.status, o.after
	path := r.URL.Path
	for from, to := range o.moved {
		rest, ok := strings.CutPrefix(path, "/"+from)
		if rest = strings.TrimPrefix(rest, ".git"); ok && strings.HasPrefix(rest, "/") {
			path = "/" + to + ".git" + rest
		}
	}
	o.mu.Unlock()
	switch {
	case status != 0:
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		http.Error(w, http.StatusText(status), status)
	case path != r.URL.Path:
		http.Redirect(w, r, "http://"+r.Host+path+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
	case isLFS && o.lfs != nil:
		o.lfs.ServeHTTP(w, r)
	default:
		o.git.ServeHTTP(w, r)
	}
}

// count returns the number of requests of a kind since the last reset.
func (o *origin) count(kind string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked[kind]
}

const originUsage = `usage: origin [-lfs CONFIG TOKEN] [-private PREFIX USER PASSWORD]...
       origin down|up|silent|sound|forget
       origin status CODE [RETRY-AFTER]       (200: as usual)
       origin slow BYTES-PER-SECOND [DELAY]   (0: no limit)
       origin move FROM TO
       origin users PREFIX [USER PASSWORD]`

// cmdOrigin starts a Git host with the repositories below $REPOS and sets $ORIGIN to its URL, or changes it:
//
//	origin [-private PREFIX USER PASSWORD]...  start; the repositories of a prefix need a user
//	origin -lfs CONFIG TOKEN ...               start with Git LFS, by a packhorse serve with this configuration. It gets
//	                                           the token instead of the credentials that nginx has checked
//	origin down, up                            refuse connections, and accept them again
//	origin silent, sound                       lose everything, and pass it again
//	origin status CODE [RETRY-AFTER]           answer all requests with a status; 200: as usual
//	origin slow BYTES [DELAY]                  limit the bytes per second; 0: no limit
//	origin move FROM TO                        rename a repository, with a redirect
//	origin users PREFIX [USER PASSWORD]        replace the users of a prefix
//	origin forget                              count requests from now on
func cmdOrigin(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if s.origin == nil {
		s.origin = startOrigin(ts, args)
		ts.Setenv("ORIGIN", s.origin.url())
		ts.Setenv("ORIGIN_HOST", s.origin.link.Addr())
		return
	}
	o := s.origin
	if neg || len(args) == 0 || !o.change(ts, args) {
		ts.Fatalf("%s", originUsage)
	}
}

// startOrigin parses the flags of origin.
func startOrigin(ts *testscript.TestScript, args []string) *origin {
	users := map[string]string{}
	var lfs http.Handler
	if len(args) > 2 && args[0] == "-lfs" {
		lfs = startLFS(ts, args[1], args[2])
		args = args[3:]
	}
	for len(args) > 0 {
		if args[0] != "-private" || len(args) < 4 {
			ts.Fatalf("%s", originUsage)
		}
		users[args[1]] = args[2] + ":{PLAIN}" + args[3] + "\n"
		args = args[4:]
	}
	dir := filepath.Join(storyOf(ts).sockets, "origin")
	o, err := newOrigin(dir, ts.Getenv("REPOS"), slices.Sorted(maps.Keys(users)))
	ts.Check(err)
	o.lfs = lfs
	ts.Defer(o.close)
	for prefix, line := range users {
		ts.Check(o.setUsers(prefix, line))
	}
	return o
}

// startLFS starts a server of Git LFS for the repositories below $REPOS, and returns a proxy to it.
// Requests with a credential get the token.
func startLFS(ts *testscript.TestScript, config, token string) http.Handler {
	s := storyOf(ts)
	p, err := s.start(ts, []string{"serve", "--public-read", "--config", config}, map[string]string{
		"--root": ts.Getenv("REPOS"), "--state": filepath.Join(s.sockets, "lfs"), "--http": "127.0.0.1:0",
		"--ops": "127.0.0.1:0", "--log-format": "json"})
	ts.Check(err)
	ts.Defer(func() {
		p.kill()
		ts.Logf("the log of the origin's Git LFS:\n%s", p.logged())
	})
	to, err := url.Parse(p.http)
	ts.Check(err)
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		if r.In.Header.Get("Authorization") != "" {
			r.Out.Header.Set("Authorization", "Bearer "+token)
		}
	}}
}

// change runs one subcommand of origin, and reports whether it was one.
func (o *origin) change(ts *testscript.TestScript, args []string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch n := len(args); {
	case args[0] == "down" && n == 1:
		o.link.Down()
	case args[0] == "up" && n == 1:
		ts.Check(o.link.Up())
	case (args[0] == "silent" || args[0] == "sound") && n == 1:
		o.link.Silence(args[0] == "silent")
	case args[0] == "forget" && n == 1:
		clear(o.asked)
		o.requests = nil
	case args[0] == "status" && (n == 2 || n == 3):
		code, err := strconv.Atoi(args[1])
		ts.Check(err)
		if code == http.StatusOK {
			code = 0
		}
		o.status, o.after = code, strings.Join(args[2:], "")
	case args[0] == "slow" && (n == 2 || n == 3):
		limit, err := strconv.ParseInt(args[1], 10, 64)
		ts.Check(err)
		delay := time.Duration(0)
		if n == 3 {
			delay, err = time.ParseDuration(args[2])
			ts.Check(err)
		}
		o.link.Shape(limit, delay)
	case args[0] == "move" && n == 3:
		root := ts.Getenv("REPOS")
		ts.Check(os.Rename(filepath.Join(root, args[1]+".git"), filepath.Join(root, args[2]+".git")))
		o.moved[args[1]] = args[2]
	case args[0] == "users" && (n == 2 || n == 4):
		line := ""
		if n == 4 {
			line = args[2] + ":{PLAIN}" + args[3] + "\n"
		}
		ts.Check(o.setUsers(args[1], line))
	default:
		return false
	}
	return true
}

// cmdAsked compares the number of requests to the origin since its start or "origin forget": asked KIND OP N, where
// KIND is info, ls-refs, fetch, push-info or push. Those of Git LFS are lfs-METHOD-objects and lfs-METHOD-locks.
func cmdAsked(ts *testscript.TestScript, neg bool, args []string) {
	o := storyOf(ts).origin
	if neg || len(args) != 3 || o == nil {
		ts.Fatalf("usage: asked KIND ==|>=|<=|>|< N, after origin")
	}
	want, err := strconv.ParseFloat(args[2], 64)
	ts.Check(err)
	if got := o.count(args[0]); !compare(ts, float64(got), args[1], want) {
		o.mu.Lock()
		defer o.mu.Unlock()
		ts.Fatalf("the origin got %d requests of the kind %s, want %s %s:\n%s", got, args[0], args[1], args[2],
			strings.Join(o.requests, "\n"))
	}
}

// cmdMirror starts a mirror of the origin and sets $URL, $OPS, $STATE and $MIRROR, the URL of its repositories:
// mirror [-keys FILE] [FLAGS]. FILE has further keys of the [[mirror]] table, and further tables.
func cmdMirror(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if s.running != nil || s.origin == nil {
		ts.Fatalf("usage: mirror [-keys FILE] [FLAGS], after origin, where no server runs")
	}
	keys := ""
	if len(args) > 1 && args[0] == "-keys" {
		text, err := os.ReadFile(ts.MkAbs(args[1]))
		ts.Check(err)
		keys = os.Expand(string(text), ts.Getenv)
		args = args[2:]
	}
	state := ts.MkAbs("mirror/state")
	config := s.write(ts, "mirror.toml",
		fmt.Sprintf("[[mirror]]\nfrom = %q\nto = \"origin\"\n%s", s.origin.url()+"/", keys))
	p, err := s.start(ts, append([]string{"mirror"}, args...), map[string]string{
		"--root": ts.MkAbs("mirror/repositories"), "--state": state, "--config": config,
		"--http": "127.0.0.1:0", "--ops": "127.0.0.1:0", "--log-format": "json",
	})
	if neg {
		if err == nil {
			s.running = p
			ts.Fatalf("the mirror serves, and should not")
		}
		ts.Logf("%v", err)
		return
	}
	ts.Check(err)
	s.running, p.state = p, state
	ts.Setenv("URL", p.http)
	ts.Setenv("URL_HOST", strings.TrimPrefix(p.http, "http://"))
	ts.Setenv("OPS", p.ops)
	ts.Setenv("STATE", p.state)
	ts.Setenv("MIRROR", p.http+"/origin")
	ts.Setenv("MIRRORS", ts.MkAbs("mirror/repositories/origin"))
}

// cmdStaleness asks for the refs and compares the response's header Packhorse-Staleness: staleness TARGET REGEXP.
func cmdStaleness(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: staleness TARGET REGEXP")
	}
	want := regexp.MustCompile(args[1])
	got, text := "", ""
	if !gittest.Eventually(func() bool {
		body := "0014command=ls-refs\n00010009peel\n0000"
		request, err := http.NewRequest(http.MethodPost, ts.Getenv("URL")+args[0]+"/git-upload-pack", strings.NewReader(body))
		ts.Check(err)
		request.Header.Set("Content-Type", "application/x-git-upload-pack-request")
		request.Header.Set("Git-Protocol", "version=2")
		response, err := http.DefaultClient.Do(request)
		ts.Check(err)
		all, _ := io.ReadAll(response.Body)
		response.Body.Close()
		got, text = response.Header.Get("Packhorse-Staleness"), response.Status+" "+string(all)
		return want.MatchString(got)
	}) {
		ts.Fatalf("Packhorse-Staleness: got %q, want a match of %q: %s", got, args[1], text)
	}
}
