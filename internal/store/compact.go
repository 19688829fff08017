package store

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Maintain implements places.Place: it compacts the packs. Git works in a copy of the repository, whose packs are hard
// links: it repacks geometrically, and writes one commit-graph file. A multi-pack-index and its bitmap would name packs
// of the copy, and are not made. If there are new packs, the tip pack is made again if it is due. The new packs are
// uploaded, and a record replaces the old ones. If another node has replaced some of these in the meantime, the result
// is dropped. Pushes in the meantime do not matter.
func (p *place) Maintain(ctx context.Context, git places.RunGit, o places.MaintainOptions) error {
	return p.compact(ctx, git, o.TipPack, false)
}

// Detach implements places.Places: a compaction also copies the borrowed objects that refs need.
func (s *Store) Detach(ctx context.Context, path git.RepoPath, run places.RunGit) error {
	found, err := s.Acquire(ctx, path)
	if err != nil {
		return err
	}
	defer found.Release()
	return found.(*place).compact(ctx, run, false, true)
}

// compact replaces the packs of the repository. With isDetach, it borrows no packs afterwards.
func (p *place) compact(ctx context.Context, git places.RunGit, tip, isDetach bool) error {
	head, err := p.current(ctx)
	if err != nil {
		return err
	}
	if !head.has(p.path) {
		return notFound(p.path)
	}
	if isDetach && len(head.record.Lenders()) == 0 {
		return fault.New(fault.Exists, "%s does not borrow objects of other repositories: it has all its objects already",
			p.path)
	}
	c, err := p.copyOf(ctx, head)
	if err != nil {
		return err
	}
	defer c.close()
	c.isDetach = isDetach
	return c.run(ctx, git, c.copied, tip)
}

// copyOf makes a copy of a state of the repository, whose packs are hard links and which hides no objects. The caller
// closes the compaction.
func (p *place) copyOf(ctx context.Context, head *state) (c *compaction, err error) {
	done, err := p.local.Use(ctx, head.record, nil)
	if err != nil {
		return nil, err
	}
	c = &compaction{repository: p.repository, head: head}
	c.close = func() {
		if c.copied != nil {
			c.copied.Close()
		}
		if c.dir != "" {
			os.RemoveAll(c.dir)
		}
		done()
	}
	if c.dir, err = p.local.TempDir(); err == nil {
		err = linkCopy(p.local, c.dir, head.record)
	}
	if err == nil {
		err = writePacked(c.path("packed-refs"), head.layers)
	}
	var config []byte
	if err == nil {
		config, err = os.ReadFile(c.path("config"))
	}
	var lines []string
	for line := range strings.Lines(string(config)) {
		if !strings.HasPrefix(line, "\tpurged =") && !strings.HasPrefix(line, "\tpurging =") {
			lines = append(lines, line)
		}
	}
	if err == nil {
		err = os.WriteFile(c.path("config"), []byte(strings.Join(lines, "")), 0o600)
	}
	if err != nil {
		err = fault.Wrap(fault.Unavailable, "cannot copy the repository to compact it", err)
	} else {
		c.copied, err = repo.Open(c.dir, repo.Options{})
	}
	if err != nil {
		c.close()
	}
	return c, err
}

// run repacks the copy, and publishes the result.
func (c *compaction) run(ctx context.Context, git places.RunGit, copied *repo.Repo, tip bool) error {
	if err := c.repack(ctx, git, copied); err != nil {
		return err
	}
	if err := c.compare(); err != nil {
		return fault.Wrap(fault.Unavailable, "cannot read the compacted repository", err)
	}
	if len(c.names)+len(c.removed) == 0 {
		return nil // no better packs
	}
	if len(c.names) > 0 {
		places.UpdateTip(ctx, git, copied, tip, c.store.log)
	}
	if err := c.upload(ctx); err != nil {
		return err
	}
	if err := c.publish(ctx); err != nil || c.won || !c.isDetach {
		return err
	}
	return fault.Retry(fault.Unavailable, fault.RetrySoon, "the repository was changed meanwhile; try again")
}

// compaction replaces packs of a repository.
type compaction struct {
	*repository
	head    *state
	dir     string        // the copy
	copied  *repo.Repo    // the same
	removed []string      // keys of packs that the copy does not have any more
	names   []string      // of its new packs
	added   []replog.Pack // the same after the upload
	old     []string      // objects of the bucket: files of an earlier tip pack that belong to a pack which stays
	won     bool          // the record is in the log
	close   func()        // removes the copy

	isDetach bool               // the repository borrows no packs afterwards
	isPruned bool               // the new packs lack unreachable objects
	follow   func(*state) error // returns why a later head must not get the new packs; nil: see replace
}

// path returns the path of a file of the copy.
func (c *compaction) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

// repack repacks the copy. It must not remove objects.
func (c *compaction) repack(ctx context.Context, git places.RunGit, copied *repo.Repo) error {
	repack := []string{"repack", "-d", "-l", "-n", "-q", "--geometric=2"}
	if c.isDetach {
		repack = detachCommand
	}
	for _, args := range [][]string{repack,
		{"commit-graph", "write", "--reachable", "--changed-paths", "--no-progress"},
	} {
		if err := git(ctx, copied, places.GitCommand{Args: args}); err != nil {
			return err
		}
	}
	return nil
}

// compare finds the packs that repack added and removed.
func (c *compaction) compare() error {
	entries, err := os.ReadDir(c.path("objects/pack"))
	if err != nil {
		return err
	}
	left := map[string]bool{} // names of the packs in the copy that are not yet accounted for
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".pack"); ok {
			left[name] = true
		}
	}
	for i := range c.head.record.Packs {
		pack := &c.head.record.Packs[i]
		if pack.From != "" {
			if c.isDetach {
				c.removed = append(c.removed, pack.Key)
			}
			continue
		}
		if !left[pack.Name()] {
			c.removed = append(c.removed, pack.Key)
		}
		delete(left, pack.Name())
	}
	c.names = slices.Sorted(maps.Keys(left))
	return nil
}

// extras returns the files of the copy that belong to the first new pack: its commit-graph, and the tip pack, which may
// be an old one.
func (c *compaction) extras() map[string]string {
	files := map[string]string{".graph": c.path(hydrate.FilePath("", ".graph"))}
	if tip, _ := pack.FindTip(c.path("objects")); tip != "" {
		files[replog.TipPack], files[replog.TipIdx] = tip+".pack", tip+".idx"
	}
	return files
}

// upload uploads the new packs.
func (c *compaction) upload(ctx context.Context) error {
	up := c.uploader()
	for i, name := range c.names {
		pack, err := up.pack(ctx, c.path("objects/pack", name), replog.NewID())
		if err != nil {
			return err
		}
		if i == 0 {
			for ext, path := range c.extras() {
				f, err := up.file(ctx, pack.Key+ext, path)
				if err == nil {
					pack.Extra = append(pack.Extra, f)
				} else if !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
		c.added = append(c.added, pack)
	}
	return nil
}

// publish appends a record that replaces the old packs by the new ones, unless another node was faster.
func (c *compaction) publish(ctx context.Context) error {
	_, err := c.changeThen(ctx, func(head *state) (*replog.Record, error) {
		if c.follow != nil {
			if err := c.follow(head); err != nil {
				return nil, err
			}
		}
		next := c.replace(head.record)
		if next == nil {
			return nil, errNoChange
		}
		return next, nil
	}, c.install)
	if err == nil && c.won && len(c.old) > 0 {
		if err := c.store.bucket.Delete(ctx, c.old...); err != nil { // garbage collection removes them with their pack
			c.store.log.Warn("cannot remove an old tip pack from the store", "repository_id", c.id, "error", err)
		}
	}
	return err
}

// replace returns the record after head with the new packs, or nil if head does not have all packs of the copy.
// Packs that stay count too, because Git leaves their objects out of the new packs. After a collection of garbage the
// new packs may be condemned: see CollectGarbage. A detached repository may lack objects that a push after c.head
// needs.
func (c *compaction) replace(head *replog.Record) *replog.Record {
	if head.GC != c.head.record.GC || c.isDetach && head.Number != c.head.record.Number {
		return nil
	}
	for i := range c.head.record.Packs {
		if head.Pack(c.head.record.Packs[i].Key) == nil {
			return nil
		}
	}
	next := head.Next(replog.KindCompact, c.store.options.Node, time.Now())
	if c.isDetach || c.isPruned {
		next.ObjectsEpoch++
	}
	since := uint64(0) // the age of the unreachable objects of the new packs
	for _, key := range c.removed {
		since = max(since, head.Pack(key).Since)
	}
	next.Packs = slices.DeleteFunc(next.Packs, func(p replog.Pack) bool { return slices.Contains(c.removed, p.Key) })
	c.old = nil
	for i := range next.Packs {
		p := &next.Packs[i]
		if len(c.added) > 0 && slices.ContainsFunc(p.Extra, replog.File.IsTip) {
			c.old = append(c.old, reposPrefix+c.id+"/"+p.Key+replog.TipPack, reposPrefix+c.id+"/"+p.Key+replog.TipIdx)
			p.Extra = slices.DeleteFunc(slices.Clone(p.Extra), replog.File.IsTip) // head has it, too
		}
		if c.isPruned { // a commit-graph with removed commits would make Git believe that they exist
			p.Extra = slices.DeleteFunc(slices.Clone(p.Extra), func(f replog.File) bool { return f.Ext == ".graph" })
		}
	}
	for _, pack := range c.added {
		pack.Since = cmp.Or(since, next.Number)
		next.Packs = append(next.Packs, pack)
	}
	return next
}

// install moves the new packs into the local copy, so that they do not have to be downloaded.
func (c *compaction) install(record *replog.Record) {
	c.won = true
	for i := range c.added {
		pack := &c.added[i]
		from := c.path("objects/pack", pack.Name())
		if i == 0 {
			for ext, path := range c.extras() {
				_ = os.Rename(path, from+ext) // one that is missing is downloaded
			}
		}
		if err := c.local.Install(record, record.Pack(pack.Key), from); err != nil {
			c.store.log.Warn("cannot keep a compacted pack on this node, it is downloaded again", "repository_id", c.id,
				"error", err)
		}
	}
}
