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
	"github.com/packhorse-git/packhorse/internal/replog"
)

// parallelPacks is the maximum number of packs that one hydration downloads at the same time. Their parts share
// parallelParts.
const parallelPacks = 8

// hydrate downloads the packs of the task's record that are missing.
func (r *Repository) hydrate(t *task) (err error) {
	c := r.cache
	missing, err := r.findMissing(t)
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot read the local copy of the repository", err)
	}
	if len(missing) == 0 {
		return nil
	}
	need := int64(0)
	for _, p := range missing {
		need += packBytes(p)
	}
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

// findMissing returns the packs of the record that are not here. After a crash of the machine it first compares those
// that are here with their checksums.
func (r *Repository) findMissing(t *task) ([]*replog.Pack, error) {
	c := r.cache
	if err := os.MkdirAll(r.packDir(), 0o777); err != nil {
		return nil, err
	}
	c.mu.Lock()
	check := r.unchecked
	here := make(map[string]bool, len(r.packs))
	for name := range r.packs {
		here[name] = true
	}
	c.mu.Unlock()
	var missing []*replog.Pack
	var damaged []string
	for i := range t.record.Packs {
		p := &t.record.Packs[i]
		if here[packName(p)] && check {
			if err := r.verify(t.ctx, p); err != nil {
				if t.ctx.Err() != nil {
					return nil, t.ctx.Err()
				}
				c.metrics.damaged.Inc()
				c.log.Error("a local pack is damaged and is downloaded again", "repository_id", r.id, "file",
					r.path(p, replog.File{Ext: ".pack"}), "error", err)
				here[packName(p)] = false
				damaged = append(damaged, packName(p))
			}
		}
		if !here[packName(p)] {
			missing = append(missing, p)
		}
	}
	if check && len(damaged) == 0 { // damaged files are still there
		_ = os.Remove(filepath.Join(r.dir, uncheckedFile)) // otherwise the next process checks again
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range damaged { // its files stay for running uses, until the download replaces them
		c.dropLocked(r, name)
	}
	r.unchecked = false
	return missing, nil
}

// verify compares the local files of a pack with their checksums. Extra files are removed instead.
func (r *Repository) verify(ctx context.Context, p *replog.Pack) error {
	for _, f := range p.Files() {
		path := r.path(p, f)
		if isExtra(f) {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			continue
		}
		if err := verifyFile(ctx, path, f); err != nil {
			return err
		}
	}
	return nil
}

// download downloads packs and adds each to the local copy once it is verified.
func (r *Repository) download(t *task, packs []*replog.Pack) error {
	c := r.cache
	dir, err := os.MkdirTemp(c.state, "new-"+r.id+"-")
	if err != nil {
		return diskError(err)
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
	if err := r.publish(p, temp); err != nil {
		return diskError(err)
	}
	c, bytes := r.cache, packBytes(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	t.published.Add(bytes)
	c.bytes -= bytes // they were reserved
	c.addLocked(r, packName(p), &localPack{bytes: bytes, since: t.record.Number})
	return nil
}

// key returns the key of one of the repository's objects.
func (r *Repository) key(relative string) string { return "repos/" + r.id + "/" + relative }

// diskError wraps an error of the local disk.
func diskError(err error) error {
	if isFull(err) {
		return fault.Wrap(fault.Unavailable, "the disk is full", err)
	}
	return fault.Wrap(fault.Unavailable, "cannot write the local copy of the repository", err)
}

// damagedError is the error for an object that differs from its record.
func damagedError(key, problem string, args ...any) error {
	return fault.Wrap(fault.Corrupt, "the repository's data in the store is damaged", fmt.Errorf("object %s: %w; restore "+
		"the version of the object that its record names (bucket versioning), or repair the repository from a clone",
		key, fmt.Errorf(problem, args...)))
}
