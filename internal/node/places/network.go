package places

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// networks has the networks of forks that are being used or left, by their object directories. The zero value is empty.
type networks struct {
	mu    sync.Mutex
	uses  map[string]int    // forks that are being made
	left  map[string]bool   // networks that a member has left since the last search for members began
	forks map[string]uint64 // number of uses that have ended
}

// use notes that a fork is being made.
func (n *networks) use(objects string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.uses == nil {
		n.uses, n.forks = make(map[string]int), make(map[string]uint64)
	}
	n.uses[objects]++
}

// release ends use.
func (n *networks) release(objects string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forks[objects]++
	if n.uses[objects]--; n.uses[objects] == 0 {
		delete(n.uses, objects)
	}
}

// forksOf returns a number that is another one after a fork was made, and whether one is being made.
func (n *networks) forksOf(objects string) (count uint64, running bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.forks[objects], n.uses[objects] > 0
}

// Detach implements Places. Afterwards the repository has all objects that its refs, reflogs and index reach.
func (d *Directories) Detach(ctx context.Context, path git.RepoPath, run RunGit) error {
	p, err := d.acquire(path)
	if err != nil {
		return err
	}
	r, err := p.Open(ctx, d.Repo)
	if err != nil {
		return err
	}
	defer r.Close()
	network := r.Network()
	if network == "" {
		return fault.New(fault.Exists, "%s is not in a network of forks: it has all its objects already", path)
	}
	release, err := d.Claims.Claim(r.Common)
	if err != nil {
		return err
	}
	defer release()
	collection := d.Claims.Gates.Collect(r.Common)
	defer collection.End()
	// Own objects stay that no ref reaches: a push that was checked before may need them.
	repack := []string{"repack", "-a", "-d", "-q", "--keep-unreachable"}
	if err := run(ctx, r, GitCommand{Args: repack}); err != nil {
		return err
	}
	if err := p.leave(ctx, run, collection); err != nil {
		return err
	}
	d.leftNetwork(network)
	return nil
}

// leave removes the alternates of a repository that has all objects. As in Collect, a view without the alternates is
// checked before, because refs may have been changed since the repository was repacked.
func (p *dirPlace) leave(ctx context.Context, run RunGit, collection *receivepack.Collection) error {
	c := &collector{repo: p.repo, own: p.repo.Objects.Dirs()[0], files: make(map[string]int64)}
	defer func() { _ = os.RemoveAll(c.view) }()
	err := c.makeView()
	if err == nil {
		err = os.Remove(filepath.Join(c.view, "info/alternates"))
	}
	if err == nil {
		err = p.Sync(filepath.Join(c.own, "pack"))
	}
	if err != nil {
		return WriteError(err)
	}
	c.run = func(args []string, stdin string, env ...string) error {
		err := run(ctx, p.repo, GitCommand{Args: args, Stdin: stdin, Env: append(env, "GIT_OBJECT_DIRECTORY="+c.view)})
		if fault.Is(err, fault.Internal) {
			err = fault.Retry(fault.Unavailable, fault.RetrySoon, "a push has changed the repository meanwhile; try again")
		}
		return err
	}
	before, err := c.checkAll(ctx)
	if err != nil {
		return err
	}
	return collection.Remove(ctx, func() error {
		if err := cmp.Or(p.settled(ctx), WriteError(c.link()), c.check(before, "--all")); err != nil {
			return err
		}
		info := filepath.Join(c.own, "info")
		return WriteError(cmp.Or(os.Remove(filepath.Join(info, "alternates")), p.Sync(info)))
	})
}

// leftNetwork removes a network that a repository has left if that was its last member, in the background. The members
// are those whose alternates name it: there is no list.
func (d *Directories) leftNetwork(objects string) {
	n := &d.networks
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.left == nil {
		n.left = make(map[string]bool)
	}
	if n.left[objects] {
		return // a search is about to begin
	}
	n.left[objects] = true
	d.running.Go(func() {
		if err := d.removeNetwork(objects); err != nil && d.ctx.Err() == nil {
			d.Log.Warn("cannot remove a network of forks without members; remove its directory", "dir", objects, "error", err)
		}
	})
}

// removeNetwork removes a network if it has no members.
func (d *Directories) removeNetwork(objects string) error {
	if err := d.searching.Acquire(d.ctx, 1); err != nil {
		return err
	}
	defer d.searching.Release(1)
	n := &d.networks
	n.mu.Lock()
	delete(n.left, objects)
	before := n.forks[objects]
	n.mu.Unlock()
	if s, err := d.search(d.ctx, objects); err != nil || len(s.found) > 0 {
		return err
	}
	if err := d.sharing.Acquire(d.ctx, 1); err != nil { // no fork begins meanwhile
		return err
	}
	defer d.sharing.Release(1)
	if err := d.placing.Acquire(d.ctx, 1); err != nil {
		return err
	}
	defer d.placing.Release(1)
	if forks, running := n.forksOf(objects); running || forks != before {
		return nil // the new fork is a member
	}
	own, err := d.moveToTrash(filepath.Dir(objects))
	if err == nil {
		d.emptyTrash(own)
	}
	return err
}
