package store

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// importParallel is the number of repositories that are imported at the same time.
const importParallel = 4

// ImportOptions configure ImportAll. Dir and Node are required.
type ImportOptions struct {
	Dir      string // the directory with bare repositories, as in the mode without a store
	Node     string // name in the records
	DryRun   bool   // only report
	NoHooks  bool   // import repositories without their hooks, instead of refusing them
	Progress Progress
}

// ImportReport is the result of ImportAll. Paths are sorted.
type ImportReport struct {
	Imported []string  `json:"imported"`
	Exists   []string  `json:"exists"`  // paths that were in the store already
	Differs  []string  `json:"differs"` // of these, those whose refs are not those of the directory
	Refused  []Problem `json:"refused"`
	Bytes    int64     `json:"bytes"` // of the uploaded objects
}

// ImportAll imports the bare repositories below a directory, and does not change them. Repositories whose paths exist
// in the store are left out, so a repeated import continues. The error is of the store or of the directory;
// repositories that cannot be imported are in the report.
func ImportAll(ctx context.Context, b bucket.Bucket, o ImportOptions) (*ImportReport, error) {
	if isCache, err := IsCache(o.Dir); isCache || err != nil {
		return nil, cmp.Or(err, fault.New(fault.Invalid, "%s has a node's copies of a store, and not repositories: use the "+
			"directory that a server without a store serves", o.Dir))
	}
	found, err := findRepositories(ctx, o.Dir)
	if err != nil {
		return nil, err
	}
	s, end, err := openTemporary(ctx, b, "", o.Node)
	if err != nil {
		return nil, err
	}
	defer end()
	git, err := newGitRunner()
	if err != nil {
		return nil, err
	}
	defer git.close()
	im := &importAll{store: s, git: git, options: o, total: int64(len(found)),
		report: &ImportReport{Imported: []string{}, Exists: []string{}, Differs: []string{},
			Refused: []Problem{}}}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(importParallel)
	for _, f := range found {
		group.Go(func() error { return im.one(ctx, f) })
	}
	err = group.Wait()
	slices.Sort(im.report.Imported)
	slices.Sort(im.report.Exists)
	slices.Sort(im.report.Differs)
	slices.SortFunc(im.report.Refused, compareProblems)
	return im.report, err
}

func compareProblems(a, b Problem) int {
	return strings.Compare(a.Path+"\x00"+a.Key, b.Path+"\x00"+b.Key)
}

// importAll is a running ImportAll.
type importAll struct {
	store   *Store
	git     gitRunner
	options ImportOptions
	total   int64
	done    atomic.Int64

	mu     sync.Mutex
	report *ImportReport
}

// foundRepository is a repository below a directory. refusal is nil if its path can be imported.
type foundRepository struct {
	dir, name string // name is relative to the directory
	path      git.RepoPath
	refusal   error
}

// one imports one repository. Its error ends the import.
func (im *importAll) one(ctx context.Context, f foundRepository) error {
	defer func() { im.options.Progress.report(im.done.Add(1), im.total, f.name) }()
	err := f.refusal
	var bytes int64
	differs := false
	if err == nil {
		var found resolved
		if found, err = im.store.resolve(ctx, f.path); err == nil && found.state != nil {
			if differs, err = im.differs(ctx, f.dir, found.state); err == nil {
				err = exists(f.path)
			}
		}
	}
	if err == nil {
		bytes, err = im.store.importDir(ctx, im.git, f.path, f.dir, im.options)
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	switch kind := fault.KindOf(err); {
	case err == nil:
		im.report.Imported = append(im.report.Imported, f.path.String())
		im.report.Bytes += bytes
	case kind == fault.Exists:
		im.report.Exists = append(im.report.Exists, f.path.String())
		if differs {
			im.report.Differs = append(im.report.Differs, f.path.String())
		}
	case ctx.Err() != nil, kind == fault.Unavailable:
		return fmt.Errorf("import %s: %w", f.dir, err)
	default:
		im.report.Refused = append(im.report.Refused, Problem{Path: f.name, Text: err.Error()})
	}
	return nil
}

// differs reports whether a repository in a directory has other refs than the one in the store.
func (im *importAll) differs(ctx context.Context, dir string, s *state) (bool, error) {
	local, err := im.git.run(ctx, dir, nil, "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return false, fault.Wrap(fault.Invalid, "its refs cannot be read", err)
	}
	snapshot, err := snapshotOf(s.layers, s.record.ObjectFormat)
	if err != nil {
		return false, err
	}
	var stored strings.Builder
	err = snapshot.Each("", func(r refs.Ref) error {
		fmt.Fprintf(&stored, "%s %s\n", r.ID, r.Name)
		return nil
	})
	return stored.String() != local, err
}

// findRepositories returns the repositories below a directory that a server without a store serves, or would serve
// after a repair.
func findRepositories(ctx context.Context, root string) ([]foundRepository, error) {
	options, err := repo.OptionsBelow(root)
	if err != nil {
		return nil, err
	}
	if repo.IsGitDir(options.Root) {
		return nil, fault.New(fault.Invalid, "%s is a repository itself: use the directory above it", root)
	}
	var list []foundRepository
	taken := map[git.RepoPath]string{}
	w := repo.Walk{Options: options,
		Skipped: func(name, why string) {
			list = append(list, foundRepository{name: name, refusal: fault.New(fault.Invalid, "it is not served: %s", why)})
		},
		Unreadable: func(_ string, err error) error {
			return fault.Wrap(fault.Invalid, "cannot read the directory with repositories", err)
		}}
	for name, err := range w.All(ctx) {
		if err != nil {
			return nil, err
		}
		f := foundRepository{dir: filepath.Join(options.Root, name), name: name}
		if f.path, f.refusal = importedPath(f.dir, name); f.refusal == nil {
			if other, ok := taken[f.path]; ok {
				f.refusal = fault.New(fault.Invalid, "%s has the same path in the store; rename one of them", other)
			}
			taken[f.path] = name
		}
		list = append(list, f)
	}
	return list, nil
}

// importedPath returns the path in the store of a repository below the directory, or why it is not imported.
func importedPath(dir, name string) (git.RepoPath, error) {
	path, err := git.ParseRepoPath(name)
	if err != nil {
		return path, err
	}
	path = canonical(path)
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return path, err
	case info.Mode()&fs.ModeSymlink != 0:
		return path, fault.New(fault.Invalid, "it is a symbolic link: move the repository here, or import the directory "+
			"that has it")
	case filepath.Base(name) == ".git":
		return path, fault.New(fault.Invalid, "it is not bare: make a bare clone of it (git clone --mirror)")
	case strings.Contains("/"+name, "/."):
		return path, fault.New(fault.Invalid, "its path has a name that begins with a dot, which a store does not accept: "+
			"rename it")
	case strings.Contains(path.String()+"/", ".lock/"):
		return path, fault.New(fault.Invalid, "its path has a name that ends in .lock, which a store does not accept: "+
			"rename it")
	}
	return path, nil
}

// Import implements places.Places.
func (s *Store) Import(ctx context.Context, path git.RepoPath,
	fill func(ctx context.Context, dir string) error) error {
	temp, err := os.MkdirTemp(filepath.Join(s.options.Cache.Root, shadowsDir), "import-")
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot write to the server's disk", err)
	}
	defer os.RemoveAll(temp)
	dir := filepath.Join(temp, "repo.git")
	if err := fill(ctx, dir); err != nil {
		return err
	}
	return s.ImportDir(ctx, path, dir)
}

// ImportDir creates a repository from a bare repository in a directory.
func (s *Store) ImportDir(ctx context.Context, path git.RepoPath, dir string) error {
	git, err := newGitRunner()
	if err != nil {
		return err
	}
	defer git.close()
	_, err = s.importDir(ctx, git, canonical(path), dir, ImportOptions{NoHooks: true})
	return err
}

// importDir uploads a bare repository and creates it in the store, unless it is a dry run. It returns the uploaded
// bytes. If the path exists meanwhile, or the store fails, it removes what it has uploaded and no record may name.
func (s *Store) importDir(ctx context.Context, git gitRunner, path git.RepoPath, dir string,
	o ImportOptions) (int64, error) {
	d, err := readDirectory(ctx, git, dir)
	if err != nil {
		return 0, err
	}
	defer d.close()
	if !o.NoHooks {
		if err := refuseHooks(dir); err != nil {
			return 0, err
		}
	}
	if o.DryRun {
		return d.bytes(), nil
	}
	id := replog.NewID()
	first := &replog.Record{ObjectFormat: d.format, Head: d.head, Config: d.config}
	up := uploader{bucket: s.bucket, prefix: "repos/" + id + "/"}
	isNeeded := false
	err = d.upload(ctx, &up, first)
	if err == nil {
		isNeeded, err = s.create(ctx, path, id, first)
	}
	if !isNeeded {
		_ = s.bucket.Delete(context.WithoutCancel(ctx), up.keys...)
	}
	return up.bytes, err
}
