package places

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	// tipCommits is the number of new commits after which a tip pack is made again. A repository with fewer has none.
	tipCommits = 50
	// tipAge is the minimum age of a tip pack that is made again.
	tipAge = time.Hour
	// tipObjects is the number of packed objects from which a repository has a tip pack. Others are cheap to clone.
	tipObjects = 1000
	// tipShare is the part of a repository's packs, one in so many, that its tip pack may have of their size.
	tipShare = 4
)

// UpdateTip makes the tip pack of a repository if it is due: the objects of HEAD's commit without its history. wanted
// false removes it. The new pack is complete before the old one is removed. Errors are logged, because no other part of
// maintenance needs the pack.
func UpdateTip(ctx context.Context, git RunGit, r *repo.Repo, wanted bool, log *slog.Logger) {
	if err := updateTip(ctx, git, r, wanted); err != nil && ctx.Err() == nil {
		log.Warn("cannot update the tip pack of a repository", "dir", r.Common, "error", err)
	}
}

func updateTip(ctx context.Context, git RunGit, r *repo.Repo, wanted bool) error {
	objects := r.Objects.Dirs()[0]
	wanted = wanted && !isPartial(r.Config()) // Git would fetch missing objects
	if !wanted || !isTipSound(r, objects) {
		if err := os.RemoveAll(filepath.Join(objects, pack.TipDir)); err != nil {
			return WriteError(err)
		}
	}
	if !wanted {
		return nil
	}
	if err := r.Refresh(); err != nil {
		return err
	}
	snap, err := r.Refs.SnapshotOf(ctx, nil)
	if err != nil {
		return err
	}
	head := snap.Unhidden().Head().ID
	if due, err := isTipDue(ctx, r, objects, head); err != nil || !due {
		return err
	}
	counts, err := r.Objects.Count(ctx)
	if err != nil || counts.Packed < tipObjects {
		return err
	}
	return makeTip(ctx, git, r, objects, head, counts.PackBytes/tipShare)
}

// makeTip makes the tip pack for a commit and removes the one before. A pack of more than limit bytes is not kept.
func makeTip(ctx context.Context, run RunGit, r *repo.Repo, objects string, head git.ObjectID, limit int64) error {
	dir := filepath.Join(objects, pack.TipDir)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return WriteError(err)
	}
	before, err := os.ReadDir(dir)
	if err != nil {
		return WriteError(err)
	}
	err = run(ctx, r, GitCommand{
		Args: []string{"pack-objects", "-q", "--revs", "--shallow", "--delta-base-offset", "--index-version=2",
			dir + "/pack"},
		Stdin: "--shallow " + head.String() + "\n" + head.String() + "\n",
	})
	if err != nil {
		return err
	}
	path, _ := pack.FindTip(objects)
	info, err := os.Stat(path + ".pack")
	if err == nil && info.Size() > limit { // the index remains, so that it is not tried each time
		err = os.Remove(path + ".pack")
	}
	if err != nil {
		return WriteError(err)
	}
	for _, e := range before {
		if !strings.HasPrefix(e.Name(), filepath.Base(path)+".") {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return WriteError(err)
			}
		}
	}
	return nil
}

// isTipSound reports whether there is a tip pack that is not damaged.
func isTipSound(r *repo.Repo, objects string) bool {
	path, made := pack.FindTip(objects)
	if path == "" || time.Now().Before(made) {
		return false
	}
	tip, err := pack.OpenTip(objects, r.Format)
	if tip == nil {
		return err == nil
	}
	defer tip.Close()
	return tip.Verify(r.Format) == nil
}

// isTipDue reports whether a tip pack has to be made of HEAD's commit. head is zero if HEAD's branch does not exist.
func isTipDue(ctx context.Context, r *repo.Repo, objects string, head git.ObjectID) (bool, error) {
	if head.IsZero() {
		return false, nil
	}
	var old []git.ObjectID
	if path, made := pack.FindTip(objects); path != "" {
		if time.Since(made) < tipAge {
			return false, nil
		}
		if ids, err := pack.After(path+".idx", r.Format, 0); err == nil && len(ids) > 0 {
			old = ids[:1] // the commit comes first
		}
	}
	_, more, err := r.Graph.Missing(ctx, []git.ObjectID{head}, old, nil, tipCommits-1)
	return more, err
}
