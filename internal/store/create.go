package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Create implements places.Places.
func (s *Store) Create(ctx context.Context, path git.RepoPath, format git.ObjectFormat, head git.RefName,
	requestID string, settings places.Settings) error {
	path = canonical(path)
	first := &replog.Record{ObjectFormat: format, Head: head, RequestID: requestID, Config: configOf(settings)}
	_, err := s.create(ctx, path, replog.NewID(), first)
	return s.createdBefore(ctx, path, requestID, err)
}

// configOf returns settings as they are in a record.
func configOf(settings places.Settings) (config []replog.Setting) {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		for _, value := range settings[key] {
			config = append(config, replog.Setting{Key: key, Value: value})
		}
	}
	return config
}

// createdBefore returns the error of a creation, and nil if an earlier request with the same ID has succeeded.
func (s *Store) createdBefore(ctx context.Context, path git.RepoPath, requestID string, err error) error {
	if fault.Is(err, fault.Exists) && requestID != "" {
		found, resolveErr := s.resolve(ctx, path)
		if resolveErr == nil && found.state != nil && found.state.record.RequestID == requestID {
			return nil
		}
	}
	return err
}

// create creates the repository id at a path. first has the content of its first record, except position and names.
//
// The first record makes a repository that no name refers to. The name's record is the commit. If another node takes
// the name first, the new repository is deleted again. After a crash in between, it is left behind and cannot be found.
// The same must not happen because a caller leaves: once the first record is begun, the end of ctx does not matter.
//
// isNeeded reports whether the objects that first names must be kept: the record may exist, and is not known to be
// deleted.
func (s *Store) create(ctx context.Context, path git.RepoPath, id string, first *replog.Record) (isNeeded bool,
	err error) {
	found, err := s.resolve(ctx, path)
	if err != nil {
		return false, err
	}
	if found.state != nil {
		return false, exists(path)
	}
	if err := s.failPoint("create: record"); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	r := s.acquire(id)
	defer s.release(r)
	release, err := s.events.begin(ctx, r, true)
	if err != nil {
		return false, err
	}
	defer release() // publishes the event, if the name refers to the repository by then
	first.Number, first.Txn, first.Kind, first.Names = 1, replog.NewID(), replog.KindCreate, []git.RepoPath{path}
	first.At, first.Node, first.Quota = time.Now(), s.options.Node, quotaOf(first.Config)
	r.happened(ctx, first, event.Event{Kind: event.Create, Repository: event.NameOf(path)})
	attempt, err := r.append(ctx, first)
	if errors.Is(err, receivepack.ErrUnknown) { // but no name refers to it; see settle
		return true, &fault.Error{Kind: fault.Unavailable, RetryAfter: fault.RetrySoon,
			Msg: "the object storage does not answer, and repository " + path.String() + " was not created; try again",
			Err: fmt.Errorf("first record: %v", err)}
	}
	if err != nil {
		return false, err
	}
	if attempt.Outcome() != replog.Won { // see collector.begin
		return false, fault.Retry(fault.Unavailable, fault.RetrySoon, "the upload of the repository took too long; try again")
	}
	number, err := s.claim(ctx, found, id)
	switch {
	case err == nil:
		r.adoptOwn(first)
		s.keepName(path, reference{id: id, number: number})
	case !errors.Is(err, receivepack.ErrUnknown) && s.failPoint("create: remove") == nil:
		return s.remove(r, path) != nil, err
	}
	return true, err
}

// claim makes a path that has no repository refer to a new one. It returns the number of the name's record.
func (s *Store) claim(ctx context.Context, found resolved, id string) (uint64, error) {
	for range maxTries {
		if err := s.failPoint("create: name"); err != nil {
			return 0, err
		}
		next := found.name.Next(found.path, replog.Live, id, s.options.Node, time.Now())
		outcome, err := s.appendName(ctx, found, next)
		if err != nil || outcome == replog.Won {
			return next.Number, err
		}
		if found, err = s.resolve(ctx, found.path); err != nil {
			return 0, err
		}
		if found.state != nil {
			return 0, exists(found.path)
		}
	}
	return 0, fault.Retry(fault.Unavailable, fault.RetrySoon, "the path %s changes too fast; try again", found.path)
}

// remove deletes a repository that did not get its path. It had no users.
func (s *Store) remove(r *repository, path git.RepoPath) error {
	_, err := r.delete(s.ctx, path, false)
	if err != nil {
		s.log.Warn("cannot remove a repository that did not get its path", "repository_id", r.id, "repository",
			path.String(), "error", err)
	}
	return err
}

func exists(path git.RepoPath) error {
	return fault.New(fault.Exists, "repository %s already exists", path)
}
