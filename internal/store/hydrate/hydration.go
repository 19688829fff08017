package hydrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// parallelPacks is the maximum number of packs that one hydration downloads at the same time. Their parts share
// parallelParts.
const parallelPacks = 8

// maxChecks is the maximum number of repositories that are compared with their checksums at the same time. The others
// wait, so that the first ones can be used soon after a crash of the machine.
const maxChecks = 2

// hydrate downloads the packs of the task's record that are missing.
func (r *Repository) hydrate(t *task) (err error) {
	c := r.cache
	missing, err := r.findMissing(t)
	if err != nil {
		return err
	}
	if len(missing) == 0 {
		return nil
	}
	need := int64(0)
	for _, p := range missing {
		need += packBytes(p)
	}
	t.written.Store(0)
	t.total.Store(need)
	if err = c.reserve(t.record, need); err == nil {
		err = r.download(t, missing)
		c.unreserve(need-t.published.Load(), need-t.written.Load())
	}
	took := time.Since(t.start)
	c.metrics.hydrated(took, err)
	if err != nil {
		if t.ctx.Err() == nil {
			c.log.Warn("cannot download a repository from the store", "repository_id", r.id, "record", t.record.Number,
				"bytes", need, "written", t.written.Load(), "error", err)
		}
		return err
	}
	c.log.Info("a repository was downloaded from the store", "repository_id", r.id, "record", t.record.Number, "packs",
		len(missing), "bytes", need, "ms", took.Milliseconds())
	return nil
}

// findMissing returns the packs of the record that are not here, or that are damaged.
func (r *Repository) findMissing(t *task) ([]*replog.Pack, error) {
	c := r.cache
	if err := c.retryFull(func() error { return os.MkdirAll(r.packDir(), 0o777) }); err != nil {
		return nil, diskError(err)
	}
	var missing, unchecked []*replog.Pack
	c.mu.Lock()
	for i := range t.record.Packs {
		p := &t.record.Packs[i]
		if p.From != "" {
			continue
		}
		if local := r.packs[packName(p)]; local == nil {
			missing = append(missing, p)
		} else if local.unchecked {
			unchecked = append(unchecked, p)
		}
	}
	c.mu.Unlock()
	if len(unchecked) == 0 {
		return missing, nil
	}
	damaged, err := r.checkPacks(t, unchecked)
	return append(missing, damaged...), err
}

// checkPacks compares packs with their checksums, and returns the damaged ones.
func (r *Repository) checkPacks(t *task, packs []*replog.Pack) (damaged []*replog.Pack, err error) {
	c := r.cache
	total := int64(0)
	for _, p := range packs {
		total += packBytes(p)
	}
	t.total.Store(total)
	select {
	case c.checks <- struct{}{}:
		defer func() { <-c.checks }()
	case <-t.ctx.Done():
		return nil, t.ctx.Err()
	}
	r.checkGraph(t.ctx, t.record)
	for _, p := range packs {
		err := r.verify(t, p)
		if t.ctx.Err() != nil {
			return nil, t.ctx.Err()
		}
		if err != nil {
			c.metrics.damaged.Inc()
			c.log.Error("a local pack is damaged and is downloaded again", "repository_id", r.id, "file",
				r.path(p, replog.File{Ext: ".pack"}), "error", err)
			damaged = append(damaged, p)
		}
	}
	if r.noteChecked(packs, damaged) {
		_ = os.Remove(filepath.Join(r.dir, uncheckedFile)) // otherwise the next process checks again
	}
	return damaged, nil
}

// noteChecked notes the result of checkPacks. It reports whether all files of the local copy are intact.
func (r *Repository) noteChecked(packs, damaged []*replog.Pack) (isIntact bool) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range packs {
		if local := r.packs[packName(p)]; local != nil {
			local.unchecked = false
		}
	}
	for _, p := range damaged { // its files stay for running uses, until the download replaces them
		if r.packs[packName(p)] != nil {
			c.dropLocked(r, packName(p))
		}
	}
	isIntact = len(damaged) == 0 && !r.unchecked
	for _, local := range r.packs {
		isIntact = isIntact && !local.unchecked
	}
	return isIntact
}

// verify compares the local files of a pack with their checksums. Damaged extra files are removed.
func (r *Repository) verify(t *task, p *replog.Pack) error {
	for _, f := range p.Files() {
		if f.Ext == ".graph" { // see checkGraph
			continue
		}
		path := r.path(p, f)
		err := verifyFile(t.ctx, path, f, func(n int64) { t.written.Add(n) })
		if err != nil && isExtra(f) && t.ctx.Err() == nil {
			if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkGraph removes the commit-graph unless it is the one of a pack of the record.
func (r *Repository) checkGraph(ctx context.Context, rec *replog.Record) {
	path := filepath.Join(r.dir, commitGraph)
	for i := range rec.Packs {
		for _, f := range rec.Packs[i].Extra {
			if f.Ext == ".graph" && verifyFile(ctx, path, f, ignoreCount) == nil {
				return
			}
		}
	}
	if ctx.Err() == nil {
		_ = os.Remove(path)
	}
}

// download downloads packs and adds each to the local copy once it is verified.
func (r *Repository) download(t *task, packs []*replog.Pack) error {
	c := r.cache
	dir, err := r.TempDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := newDownloader(c, func(n int64) {
		t.written.Add(n)
		c.mu.Lock()
		c.unwritten -= n
		c.mu.Unlock()
	})
	group, ctx := errgroup.WithContext(t.ctx)
	group.SetLimit(parallelPacks)
	for _, p := range packs {
		group.Go(func() error { return r.downloadPack(ctx, t, d, dir, p) })
	}
	return group.Wait()
}

func (r *Repository) downloadPack(ctx context.Context, t *task, d *downloader, dir string, p *replog.Pack) error {
	temp := func(f replog.File) string { return filepath.Join(dir, packName(p)+f.Ext) }
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range p.Files() {
		group.Go(func() error {
			if r.link(p, f, temp(f)) {
				d.count(f.Bytes)
				return nil
			}
			err := d.file(ctx, temp(f), r.key(p.Key)+f.Ext, f)
			if err != nil && isExtra(f) && ctx.Err() == nil {
				r.cache.log.Warn("cannot download an extra file of a pack", "repository_id", r.id, "error", err)
				return os.RemoveAll(temp(f))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	c, bytes := r.cache, packBytes(p)
	if err := r.publish(p, temp); err != nil {
		return diskError(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t.published.Add(bytes)
	c.bytes -= bytes // they were reserved
	c.addLocked(r, packName(p), &localPack{bytes: bytes, since: t.record.Number})
	return nil
}

// key returns the key of one of the repository's objects.
func (r *Repository) key(relative string) string { return "repos/" + r.id + "/" + relative }

// diskError wraps an error of the local disk. It returns nil if err is nil.
func diskError(err error) error {
	if disk.IsFull(err) {
		return &fault.Error{Kind: fault.Unavailable, RetryAfter: fault.RetryLater, Err: err,
			Msg: "the node's disk is full, and all repositories on it are in use"}
	}
	return fault.Wrap(fault.Unavailable, "cannot write the local copy of the repository", err)
}

// damagedError is the error for an object that differs from its record.
func damagedError(key, problem string, args ...any) error {
	return fault.Wrap(fault.Corrupt, "the repository's data in the store is damaged", fmt.Errorf("object %s: %w; restore "+
		"the version of the object that its record names (bucket versioning), or repair the repository from a clone",
		key, fmt.Errorf(problem, args...)))
}
