package hydrate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	recordFile = "record"
	baseDir    = "bases"
	emptyBase  = "none" // the base of a record without a checkpoint
)

// Apply brings the refs, HEAD and the configuration of a record into the local copy, and notes the record. Packs are
// not needed for that. A record that is older than the applied one changes nothing.
//
// If there is an error, the applied record is the same as before. The error is Corrupt if the checkpoint is damaged,
// and Unavailable if it cannot be downloaded or written.
func (r *Repository) Apply(ctx context.Context, rec *replog.Record) error {
	select {
	case r.applying <- struct{}{}:
		defer func() { <-r.applying }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c, before := r.cache, r.load(ctx)
	switch {
	case r.isRemoved():
		return errRemoved
	case before != nil && before.Number > rec.Number:
		return nil
	}
	if before == nil || before.Txn != rec.Txn {
		if err := c.retryFull(func() error { return r.apply(ctx, before, rec) }); err != nil {
			return err
		}
	}
	c.mu.Lock()
	r.applied, r.unchecked = rec, false
	r.markLocked()
	r.sweepLocked()
	c.mu.Unlock()
	return nil
}

// Applied returns the record that was applied last, also by an earlier process. It is nil without such a record, or if
// its files are damaged.
func (r *Repository) Applied(ctx context.Context) (*replog.Record, error) {
	select {
	case r.applying <- struct{}{}:
		defer func() { <-r.applying }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return r.load(ctx), nil
}

// Base returns the path of a packed-refs file with the checkpoint of rec. The file exists after Apply of rec, until two
// newer checkpoints are applied. It is never changed.
func (r *Repository) Base(rec *replog.Record) string {
	name := emptyBase
	if rec.Refs.Checkpoint != "" {
		name = path.Base(rec.Refs.Checkpoint)
	}
	return filepath.Join(r.dir, baseDir, name)
}

// load reads the record that an earlier process applied. The caller holds r.applying.
func (r *Repository) load(ctx context.Context) *replog.Record {
	c := r.cache
	c.mu.Lock()
	rec, loaded, unchecked := r.applied, r.loaded, r.unchecked
	c.mu.Unlock()
	if rec != nil || loaded {
		return rec
	}
	body, err := os.ReadFile(filepath.Join(r.dir, recordFile))
	if err == nil {
		rec, err = replog.Decode(body)
	}
	if err == nil && unchecked && rec.Refs.Checkpoint != "" {
		want := replog.File{Bytes: rec.Refs.Bytes, SHA256: rec.Refs.SHA256}
		err = verifyFile(ctx, r.Base(rec), want, ignoreCount)
	}
	if err == nil && unchecked {
		err = c.retryFull(func() error { return r.repair(rec) })
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		if rec = nil; !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("a local copy is damaged and is downloaded again", "repository_id", r.id, "error", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.applied, r.loaded = rec, true
	r.unchecked = unchecked && err != nil
	r.markLocked()
	return rec
}

// Unload frees the memory of the record, which the next call reads from the disk.
func (r *Repository) Unload() {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	r.applied, r.complete, r.failed, r.loaded = nil, nil, nil, false
}

// repair replaces the files of rec that a crash of the machine may have damaged, except its checkpoint.
func (r *Repository) repair(rec *replog.Record) error {
	if rec.Refs.Checkpoint == "" {
		if err := r.writeEmptyBase(); err != nil {
			return diskError(err)
		}
	}
	if err := r.linkBase(rec); err != nil {
		return diskError(err)
	}
	return r.writeFiles(nil, rec)
}

// writeEmptyBase writes the base of a record without a checkpoint.
func (r *Repository) writeEmptyBase() error {
	return r.write(filepath.Join(baseDir, emptyBase), refs.PackedHeader)
}

// apply writes the files of rec. before is the applied record, or nil.
func (r *Repository) apply(ctx context.Context, before, rec *replog.Record) error {
	if before == nil {
		for _, dir := range []string{"refs", "objects/info", "objects/pack", baseDir} {
			if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o777); err != nil {
				return diskError(err)
			}
		}
	}
	if before == nil || r.Base(before) != r.Base(rec) {
		if err := r.fetchBase(ctx, rec); err != nil {
			return err
		}
		if err := r.linkBase(rec); err != nil {
			return diskError(err)
		}
		r.removeBases(before, rec)
	}
	if before != nil && before.ObjectsEpoch != rec.ObjectsEpoch { // it may have objects that were removed
		r.checkGraph(ctx, rec)
	}
	return r.writeFiles(before, rec)
}

// writeFiles writes the files of rec whose content it has itself.
func (r *Repository) writeFiles(before, rec *replog.Record) error {
	body, err := rec.Encode()
	if err != nil {
		return fault.Wrap(fault.Internal, "cannot note the record of the repository", err)
	}
	if err := r.writeAlternates(before, rec); err != nil {
		return diskError(err)
	}
	files := []struct{ name, content string }{
		{"HEAD", "ref: " + string(rec.Head) + "\n"}, {"config", configText(rec)}, {recordFile, string(body)},
	}
	for _, f := range files {
		if err := r.write(f.name, f.content); err != nil {
			return diskError(err)
		}
	}
	return nil
}

// fetchBase makes sure that the checkpoint of rec is here.
func (r *Repository) fetchBase(ctx context.Context, rec *replog.Record) error {
	base := r.Base(rec)
	want := replog.File{Bytes: rec.Refs.Bytes, SHA256: rec.Refs.SHA256}
	if rec.Refs.Checkpoint == "" {
		return diskError(r.writeEmptyBase())
	}
	if verifyFile(ctx, base, want, ignoreCount) == nil { // this node made it, or it is the previous one
		return nil
	}
	if err := r.cache.reserveBase(want.Bytes); err != nil {
		return err
	}
	defer r.cache.unreserve(0, want.Bytes)
	temp, err := r.cache.tempFile(r.id)
	if err != nil {
		return diskError(err)
	}
	defer os.Remove(temp)
	if err := newDownloader(r.cache, ignoreCount).file(ctx, temp, r.key(rec.Refs.Checkpoint), want); err != nil {
		return err
	}
	if err := os.Rename(temp, base); err != nil {
		return diskError(err)
	}
	return nil
}

// InstallBase moves a checkpoint that this node made into the local copy, so that it does not have to be downloaded. An
// error costs only a download.
func (r *Repository) InstallBase(rec *replog.Record, from string) error {
	return diskError(r.cache.retryFull(func() error { return os.Rename(from, r.Base(rec)) }))
}

// linkBase makes the base of rec the packed-refs file.
func (r *Repository) linkBase(rec *replog.Record) error {
	temp, err := r.cache.tempFile(r.id)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.Remove(temp); err != nil {
		return err
	}
	if err := os.Link(r.Base(rec), temp); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(r.dir, "packed-refs"))
}

// removeBases removes all bases but those of two records. Requests that began before this record still open the older
// one.
func (r *Repository) removeBases(before, rec *replog.Record) {
	dir := filepath.Join(r.dir, baseDir)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		base := filepath.Join(dir, e.Name())
		if base != r.Base(rec) && (before == nil || base != r.Base(before)) {
			err = errors.Join(err, os.Remove(base))
		}
	}
	if err != nil {
		r.cache.log.Warn("cannot remove old refs of a local copy", "repository_id", r.id, "error", err)
	}
}

// write replaces a file of the local copy, unless it has this content.
func (r *Repository) write(name, content string) error {
	path := filepath.Join(r.dir, name)
	if old, err := os.ReadFile(path); err == nil && string(old) == content {
		return nil
	}
	temp, err := r.cache.tempFile(r.id)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.WriteFile(temp, []byte(content), 0o644); err != nil {
		return err
	}
	if name == recordFile { // a new record is not a check
		checked, err := r.Checked()
		if errors.Is(err, fs.ErrNotExist) {
			checked, err = time.Unix(0, 0), nil
		}
		if err := cmp.Or(err, os.Chtimes(temp, checked, checked)); err != nil {
			return err
		}
	}
	return os.Rename(temp, path)
}

// TempDir creates an empty directory on the file system of the local copies. The caller removes it. If the process ends
// before that, the next one removes it.
func (r *Repository) TempDir() (dir string, err error) {
	err = r.cache.retryFull(func() error {
		dir, err = os.MkdirTemp(r.cache.state, "new-"+r.id+"-")
		return err
	})
	return dir, diskError(err)
}

// tempFile creates an empty file in the state directory.
func (c *Cache) tempFile(id string) (path string, err error) {
	f, err := os.CreateTemp(c.state, "new-"+id+"-")
	if err != nil {
		return "", err
	}
	return f.Name(), errors.Join(f.Chmod(0o644), f.Close())
}

// configText returns the config file for a record (git-config(1), "Syntax"), with the settings that are allowed.
func configText(rec *replog.Record) string {
	var b bytes.Buffer
	version := 0
	if rec.ObjectFormat != git.SHA1 {
		version = 1
	}
	fmt.Fprintf(&b, "[core]\n\trepositoryformatversion = %d\n\tfilemode = true\n\tbare = true\n", version)
	if rec.ObjectFormat != git.SHA1 {
		fmt.Fprintf(&b, "[extensions]\n\tobjectFormat = %s\n", rec.ObjectFormat)
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\b", `\b`)
	for _, s := range rec.Config {
		if !s.IsAllowed() {
			continue
		}
		section, subsection, name, isNested := s.Split()
		if isNested {
			fmt.Fprintf(&b, "[%s \"%s\"]\n", section, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(subsection))
		} else {
			fmt.Fprintf(&b, "[%s]\n", section)
		}
		fmt.Fprintf(&b, "\t%s = \"%s\"\n", name, quote.Replace(s.Value))
	}
	return b.String()
}
