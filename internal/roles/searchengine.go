package roles

import (
	"errors"
	"log/slog"
	"os/exec"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/search"
)

const (
	// searchDelay is how long after the start of a server its processes for searches are started: first come those who fetch.
	searchDelay = time.Second
	// indexDebounce is how long a change waits for others before it is indexed, searchScan how long until a new repository is found.
	indexDebounce = 200 * time.Millisecond
	searchScan    = 2 * time.Second
	// maxDeltas is how often what has changed is put on top of an index before it is made anew.
	maxDeltas = 20
)

// searchNice is the priority of searches: what git's clients wait for comes first, and they come well before what indexes.
const searchNice = 2

// newEngine makes and starts the engine that indexes what a source has.
func newEngine(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, lanes lanes, program string, source search.Source) *search.Engine {
	metrics, c := search.NewMetrics(), cfg.Index
	e := search.New(search.Options{
		Dir: c.Dir, Source: source, Program: program, Argument: []string{SearchWorker}, Branches: c.Branches,
		MaxFile: int64(c.MaxFile), ShardSize: c.ShardSize(), SearchMemory: 2 * int64(c.Memory), IndexMemory: int64(c.Memory),
		IndexNice: c.Nice, SearchNice: min(c.Nice, searchNice), Ctags: findCtags(c.Ctags, log),
		Delay: searchDelay, Debounce: indexDebounce, Scan: searchScan, Deltas: maxDeltas, Results: c.Results, Timeout: c.Timeout.Duration,
		Log: log, Metrics: metrics, Account: lanes.account(searches),
	})
	register(reg, metrics, e)
	return e
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

// addSearch gives a server an engine, which ends before what it reads from.
func (s *server) addSearch(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, lanes lanes, program string, source search.Source) {
	if program == "" {
		log.Warn("nothing is searched: this program does not know where it is, and cannot start the processes for it")
		return
	}
	s.search = newEngine(cfg, log, reg, lanes, program, source)
	below := s.close
	s.close = func() error { return errors.Join(s.search.Close(), below()) }
}
