package pushrecovery

import (
	"io/fs"
	"os"
	"slices"
	"time"
)

// startSweep cleans up after a killed push in the background.
func (r *Recovery) startSweep(p *Push) {
	r.mu.Lock()
	r.killed[p.CommonDir] = append(r.killed[p.CommonDir], p)
	r.mu.Unlock()
	r.work.Go(func() { r.sweep(p) })
}

// sweep cleans up after one push: first its lock files, which block other pushes, then the remaining refs of an atomic
// push, and last the files that only use space.
func (r *Recovery) sweep(p *Push) {
	ok := r.poll(r.Delays.Poll, func() bool { return !p.isActive() }) && r.unlock(p)
	var err error
	if ok {
		err = r.complete(p)
	}
	r.mu.Lock()
	others := slices.DeleteFunc(r.killed[p.CommonDir], func(other *Push) bool { return other == p })
	if r.killed[p.CommonDir] = others; len(others) == 0 {
		delete(r.killed, p.CommonDir)
	}
	r.mu.Unlock()
	close(p.unlocked)
	interval := max(r.Delays.Poll, r.Delays.Quarantine/120)
	if ok && err == nil && r.poll(interval, func() bool { return r.removeFiles(p) }) {
		p.remove()
	}
}

// poll calls done until it reports true. It returns false if the Recovery was closed before.
func (r *Recovery) poll(interval time.Duration, done func() bool) bool {
	for !done() {
		if !r.sleep(interval) {
			return false
		}
	}
	return true
}

// sleep waits, and reports false if the Recovery was closed meanwhile.
func (r *Recovery) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-r.ctx.Done():
		return false
	}
}

// unlock removes the lock files of a push without processes. It returns false if the Recovery was closed before.
func (r *Recovery) unlock(p *Push) bool {
	if p.IsAtomic() && !r.observeLocks(p) {
		return false
	}
	for locks := p.staleLocks(); len(locks) > 0; locks = p.staleLocks() {
		alone := func() bool {
			for _, other := range p.concurrent {
				if mayHold(&other.Record, locks) && other.isActive() {
					return false
				}
			}
			return true
		}
		if !r.poll(r.Delays.Poll, alone) || !r.poll(r.Delays.Poll, func() bool { return r.claimRepository(p.CommonDir) }) {
			return false
		}
		retry, ok := r.removeLocks(p)
		r.releaseRepository(p.CommonDir)
		if !ok {
			return false
		}
		if retry == 0 {
			continue
		}
		select {
		case <-p.blocked:
		default:
			close(p.blocked)
		}
		if !r.sleep(retry) {
			return false
		}
	}
	return true
}

// observeLocks records the lock files of an atomic push that stay unchanged for some time. A lock file that exists only
// briefly may belong to another push.
func (r *Recovery) observeLocks(p *Push) bool {
	locks := p.staleLocks()
	if len(locks) > 0 && !r.sleep(r.Delays.Stable) {
		return false
	}
	p.lasting = make(map[string]fs.FileInfo, len(locks))
	for path, lock := range locks {
		if unchanged(path, lock.info) {
			p.lasting[path] = lock.info
		}
	}
	return true
}

// removeLocks removes the stale lock files that stay unchanged for a while. If some are still too young or cannot be
// removed, it returns after which time to try again.
func (r *Recovery) removeLocks(p *Push) (retry time.Duration, ok bool) {
	locks := p.staleLocks()
	if len(locks) == 0 { // the sweep of another push has removed them
		return 0, true
	}
	if !r.sleep(r.Delays.Stable) {
		return 0, false
	}
	for path, lock := range locks {
		switch {
		case !unchanged(path, lock.info):
		case lock.shared && time.Since(lock.info.ModTime()) < r.Delays.Shared:
			retry = max(retry, r.Delays.Stable)
		case !r.removed("lock", path, r.unlink(path)):
			retry = r.Delays.Retry
		}
	}
	return retry, true
}

// claimRepository keeps maintenance from a repository until each sweep that claimed it has released it. It reports
// false while the repository is being maintained.
func (r *Recovery) claimRepository(common string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.claims[common]
	if c == nil {
		c = &repositoryClaim{release: func() {}}
		if r.claim != nil {
			release, err := r.claim(common)
			if err != nil {
				return false
			}
			c.release = release
		}
		r.claims[common] = c
	}
	c.sweeps++
	return true
}

func (r *Recovery) releaseRepository(common string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.claims[common]
	if c.sweeps--; c.sweeps == 0 {
		delete(r.claims, common)
		c.release()
	}
}

// removeFiles removes the .keep files and quarantines of a push. It reports false if some cannot be removed yet.
func (r *Recovery) removeFiles(p *Push) bool {
	r.removing.Lock()
	defer r.removing.Unlock()
	keeping := false
	for path, pid := range keepFiles(p.CommonDir, p.covers) {
		if isDead(pid) {
			r.removed("keep", path, os.Remove(path))
		} else {
			keeping = true // another process may have the ID, or the process is a zombie
		}
	}
	if r.hasConcurrent(p) {
		return false
	}
	unused, used := p.quarantines(r.Delays.Quarantine)
	for _, dir := range unused {
		r.removed("quarantine", dir, os.RemoveAll(dir))
	}
	return !used && !keeping
}

// hasConcurrent reports whether a push runs whose quarantine cannot be distinguished from that of p. Its hooks may run
// for any time.
func (r *Recovery) hasConcurrent(p *Push) bool {
	if slices.ContainsFunc(p.concurrent, func(other *Push) bool { return other.isActive() }) {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for other := range r.running {
		if other.CommonDir == p.CommonDir && !other.Start.After(p.ended.Add(clockSkew)) {
			return true
		}
	}
	return false
}
