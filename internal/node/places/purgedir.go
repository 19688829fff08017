package places

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// family is a repository with all that share objects with it: the members of its network of forks.
type family struct {
	*dirPlace
	members []*dirPlace
	objects []string // directories of objects: those of the members, and of the network
	release []func()
	forks   uint64       // of the network, before its members were listed
	views   []*collector // of objects, after rewrite
}

// family opens and claims the members. The caller closes the family.
func (p *dirPlace) family(ctx context.Context) (f *family, err error) {
	f = &family{dirPlace: p, members: []*dirPlace{p}, objects: []string{p.repo.Objects.Dirs()[0]}}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if err := p.repo.Refresh(); err != nil {
		return f, err
	}
	network := p.repo.Network()
	if network == "" {
		return f, p.checkCollectable(ctx)
	}
	f.forks, _ = p.networks.forksOf(network)
	if err := p.searching.Acquire(ctx, 1); err != nil {
		return f, err
	}
	s, err := p.search(ctx, network)
	p.searching.Release(1)
	if err != nil {
		return f, fault.Wrap(fault.Unavailable, "cannot determine which forks share its objects", err)
	}
	for _, below := range s.found {
		if repo.IsGitFile(filepath.Join(p.root, below)) {
			return f, fault.New(fault.Denied, "the network of forks has a work tree, which may need the objects: %s", below)
		}
		path, err := git.ParseRepoPath(below)
		if err != nil {
			return f, err
		}
		member, err := p.acquire(path)
		if err != nil {
			return f, err
		}
		if member.dir == p.dir {
			continue
		}
		if _, err = member.Open(ctx, p.Repo); err != nil {
			return f, err
		}
		f.release = append(f.release, func() { member.repo.Close() })
		release, err := p.Claims.Claim(member.repo.Common)
		if err != nil {
			return f, err
		}
		f.release = append(f.release, release)
		f.members = append(f.members, member)
		f.objects = append(f.objects, member.repo.Objects.Dirs()[0])
	}
	for _, m := range f.members {
		if err := m.checkOwn(m.Path().String()); err != nil {
			return f, err
		}
		if len(m.repo.Objects.Dirs()) != 2 {
			return f, fault.New(fault.Denied, "%s also borrows objects that are not of its network of forks", m.Path())
		}
	}
	f.objects = append(f.objects, network)
	return f, nil
}

func (f *family) close() {
	for _, release := range slices.Backward(f.release) {
		release()
	}
}

// tips returns the values of all refs. Those of other members have their paths in their names.
func (f *family) tips(ctx context.Context) (tips []NamedTip, err error) {
	for _, m := range f.members {
		prefix := ""
		if m != f.dirPlace {
			prefix = m.Path().String() + " "
		}
		if err := m.repo.Refresh(); err != nil {
			return nil, err
		}
		snap, err := m.repo.Refs.SnapshotOf(ctx, nil)
		if err != nil {
			return nil, err
		}
		if head := snap.Unhidden().Head(); !head.ID.IsZero() {
			tips = append(tips, NamedTip{prefix + "HEAD", head.ID})
		}
		err = snap.Unhidden().Each("", func(ref refs.Ref) error {
			tips = append(tips, NamedTip{prefix + string(ref.Name), ref.ID})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return tips, nil
}

// survey opens a Survey of the family with some tips, which ends with close.
func (f *family) survey(run RunGit, tips []NamedTip) (*Survey, error) {
	boundary, err := f.repo.Shallow()
	for _, m := range f.members {
		other, shallowErr := m.repo.Shallow()
		if err = cmp.Or(err, shallowErr); err == nil && !slices.Equal(boundary, other) {
			err = fault.New(fault.Denied, "%s is shallow at other commits than %s: detach it first", m.Path(), f.Path())
		}
	}
	if err != nil {
		return nil, err
	}
	dir, err := tempDir(filepath.Join(f.root, repo.PrivateDir))
	if err != nil {
		return nil, WriteError(err)
	}
	f.release = append(f.release, func() { _ = os.RemoveAll(filepath.Dir(dir)) })
	s, err := OpenSurvey(run, dir, f.repo.Format, f.objects, tips, boundary)
	if err == nil {
		f.release = append(f.release, func() { s.Repo.Close() })
	}
	return s, err
}

// Purge implements Place. First the settings of all repositories that share objects hide the objects. Then the packs
// that have some are made again without them, in views as in Collect, and the old ones are removed. A killed purge is
// repeated by the next call.
func (p *dirPlace) Purge(ctx context.Context, run RunGit, o PurgeOptions) (done Purged, err error) {
	alone := &family{dirPlace: p, members: []*dirPlace{p}}
	if err := alone.checkPurgeable(); err != nil { // its errors come before those of family
		return done, err
	}
	f, err := p.family(ctx)
	if err != nil {
		return done, err
	}
	defer f.close()
	if err := f.checkPurgeable(); err != nil {
		return done, err
	}
	tips, err := f.tips(ctx)
	if err != nil {
		return done, err
	}
	survey, err := f.survey(run, tips)
	if err != nil {
		return done, err
	}
	doomed, err := survey.Doomed(ctx, o)
	if err != nil {
		return done, err
	}
	if err := f.configure(ctx, func(s Settings) error { return s.Purge(o, doomed) }); err != nil {
		return done, err
	}
	for _, m := range f.members {
		done.Members = append(done.Members, m.Path())
	}
	o.Hidden(done.Members)
	if len(doomed) == 0 { // only LFS objects
		return done, nil
	}
	for _, m := range f.members {
		logged, err := m.addReflogs(nil)
		if err != nil {
			return done, err
		}
		for _, value := range logged {
			if doomed[value.ID] {
				done.Reflogs++
			}
		}
		expire := []string{"reflog", "expire", "--expire=never", "--expire-unreachable=now", "--all"}
		if err := run(ctx, m.repo, GitCommand{Args: expire}); err != nil {
			return done, err
		}
	}
	if err := f.writeGraphs(ctx, run); err != nil {
		return done, err
	}
	for range maxPurgeTries {
		if err = f.remove(ctx, run, tips, doomed, &done); !errors.Is(err, errMorePacks) {
			break
		}
	}
	if err != nil {
		return done, err
	}
	done.Objects = len(doomed)
	return done, f.configure(ctx, func(s Settings) error { delete(s, repo.PurgingKey); return nil })
}

// writeGraphs makes the commit-graphs of all members again.
func (f *family) writeGraphs(ctx context.Context, run RunGit) error {
	for _, m := range f.members {
		if err := m.writeGraph(ctx, run, ""); err != nil {
			return err
		}
	}
	return nil
}

// maxPurgeTries is how often packs are looked for that came meanwhile.
const maxPurgeTries = 5

var errMorePacks = fault.Retry(fault.Unavailable, fault.RetrySoon,
	"pushes bring the objects back again and again; try again")

// checkPurgeable returns why objects of a family must not be removed, apart from checkCollectable.
func (f *family) checkPurgeable() error {
	for _, m := range f.members {
		if m.MirrorMarks().Any() {
			return fault.New(fault.Denied, "the repository is a mirror, and its origin has the objects: remove them there, "+
				"and then remove the mirror's repository, which the next fetch makes again")
		}
		if isPartial(m.repo.Config()) {
			return fault.New(fault.Denied, "the repository is a partial clone: its objects cannot be purged")
		}
		index, err := exists(filepath.Join(m.repo.Dir, "index"))
		if err != nil || index || m.repo.Dir != m.repo.Common {
			return cmp.Or(err, fault.New(fault.Denied, "%s has a work tree, whose index may need the objects: purge in a bare "+
				"repository", m.Path()))
		}
	}
	return nil
}

func (f *family) configure(ctx context.Context, change func(Settings) error) error {
	for _, m := range f.members {
		if err := m.Configure(ctx, change); err != nil {
			return err
		}
	}
	return nil
}

// Purge hides objects, and for some time also those that need them.
func (s Settings) Purge(o PurgeOptions, doomed map[git.ObjectID]bool) error {
	add := func(key, id string) {
		if !slices.Contains(s[key], id) {
			s[key] = append(slices.Clone(s[key]), id)
		}
	}
	for _, id := range o.IDs {
		add(repo.PurgedKey, id.String())
	}
	for _, id := range o.LFS {
		add(repo.PurgedLFSKey, id.String())
	}
	if len(s[repo.PurgedKey])+len(s[repo.PurgedLFSKey]) > MaxPurged {
		return fault.New(fault.Exhausted, "the repository has more than %d purged objects, which is the maximum: lift some",
			MaxPurged)
	}
	if len(doomed) == 0 {
		return nil
	}
	s[repo.PurgingKey] = []string{"true"}
	for id := range doomed {
		if len(s[repo.PurgingKey]) < maxPurging && !slices.Contains(o.IDs, id) {
			s[repo.PurgingKey] = append(s[repo.PurgingKey], id.String())
		}
	}
	return nil
}

// remove removes the objects from all directories. The error is errMorePacks if some have come meanwhile.
func (f *family) remove(ctx context.Context, run RunGit, tips []NamedTip, doomed map[git.ObjectID]bool,
	done *Purged) error {
	collections := make([]*receivepack.Collection, len(f.members))
	for i, m := range f.members {
		collections[i] = f.Claims.Gates.Collect(m.repo.Common)
		defer collections[i].End()
	}
	if err := f.rewrite(ctx, run, doomed); err != nil {
		return err
	}
	for _, c := range f.views {
		if err := c.publish(f.Sync); err != nil {
			return WriteError(err)
		}
	}
	return receivepack.RemoveTogether(ctx, collections, func() error {
		if err := f.sharing.Acquire(ctx, 1); err != nil { // no fork may link files meanwhile; a fork holds the gate first
			return err
		}
		defer f.sharing.Release(1)
		return f.removeNow(ctx, run, tips, doomed, done)
	})
}

// rewrite makes views of all directories without the objects, which end with close.
func (f *family) rewrite(ctx context.Context, run RunGit, doomed map[git.ObjectID]bool) error {
	f.views = nil
	for _, dir := range f.objects {
		c := &collector{repo: f.repo, own: dir, files: make(map[string]int64)}
		f.views = append(f.views, c)
		err := c.makeView()
		f.release = append(f.release, func() { _ = os.RemoveAll(c.view) })
		if err = cmp.Or(err, c.link()); err != nil {
			return WriteError(err)
		}
		inView := func(g GitCommand) error {
			g.Env = []string{"GIT_OBJECT_DIRECTORY=" + c.view}
			return run(ctx, f.repo, g)
		}
		if err := Rewrite(ctx, inView, c.view, f.repo.Format, doomed); err != nil {
			return err
		}
	}
	return nil
}

// removeNow is remove while no ref is changed.
func (f *family) removeNow(ctx context.Context, run RunGit, before []NamedTip, doomed map[git.ObjectID]bool,
	done *Purged) error {
	for _, m := range f.members {
		if err := m.settled(ctx); err != nil {
			return err
		}
	}
	if network := f.repo.Network(); network != "" {
		if forks, running := f.networks.forksOf(network); running || forks != f.forks {
			return fault.Retry(fault.Unavailable, fault.RetrySoon,
				"no object was removed, because a fork that may need it was made meanwhile; try again")
		}
	}
	if err := f.checkTips(ctx, run, before, doomed); err != nil {
		return err
	}
	for _, c := range f.views {
		known := len(c.files)
		if err := c.link(); err != nil {
			return WriteError(err)
		}
		if len(c.files) > known {
			if found, err := hasAny(c.view, f.repo.Format, doomed); found || err != nil {
				return cmp.Or(err, errMorePacks)
			}
		}
		for path := range c.files {
			if _, err := os.Lstat(filepath.Join(c.view, path)); errors.Is(err, fs.ErrNotExist) {
				below, _ := filepath.Rel(f.root, filepath.Join(c.own, path))
				done.Files = append(done.Files, below)
			}
		}
		if err := c.remove(f.Sync); err != nil {
			return WriteError(err)
		}
		err := errors.Join(os.RemoveAll(filepath.Join(c.own, pack.TipDir)), f.removeQuarantines(c, doomed, done))
		if repo.IsNetwork(c.own) { // its commit-graphs may have the commits, and are not needed
			err = errors.Join(err, os.RemoveAll(filepath.Join(c.own, "info/commit-graphs")),
				removeFile(filepath.Join(c.own, "info/commit-graph")))
		}
		if err != nil {
			return WriteError(err)
		}
	}
	slices.Sort(done.Files)
	return f.repo.Refresh()
}

// hasAny reports whether an object directory alone has one of some objects.
func hasAny(dir string, format git.ObjectFormat, ids map[git.ObjectID]bool) (found bool, err error) {
	objects, err := pack.Open(dir, pack.Options{Format: format, Alone: true})
	if err != nil {
		return false, err
	}
	defer objects.Close()
	lookups := objects.Lookups()
	for id := range ids {
		if found, err = lookups.Has(id); found || err != nil {
			break
		}
	}
	return found, err
}

// checkTips returns an error if refs that were changed since before reach an object.
func (f *family) checkTips(ctx context.Context, run RunGit, before []NamedTip, doomed map[git.ObjectID]bool) error {
	known := make(map[git.ObjectID]bool, len(before))
	var input, exclude strings.Builder
	for _, tip := range before {
		known[tip.ID] = true
		fmt.Fprintf(&exclude, "^%s\n", tip.ID)
	}
	now, err := f.tips(ctx)
	if err != nil {
		return err
	}
	for _, tip := range now {
		if !known[tip.ID] {
			fmt.Fprintln(&input, tip.ID)
		}
	}
	if input.Len() == 0 {
		return nil
	}
	s, err := f.survey(run, now)
	if err != nil {
		return err
	}
	found, err := s.Reaches(ctx, input.String()+exclude.String(), doomed)
	if found {
		err = fault.Retry(fault.Unavailable, fault.RetrySoon,
			"a push that began before has brought the objects back: change its refs, and purge again")
	}
	return err
}

// removeQuarantines removes the objects of pushes that have one of a set: those of killed pushes, and of running ones,
// which will be refused.
func (f *family) removeQuarantines(c *collector, doomed map[git.ObjectID]bool, done *Purged) error {
	dirs, err := filepath.Glob(filepath.Join(c.own, "tmp_objdir-*"))
	for _, dir := range dirs {
		if strings.HasPrefix(filepath.Base(dir), viewPrefix) {
			continue
		}
		if found, hasErr := hasAny(dir, f.repo.Format, doomed); found && hasErr == nil { // otherwise it ends now
			err = errors.Join(err, os.RemoveAll(dir))
			below, _ := filepath.Rel(f.root, dir)
			done.Files = append(done.Files, below)
		}
	}
	return err
}
