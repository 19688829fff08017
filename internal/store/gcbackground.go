package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

const (
	gcInterval = time.Hour              // until a node looks for a shard to collect, before jitter
	gcPause    = 100 * time.Millisecond // after each repository
	gcPrefix   = "gc/"
	// shards are the first characters of repository IDs. The repositories of one shard are collected together.
	shards = "abcdefghijklmnopqrstuvwxyz234567"
)

// collectGarbage collects the garbage of all repositories once in a week. Nodes share the work without knowing each
// other: the node that creates the object gc/WEEK/SHARD collects this shard. After a failure the garbage stays until
// the next week.
func (s *Store) collectGarbage() {
	for retry.Sleep(s.ctx, gcInterval/2+rand.N(gcInterval)) == nil {
		if s.refused() != nil || s.untested() != nil {
			continue
		}
		err := cmp.Or(s.events.log.removeOld(s.ctx, time.Now().Add(-event.Keep)),
			newCollector(s.options.Bucket, GCOptions{}).removeMarks(s.ctx))
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("cannot remove old events or marks of purges from the store", "error", err)
		}
		shard, err := s.claimShard(s.ctx, time.Now())
		if err == nil && shard != "" {
			err = s.collectShard(s.ctx, shard)
		}
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("cannot delete garbage from the store", "shard", shard, "error", err)
		}
	}
}

// claimShard claims a shard that no node has collected in this week. It returns "" if all are claimed.
func (s *Store) claimShard(ctx context.Context, now time.Time) (string, error) {
	year, number := now.UTC().ISOWeek()
	week := fmt.Sprintf("%s%d-w%02d/", gcPrefix, year, number)
	marks, err := s.options.Bucket.List(ctx, gcPrefix, "", listPage)
	if err != nil {
		return "", err
	}
	free := strings.Split(shards, "")
	var old []string
	for _, mark := range marks {
		if shard, ok := strings.CutPrefix(mark.Key, week); ok {
			free = slices.DeleteFunc(free, func(s string) bool { return s == shard })
		} else if mark.Key < week {
			old = append(old, mark.Key)
		}
	}
	if err := s.options.Bucket.Delete(ctx, old...); err != nil || len(free) == 0 {
		return "", err
	}
	shard := free[rand.N(len(free))]
	err = s.options.Bucket.Create(ctx, week+shard, []byte(s.options.Node+"\n"))
	if errors.Is(err, bucket.ErrExists) {
		return "", nil
	}
	return shard, err
}

// collectShard collects the garbage of the repositories of a shard.
func (s *Store) collectShard(ctx context.Context, shard string) error {
	c := newCollector(s.options.Bucket, GCOptions{Node: s.options.Node})
	err := c.walk(ctx, reposPrefix+shard, gcPause)
	if c.report.Objects > 0 {
		s.log.Info("deleted garbage from the store", "shard", shard, "repositories", c.report.Repositories,
			"objects", c.report.Objects, "bytes", c.report.Bytes)
	}
	return err
}
