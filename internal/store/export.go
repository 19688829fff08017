package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
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
	if err := linkCopy(r.local.Dir(), copied, record); err != nil {
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

// linkCopy makes a plain bare repository of a local copy, without refs: a new directory whose packs are hard links with
// the names that Git gave them.
func linkCopy(from, to string, record *replog.Record) error {
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
	graph := hydrate.FilePath("", ".graph")
	links := map[string]string{graph: graph} // targets to sources
	for i := range record.Packs {
		p := &record.Packs[i]
		for _, f := range p.Files() { // two pushes of the same objects have the same pack
			links[hydrate.FilePath(p.Name(), f.Ext)] = hydrate.FilePath(filepath.Base(p.Key), f.Ext)
		}
	}
	for target, source := range links {
		isTip := strings.HasPrefix(target, "objects/"+pack.TipDir+"/")
		if isTip {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(to, target)), 0o777); err != nil {
				return err
			}
		}
		err := os.Link(filepath.Join(from, source), filepath.Join(to, target))
		isNeeded := !isTip && (strings.HasSuffix(target, ".pack") || strings.HasSuffix(target, ".idx"))
		if err != nil && (isNeeded || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}
