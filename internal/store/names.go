package store

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// canonical returns the form of a path in which the store knows it: with or without ".git", it is the same repository.
func canonical(path git.RepoPath) git.RepoPath {
	short, ok := strings.CutSuffix(path.String(), ".git")
	if !ok || short == "" || strings.HasSuffix(short, "/") {
		return path
	}
	if p, err := git.ParseRepoPath(short); err == nil {
		return p
	}
	return path
}

// Name implements places.Places.
func (s *Store) Name(path git.RepoPath) git.RepoPath { return canonical(path) }

// reference is what a name's record says about its path.
type reference struct {
	id      string // of the repository
	number  uint64 // of the record
	renames uint64 // of the repository at that time
}

// holds reports whether the reference is valid in a state of its repository.
func (f reference) holds(path git.RepoPath, s *state) bool {
	return s.has(path) && s.record.Renames == f.renames
}

// maxLookups is the number of paths that are looked up in the store at the same time.
const maxLookups = 64

// lookups are the running look-ups of paths that are not in memory.
type lookups struct {
	mu     sync.Mutex
	byPath map[git.RepoPath]*lookup
	slots  chan struct{}
}

// lookup is the look-up of one path, shared by all callers that wait for it.
type lookup struct {
	sharedRun[reference]
	users int           // guarded by lookups.mu
	left  chan struct{} // closed when no user is left
}

func newLookups() lookups {
	return lookups{byPath: make(map[git.RepoPath]*lookup), slots: make(chan struct{}, maxLookups)}
}

// find returns the repository of a path, which the caller has to release. Its state is known and has the path. A path
// in memory needs no I/O: the next freshness check finds out whether the repository still has the path. Any other path
// costs a listing and a few GETs, shared by concurrent callers. Errors: NotFound, Unavailable, and Corrupt.
func (s *Store) find(ctx context.Context, path git.RepoPath) (*repository, error) {
	r, _, err := s.findReference(ctx, path)
	return r, err
}

// findReference is find with what the name's record says.
func (s *Store) findReference(ctx context.Context, path git.RepoPath) (*repository, reference, error) {
	if err := s.refused(); err != nil {
		return nil, reference{}, err
	}
	isBefore := false
	for range maxTries {
		if ref, ok := s.names.Get(path); ok {
			r := s.acquire(ref.id)
			state := r.known()
			var err error
			if state == nil { // it was idle and dropped, or this node has just started
				state, err = r.current(ctx)
			}
			if known := r.known(); known != nil && fault.Is(err, fault.Unavailable) {
				state, err = known, nil // see adoptBefore
			}
			if err == nil && ref.holds(path, state) {
				return r, ref, nil
			}
			s.release(r)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return nil, reference{}, err
			}
			s.forget(path, ref.id)
		}
		ref, err := s.readReference(ctx, path)
		if err == nil {
			s.keepName(path, ref)
			continue
		}
		if ref, ok := s.nameBefore(path, err); ok && !isBefore {
			isBefore = true
			s.names.Add(path, ref)
			continue
		}
		return nil, reference{}, err
	}
	return nil, reference{}, fault.Retry(fault.Unavailable, fault.RetrySoon,
		"repository %s is replaced faster than it can be opened",
		path)
}

// forget removes a path from memory if it still refers to id there.
func (s *Store) forget(path git.RepoPath, id string) {
	if known, ok := s.names.Peek(path); ok && known.id == id {
		s.names.Remove(path)
	}
}

// readReference returns what a path refers to that is not in memory. The look-up begins after the call.
func (s *Store) readReference(ctx context.Context, path git.RepoPath) (reference, error) {
	l := &s.lookups
	l.mu.Lock()
	shared := l.byPath[path]
	if shared == nil {
		shared = &lookup{left: make(chan struct{})}
		l.byPath[path] = shared
	}
	shared.users++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		if shared.users--; shared.users == 0 {
			delete(l.byPath, path)
			close(shared.left)
		}
		l.mu.Unlock()
	}()
	run, _ := shared.start(&s.running, func() (reference, error) {
		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
		case <-shared.left:
			return reference{}, context.Canceled
		}
		found, err := s.resolve(s.ctx, path)
		if err == nil && found.state == nil {
			err = notFound(path)
		}
		if err != nil {
			return reference{}, err
		}
		return reference{found.name.ID, found.name.Number, found.state.record.Renames}, nil
	})
	return run.wait(ctx)
}

// resolved is what the logs say about a path.
type resolved struct {
	path  git.RepoPath
	log   *replog.NameLog
	name  *replog.Name // the head of the name's log; nil: the name was never used
	state *state       // of the repository that has the path; nil: there is none
}

// resolve reads what a path refers to. A name is only an index: it refers to a repository only if the head of the
// repository's log lists it. resolve finishes a move to the path that it finds.
func (s *Store) resolve(ctx context.Context, path git.RepoPath) (resolved, error) {
	found := resolved{path: path}
	err := s.refused()
	if err != nil {
		return found, err
	}
	if found.log, err = replog.OpenName(s.bucket, path); err != nil {
		return found, err
	}
	found.name, err = found.log.Head(ctx)
	if fault.Is(err, fault.NotFound) {
		found.name = nil
		return found, nil
	}
	if err != nil {
		return found, err
	}
	if found.name.Path != path {
		return found, &fault.Error{Kind: fault.Corrupt,
			Msg: "the object storage does not tell this repository's name from another one; ask the administrator",
			Err: fmt.Errorf("object %s: it is a record of %q, want one of %q: use object storage whose keys are "+
				"case-sensitive, or rename one of the repositories", found.log.Key(found.name.Number), found.name.Path, path)}
	}
	if found.name.State == replog.Removed {
		return found, nil
	}
	r := s.acquire(found.name.ID)
	defer s.release(r)
	state, err := r.check().wait(ctx)
	if fault.Is(err, fault.NotFound) {
		return found, nil
	}
	if err == nil && !state.has(path) && isPending(found.name, state) {
		state, err = s.finishMove(ctx, r, found.name)
	}
	if err != nil {
		return found, err
	}
	if state.has(path) {
		found.state = state
	} else { // left behind by a crash
		s.running.Go(func() { s.clearName(s.ctx, found) })
	}
	return found, nil
}

// appendName appends a record to the log of a resolved name. The error is receivepack.ErrUnknown if it is not known
// whether the record was written.
func (s *Store) appendName(ctx context.Context, found resolved, next *replog.Name) (replog.Outcome, error) {
	if err := s.untested(); err != nil {
		return replog.Lost, err
	}
	attempt, err := found.log.Append(ctx, next)
	if err != nil {
		return replog.Lost, err
	}
	if attempt.Outcome() == replog.Unknown {
		s.health.doubt()
		return replog.Unknown, unknown(attempt.Err())
	}
	if attempt.Outcome() == replog.Won && next.State != replog.Moving {
		head := nameHead{path: next.Path, number: next.Number, at: next.At}
		if next.State == replog.Live {
			head.id = next.ID
		}
		s.listed.put(head)
	}
	return attempt.Outcome(), nil
}
