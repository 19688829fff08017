// Package pages measures pages for browsers, against cgit and Go's file server.
package pages

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// options are the flags of `packhorse-bench pages`.
type options struct {
	repo         string // empty: a synthetic one
	rounds       int
	clients      int
	count        int
	entries      int
	repositories int
	rate         int
	networks     int
	duration     time.Duration
	cgit         string

	program world.Program
	stderr  io.Writer
}

const help = `Starts a server and measures its pages. Without --repo the repository is a synthetic one. Values that are compared are
medians of --rounds.

The parts:

  views      pages of --views commits, each requested for the first time and again by --clients clients: requests/s of trees,
             logs and commits against those of cgit with its cache, behind nginx and fcgiwrap
  page       one page again: requests/s against Go's file server with the same bytes
  directory  directories of --entries entries with their last commits: 95th percentile, first and again
  root       the root directory of the repository, with its last commits: first after the start, and again
  list       the page / of --repositories repositories: 95th percentile
  crawler    --rate requests/s from --networks networks for pages of all commits, with cookies: the 99th percentile of ls-refs
             against an idle server, the pages of a person, and clones

All clients accept gzip, as browsers do, and nginx has it on, as in Debian. The requests of "views" are those of a user
with a token, so that the limits of crawlers do not apply.`

// parts are in the order of the report.
var parts = []world.Part[*pages]{
	{Name: "views", Measure: (*pages).views},
	{Name: "page", Measure: (*pages).page},
	{Name: "directory", Measure: (*pages).directory},
	{Name: "root", Measure: (*pages).root},
	{Name: "list", Measure: (*pages).list},
	{Name: "crawler", Measure: (*pages).crawler},
}

// Command returns `packhorse-bench pages`.
func Command(env loadgen.Env) *cobra.Command {
	o := options{stderr: env.Stderr}
	cmd := &cobra.Command{
		Use:   "pages",
		Short: "Measure pages for browsers, against cgit and Go's file server",
		Long:  help,
		Example: `  packhorse-bench pages --repo git.git
  packhorse-bench pages views crawler --repo git.git --json`,
	}
	f := cmd.Flags()
	f.StringVar(&o.repo, "repo", "", "`PATH` of a repository or bundle")
	f.IntVar(&o.rounds, "rounds", 3, "runs of each comparison")
	f.IntVar(&o.clients, "clients", 4, "clients of the parts views and page")
	f.IntVar(&o.count, "views", 200, "commits of each run of the part views")
	f.IntVar(&o.entries, "entries", 1000, "entries of each directory of the part directory")
	f.IntVar(&o.repositories, "repositories", 10000, "repositories of the part list")
	f.IntVar(&o.rate, "rate", 300, "requests of crawlers per second")
	f.IntVar(&o.networks, "networks", 500, "networks of the crawlers")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "duration of each run of the parts page and crawler")
	f.StringVar(&o.cgit, "cgit", "/usr/lib/cgit/cgit.cgi", "the `PROGRAM` cgit")
	check := func() error {
		return cmp.Or(loadgen.Positive(f, "rounds", "views", "entries", "repositories", "rate", "duration"),
			loadgen.AreClients(f, "clients", "networks"))
	}
	return world.Command(cmd, env, &o.program, parts, check, func(ctx context.Context, part, dir string) (*pages, error) {
		return o.open(ctx, part, dir)
	})
}

const (
	name = "app" // the repository of a part

	browser    = "User-Agent: Mozilla/5.0\r\nAccept: text/html\r\n"
	compressed = "Accept-Encoding: gzip\r\n" // as browsers do
	timeout    = time.Minute
)

// pages has the server of one part.
type pages struct {
	*options
	*world.World
	server *world.Process
	token  string
	tip    gitload.Commit
}

func (o *options) open(ctx context.Context, part, dir string) (p *pages, err error) {
	p = &pages{options: o}
	if p.World, err = world.New(dir, o.program); err != nil {
		return p, err
	}
	defer world.Rescue(&err)
	switch {
	case part == "directory":
		world.Check(p.addDirectories(ctx))
	case o.repo == "" || part == "list":
		world.Check(p.AddHistory(ctx, name, 1000, 500))
	default:
		world.Check(p.Add(ctx, name, o.repo))
	}
	p.tip = world.Must(gitload.Tip(ctx, p.Repository(name), "HEAD"))
	if part == "list" {
		world.Check(p.AddRepositories(name, p.tip.ID, o.repositories))
	}
	world.Check(p.start(ctx, "server"))
	world.Check(p.server.Maintain(ctx, name))
	p.token = world.Must(p.server.Token(ctx))
	return p, nil
}

// start starts a server behind a proxy that the requests of crawlers pretend to have passed.
func (p *pages) start(ctx context.Context, server string) (err error) {
	settings := "trusted_proxies = [\"127.0.0.0/8\"]\n" + world.Public + world.NoSearch
	p.server, err = p.Start(ctx, "serve", server, settings, "--root", p.Root())
	return err
}

// get encodes the request of an anonymous browser. The header has complete lines.
func get(t *loadgen.Target, path, header string) []byte {
	return t.Encode("GET", path, browser+header, nil)
}

// signedIn is the header of a user.
func (p *pages) signedIn() string { return "Authorization: Bearer " + p.token + "\r\n" }

// load requests paths one after the other. It ends with the last path, or, if they repeat, after the duration.
func (p *pages) load(ctx context.Context, url, header string, paths []string, repeat bool) *loadgen.Outcome {
	t := world.Must(loadgen.ParseTarget(url, false))
	var sent atomic.Int64
	l := loadgen.Repeat(t, nil, nil, timeout)
	header += compressed
	l.Conns, l.Next = p.clients, func(int) []byte {
		n := int(sent.Add(1)) - 1
		if !repeat && n >= len(paths) {
			return nil
		}
		return get(t, paths[n%len(paths)], header)
	}
	if repeat {
		l.Duration = p.duration
	}
	out := world.Must(l.Run(ctx))
	world.Check(out.Failures.Detail())
	return out
}

// body returns a page, which has to contain a text.
func (p *pages) body(ctx context.Context, url, header, path, text string) []byte {
	t := world.Must(loadgen.ParseTarget(url, false))
	body := world.Must(t.AskAll(ctx, get(t, path, header), timeout))
	if !bytes.Contains(body, []byte(text)) {
		world.Check(fmt.Errorf("%s: a page of %d bytes without %q", path, len(body), text))
	}
	return body
}

// perSecond returns the responses per second of a load.
func perSecond(out *loadgen.Outcome) float64 {
	return float64(len(out.Answers)) / out.Elapsed.Seconds()
}

// commits returns commits of the repository that are spread over its history, in an order that jumps.
func (p *pages) commits(ctx context.Context, n int) []string {
	all := strings.Fields(world.Must(gitload.RunGit(ctx, p.Repository(name), nil, "rev-list", "HEAD")))
	list := make([]string, 0, n)
	for i := range min(n, len(all)) {
		list = append(list, all[i*7919%min(n, len(all))*len(all)/min(n, len(all))])
	}
	return list
}
