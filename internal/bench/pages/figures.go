package pages

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git"
)

// views compares pages of commits with those of cgit.
func (p *pages) views(ctx context.Context) []world.Figure {
	servers := []struct{ url, path, header string }{
		{p.startCgit(ctx), "/" + name + "/%s/?id=%s", ""},
		{p.server.URL, "/" + name + "/-/%s/%s", p.signedIn()},
	}
	var figures []world.Figure
	commits := p.commits(ctx, p.rounds*p.count)
	n := len(commits) / p.rounds
	for _, kind := range []string{"tree", "log", "commit"} {
		var rates [2][2][]float64 // first and again, by server
		for round := range p.rounds {
			for i, s := range servers {
				if s.url == "" {
					continue
				}
				p.body(ctx, s.url, s.header, fmt.Sprintf(s.path, kind, p.tip.ID), p.tip.ID)
				paths := make([]string, n)
				for i, id := range commits[round*n : (round+1)*n] {
					paths[i] = fmt.Sprintf(s.path, kind, id)
				}
				for again := range 2 {
					rates[again][i] = append(rates[again][i], perSecond(p.load(ctx, s.url, s.header, paths, false)))
				}
			}
		}
		figures = append(figures, faster(kind+", first", 8, rates[0][1], rates[0][0], "cgit"),
			faster(kind+", again", 20, rates[1][1], rates[1][0], "cgit"))
	}
	return figures
}

// faster is a figure of rates against those of a peer in the same rounds.
func faster(what string, goal float64, ours, peer []float64, name string) world.Figure {
	if len(peer) == 0 {
		return world.NewFigure(what, fmt.Sprintf(">= %g", goal), 0, false, "%.0f/s, SKIPPED: there is no %s",
			loadgen.Median(ours), name)
	}
	var ratios []float64
	for i := range ours {
		ratios = append(ratios, ours[i]/peer[i])
	}
	r := loadgen.Median(ratios)
	return world.NewFigure(what, fmt.Sprintf(">= %g", goal), r, r >= goal, "%.2f (%.0f/s, %s %.0f/s)", r,
		loadgen.Median(ours), name, loadgen.Median(peer))
}

// startCgit starts cgit with a cache, behind nginx and fcgiwrap, and returns its URL; "" if one of them is missing.
func (p *pages) startCgit(ctx context.Context) string {
	nginx, err := exec.LookPath("nginx")
	wrap, err2 := exec.LookPath("fcgiwrap")
	_, err3 := os.Stat(p.cgit)
	if err := errors.Join(err, err2, err3); err != nil {
		fmt.Fprintf(p.stderr, "NO COMPARISON WITH CGIT: install cgit, fcgiwrap and nginx: %v\n", err)
		return ""
	}
	port, back := world.Must(world.FreePort()), world.Must(world.FreePort())
	file := func(name, text string) string {
		path := filepath.Join(p.Dir, name)
		world.Check(os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	cache := filepath.Join(p.Dir, "cache")
	world.Check(os.Mkdir(cache, 0o700))
	rc := file("cgitrc", fmt.Sprintf("cache-root=%s\ncache-size=50000\nvirtual-root=/\nrepo.url=%s\nrepo.path=%s\n",
		cache, name, p.Repository(name)))
	user := ""
	if os.Getuid() == 0 {
		user = "user root;\n"
	}
	config := file("nginx.conf", fmt.Sprintf(`%sdaemon off;
worker_processes auto;
pid %[2]s/nginx.pid;
events {}
http {
	access_log off; gzip on;
	client_body_temp_path %[2]s/body; proxy_temp_path %[2]s/proxy; fastcgi_temp_path %[2]s/fastcgi;
	uwsgi_temp_path %[2]s/uwsgi; scgi_temp_path %[2]s/scgi;
	server {
		listen 127.0.0.1:%[3]s;
		location / {
			fastcgi_param QUERY_STRING $query_string; fastcgi_param REQUEST_METHOD $request_method;
			fastcgi_param HTTP_HOST $host; fastcgi_param PATH_INFO $uri;
			fastcgi_param SCRIPT_FILENAME %[4]s; fastcgi_param CGIT_CONFIG %[5]s;
			fastcgi_pass 127.0.0.1:%[6]s;
		}
	}
}
`, user, p.Dir, port, p.cgit, rc, back))
	address := "127.0.0.1:" + back
	parent := world.Must(p.Other(ctx, "fcgiwrap", wrap, address, "-c", strconv.Itoa(p.clients), "-s", "tcp:"+address))
	p.Defer(func() { _ = syscall.Kill(-parent.Pid, syscall.SIGTERM) }) // with its children, which it would leave
	world.Must(p.Other(ctx, "nginx", nginx, "127.0.0.1:"+port, "-c", config, "-e", filepath.Join(p.Dir, "nginx.log")))
	return "http://127.0.0.1:" + port
}

// page compares a page with a file.
func (p *pages) page(ctx context.Context) []world.Figure {
	path := "/" + name + "/-/tree/HEAD"
	file := filepath.Join(p.Dir, "page")
	p.body(ctx, p.server.URL, "", path, "</table>")
	world.Check(os.WriteFile(file, p.body(ctx, p.server.URL, compressed, path, "\x1f\x8b"), 0o600))
	static := world.Must(p.Static(ctx, "page", file))
	var peers, ours []float64
	for range p.rounds {
		peers = append(peers, perSecond(p.load(ctx, static.URL, "", []string{"/"}, true)))
		ours = append(ours, perSecond(p.load(ctx, p.server.URL, "", []string{path}, true)))
	}
	return []world.Figure{faster("a page again", 0.3, ours, peers, "Go's file server")}
}

const (
	directories    = 20
	historyCommits = 3000 // of the synthetic directories
)

// addDirectories makes a repository whose commits change an entry of each of some directories.
func (p *pages) addDirectories(ctx context.Context) error {
	args := []string{"-c", "fastimport.unpackLimit=0", "fast-import", "--quiet"}
	return gitload.Import(ctx, p.Repository(name), args, func(out *bufio.Writer) {
		random := rand.New(rand.NewPCG(1, 1))
		put := func(dir, entry, i int) {
			text := fmt.Sprintln(dir, entry, i)
			fmt.Fprintf(out, "M 100644 inline d%d/file%d\ndata %d\n%s\n", dir, entry, len(text), text)
		}
		for i := range historyCommits {
			fmt.Fprintf(out, "commit refs/heads/main\ncommitter B <b@localhost> %d +0000\ndata 2\nx\n", 1_700_000_000+i*1000)
			for dir := range directories {
				for entry := range p.entries {
					if i == 0 {
						put(dir, entry, i)
					}
				}
				put(dir, random.IntN(p.entries), i)
			}
		}
	})
}

// directory measures directories with their last commits.
func (p *pages) directory(ctx context.Context) []world.Figure {
	paths := make([]string, directories)
	for dir := range paths {
		paths[dir] = fmt.Sprintf("/%s/-/tree/main/d%d", name, dir)
	}
	return p.firstAndAgain(ctx, fmt.Sprintf("directory of %d entries", p.entries), paths)
}

// root measures the root directory of the repository after each of several starts.
func (p *pages) root(ctx context.Context) []world.Figure {
	return p.firstAndAgain(ctx, "root of "+filepath.Base(p.repo), []string{"/" + name + "/-/tree/HEAD"})
}

// firstAndAgain measures pages of directories by one client, each first and 10 times again, after each of several
// starts of the server. The first pages have to have the last commits.
func (p *pages) firstAndAgain(ctx context.Context, what string, paths []string) []world.Figure {
	var first, again loadgen.Samples
	late := 0
	for range p.rounds {
		world.Check(p.server.Stop())
		world.Check(p.start(ctx, "server"))
		t := world.Must(loadgen.ParseTarget(p.server.URL, false))
		for i := range 11 * len(paths) {
			begun := time.Now()
			body := world.Must(t.AskAll(ctx, get(t, paths[i%len(paths)], ""), timeout))
			if i >= len(paths) {
				again = append(again, time.Since(begun))
				continue
			}
			first = append(first, time.Since(begun))
			if bytes.Contains(body, []byte("?wait=1")) {
				late++
			}
		}
	}
	f, a := first.Summarize().P95, again.Summarize().P95
	return []world.Figure{
		world.NewFigure(what+": first, p95", "<= 300 ms", f, f <= 300 && late == 0, "%.0f ms (p50 %.0f ms, %d of %d without "+
			"last commits)", f, first.Summarize().P50, late, len(first)),
		world.NewFigure(what+": again, p95", "<= 10 ms", a, a <= 10, "%.1f ms", a),
	}
}

// list measures the first page of many repositories.
func (p *pages) list(ctx context.Context) []world.Figure {
	t := world.Must(loadgen.ParseTarget(p.server.URL, false))
	var times loadgen.Samples
	for range 20 * p.rounds {
		times = append(times, world.TimeOf(func() { world.Must(t.AskAll(ctx, get(t, "/", compressed), timeout)) }))
	}
	s := times.Summarize()
	ms := s.P95
	return []world.Figure{world.NewFigure(fmt.Sprintf("list of %d repositories, p95", p.repositories), "<= 50 ms", ms,
		ms <= 50, "%.1f ms (p50 %.1f ms)", ms, s.P50)}
}

// crawler measures ls-refs, pages of a person and clones beside crawlers.
func (p *pages) crawler(ctx context.Context) []world.Figure {
	t := world.Must(loadgen.ParseTarget(p.server.URL+"/"+name, false))
	commits := strings.Fields(world.Must(gitload.RunGit(ctx, p.Repository(name), nil, "rev-list", "--all")))
	headers := make([]string, p.networks)
	for i := range headers {
		headers[i] = p.visitor(ctx, t, fmt.Sprintf("10.%d.%d.1", i/256, i%256))
	}
	probe := func(seconds time.Duration) float64 {
		l := loadgen.Repeat(t, t.Post("git-upload-pack", "", gitload.LsRefs(git.SHA1, "refs/heads/main")), nil, timeout)
		l.Conns, l.Arrivals, l.Connect, l.Duration, l.Urgent = loadgen.ProbeConns, loadgen.FixedRate(loadgen.ProbeRate), true,
			seconds, true
		out := world.Must(l.Run(ctx))
		world.Check(out.Failures.Detail())
		return out.Latency().Summarize().P99
	}
	var person loadgen.Samples
	clones, failed, crawled := 0, &loadgen.Failures{}, map[int]int{}
	beside := func() float64 {
		stop, cancel := context.WithCancel(ctx)
		defer cancel()
		var load sync.WaitGroup
		var err, err2 error
		load.Go(func() {
			defer world.Rescue(&err)
			p.crawl(stop, t, headers, commits, crawled)
		})
		load.Go(func() {
			defer world.Rescue(&err2)
			person = append(person, p.person(stop, t)...)
		})
		load.Go(func() {
			c := gitload.NewClient(p.server.URL, "")
			defer c.Close()
			for ; loadgen.Sleep(stop, time.Second); clones++ {
				if _, err := c.Fetch(ctx, name, p.tip.ID, 1); err != nil {
					failed.Add(err)
				}
			}
		})
		loadgen.Sleep(ctx, 3*time.Second) // until the seats are taken
		p99 := probe(p.duration)
		cancel()
		load.Wait()
		world.Check(errors.Join(err, err2))
		return p99
	}
	idle, busy, r := world.Compare(p.rounds, func() float64 { return probe(p.duration) }, beside)
	ms := person.Summarize().P95
	return []world.Figure{
		world.NewFigure("p99 of ls-refs", "<= 2", r, r <= 2, "%.2f (%.2f ms, idle %.2f ms)", r, busy, idle),
		world.NewFigure("a person's pages, p95", "<= 500 ms", ms, ms <= 500, "%.0f ms of %d pages (crawlers got %v)",
			ms, len(person), crawled),
		world.NewFigure("failed clones", "0", float64(failed.Count()), failed.Count() == 0 && clones > 0, "%d of %d",
			failed.Count(), clones),
	}
}

// visitor gives a visitor at an address the cookie for costly pages, and returns the header of its requests.
func (p *pages) visitor(ctx context.Context, t *loadgen.Target, address string) string {
	header, cookie := "X-Forwarded-For: "+address+"\r\n", ""
	world.Check(t.Ask(ctx, get(t, "/-/seen?to=/", header), timeout, func(b *loadgen.Body) error {
		cookie, _, _ = strings.Cut(b.Header("Set-Cookie"), ";")
		return b.Drain()
	}))
	if cookie == "" {
		world.Check(errors.New("the server gave a visitor no cookie"))
	}
	return header + compressed + "Cookie: " + cookie + "\r\n"
}

// crawl requests pages of commits in random order, each from another network. It counts the responses by status.
func (p *pages) crawl(ctx context.Context, t *loadgen.Target, headers, commits []string, crawled map[int]int) {
	kinds := []string{"commit", "tree", "log", "history"}
	var mu sync.Mutex
	l := &loadgen.Load{Target: t, Conns: 2 * p.rate, Arrivals: loadgen.FixedRate(float64(p.rate)), Timeout: timeout,
		Next: func(int) []byte {
			return get(t, fmt.Sprintf("/%s/-/%s/%s/", name, kinds[rand.IntN(len(kinds))], commits[rand.IntN(len(commits))]),
				headers[rand.IntN(len(headers))])
		},
		Check: func(b *loadgen.Body) error {
			mu.Lock()
			crawled[b.Status]++
			mu.Unlock()
			return b.Drain()
		}}
	if _, err := l.Run(ctx); ctx.Err() == nil {
		world.Check(err)
	}
}

// person opens pages of branches, five each second, and returns their times.
func (p *pages) person(ctx context.Context, t *loadgen.Target) (times loadgen.Samples) {
	header := p.visitor(ctx, t, "192.0.2.1")
	paths := []string{"/" + name + "/", "/" + name + "/-/tree/HEAD", "/" + name + "/-/log/HEAD", "/" + name + "/-/refs"}
	for i := 0; loadgen.Sleep(ctx, 200*time.Millisecond); i++ {
		times = append(times, world.TimeOf(func() {
			world.Must(t.AskAll(context.WithoutCancel(ctx), get(t, paths[i%len(paths)], header), timeout))
		}))
	}
	return times
}
