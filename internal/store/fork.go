package store

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Fork implements places.Places. The first record of a fork names packs of other repositories, the lenders: of the
// source, and of those from which the source itself borrows. No byte of them is copied.
//
// First the ID of the fork is listed in the logs of all lenders, the source last. From then on CollectGarbage keeps
// what the fork names. The source named its packs after its lenders had listed the fork, and was listed itself, so they
// were kept until then. A fork that is listed and never made is ended by Fork, or if
// its node has crashed, by Purge or CollectGarbage. The packs that a fork borrows only ever become fewer.
func (s *Store) Fork(ctx context.Context, source, target git.RepoPath, o places.ForkOptions) error {
	target = canonical(target)
	found, err := s.Acquire(ctx, source)
	if err != nil {
		return err
	}
	defer found.Release()
	if there, err := s.resolve(ctx, target); err != nil || there.state != nil {
		return s.createdBefore(ctx, target, o.RequestID, cmpExists(err, target))
	}
	id := replog.NewID()
	isListed, err := s.forkAs(ctx, id, found.(*place), target, o)
	if err != nil && isListed {
		s.buryFork(ctx, id)
	}
	return s.createdBefore(ctx, target, o.RequestID, err)
}

// buryFork ends a fork that failed, so that no purge and no collection of its lenders waits for it. If it has a record,
// or may get its path, this changes nothing.
func (s *Store) buryFork(ctx context.Context, id string) {
	err := s.failPoint("fork: bury")
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventTimeout)
		defer cancel()
		_, err = newCollector(s.bucket, GCOptions{Node: s.options.Node}).bury(ctx, replog.Open(s.bucket, id), false)
	}
	if err != nil { // a purge or a collection does it
		s.log.Info("a fork that failed is still in the list of its source", "repository_id", id, "error", err)
	}
}

// forkAs makes the fork id. isListed reports whether a lender may list it.
func (s *Store) forkAs(ctx context.Context, id string, p *place, target git.RepoPath, o places.ForkOptions) (
	isListed bool, err error) {
	from, isListed, err := p.lendTo(ctx, id)
	if err != nil {
		return isListed, err
	}
	first := &replog.Record{ObjectFormat: from.record.ObjectFormat, Head: from.record.Head, RequestID: o.RequestID,
		Config: configOf(o.Settings)}
	for _, pack := range from.record.Packs {
		if pack.From == "" {
			pack.From = p.id
		}
		pack.Since, pack.Extra = 1, slices.DeleteFunc(slices.Clone(pack.Extra), replog.File.IsTip)
		first.Packs = append(first.Packs, pack)
	}
	up := uploader{bucket: s.bucket, prefix: reposPrefix + id + "/"}
	if first.Refs, err = p.uploadSelected(ctx, &up, from, o); err != nil {
		return true, err
	}
	if o.Lifetime > 0 {
		at := time.Now().Add(o.Lifetime)
		if err := s.bucket.Create(ctx, expiryKey(at, id), nil); err != nil {
			return true, err
		}
		first.Config = append(first.Config, replog.Setting{Key: places.ExpiryKey, Value: at.UTC().Format(time.RFC3339)})
	}
	isNeeded, err := s.create(ctx, target, id, first)
	if !isNeeded {
		_ = s.bucket.Delete(context.WithoutCancel(ctx), up.keys...)
	}
	return true, err
}

// cmpExists returns err, or that the path exists.
func cmpExists(err error, path git.RepoPath) error {
	if err != nil {
		return err
	}
	return exists(path)
}

// lendTo lists a fork in the logs of the repository and of those from which it borrows. It returns the state of the
// repository whose packs the fork may name. isListed reports whether a log may list the fork, also after an error.
func (p *place) lendTo(ctx context.Context, id string) (from *state, isListed bool, err error) {
	head, err := p.current(ctx)
	if err != nil {
		return nil, false, err
	}
	c := newCollector(p.store.bucket, GCOptions{Node: p.store.options.Node})
	for _, lender := range head.record.Lenders() {
		log := replog.Open(p.store.bucket, lender)
		record, err := log.Head(ctx)
		if err == nil { // a deleted repository also lends
			_, err = c.append(ctx, log, record, func(head *replog.Record) (*replog.Record, error) {
				next, err := p.store.withFork(ctx, lender, head, id)
				isListed = isListed || err == nil
				return next, err
			})
		}
		if err == nil {
			err = p.store.failPoint("fork: lender")
		}
		if err != nil {
			return nil, isListed, err
		}
	}
	_, err = p.change(ctx, func(head *state) (*replog.Record, error) {
		if !head.has(p.path) {
			return nil, notFound(p.path)
		}
		from = head
		next, err := p.store.withFork(ctx, p.id, head.record, id)
		isListed = isListed || err == nil
		return next, err
	})
	if err == nil {
		err = p.store.failPoint("fork: source")
	}
	return from, isListed, err
}

// leaveLenders removes a deleted repository from the lists of those from which it borrowed. CollectGarbage reads the
// repositories in these lists.
func (s *Store) leaveLenders(ctx context.Context, head *replog.Record, id string) {
	c := newCollector(s.bucket, GCOptions{Node: s.options.Node})
	for _, lender := range head.Lenders() {
		log := replog.Open(s.bucket, lender)
		record, err := log.Head(ctx)
		if err == nil {
			_, err = c.append(ctx, log, record, func(head *replog.Record) (*replog.Record, error) {
				at, isListed := slices.BinarySearch(head.Forks, id)
				if !isListed {
					return nil, nil
				}
				next := head.Next(replog.KindFork, s.options.Node, time.Now())
				next.Forks = slices.Delete(next.Forks, at, at+1)
				return next, nil
			})
		}
		if err != nil { // the list is shortened when it is full
			s.log.Info("a deleted fork is still in the list of its source", "repository_id", id, "source", lender, "error", err)
		}
	}
}

// withFork returns the record after head that lists a fork.
func (s *Store) withFork(ctx context.Context, id string, head *replog.Record, fork string) (*replog.Record, error) {
	next := head.Next(replog.KindFork, s.options.Node, time.Now())
	if len(next.Forks) >= replog.MaxForks {
		c := newCollector(s.bucket, GCOptions{})
		if err := c.examine(ctx, id, next.Forks); err != nil {
			return nil, err
		}
		next.Forks = slices.DeleteFunc(next.Forks, func(fork string) bool { return c.uses[fork].hasLeft() })
	}
	if len(next.Forks) >= replog.MaxForks {
		return nil, fault.New(fault.Exhausted, "the repository has %d forks that share its objects, which is the maximum: "+
			"remove or detach some of them", replog.MaxForks)
	}
	at, _ := slices.BinarySearch(next.Forks, fork)
	next.Forks = slices.Insert(next.Forks, at, fork)
	return next, nil
}

// uploadSelected uploads the refs of a fork as a checkpoint.
func (p *place) uploadSelected(ctx context.Context, up *uploader, from *state, o places.ForkOptions) (r replog.Refs,
	err error) {
	source, err := repo.Open(p.local.Dir(), repo.Options{Place: fixedPlace{fixedRefs{from.layers}, p.id}})
	if err != nil {
		return r, err
	}
	defer source.Close()
	snapshot, err := source.Refs.Snapshot(ctx) // without hidden refs
	if err != nil {
		return r, err
	}
	dir, err := p.local.TempDir()
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	file, err := os.Create(filepath.Join(dir, "packed-refs"))
	if err != nil {
		return r, fault.Wrap(fault.Unavailable, "cannot write to the server's disk", err)
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	_, _ = out.WriteString(refs.PackedHeader)
	err = snapshot.Each("", func(ref refs.Ref) error {
		if o.Selects(ref.Name) {
			r.Count++
			_, _ = out.Write(refs.AppendPacked(nil, &ref))
		}
		return nil
	})
	if err == nil {
		err = fault.Wrap(fault.Unavailable, "cannot write to the server's disk", out.Flush())
	}
	if err == nil {
		err = o.CheckSelected(int(r.Count))
	}
	if err != nil || r.Count == 0 {
		return r, err
	}
	r.Checkpoint = replog.CheckpointKey(1, replog.NewID())
	f, err := up.file(ctx, r.Checkpoint, file.Name())
	r.SHA256, r.Bytes = f.SHA256, f.Bytes
	return r, err
}

const (
	expiryPrefix   = "expiries/"
	expiryTime     = "20060102t150405z"
	expiryInterval = time.Minute
	// expiryPatience is how long a fork with a lifetime may be in the making after its end.
	expiryPatience = time.Hour
)

// expiryKey returns the key of the object that ends the lifetime of a repository: in the order of the ends.
func expiryKey(at time.Time, id string) string {
	return expiryPrefix + at.UTC().Format(expiryTime) + "-" + id
}

// removeExpired removes repositories whose lifetime has ended. Each node does that; the first one succeeds.
func (s *Store) removeExpired() {
	for retry.Sleep(s.ctx, expiryInterval) == nil {
		if s.refused() != nil || s.untested() != nil {
			continue
		}
		if err := s.removeExpiredBy(s.ctx, time.Now()); err != nil && s.ctx.Err() == nil {
			s.log.Warn("cannot remove repositories whose lifetime has ended", "error", err)
		}
	}
}

// removeExpiredBy removes the repositories whose lifetime ended before a time. It skips those that fail, and returns
// the first error.
func (s *Store) removeExpiredBy(ctx context.Context, now time.Time) (failed error) {
	list, err := s.bucket.List(ctx, expiryPrefix, "", listPage)
	if err != nil {
		return err
	}
	for _, mark := range list {
		end, id, _ := strings.Cut(strings.TrimPrefix(mark.Key, expiryPrefix), "-")
		at, err := time.Parse(expiryTime, end)
		if err != nil {
			continue // of another program
		}
		if at.After(now) {
			break
		}
		if err := s.expire(ctx, id); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("repository %s: %w", id, err))
			continue
		}
		head, err := replog.Open(s.bucket, id).Head(ctx)
		if err == nil && head.Deleted || fault.Is(err, fault.NotFound) && now.Sub(at) > expiryPatience {
			err = s.bucket.Delete(ctx, mark.Key)
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			failed = cmp.Or(failed, err)
		}
	}
	return failed
}

// expire removes a repository under whatever path it has.
func (s *Store) expire(ctx context.Context, id string) error {
	head, err := replog.Open(s.bucket, id).Head(ctx)
	for i := 0; err == nil && !head.Deleted && i < len(head.Names); i++ {
		err = s.Delete(ctx, head.Names[i], places.DeleteOptions{Incarnation: id})
		if err == nil {
			s.log.Info("removed a repository whose lifetime has ended", "repository", head.Names[i].String())
		}
	}
	if fault.Is(err, fault.NotFound) { // by another node, or it is not made yet
		return nil
	}
	return err
}
