package places

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// CollectOptions configure a collection.
type CollectOptions struct {
	OlderThan time.Duration // the age from which unreachable objects expire
	DryRun    bool
	Keep      []git.ObjectID // objects that clients may still fetch, with all that they reach
	OwnOnly   bool           // does not collect the network of forks
	// KeepOf returns those of another member of the network of forks; nil: there are none.
	KeepOf func(context.Context, *repo.Repo) ([]git.ObjectID, error)
}

// Collected is the result of a collection; that of a dry run is what it would be. In a network of forks it is that of
// all members together.
type Collected struct {
	Before, After pack.Counts
	Freed         int64          // bytes of files of objects
	Members       []git.RepoPath // of the network
}

// Collect implements Place. Git repacks a view of the repository without the expired objects (git-repack(1), --cruft).
// The view is a directory with links to the files of objects, so a dry run ends there. Then the new packs are linked
// into the repository, and the files that the view no longer has are removed.
//
// A change of refs in the meantime may need an expired object, which has existed until now. So the view has to be
// complete for all refs before files are removed. It is checked for the refs of some moment, which takes long. Then
// receivepack.Gates let no change pass while it is checked for refs that were changed since. If it is not complete,
// nothing is removed.
func (p *dirPlace) Collect(ctx context.Context, run RunGit, o CollectOptions) (done Collected, err error) {
	if err := cmp.Or(p.repo.Refresh(), p.checkCollectable(ctx)); err != nil {
		return done, err
	}
	dirs := p.repo.Objects.Dirs()[:1]
	if p.repo.Network() != "" && !o.OwnOnly {
		if dirs, err = p.collectNetwork(ctx, run, o, &done); err != nil {
			return done, err
		}
	} else if done.Before, err = countAll(ctx, dirs, p.repo.Format); err != nil {
		return done, err
	}
	collection := p.Claims.Gates.Collect(p.repo.Common)
	defer collection.End()
	c := &collector{repo: p.repo, own: p.repo.Objects.Dirs()[0], files: make(map[string]int64)}
	if err := c.makeView(); err != nil {
		return done, WriteError(err)
	}
	defer os.RemoveAll(c.view)
	c.run = func(args []string, stdin string, env ...string) error {
		return run(ctx, p.repo, GitCommand{Args: args, Stdin: stdin, Env: append(env, "GIT_OBJECT_DIRECTORY="+c.view)})
	}
	if err := c.expire(time.Now().Add(-o.OlderThan)); err != nil {
		return done, err
	}
	freed, err := c.freed()
	if done.Freed += freed; err != nil {
		return done, err
	}
	if o.DryRun {
		own, err := countAll(ctx, []string{c.view}, p.repo.Format)
		done.After.Add(own)
		return done, err
	}
	if err := c.keep(o.Keep); err != nil {
		return done, err
	}
	before, err := c.checkAll(ctx)
	if err != nil {
		return done, err
	}
	if err := p.writeGraph(ctx, run, strings.ReplaceAll(before, "^", "")); err != nil {
		return done, err
	}
	if err := c.publish(p.Sync); err != nil {
		return done, WriteError(err)
	}
	err = collection.Remove(ctx, func() error {
		if err := cmp.Or(p.settled(ctx), WriteError(c.link()), c.check(before, "--all")); err != nil {
			return err
		}
		return cmp.Or(WriteError(c.remove(p.Sync)), p.repo.Refresh())
	})
	if err == nil {
		done.After, err = countAll(ctx, dirs, p.repo.Format)
	}
	return done, err
}

// writeGraph makes the commit-graph of a claimed repository again, from tips that stay, or from the present refs if
// there are none. With a removed commit it would make Git believe that the commit exists. A lock file is that of a
// killed server.
func (p *dirPlace) writeGraph(ctx context.Context, run RunGit, tips string) error {
	lock := filepath.Join(p.repo.Common, "objects/info/commit-graphs/commit-graph-chain.lock")
	from := "--reachable"
	if tips != "" {
		from = "--stdin-commits"
	}
	graph := []string{"commit-graph", "write", from, "--split=replace", "--no-progress", "--changed-paths"}
	return cmp.Or(WriteError(removeFile(lock)), run(ctx, p.repo, GitCommand{Args: graph, Stdin: tips}))
}

// checkCollectable returns why objects of a repository must not be removed.
func (p *dirPlace) checkCollectable(ctx context.Context) error {
	if err := p.checkOwn("the repository"); err != nil {
		return err
	}
	found, err := p.borrowers(ctx, p.repo.Common)
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot determine whether other repositories borrow its objects", err)
	}
	if found != "" {
		return fault.New(fault.Denied, "other repositories or work trees use its objects, which could be damaged: %s", found)
	}
	return nil
}

// checkOwn is checkCollectable without a search. name is that of the repository in errors.
func (p *dirPlace) checkOwn(name string) error {
	r := p.repo
	precious, err := r.Config().Bool("extensions.preciousobjects", false)
	if err != nil {
		return err
	}
	own := filepath.Join(r.Common, "objects")
	packs, err := os.Lstat(filepath.Join(own, "pack"))
	switch {
	case precious:
		return fault.New(fault.Denied, "%s has extensions.preciousObjects: its objects are not removed", name)
	case isPartial(r.Config()):
		return fault.New(fault.Denied, "%s is a partial clone: its objects are not removed", name)
	case p.MirrorMarks().Any():
		return fault.New(fault.Denied, "%s is a mirror: its objects are not removed", name)
	case r.Objects.Linked() || err == nil && !packs.IsDir():
		return fault.New(fault.Denied, "the object directory of %s is a link: its objects are not removed", name)
	}
	return nil
}

// collector is one collection.
type collector struct {
	repo  *repo.Repo
	own   string           // the object directory
	view  string           // that of the view
	files map[string]int64 // sizes of the files that were linked into the view, by path below own
	run   func(args []string, stdin string, env ...string) error
}

// viewPrefix begins the names of views. Git removes such directories when they are old.
const viewPrefix = "tmp_objdir-collect-"

// makeView makes the view, and removes those of killed collections.
func (c *collector) makeView() error {
	old, err := filepath.Glob(filepath.Join(c.own, viewPrefix+"*"))
	for _, dir := range old {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	c.view = filepath.Join(c.own, viewPrefix+rand.Text())
	err = errors.Join(err, os.MkdirAll(filepath.Join(c.own, "pack"), 0o777),
		os.MkdirAll(filepath.Join(c.view, "pack"), 0o777), os.Mkdir(filepath.Join(c.view, "info"), 0o777))
	if err != nil {
		return err
	}
	if lenders := c.repo.Objects.Dirs()[1:]; len(lenders) > 0 {
		text := strings.Join(lenders, "\n") + "\n"
		if err := os.WriteFile(filepath.Join(c.view, "info/alternates"), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// isFanout reports whether a directory has loose objects.
func isFanout(name string) bool {
	return len(name) == 2 && strings.Trim(name, "0123456789abcdef") == ""
}

// packFiles are the extensions of the files of a pack that Git needs in the view. The index is the last one that is
// added: a pack without it is not ready.
var packFiles = []string{".keep", ".pack", ".rev", ".mtimes", ".idx"}

// link links files into the view that were not linked before.
func (c *collector) link() error {
	dirs, err := os.ReadDir(c.own)
	if err != nil {
		return err
	}
	for _, dir := range dirs { // an object that is moved to a pack meanwhile is found there
		if isFanout(dir.Name()) {
			if err := c.linkDir(dir.Name(), ""); err != nil {
				return err
			}
		}
	}
	for _, extension := range slices.Backward(packFiles) {
		if err := c.linkDir("pack", extension); err != nil {
			return err
		}
	}
	return nil
}

// linkDir links the files with an extension of a directory, given by its name.
func (c *collector) linkDir(name, extension string) error {
	entries, err := os.ReadDir(filepath.Join(c.own, name))
	if err == nil && extension == "" {
		err = os.MkdirAll(filepath.Join(c.view, name), 0o777)
	}
	for _, e := range entries {
		path := filepath.Join(name, e.Name())
		_, known := c.files[path]
		if known || filepath.Ext(path) != extension || strings.HasPrefix(e.Name(), "tmp_") || !e.Type().IsRegular() {
			continue
		}
		if _, ok := c.files[strings.TrimSuffix(path, extension)+".idx"]; !ok && extension != "" && extension != ".idx" {
			continue
		}
		info, statErr := e.Info()
		linkErr := statErr
		if statErr == nil {
			linkErr = os.Link(filepath.Join(c.own, path), filepath.Join(c.view, path))
		}
		switch {
		case errors.Is(linkErr, fs.ErrNotExist): // the view is not complete if it was needed
		case linkErr != nil && !errors.Is(linkErr, fs.ErrExist):
			return linkErr
		default:
			c.files[path] = info.Size()
		}
	}
	return err
}

// countAll counts the objects of object directories together.
func countAll(ctx context.Context, dirs []string, format git.ObjectFormat) (all pack.Counts, err error) {
	for _, dir := range dirs {
		store, err := pack.Open(dir, pack.Options{Format: format, Alone: true})
		if err != nil {
			return all, err
		}
		c, err := store.Count(ctx)
		store.Close()
		if err != nil {
			return all, err
		}
		all.Add(c)
	}
	return all, nil
}

// expire repacks the view without the unreachable objects from before a time. The view lacks the objects of refs that
// were changed since it was linked, so expire begins again. In the end Git skips these refs (git(1), GIT_REF_PARANOIA),
// except HEAD: Collect checks the view for all refs before it removes anything, and may find that they need more. If no
// objects have come since, the repository is damaged.
func (c *collector) expire(before time.Time) error {
	args := []string{"repack", "-d", "-l", "-n", "-q", "--cruft",
		"--cruft-expiration=" + before.UTC().Format(time.RFC3339)}
	var env []string
	err := cmp.Or(WriteError(c.link()), c.run(args, ""))
	for scan := 1; fault.Is(err, fault.Internal) && strings.Contains(err.Error(), "bad object"); scan++ {
		known := len(c.files)
		if err := c.link(); err != nil {
			return WriteError(err)
		}
		switch {
		case len(c.files) == known:
			return err
		case scan == maxScans:
			return fault.Retry(fault.Unavailable, fault.RetryMuchLater,
				"no object was removed, because the branch of HEAD changes again and again; try again")
		case scan == maxScans-1:
			env = []string{"GIT_REF_PARANOIA=0"}
		}
		err = c.run(args, "", env...)
	}
	if err != nil && strings.Contains(err.Error(), "unknown option `cruft") {
		return fault.Wrap(fault.Precondition, "the git of the server is too old: collecting needs git 2.37 or newer", err)
	}
	if err != nil {
		return err
	}
	dirs, err := os.ReadDir(c.view)
	for _, dir := range dirs {
		if isFanout(dir.Name()) { // Git has packed the others
			err = errors.Join(err, os.RemoveAll(filepath.Join(c.view, dir.Name())))
		}
	}
	return WriteError(err)
}

// freed returns the size of the files that the view no longer has, less that of its new packs.
func (c *collector) freed() (bytes int64, err error) {
	for path, size := range c.files {
		if _, err := os.Lstat(filepath.Join(c.view, path)); errors.Is(err, fs.ErrNotExist) {
			bytes += size
		}
	}
	packs, err := os.ReadDir(filepath.Join(c.view, "pack"))
	for _, e := range packs {
		info, err := e.Info()
		if _, known := c.files["pack/"+e.Name()]; err == nil && !known {
			bytes -= info.Size()
		}
	}
	return bytes, err
}

// keep returns an error if the view lacks something that clients may still fetch.
func (c *collector) keep(ids []git.ObjectID) error {
	if len(ids) == 0 {
		return nil
	}
	var input strings.Builder
	for _, id := range ids {
		fmt.Fprintln(&input, id)
	}
	err := c.run([]string{"rev-list", "--objects", "--quiet", "--stdin"}, input.String())
	if fault.Is(err, fault.Internal) {
		return fault.Retry(fault.Unavailable, fault.RetryMuchLater, "no object was removed, because some expire that a ref "+
			"has lost within fetch.grace, and clients may still fetch them; try again later")
	}
	return err
}

// settled returns an error while a killed push may still change refs.
func (p *dirPlace) settled(ctx context.Context) error {
	if p.Pushes == nil {
		return nil
	}
	now, cancel := context.WithCancel(ctx)
	cancel() // to clean up after a killed push needs the claim of the caller
	return p.Pushes.Recovery().Settled(now, p.repo.Common)
}

// checkAll checks that the view has everything that the present refs reach, and returns their values, as input of git
// rev-list that excludes what they reach.
func (c *collector) checkAll(ctx context.Context) (before string, err error) {
	var include, exclude strings.Builder
	if err := c.repo.Refresh(); err != nil {
		return "", err
	}
	snap, err := c.repo.Refs.SnapshotOf(ctx, nil)
	if err != nil {
		return "", err
	}
	add := func(id git.ObjectID) {
		fmt.Fprintln(&include, id)
		fmt.Fprintln(&exclude, "^"+id.String())
	}
	err = snap.Unhidden().Each("", func(ref refs.Ref) error {
		add(ref.ID)
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := c.link(); err != nil {
		return "", WriteError(err)
	}
	return exclude.String(), c.check(include.String())
}

// check checks that the view has what reflogs and indexes reach, and the objects of the input.
func (c *collector) check(input string, args ...string) error {
	err := c.run(append([]string{"rev-list", "--objects", "--quiet", "--reflog", "--indexed-objects", "--stdin"}, args...),
		input)
	if fault.Is(err, fault.Internal) {
		return fault.Retry(fault.Unavailable, fault.RetryMuchLater,
			"no object was removed, because changes in the meantime need some that had expired; try again")
	}
	return err
}

// publish links the new packs into the repository.
func (c *collector) publish(sync func(string) error) error {
	entries, err := os.ReadDir(filepath.Join(c.view, "pack"))
	if err != nil {
		return err
	}
	for _, extension := range packFiles {
		for _, e := range entries {
			path := filepath.Join("pack", e.Name())
			if filepath.Ext(path) != extension {
				continue
			}
			err := os.Link(filepath.Join(c.view, path), filepath.Join(c.own, path))
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return sync(filepath.Join(c.own, "pack"))
}

// remove removes the files from the repository that the view no longer has. A multi-pack-index must not name packs that
// do not exist.
func (c *collector) remove(sync func(string) error) error {
	indexes, err := filepath.Glob(filepath.Join(c.own, "pack/multi-pack-index*"))
	for _, path := range indexes {
		err = errors.Join(err, removeFile(path))
	}
	var gone []string
	for path := range c.files {
		if _, statErr := os.Lstat(filepath.Join(c.view, path)); errors.Is(statErr, fs.ErrNotExist) {
			gone = append(gone, path)
		}
	}
	slices.Sort(gone) // Git finds packs by their indexes, which come before the packs
	for _, path := range gone {
		err = errors.Join(err, removeFile(filepath.Join(c.own, path)))
		if base, ok := strings.CutSuffix(path, ".pack"); ok {
			err = errors.Join(err, removeFile(filepath.Join(c.own, base+".bitmap")))
		}
	}
	return errors.Join(err, sync(filepath.Join(c.own, "pack")))
}

// removeFile removes a file, if it exists.
func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
