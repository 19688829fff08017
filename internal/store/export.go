package store

import (
	"cmp"
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
	if err := linkCopy(r.local, copied, record); err != nil {
		return err
	}
	if err := writePacked(filepath.Join(copied, "packed-refs"), state.layers); err != nil {
		return err
	}
	if err := detachCopy(ctx, copied, record); err != nil {
		return err
	}
	if err := exportLFS(ctx, b, r.id, copied); err != nil {
		return err
	}
	return os.Rename(copied, dir)
}

// detachCopy gives a copy of linkCopy all objects that its refs need.
func detachCopy(ctx context.Context, dir string, record *replog.Record) error {
	if len(record.Lenders()) == 0 {
		return nil
	}
	git, err := newGitRunner()
	if err != nil {
		return err
	}
	defer git.close()
	_, err = git.run(ctx, dir, nil, detachCommand...)
	return cmp.Or(err, os.Remove(filepath.Join(dir, "objects/info/alternates")), os.RemoveAll(filepath.Join(dir, lentDir)))
}

// detachCommand copies the borrowed objects that refs need. Own objects stay: a push may be about to need them.
var detachCommand = []string{"repack", "-a", "-d", "-q", "--keep-unreachable"}

// lentDir is the directory of a copy with the packs that it borrows. Git leaves their objects out of new packs. So it
// has no others, although other forks have put more into the directory of the local copy.
const lentDir = "lent"

// linkCopy makes a plain bare repository of a local copy, without refs: a new directory whose packs are hard links with
// the names that Git gave them.
func linkCopy(local *hydrate.Repository, to string, record *replog.Record) error {
	from := local.Dir()
	for _, dir := range []string{"refs/heads", "refs/tags", "objects/info", "objects/pack", lentDir + "/objects/pack"} {
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
	links := make(map[string]string) // targets to sources
	for i := range record.Packs {
		p := &record.Packs[i]
		for _, f := range p.Files() { // two pushes of the same objects have the same pack
			target := hydrate.FilePath(p.Name(), f.Ext)
			if info, err := os.Lstat(local.Path(p, f)); f.Ext == ".graph" && (err != nil || info.Size() != f.Bytes) {
				continue // of another pack, or of another record
			}
			if p.From != "" {
				target = filepath.Join(lentDir, target)
			}
			links[target] = local.Path(p, f)
		}
	}
	if len(record.Lenders()) > 0 {
		alternates := filepath.Join(to, "objects/info/alternates")
		if err := os.WriteFile(alternates, []byte("../"+lentDir+"/objects\n"), 0o666); err != nil {
			return err
		}
	} else if err := os.RemoveAll(filepath.Join(to, lentDir)); err != nil {
		return err
	}
	for target, source := range links {
		isTip := strings.HasPrefix(target, "objects/"+pack.TipDir+"/")
		if isTip {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(to, target)), 0o777); err != nil {
				return err
			}
		}
		err := os.Link(source, filepath.Join(to, target))
		isNeeded := !isTip && (strings.HasSuffix(target, ".pack") || strings.HasSuffix(target, ".idx"))
		if err != nil && (isNeeded || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// linkObjects is linkCopy for a shadow. It returns the object directories.
func linkObjects(local *hydrate.Repository, dir string, record *replog.Record) (objects []string, err error) {
	if err := linkCopy(local, dir, record); err != nil {
		return nil, err
	}
	objects = []string{filepath.Join(dir, "objects")}
	if len(record.Lenders()) > 0 { // Git ignores relative alternates of alternates
		objects = append(objects, filepath.Join(dir, lentDir, "objects"))
		err = os.Remove(filepath.Join(dir, "objects/info/alternates"))
	}
	return objects, err
}
