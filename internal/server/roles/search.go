package roles

import (
	"cmp"
	"log/slog"
	"os/exec"
	"time"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// newSearchedNodes connects the search process to its storage nodes. They follow the configuration.
func newSearchedNodes(d *deps) (*searchremote.Source, error) {
	source, table := searchremote.NewSource(nil), &nodeTable[searchremote.Node]{log: d.log}
	closeNode := func(n searchremote.Node) { n.Client.Close() }
	connect := func(c config.NodeConfig) (searchremote.Node, error) {
		n := searchremote.Node{Name: c.Name}
		trust, err := c.LoadTrust(d.log)
		if err == nil {
			n.Client, err = client.New(c.Address, ClientOptions(trust, c.ServerName))
		}
		return n, err
	}
	apply := func(cfg config.Config) error {
		unused, err := table.apply(cfg, connect, closeNode, func(to []nodeRoute[searchremote.Node]) error {
			routes := make([]searchremote.Route, len(to))
			for i, r := range to {
				routes[i] = searchremote.Route{Prefix: r.prefix, Nodes: r.nodes}
			}
			source.Set(routes)
			return nil
		})
		for _, n := range unused {
			closeNode(n)
		}
		return err
	}
	d.life.push("connections to storage nodes", infallible(func() {
		for n := range table.all() {
			closeNode(n)
		}
	}))
	d.life.onReload(nil, apply)
	return source, apply(d.cfg)
}

const (
	// searchDelay is the time from the start of a server to that of its search processes. Fetches have priority.
	searchDelay = time.Second
	// indexDebounce is the time for which a change waits for further ones before it is indexed.
	indexDebounce = 200 * time.Millisecond
	// searchScan is the time between two scans for new repositories.
	searchScan = 2 * time.Second
	// maxDeltas is the maximum number of additions to an index before it is rebuilt.
	maxDeltas = 20
	// searchNice is the niceness of searches: below that of Git requests, and well above that of indexing.
	searchNice = 2
	indexNice  = 15
	// searchResults is the maximum number of results of a search, and searchTimeout its maximum duration.
	searchResults = 100_000
	searchTimeout = time.Minute
)

// newSearch starts an engine that indexes the repositories of source. It closes before the source.
func newSearch(d *deps, source search.Source) *search.Engine {
	cfg := d.cfg.Index
	program := func() (string, error) { return config.FindSearchProgram(d.role, d.process.Program) }
	engine := search.New(search.Options{
		Dir: cfg.Dir, Source: source, Program: program, Branches: cfg.Branches,
		Build:    ipc.Build{Version: d.process.Version, Revision: d.process.Revision},
		MaxFiles: int64(cfg.MaxRepositoryFiles), MaxBytes: int64(cfg.MaxRepositoryBytes),
		MaxFile: int64(cfg.MaxFile), ShardSize: cfg.ShardSize(), SearchMemory: 2 * int64(cfg.Memory),
		IndexMemory: int64(cfg.Memory), IndexNice: indexNice, SearchNice: searchNice,
		Ctags: findCtags(cfg.Ctags, d.log),
		Delay: searchDelay, Debounce: indexDebounce, Scan: searchScan, Deltas: maxDeltas, Results: searchResults,
		Timeout: searchTimeout, Log: d.log, Registerer: d.reg, Account: d.lanes.account(searches),
	})
	d.life.push("search engine", engine.Close)
	return engine
}

// checkSearch returns an error while searches cannot be answered.
func (s *server) checkSearch() error {
	if status := s.search.Status(nil); !status.Searching {
		return fault.New(fault.Unavailable, "the search process is not running: %s",
			cmp.Or(status.Error, "it is starting"))
	}
	return nil
}

// findCtags returns the path of the program, or "". Debian has another name for it.
func findCtags(name string, log *slog.Logger) string {
	names := []string{name}
	if name == "universal-ctags" {
		names = append(names, "ctags-universal")
	}
	for _, n := range names {
		if path, err := exec.LookPath(n); err == nil && name != "" {
			return path
		}
	}
	if name != "" {
		log.Info("universal-ctags is missing: searches for symbols have no results", "index.ctags", name)
	}
	return ""
}
