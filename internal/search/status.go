package search

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git"
)

// maxFailures is how many failures a Status tells of.
const maxFailures = 100

// Status tells how far the index is. Readable are the repositories that may be known of; nil: all.
func (e *Engine) Status(readable Readable) Status {
	may := e.settled(readable)
	s := Status{Jobs: []Job{}, Failures: []IndexFailure{}}
	e.searching.mu.Lock()
	s.Searching, s.Deaths, s.Error = e.searching.control != nil, e.searching.deaths, e.searching.why
	e.searching.mu.Unlock()
	if s.Error != "" && may != nil { // what the process said last may name any repository
		s.Error = "the process that searches has ended; another one is started"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.why != "" {
		s.Error = e.why
	}
	s.Complete = e.ready
	for path, r := range e.repos {
		if may != nil && !may(path) {
			continue
		}
		s.Repositories++
		s.Shards += r.shards
		state := r.state()
		if _, unloaded := e.unloaded[r]; unloaded && state != stateEmpty {
			state = stateWaiting
		}
		switch state {
		case stateFresh:
			s.Fresh++
		case stateBehind:
			s.Behind++
		case stateWaiting:
			s.Waiting++
			s.Complete = false
		case stateEmpty:
			s.Empty++
		}
		if r.err != "" && state != stateFresh {
			s.Failed++
			if len(s.Failures) < maxFailures {
				s.Failures = append(s.Failures, IndexFailure{path.String(), r.err})
			}
		}
	}
	for r, j := range e.jobs {
		if may == nil || may(r.path) {
			s.Jobs = append(s.Jobs, Job{r.path.String(), j.kind, time.Since(j.began).Seconds(), j.files.Load()})
		}
	}
	slices.SortFunc(s.Jobs, func(a, b Job) int { return strings.Compare(a.Repository, b.Repository) })
	slices.SortFunc(s.Failures, func(a, b IndexFailure) int { return strings.Compare(a.Repository, b.Repository) })
	return s
}

// States of repositories.
const (
	stateFresh   = "fresh"
	stateBehind  = "behind"
	stateWaiting = "waiting"
	stateEmpty   = "empty"
)

func (r *repository) state() string {
	switch {
	case r.looked && len(r.current) == 0:
		return stateEmpty
	case len(r.indexed) == 0:
		return stateWaiting
	case !r.changed.IsZero():
		return stateBehind
	}
	return stateFresh
}

// Searched lists the repositories that are searched, in any order: those with anything in them.
func (e *Engine) Searched() []git.RepoPath {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []git.RepoPath
	for path, r := range e.repos {
		if r.state() != stateEmpty {
			list = append(list, path)
		}
	}
	return list
}

// Collectors lists what the index has, for registration as metrics.
func (e *Engine) Collectors() []prometheus.Collector {
	gauge := func(name, help string, labels prometheus.Labels, value func(Status) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(e.Status(nil))) })
	}
	list := []prometheus.Collector{
		gauge("packhorse_search_up", "1 while the process that searches runs.", nil, func(s Status) int {
			if s.Searching {
				return 1
			}
			return 0
		}),
		gauge("packhorse_search_shards", "Files of the index.", nil, func(s Status) int { return s.Shards }),
	}
	for state, value := range map[string]func(Status) int{
		stateFresh: func(s Status) int { return s.Fresh }, stateBehind: func(s Status) int { return s.Behind },
		stateWaiting: func(s Status) int { return s.Waiting }, stateEmpty: func(s Status) int { return s.Empty },
		"failed": func(s Status) int { return s.Failed },
	} {
		list = append(list, gauge("packhorse_search_repositories",
			"Repositories by state: fresh, behind, waiting (no index yet), empty (nothing to index); and failed, of behind "+
				"and waiting.",
			prometheus.Labels{"state": state}, value))
	}
	return list
}
