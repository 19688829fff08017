package store

import (
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
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Maintain implements places.Place: it compacts the packs. Git works in a copy of the repository, whose packs are hard
// links: it repacks geometrically, and writes one commit-graph file. A multi-pack-index and its bitmap would name packs
// of the copy, and are not made. The new packs are uploaded, and a record replaces the old ones. If another
// node has replaced some of these in the meantime, the result is dropped. Pushes in the meantime do not matter.
func (p *place) Maintain(ctx context.Context, git places.RunGit, _ bool) error {
	head, err := p.current(ctx)
	if err != nil {
		return err
	}
	if !head.has(p.path) {
		return notFound(p.path)
	}
	done, err := p.local.Use(ctx, head.record, nil)
	if err != nil {
		return err
	}
	defer done()
	dir, err := p.local.TempDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := &compaction{repository: p.repository, head: head, dir: dir}
	err = linkCopy(p.local.Dir(), dir, head.record)
	if err == nil {
		err = writePacked(c.path("packed-refs"), head.layers)
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot copy the repository to compact it", err)
	}
	if err := c.repack(ctx, git); err != nil {
		return err
	}
	if err := c.compare(); err != nil {
		return fault.Wrap(fault.Unavailable, "cannot read the compacted repository", err)
	}
	if len(c.names)+len(c.removed) == 0 {
		return nil // no better packs
	}
	if err := c.upload(ctx); err != nil {
		return err
	}
	return c.publish(ctx)
}

// compaction replaces packs of a repository.
type compaction struct {
	*repository
	head    *state
	dir     string        // the copy
	removed []string      // keys of packs that the copy does not have any more
	names   []string      // of its new packs
	added   []replog.Pack // the same after the upload
}

// path returns the path of a file of the copy.
func (c *compaction) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

// repack repacks the copy. It must not remove objects.
func (c *compaction) repack(ctx context.Context, git places.RunGit) error {
	r, err := repo.Open(c.dir, repo.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	for _, args := range [][]string{
		{"repack", "-d", "-l", "-n", "-q", "--geometric=2"},
		{"commit-graph", "write", "--reachable", "--no-progress"},
	} {
		if err := git(ctx, r, args); err != nil {
			return err
		}
	}
	return nil
}

const commitGraph = "objects/info/commit-graph"

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
		if !left[pack.Name()] {
			c.removed = append(c.removed, pack.Key)
		}
		delete(left, pack.Name())
	}
	c.names = slices.Sorted(maps.Keys(left))
	return nil
}

// upload uploads the new packs. The commit-graph is a file of the first one.
func (c *compaction) upload(ctx context.Context) error {
	up := c.uploader()
	for i, name := range c.names {
		pack, err := up.pack(ctx, c.path("objects/pack", name), replog.NewID())
		if err != nil {
			return err
		}
		if i == 0 {
			f, err := up.file(ctx, pack.Key+".graph", c.path(commitGraph))
			if err == nil {
				pack.Extra = append(pack.Extra, f)
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		c.added = append(c.added, pack)
	}
	return nil
}

// publish appends a record that replaces the old packs by the new ones, unless another node was faster.
func (c *compaction) publish(ctx context.Context) error {
	_, err := c.changeThen(ctx, func(head *state) (*replog.Record, error) {
		next := c.replace(head.record)
		if next == nil {
			return nil, errNoChange
		}
		return next, nil
	}, c.install)
	return err
}

// replace returns the record after head with the new packs, or nil if head does not have all packs of the copy.
// Packs that stay count too, because Git leaves their objects out of the new packs. After a collection of garbage the
// new packs may be condemned: see CollectGarbage.
func (c *compaction) replace(head *replog.Record) *replog.Record {
	if head.GC != c.head.record.GC {
		return nil
	}
	for i := range c.head.record.Packs {
		if head.Pack(c.head.record.Packs[i].Key) == nil {
			return nil
		}
	}
	next := head.Next(replog.KindCompact, c.store.options.Node, time.Now())
	next.Packs = slices.DeleteFunc(next.Packs, func(p replog.Pack) bool { return slices.Contains(c.removed, p.Key) })
	for _, pack := range c.added {
		pack.Since = next.Number
		next.Packs = append(next.Packs, pack)
	}
	return next
}

// install moves the new packs into the local copy, so that they do not have to be downloaded.
func (c *compaction) install(record *replog.Record) {
	for i := range c.added {
		pack := &c.added[i]
		from := c.path("objects/pack", pack.Name())
		_ = os.Rename(c.path(commitGraph), from+".graph") // for the first one; others do not have it
		if err := c.local.Install(record, record.Pack(pack.Key), from); err != nil {
			c.store.log.Warn("cannot keep a compacted pack on this node, it is downloaded again", "repository_id", c.id,
				"error", err)
		}
	}
}
