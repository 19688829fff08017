package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// maxCollectTries is how often a collection begins because the repository was changed meanwhile.
const maxCollectTries = 3

// errCollectAgain is the error of a collection that removes nothing because of changes in the meantime.
var errCollectAgain = fault.Retry(fault.Unavailable, fault.RetryMuchLater,
	"no object was removed, because the repository was changed in the meantime; try again")

// Collect implements places.Place. In a copy of the repository, Git makes the packs again that have expired objects.
// A record replaces them. The age of an unreachable object is that of the youngest pack that has it: the time of the
// record Pack.Since, by the clock of the store. Objects in borrowed packs stay.
//
// Changes of refs since the copy was made must need nothing that it lacks, which is checked before the record. It
// raises Record.ObjectsEpoch, so pushes that Git has checked with the old packs fail. Later ones do not see these, even
// if they are still here: see shadow. CollectGarbage deletes the old packs later, as after a compaction.
func (p *place) Collect(ctx context.Context, run places.RunGit, o places.CollectOptions) (done places.Collected,
	err error) {
	for range maxCollectTries {
		if done, err = p.collect(ctx, run, o); !errors.Is(err, errCollectAgain) {
			break
		}
	}
	return done, err
}

func (p *place) collect(ctx context.Context, run places.RunGit, o places.CollectOptions) (done places.Collected,
	err error) {
	head, err := p.current(ctx)
	if err != nil {
		return done, err
	}
	if !head.has(p.path) {
		return done, notFound(p.path)
	}
	c, s, err := p.survey(ctx, run, head)
	if err != nil {
		return done, err
	}
	defer c.close()
	expired, err := c.expired(ctx, s, o)
	if err != nil {
		return done, err
	}
	if done.Before, err = c.count(ctx); err != nil {
		return done, err
	}
	if done.After = done.Before; len(expired) == 0 {
		return done, nil
	}
	if err := c.rewrite(ctx, s, expired); err != nil {
		return done, err
	}
	if done.After, err = c.count(ctx); err != nil {
		return done, err
	}
	done.Freed = done.Before.PackBytes - done.After.PackBytes
	if len(c.names)+len(c.removed) == 0 || o.DryRun {
		return done, nil
	}
	if err := c.upload(ctx); err != nil {
		return done, err
	}
	checked := head.record.Number
	c.follow = func(head *state) error {
		if head.record.Number == checked {
			return nil
		}
		err := c.checkRefs(ctx, s, head)
		if err == nil {
			checked = head.record.Number
		}
		return err
	}
	// Most changes are checked here, because pushes wait for publish.
	if head, err = p.current(ctx); err == nil {
		err = c.follow(head)
	}
	if err == nil {
		err = c.publish(ctx)
	}
	if err == nil && !c.won {
		err = errCollectAgain
	}
	return done, err
}

// expired returns the unreachable objects of the copy that are old, and that no younger one needs.
func (c *compaction) expired(ctx context.Context, s *places.Survey, o places.CollectOptions) (map[git.ObjectID]bool,
	error) {
	old, err := headAt(ctx, c.log, c.head.record, c.store.options.Bucket, time.Now().Add(-o.OlderThan))
	if err != nil {
		return nil, err
	}
	var young []string // indexes
	hasOld := false
	for i := range c.head.record.Packs {
		p := &c.head.record.Packs[i]
		switch {
		case p.From != "":
		case old == nil || p.Since > old.Number:
			young = append(young, c.path(hydrate.FilePath(p.Name(), ".idx")))
		default:
			hasOld = true
		}
	}
	if !hasOld {
		return nil, nil
	}
	for i, id := range o.Keep {
		found, err := s.Repo.Objects.Has(id)
		if err == nil && found {
			s.Tips = append(s.Tips, places.NamedTip{ID: id})
			err = places.WriteError(os.WriteFile(c.path(fmt.Sprintf("refs/keep-%d", i)), []byte(id.String()+"\n"), 0o600))
		}
		if err != nil {
			return nil, err
		}
	}
	expired, err := s.Unreachable(ctx)
	if err != nil || len(expired) == 0 {
		return nil, err
	}
	var kept []git.ObjectID
	for _, path := range young {
		index, err := pack.OpenIndex(path, s.Repo.Format)
		if err != nil {
			return nil, err
		}
		err = index.Do(func(t *pack.Table) error {
			for id := range expired {
				if _, found := t.Find(id.Raw()); found {
					kept = append(kept, id)
				}
			}
			return nil
		})
		index.Close()
		if err != nil {
			return nil, err
		}
	}
	return expired, s.Keep(expired, kept)
}

// count counts the objects of the copy that are not borrowed.
func (c *compaction) count(ctx context.Context) (pack.Counts, error) {
	own, err := pack.Open(c.path("objects"), pack.Options{Format: c.head.record.ObjectFormat, Alone: true})
	if err != nil {
		return pack.Counts{}, err
	}
	defer own.Close()
	return own.Count(ctx)
}

// checkRefs adds the packs of a later head to the copy, and checks that it has everything that the refs of that head
// reach.
func (c *compaction) checkRefs(ctx context.Context, s *places.Survey, head *state) error {
	done, err := c.local.Use(ctx, head.record, nil)
	if err != nil {
		return err
	}
	defer done()
	for i := range head.record.Packs {
		p := &head.record.Packs[i]
		if c.head.record.Pack(p.Key) != nil {
			continue
		}
		for _, f := range p.Files()[:2] {
			err := os.Link(c.local.Path(p, f), c.path(hydrate.FilePath(p.Name(), f.Ext)))
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return places.WriteError(err)
			}
		}
	}
	snap, err := snapshotOf(head.layers, head.record.ObjectFormat)
	if err != nil {
		return err
	}
	var tips strings.Builder
	err = snap.Unhidden().Each("", func(ref refs.Ref) error {
		fmt.Fprintln(&tips, ref.ID)
		return nil
	})
	if err != nil {
		return err
	}
	err = s.Run(ctx, s.Repo, places.GitCommand{Stdin: tips.String(),
		Args: []string{"rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"}})
	if fault.Is(err, fault.Internal) {
		return errCollectAgain
	}
	return err
}
