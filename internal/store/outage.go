package store

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// This file has what a node needs to serve, while the store is down, repositories that it had before it started.

// checkedInterval is the minimum time between two notes on disk that a repository was checked.
const checkedInterval = time.Minute

// localNames are the names that an earlier process or this one found, read from disk once in each outage.
type localNames struct {
	mu     sync.Mutex
	byPath map[git.RepoPath]reference // nil: not read
}

// keepName keeps what a path refers to, also for later processes.
func (s *Store) keepName(path git.RepoPath, ref reference) {
	s.names.Add(path, ref)
	s.cache.Repository(ref.id).SetName(fmt.Sprint(ref.number, " ", ref.renames, " ", path))
}

// parseName parses what keepName has written.
func parseName(id, text string) (path git.RepoPath, ref reference, err error) {
	fields := strings.SplitN(text, " ", 3)
	if len(fields) != 3 {
		return path, ref, fmt.Errorf("name %q: want three fields", text)
	}
	ref.id = id
	if ref.number, err = strconv.ParseUint(fields[0], 10, 64); err != nil {
		return path, ref, err
	}
	if ref.renames, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return path, ref, err
	}
	path, err = git.ParseRepoPath(fields[2])
	return path, ref, err
}

// nameBefore returns what a path referred to when it was looked up last, if the store is down and a look-up failed with
// cause.
func (s *Store) nameBefore(path git.RepoPath, cause error) (reference, bool) {
	if !s.health.isDown() || !fault.Is(cause, fault.Unavailable) {
		return reference{}, false
	}
	l := &s.local
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byPath == nil {
		l.byPath = map[git.RepoPath]reference{}
		for id, text := range s.cache.Names() {
			// Of two repositories with a path, the one that got it later has the greater number.
			if path, ref, err := parseName(id, text); err == nil && ref.number >= l.byPath[path].number {
				l.byPath[path] = ref
			}
		}
	}
	ref, ok := l.byPath[path]
	return ref, ok
}

// reset forgets the names at the end of an outage.
func (l *localNames) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byPath = nil
}

// adoptBefore makes a record that this node had before the known state, because the store cannot be reached.
func (r *repository) adoptBefore(ctx context.Context, record *replog.Record) {
	checked, err := r.local.Checked()
	if err != nil {
		return
	}
	age := time.Since(checked)
	if age < 0 { // the clock was changed
		age = math.MaxInt64 / 2
	}
	r.checked.CompareAndSwap(0, int64(r.store.now()-age))
	if _, err := r.adoptLocal(ctx, record); err != nil {
		r.store.log.Warn("cannot use a local copy while the store cannot be reached", "repository_id", r.id, "error", err)
	}
}

// saveChecked writes to the disk that a check began at a time and found the applied record to be the head.
func (r *repository) saveChecked(at time.Time) {
	if last := r.saved.Load(); at.Sub(time.Unix(0, last)) >= checkedInterval {
		r.saved.Store(at.UnixNano())
		r.local.SetChecked(at)
	}
}
