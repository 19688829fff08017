package store

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/replog"
)

// Maintain implements storage.Place: it compacts the packs. repack works in a copy of the repository, whose packs are
// hard links, and must not remove objects. The new packs are uploaded, and a record replaces the old ones. If another
// node has replaced some of these in the meantime, the result is dropped. Pushes in the meantime do not matter.
func (p *place) Maintain(ctx context.Context, repack func(ctx context.Context, dir string) error) error {
	result, err := p.maintain(ctx, repack)
	if err != nil {
		result = "failed"
	}
	p.store.metrics.compactions.WithLabelValues(result).Inc()
	return err
}

func (p *place) maintain(ctx context.Context, repack func(ctx context.Context, dir string) error) (string, error) {
	head, err := p.current(ctx)
	if err != nil {
		return "", err
	}
	if !head.has(p.path) {
		return "", notFound(p.path)
	}
	done, err := p.local.Use(ctx, head.record, nil)
	if err != nil {
		return "", err
	}
	defer done()
	dir, err := p.local.TempDir()
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	c := &compaction{repository: p.repository, head: head, dir: dir}
	if err := c.link(); err != nil {
		return "", fault.Wrap(fault.Unavailable, "cannot copy the repository to compact it", err)
	}
	if err := repack(ctx, dir); err != nil {
		return "", err
	}
	if err := c.compare(); err != nil {
		return "", fault.Wrap(fault.Unavailable, "cannot read the compacted repository", err)
	}
	if len(c.added)+len(c.removed) == 0 {
		return "unchanged", nil
	}
	if err := c.upload(ctx); err != nil {
		return "", err
	}
	isPublished, err := c.publish(ctx)
	if err != nil || isPublished {
		return "published", err
	}
	return "dropped", nil
}

// compaction replaces packs of a repository.
type compaction struct {
	*repository
	head    *state
	dir     string // the copy
	added   []newPack
	removed []string // keys
}

// newPack is a pack of the copy that the repository does not have.
type newPack struct {
	replog.Pack
	paths map[string]string // files by extension
}

// path returns the path of a file of the copy.
func (c *compaction) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

// link makes the copy. Its packs have the names that Git gave them.
func (c *compaction) link() error {
	for _, dir := range []string{"refs", "objects/info", "objects/pack"} {
		if err := os.MkdirAll(c.path(dir), 0o777); err != nil {
			return err
		}
	}
	type file struct{ from, to string }
	links := []file{{"HEAD", "HEAD"}, {"config", "config"}, {commitGraph, commitGraph}}
	for i := range c.head.record.Packs {
		pack := &c.head.record.Packs[i]
		for _, f := range pack.Files() {
			links = append(links, file{"objects/pack/" + filepath.Base(pack.Key) + f.Ext,
				"objects/pack/" + pack.Name() + f.Ext})
		}
	}
	for _, f := range links {
		err := os.Link(filepath.Join(c.local.Dir(), f.from), c.path(f.to))
		isOptional := f.from == commitGraph || !strings.HasSuffix(f.from, ".pack") && !strings.HasSuffix(f.from, ".idx")
		switch {
		case errors.Is(err, fs.ErrExist): // two pushes of the same objects
		case errors.Is(err, fs.ErrNotExist) && isOptional:
		case err != nil:
			return err
		}
	}
	f, err := os.Create(c.path("packed-refs"))
	if err != nil {
		return err
	}
	defer f.Close()
	b := bufio.NewWriterSize(f, 1<<20)
	if _, err := refs.WritePacked(b, c.head.layers.Base, c.head.layers.Changes); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return f.Close()
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
	for name := range left {
		pack, err := c.read(name, len(c.added) == 0)
		if err != nil {
			return err
		}
		c.added = append(c.added, pack)
	}
	return nil
}

// read describes a new pack. withGraph reports whether the commit-graph belongs to it.
func (c *compaction) read(name string, withGraph bool) (newPack, error) {
	pack := newPack{Pack: replog.Pack{Key: replog.PackKey(name, replog.NewID())}, paths: map[string]string{}}
	for _, ext := range []string{".pack", ".idx", ".rev", ".bitmap", ".graph"} {
		path := c.path("objects/pack", name+ext)
		if ext == ".graph" {
			path = c.path(commitGraph)
		}
		if ext == ".graph" && !withGraph {
			continue
		}
		f, objects, err := sumFile(path)
		f.Ext = ext
		switch {
		case ext == ".pack" && err == nil:
			pack.Bytes, pack.SHA256, pack.Objects = f.Bytes, f.SHA256, objects
		case ext == ".idx" && err == nil:
			pack.IdxBytes, pack.IdxSHA256 = f.Bytes, f.SHA256
		case err == nil:
			pack.Extra = append(pack.Extra, f)
		case errors.Is(err, fs.ErrNotExist) && ext != ".pack" && ext != ".idx":
			continue
		default:
			return pack, err
		}
		pack.paths[ext] = path
	}
	return pack, nil
}

// sumFile returns the size and the checksum of a file. If it is a pack, objects is the number in its header
// (gitformat-pack(5)).
func sumFile(path string) (f replog.File, objects int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return f, 0, err
	}
	defer file.Close()
	var header [12]byte
	if _, err := file.ReadAt(header[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return f, 0, err
	}
	sum := sha256.New()
	if f.Bytes, err = io.Copy(sum, file); err != nil {
		return f, 0, err
	}
	f.SHA256 = replog.Sum(sum.Sum(nil))
	return f, int64(binary.BigEndian.Uint32(header[8:])), nil
}

// upload uploads the new packs.
func (c *compaction) upload(ctx context.Context) error {
	for i := range c.added {
		pack := &c.added[i]
		for _, f := range pack.Files() {
			if err := c.repository.upload(ctx, pack.Key+f.Ext, pack.paths[f.Ext], f); err != nil {
				return err
			}
		}
	}
	return nil
}

// publish appends a record that replaces the old packs by the new ones. It reports false if the compaction was dropped.
func (c *compaction) publish(ctx context.Context) (isPublished bool, err error) {
	_, err = c.change(ctx, func(head *state) (*replog.Record, error) {
		next := c.replace(head.record)
		if isPublished = next != nil; !isPublished {
			return nil, errNoChange
		}
		c.install(next)
		return next, nil
	})
	return isPublished && err == nil, err
}

// replace returns the record after head with the new packs, or nil if head does not have all old packs any more. After
// a collection of garbage the new packs may be condemned: see CollectGarbage.
func (c *compaction) replace(head *replog.Record) *replog.Record {
	if head.GC != c.head.record.GC {
		return nil
	}
	next := head.Next(replog.KindCompact, c.store.options.Node, time.Now())
	next.Packs = slices.DeleteFunc(next.Packs, func(p replog.Pack) bool { return slices.Contains(c.removed, p.Key) })
	if len(next.Packs)+len(c.removed) != len(head.Packs) {
		return nil
	}
	for i := range c.added {
		pack := c.added[i].Pack
		pack.Since = next.Number
		next.Packs = append(next.Packs, pack)
	}
	return next
}

// install puts the new packs into the local copy, so that they do not have to be downloaded. The files of the copy stay
// for the next try.
func (c *compaction) install(next *replog.Record) {
	for i := range c.added {
		pack := &c.added[i]
		from := c.path(strconv.FormatUint(next.Number, 10) + "-" + strconv.Itoa(i))
		var err error
		for ext, path := range pack.paths {
			err = errors.Join(err, os.Link(path, from+ext))
		}
		if err == nil {
			err = c.local.Install(next, next.Pack(pack.Key), from)
		}
		if err != nil {
			c.store.log.Warn("cannot keep a compacted pack on this node, it is downloaded again", "repository_id", c.id,
				"error", err)
		}
	}
}
