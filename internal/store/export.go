package store

import (
	"context"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Export writes a repository of a store as a plain bare repository with its LFS objects into a new directory. Every
// file is verified. Progress counts bytes.
func Export(ctx context.Context, b bucket.Bucket, path git.RepoPath, dir string, progress Progress) error {
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		return fault.New(fault.Exists, "%s exists already: name a new directory", dir)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return err
	}
	s, end, err := openTemporary(ctx, b, filepath.Dir(dir), "export")
	if err != nil {
		return err
	}
	defer end()
	r, err := s.find(ctx, canonical(path))
	if err != nil {
		return err
	}
	defer s.release(r)
	state := r.known()
	record := state.record
	done, err := r.local.Use(ctx, record, func(done, total int64) { progress.report(done, total, path.String()) })
	if err != nil {
		return err
	}
	defer done()
	copied := filepath.Join(filepath.Dir(r.local.Dir()), "export.git")
	if err := copyPlain(r.local.Dir(), copied, record); err != nil {
		return err
	}
	if err := writePacked(filepath.Join(copied, "packed-refs"), state.layers); err != nil {
		return err
	}
	if err := exportLFS(ctx, b, r.id, copied); err != nil {
		return err
	}
	return os.Rename(copied, dir)
}

// copyPlain links the files of a local copy into a bare repository, without refs.
func copyPlain(from, to string, record *replog.Record) error {
	for _, dir := range []string{"refs/heads", "refs/tags", "objects/info", "objects/pack"} {
		if err := os.MkdirAll(filepath.Join(to, dir), 0o777); err != nil {
			return err
		}
	}
	for _, name := range []string{"HEAD", "config"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, 0o666)
		}
		if err != nil {
			return err
		}
	}
	for i := range record.Packs {
		p := &record.Packs[i]
		for _, f := range p.Files() {
			source := filepath.Join(from, "objects", "pack", filepath.Base(p.Key)+f.Ext)
			target := filepath.Join(to, "objects", "pack", p.Name()+f.Ext)
			if f.Ext == ".graph" {
				target = filepath.Join(to, "objects", "info", "commit-graph")
			}
			err := os.Link(source, target)
			if os.IsExist(err) || os.IsNotExist(err) && f.Ext != ".pack" && f.Ext != ".idx" {
				continue // the same pack of another attempt; files that only save work
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
