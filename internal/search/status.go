package search

import (
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// maxFailures is the maximum number of failures in a Status.
const maxFailures = 100

// Status returns the progress of the index. It covers only readable repositories. Nil means all.
func (e *Engine) Status(readable Readable) Status {
	may := e.readableFunc(readable)
	s := Status{Jobs: []Job{}, Failures: []IndexFailure{}}
	e.searchWorker.mu.Lock()
	s.Searching, s.Deaths, s.Error = e.searchWorker.control != nil, e.searchWorker.crashes, e.searchWorker.reason
	e.searchWorker.mu.Unlock()
	if s.Error != "" && may != nil { // the output of the process may name any repository
		s.Error = "search worker ended; another one is started"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unavailable != "" {
		s.Error = e.unavailable
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
		case stateTooLarge:
			s.TooLarge++
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
			s.Jobs = append(s.Jobs, Job{r.path.String(), j.kind, time.Since(j.start).Seconds(), j.files.Load()})
		}
	}
	slices.SortFunc(s.Jobs, func(a, b Job) int { return strings.Compare(a.Repository, b.Repository) })
	slices.SortFunc(s.Failures, func(a, b IndexFailure) int { return strings.Compare(a.Repository, b.Repository) })
	return s
}

// States of repositories.
const (
	stateFresh    = "fresh"
	stateBehind   = "behind"
	stateWaiting  = "waiting"
	stateTooLarge = "too_large"
	stateEmpty    = "empty"
)

func (r *repository) state() string {
	switch {
	case r.hasCurrent && len(r.current) == 0:
		return stateEmpty
	case len(r.indexed) == 0 && r.tooLarge != nil:
		return stateTooLarge
	case len(r.indexed) == 0:
		return stateWaiting
	case !r.firstChange.IsZero():
		return stateBehind
	}
	return stateFresh
}

// Searched returns the non-empty repositories, in any order.
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
