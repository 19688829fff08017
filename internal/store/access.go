package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

var _ node.AccessLog = (*Store)(nil)

// maxAccessCheckpoint is the maximum size of a checkpoint of the access log in bytes.
const maxAccessCheckpoint = 16 << 20

const accessCheckpoints = replog.AccessPrefix + "checkpoints/"

// accessHead is the latest known record of the access log.
type accessHead struct {
	mu     sync.Mutex
	record *replog.Access // nil: not known
}

// accessLatest returns the head of the access log; nil if it is empty. It costs one GET, except for the first time.
func (s *Store) accessLatest(ctx context.Context) (*replog.Access, error) {
	s.access.mu.Lock()
	known := s.access.record
	s.access.mu.Unlock()
	log := replog.OpenAccess(s.bucket)
	var latest *replog.Access
	var err error
	if known == nil {
		if latest, err = log.Head(ctx); fault.Is(err, fault.NotFound) {
			return nil, nil
		}
	} else {
		latest, err = log.Latest(ctx, known)
	}
	if err != nil {
		return nil, err
	}
	s.access.mu.Lock()
	defer s.access.mu.Unlock()
	if s.access.record == nil || s.access.record.Number < latest.Number {
		s.access.record = latest
	}
	return latest, nil
}

// ReadAccess implements node.AccessLog.
func (s *Store) ReadAccess(ctx context.Context, after uint64) (found node.AccessRecords, err error) {
	if err := s.refused(); err != nil {
		return found, err
	}
	head, err := s.accessLatest(ctx)
	switch {
	case err != nil:
		return found, err
	case head == nil && after == 0:
		return found, nil
	case head == nil || head.Number < after:
		return found, fault.New(fault.Corrupt, "the access log of the object store is older than it was: it has no record %d",
			after)
	}
	if head.Covers > after {
		found.Checkpoint, _, err = s.bucket.Get(ctx, head.Checkpoint, maxAccessCheckpoint)
		if err != nil {
			return found, fmt.Errorf("object %s: %w", head.Checkpoint, err)
		}
		found.At, after = head.Covers, head.Covers
	}
	log := replog.OpenAccess(s.bucket)
	for n := after + 1; n <= head.Number; n++ {
		r := head
		if n < head.Number {
			if r, err = log.Get(ctx, n); err != nil {
				return found, err
			}
		}
		found.Changes = append(found.Changes, r.Change)
	}
	return found, nil
}

// AppendAccess implements node.AccessLog.
func (s *Store) AppendAccess(ctx context.Context, head uint64, change, checkpoint []byte) (bool, error) {
	if err := errors.Join(s.refused(), s.untested()); err != nil {
		return false, err
	}
	latest, err := s.accessLatest(ctx)
	if err != nil {
		return false, err
	}
	if (latest == nil) != (head == 0) || latest != nil && latest.Number != head {
		return false, nil
	}
	next := latest.Next(change, s.options.Node, time.Now())
	if checkpoint != nil && head > 0 {
		key := fmt.Sprintf("%s%d-%s", accessCheckpoints, head, strings.ToLower(replog.NewID()))
		if err := s.bucket.Create(ctx, key, checkpoint); err != nil && !errors.Is(err, bucket.ErrExists) {
			return false, err
		}
		next.Checkpoint, next.Covers = key, head
	}
	attempt, err := replog.OpenAccess(s.bucket).Append(ctx, next)
	if err != nil {
		return false, err
	}
	if attempt.Outcome() == replog.Unknown {
		s.health.doubt()
		return false, unknown(attempt.Err())
	}
	isWon := attempt.Outcome() == replog.Won
	if isWon && checkpoint != nil && head > 0 {
		s.removeCheckpoints(ctx, latest.Covers)
	}
	return isWon, attempt.Err()
}

// removeCheckpoints removes checkpoints of the access log that cover less than the last but one does, which a slow
// reader may still need. Records stay: the number of a record is never used twice.
func (s *Store) removeCheckpoints(ctx context.Context, lastButOne uint64) {
	list, err := s.bucket.List(ctx, accessCheckpoints, "", 2*node.CheckpointEvery)
	var old []string
	for _, info := range list {
		number, _, _ := strings.Cut(strings.TrimPrefix(info.Key, accessCheckpoints), "-")
		if n, bad := strconv.ParseUint(number, 10, 64); bad == nil && n < lastButOne {
			old = append(old, info.Key)
		}
	}
	if len(old) > 0 {
		err = s.bucket.Delete(ctx, old...)
	}
	if err != nil {
		s.log.Info("cannot remove old checkpoints of tokens and rules", "error", err)
	}
}
