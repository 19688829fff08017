package places

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// networks has the networks of forks that are being used or left, by their object directories. The zero value is empty.
type networks struct {
	mu    sync.Mutex
	uses  map[string]int  // forks that are being made
	left  map[string]bool // networks that a member has left since the last search for members began
	forks uint64          // number of uses that have ended
}

// use notes that a fork is being made.
func (n *networks) use(objects string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.uses == nil {
		n.uses, n.left = make(map[string]int), make(map[string]bool)
	}
	n.uses[objects]++
}

// release ends use.
func (n *networks) release(objects string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forks++
	if n.uses[objects]--; n.uses[objects] == 0 {
		delete(n.uses, objects)
	}
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
	if err := run(ctx, r, GitCommand{Args: []string{"repack", "-a", "-d", "-q"}}); err != nil {
		return err
	}
	info := filepath.Join(r.Objects.Dirs()[0], "info")
	if err := cmp.Or(os.Remove(filepath.Join(info, "alternates")), d.Sync(info)); err != nil {
		return WriteError(err)
	}
	// A push that was checked before may need objects that no ref reached when the repository was repacked.
	check := []string{"fsck", "--connectivity-only", "--no-dangling", "--no-progress"}
	if err := run(ctx, r, GitCommand{Args: check}); err != nil {
		return cmp.Or(borrow(r.Objects.Dirs()[0], network), fault.Retry(fault.Unavailable, fault.RetrySoon,
			"a push has changed the repository meanwhile; try again"))
	}
	d.leftNetwork(network)
	return nil
}

// leftNetwork removes a network that a repository has left if that was its last member, in the background. The members
// are those whose alternates name it: there is no list.
func (d *Directories) leftNetwork(objects string) {
	n := &d.networks
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.left == nil {
		n.uses, n.left = make(map[string]int), make(map[string]bool)
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
	before := n.forks
	n.mu.Unlock()
	if s, err := d.search(d.ctx, objects); err != nil || len(s.found) > 0 {
		return err
	}
	if err := d.placing.Acquire(d.ctx, 1); err != nil {
		return err
	}
	defer d.placing.Release(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.uses[objects] > 0 || n.forks != before {
		return nil // the new fork is a member
	}
	own, err := d.moveToTrash(filepath.Dir(objects))
	if err == nil {
		d.emptyTrash(own)
	}
	return err
}
