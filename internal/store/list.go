package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	listPage     = 1000    // keys in one listing
	listParallel = 16      // names that are read at the same time
	maxListed    = 200_000 // names in memory
)

// listNames returns the names of repositories after one, at most listPage, and whether there may be more. They are in
// the order of their keys. A listing of the bucket shows the number of each name's newest record, so listNames reads
// only records that this node has not read before. A name whose repository is just being deleted or renamed may be in
// the list.
func (s *Store) listNames(ctx context.Context, after string) (live []nameHead, hasMore bool, err error) {
	below, position := replog.NamesBelow(""), replog.AfterName(after)
	for len(live) < listPage {
		keys, err := s.bucket.List(ctx, below, position, listPage)
		if err != nil {
			return nil, false, err
		}
		var heads []nameHead
		for _, k := range keys {
			if k.Key <= position {
				continue // an earlier record of the name before
			}
			path, number, err := replog.ParseNameKey(k.Key)
			if err != nil {
				return nil, false, err
			}
			heads = append(heads, nameHead{path: path, number: number, at: k.Modified})
			if position = replog.AfterName(path.String()); len(live)+len(heads) == listPage {
				break
			}
		}
		if err := s.readNames(ctx, heads); err != nil {
			return nil, false, err
		}
		// A move in this page may have ended a name of an earlier one.
		live = slices.DeleteFunc(append(live, heads...), s.isGone)
		if len(keys) < listPage && (len(keys) == 0 || keys[len(keys)-1].Key < position) {
			break
		}
	}
	return live, len(live) == listPage, nil
}

// nameHead is what the newest record of a name says.
type nameHead struct {
	path    git.RepoPath
	number  uint64
	at      time.Time // when the record was written; for those that were read, by the clock of the store
	id      string    // of the repository; empty if the name has no repository
	renames uint64    // of the repository when it got the name, or later
}

// isBefore reports whether a record of the name precedes another one. After Forget, numbers begin again, a day later.
func (n nameHead) isBefore(other nameHead) bool {
	return n.number < other.number && n.at.Sub(other.at) < forgetAge/2 || other.at.Sub(n.at) >= forgetAge/2
}

// isGone reports whether a name refers to nothing, as far as this node knows.
func (s *Store) isGone(n nameHead) bool {
	if n.id == "" {
		return true
	}
	s.known.mu.Lock()
	r := s.known.byID[n.id]
	s.known.mu.Unlock()
	if r == nil {
		return false
	}
	state := r.known()
	return state != nil && state.record.Renames >= n.renames && !state.has(n.path)
}

// readNames completes heads from memory or from the bucket.
func (s *Store) readNames(ctx context.Context, heads []nameHead) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listParallel)
	for i := range heads {
		n := &heads[i]
		if known, ok := s.listed.get(n.path); ok && !known.isBefore(*n) {
			*n = known
			continue
		}
		group.Go(func() error {
			log, err := replog.OpenName(s.bucket, n.path)
			if err != nil {
				return err
			}
			name, err := log.Get(ctx, n.number)
			if fault.Is(err, fault.Corrupt) || errors.Is(err, replog.ErrNewer) {
				s.log.Error("cannot read a name, which is not listed", "repository", n.path.String(), "error", err)
				return nil
			}
			if err != nil {
				return err
			}
			switch name.State {
			case replog.Live:
				n.id = name.ID
			case replog.Moving: // finish it
				found, err := s.resolve(ctx, n.path)
				if isOfRepository(err) {
					s.log.Warn("cannot finish the renaming of a repository", "repository", n.path.String(), "error", err)
					return nil
				}
				if err != nil {
					return err
				}
				if found.state != nil {
					n.number, n.id, n.renames = found.name.Number, found.name.ID, found.state.record.Renames
				}
			}
			s.listed.put(*n)
			return nil
		})
	}
	return group.Wait()
}

// listedNames has the newest records of names that this node has read or written. It is safe for concurrent use.
type listedNames struct {
	mu    sync.Mutex
	names map[git.RepoPath]nameHead
}

func (l *listedNames) get(path git.RepoPath) (nameHead, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.names[path]
	return n, ok
}

// put keeps what a record of a name says, unless a newer one is known. If there are too many names, any one is dropped:
// a list reads them in order, so the least recently used one is the next that it needs.
func (l *listedNames) put(n nameHead) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.names[n.path]
	if ok && n.isBefore(known) {
		return
	}
	if !ok && len(l.names) >= maxListed {
		for path := range l.names {
			delete(l.names, path)
			break
		}
	}
	l.names[n.path] = n
}
