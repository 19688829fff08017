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
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

const (
	// expiryKey is the setting of a repository with the time of its removal (RFC 3339).
	expiryKey = "packhorse.expires"
	// expiryScan is how often all repositories are searched for expiryKey, because commands make forks, too.
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
func (d *Directories) StartExpiry(remove func(context.Context, git.RepoPath) error) {
	if !d.ReadOnly {
		d.running.Go(func() { d.removeExpired(d.ctx, remove) })
	}
}

func (d *Directories) removeExpired(ctx context.Context, remove func(context.Context, git.RepoPath) error) {
	for retry.Sleep(ctx, expiryCheck) == nil { // most commands have ended by then
		w := repo.Walk{Options: d.Repo, Unreadable: d.logUnreadable}
		for below, err := range w.All(ctx) {
			path, pathErr := git.ParseRepoPath(below)
			if err != nil || pathErr != nil {
				continue
			}
			if at, ok := expiry(filepath.Join(d.root, filepath.FromSlash(below)), d.Repo); ok {
				d.expiries.add(path, at)
			}
		}
		for scanned := time.Now(); time.Since(scanned) < expiryScan; {
			if retry.Sleep(ctx, expiryCheck) != nil {
				return
			}
			for _, path := range d.expiries.due(time.Now()) {
				d.expire(ctx, path, remove)
			}
		}
	}
}

// expire removes a repository, if its lifetime has ended.
func (d *Directories) expire(ctx context.Context, path git.RepoPath,
	remove func(context.Context, git.RepoPath) error) {
	p, err := d.acquire(path)
	if err != nil {
		return // removed by others
	}
	at, ok := expiry(p.dir, d.Repo)
	if !ok || at.After(time.Now()) {
		return // the next scan finds it
	}
	err = remove(ctx, path)
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
	value, ok := config.Get(expiryKey)
	if !ok {
		return time.Time{}, false
	}
	at, err = time.Parse(time.RFC3339, value)
	return at, err == nil
}
