package places

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

const (
	// ExpiryKey is the setting of a repository with the time of its removal (RFC 3339).
	ExpiryKey = "packhorse.expires"
	// expiryScan is how often all repositories are searched for ExpiryKey, because commands make forks, too.
	expiryScan = 15 * time.Minute
	// expiryCheck is how late a repository may be removed.
	expiryCheck = 10 * time.Second
)

// expiries has the repositories with a lifetime that are known. The zero value is empty.
type expiries struct {
	mu     sync.Mutex
	byPath map[git.RepoPath]time.Time
}

func (e *expiries) add(path git.RepoPath, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byPath == nil {
		e.byPath = make(map[git.RepoPath]time.Time)
	}
	e.byPath[path] = at
}

// due takes the repositories whose lifetime has ended.
func (e *expiries) due(now time.Time) (paths []git.RepoPath) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for path, at := range e.byPath {
		if !at.After(now) {
			paths = append(paths, path)
			delete(e.byPath, path)
		}
	}
	return paths
}

// StartExpiry has repositories removed whose lifetime has ended, in the background.
func (d *Directories) StartExpiry(remove func(context.Context, git.RepoPath, DeleteOptions) error) {
	if !d.ReadOnly {
		d.running.Go(func() { d.removeExpired(d.ctx, remove) })
	}
}

func (d *Directories) removeExpired(ctx context.Context,
	remove func(context.Context, git.RepoPath, DeleteOptions) error) {
	for retry.Sleep(ctx, expiryCheck) == nil { // most commands have ended by then
		w := repo.Walk{Options: d.Repo, Unreadable: d.logUnreadable}
		before := time.Now()
		used, isComplete := make(map[string]bool), true
		for below, err := range w.All(ctx) {
			path, pathErr := git.ParseRepoPath(below)
			if err != nil || pathErr != nil {
				isComplete = false
				continue
			}
			lenders, _ := pack.Alternates(filepath.Join(d.root, filepath.FromSlash(below), "objects"))
			for _, lender := range lenders {
				used[filepath.Base(filepath.Dir(lender))] = true
			}
			if at, ok := expiry(filepath.Join(d.root, filepath.FromSlash(below)), d.Repo); ok {
				d.expiries.add(path, at)
			}
		}
		if isComplete {
			d.leaveUnused(used, before)
		}
		for scanned := time.Now(); time.Since(scanned) < expiryScan; {
			if retry.Sleep(ctx, expiryCheck) != nil {
				return
			}
			if due := d.expiries.due(time.Now()); len(due) > 0 {
				d.expireAll(ctx, due, remove)
			}
		}
	}
}

// leaveUnused removes the networks that no member has used since a time: those of forks that a crash has ended.
func (d *Directories) leaveUnused(used map[string]bool, since time.Time) {
	networks, _ := filepath.Glob(filepath.Join(d.root, repo.PrivateDir, repo.NetworksDir, "*", "objects"))
	for _, objects := range networks {
		info, err := os.Stat(objects)
		if err == nil && since.Sub(info.ModTime()) > leftoverAge && !used[filepath.Base(filepath.Dir(objects))] {
			d.leftNetwork(objects) // it searches for members itself
		}
	}
}

// expireAll removes repositories whose lifetime has ended. One search finds out that others borrow nothing from them,
// and one that a network has no members any more.
func (d *Directories) expireAll(ctx context.Context, due []git.RepoPath,
	remove func(context.Context, git.RepoPath, DeleteOptions) error) {
	var dirs []string
	for _, path := range due {
		if p, err := d.acquire(path); err == nil {
			dirs = append(dirs, p.dir)
		}
	}
	if d.searching.Acquire(ctx, 1) != nil {
		return
	}
	release := sync.OnceFunc(func() { d.searching.Release(1) })
	defer release()
	s, err := d.search(ctx, dirs...)
	o := DeleteOptions{Force: err == nil && len(s.found) == 0}
	if !o.Force {
		release() // each removal searches itself
	}
	for _, path := range due {
		d.expire(path, func() error { return remove(ctx, path, o) })
	}
}

// expire removes a repository, if its lifetime has ended.
func (d *Directories) expire(path git.RepoPath, remove func() error) {
	p, err := d.acquire(path)
	if err != nil {
		return // removed by others
	}
	at, ok := expiry(p.dir, d.Repo)
	if !ok || at.After(time.Now()) {
		return // the next scan finds it
	}
	err = remove()
	if fault.Is(err, fault.Exhausted) || errors.Is(err, context.Canceled) {
		d.expiries.add(path, at) // it is being maintained
		return
	}
	if err != nil {
		d.Log.Warn("cannot remove a repository whose lifetime has ended", "repository", path.String(), "error", err)
		return
	}
	d.Log.Info("removed a repository whose lifetime has ended", "repository", path.String(), "expired", at)
}

// expiry returns when the lifetime of the repository at a path ends. ok is false if it has none.
func expiry(path string, o repo.Options) (at time.Time, ok bool) {
	text, err := os.ReadFile(filepath.Join(path, "config"))
	if err != nil || !strings.Contains(string(text), "packhorse") { // the usual case
		return time.Time{}, false
	}
	_, config, err := repo.ReadConfig(path, o)
	if err != nil {
		return time.Time{}, false
	}
	value, _ := config.Get(ExpiryKey)
	at, err = time.Parse(time.RFC3339, value)
	return at, err == nil
}

// Expires implements Place.
func (p *dirPlace) Expires() time.Time {
	at, _ := expiry(p.repo.Common, p.Repo)
	return at
}
