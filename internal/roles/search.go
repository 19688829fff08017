package roles

import (
	"cmp"
	"log/slog"
	"os/exec"
	"time"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/control"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/observe"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
)

// buildSearch builds a process that indexes the repositories of storage nodes and searches for gateways.
func (s *server) buildSearch() error {
	nodes := &searchNodes{source: searchremote.NewSource(nil), log: s.log}
	s.closers.push("connections to storage nodes", nodes.close)
	if err := nodes.apply(s.cfg); err != nil {
		return err
	}
	s.reloads = append(s.reloads, reloadStep{apply: nodes.apply})
	if err := s.addSearch(nodes.source); err != nil {
		return err
	}
	s.checks = append(s.checks, observe.Check{Name: "search", Look: s.checkSearch})
	s.addLocal()
	trust, err := s.cfg.Search.LoadTrust(config.RoleSearch, s.log)
	if err != nil {
		return err
	}
	metrics := control.NewMetrics()
	s.register(metrics)
	o := s.controlOptions(metrics)
	o.Index, o.Ready = s.search, s.checkSearch
	s.addControl(o, trust)
	return nil
}

const (
	// searchDelay is how long after the start of a server its processes for searches are started: first come those who
	// fetch.
	searchDelay = time.Second
	// indexDebounce is how long a change waits for others before it is indexed, searchScan how long until a new repository
	// is found.
	indexDebounce = 200 * time.Millisecond
	searchScan    = 2 * time.Second
	// maxDeltas is how often what has changed is put on top of an index before it is made anew.
	maxDeltas = 20
)

// searchNice is the priority of searches: what git's clients wait for comes first, and they come well before what
// indexes.
const searchNice = 2

// addSearch starts an engine that indexes the repositories of source. It closes before the source.
func (s *server) addSearch(source search.Source) error {
	program, err := config.FindSearchProgram(s.role, s.process.Program)
	if err != nil {
		return err
	}
	metrics, cfg := search.NewMetrics(), s.cfg.Index
	s.search = search.New(search.Options{
		Dir: cfg.Dir, Source: source, Program: program, Branches: cfg.Branches,
		Build:   ipc.Build{Version: s.process.Version, Revision: s.process.Revision},
		MaxFile: int64(cfg.MaxFile), ShardSize: cfg.ShardSize(), SearchMemory: 2 * int64(cfg.Memory),
		IndexMemory: int64(cfg.Memory),
		IndexNice:   cfg.Nice, SearchNice: min(cfg.Nice, searchNice), Ctags: findCtags(cfg.Ctags, s.log),
		Delay: searchDelay, Debounce: indexDebounce, Scan: searchScan, Deltas: maxDeltas, Results: cfg.Results,
		Timeout: cfg.Timeout.Duration, Log: s.log, Metrics: metrics, Account: s.lanes.account(searches),
	})
	s.register(metrics, s.search)
	s.closers.push("search engine", s.search.Close)
	return nil
}

// checkSearch returns an error while searches cannot be answered.
func (s *server) checkSearch() error {
	if status := s.search.Status(nil); !status.Searching {
		return fault.New(fault.Unavailable, "the process that searches does not run: %s",
			cmp.Or(status.Error, "it is being started"))
	}
	return nil
}

// findCtags finds the program; Debian turns its name around.
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
		log.Info("without universal-ctags searches for symbols find nothing", "index.ctags", name)
	}
	return ""
}
