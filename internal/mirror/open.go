package mirror

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// opening is the opening or the first use of a mirror, shared by concurrent callers.
type opening struct {
	create bool
	caller string        // that the request to the origin counts for; "" is the repository
	done   chan struct{} // closed when the other fields are valid
	mirror *mirror
	err    error
}

// open returns the mirror for a path. It is nil if the path is not that of a mirror: no rule covers it, or a repository
// without an origin has the path.
//
// The first use creates the mirror: it asks the origin for its refs, creates an empty repository, and starts the first
// update. The credential is that of the caller; zero means the mirror's own. The request counts for a caller
// (origin.WithCaller). The error is that of the origin, or NotFound if no rule allows the mirror or its first use.
func (m *Mirrors) open(ctx context.Context, path git.RepoPath, auth node.Secret) (*mirror, error) {
	rule, _, ok := m.find(path)
	if !ok {
		if m.isMirror(path) {
			return nil, fault.New(fault.NotFound, "no rule allows the mirror %s any more", path)
		}
		return nil, nil
	}
	return m.openCovered(ctx, path, auth, rule.FirstUse)
}

// openCovered opens the mirror for a path that a rule covers. create allows a first use.
func (m *Mirrors) openCovered(ctx context.Context, path git.RepoPath, auth node.Secret, create bool) (*mirror, error) {
	rule, originPath, ok := m.find(path)
	if !ok {
		return nil, fault.New(fault.NotFound, "no rule allows a mirror at %s", path)
	}
	path = rule.canonical(path)
	for {
		if r := m.lookUp(path); r != nil {
			if err := r.setRule(rule, originPath); err != nil {
				return nil, err
			}
			return r, nil
		}
		o, own := m.joinOpening(path, create, origin.CallerOf(ctx))
		if o == nil {
			continue
		}
		if own {
			m.running.Go(func() { m.runOpening(o, path, rule, originPath, auth) })
		}
		if err := m.awaitOrigin(ctx, rule.Origin, o.done); err != nil {
			return nil, err
		}
		if own || o.err == nil || o.create && !isOfCaller(o.err) {
			return o.mirror, o.err
		} // otherwise it was refused for another caller
	}
}

// openExisting opens a mirror even if no rule covers it. It returns nil if the path is not that of a mirror.
func (m *Mirrors) openExisting(ctx context.Context, path git.RepoPath) (*mirror, error) {
	if _, _, ok := m.find(path); ok {
		r, err := m.openCovered(ctx, path, node.Secret{}, false)
		if fault.Is(err, fault.NotFound) {
			return nil, nil
		}
		return r, err
	}
	if r := m.lookUp(path); r != nil {
		return r, r.setRule(nil, "")
	}
	r, err := m.load(path)
	if r == nil || err != nil {
		return nil, err
	}
	return m.keep(r), nil
}

// isMirror reports whether the repository at a path is a mirror, whatever the rules are, even if it is damaged.
func (m *Mirrors) isMirror(path git.RepoPath) bool {
	marks, err := m.node.MirrorMarks(path)
	return err == nil && marks.Any()
}

// mayServe is Check by the present rules. It implements places.MirrorCheck.
func (m *Mirrors) mayServe(path git.RepoPath, marks places.MirrorMarks) error {
	return Check(*m.rules.Load(), path, marks)
}

// Check returns why a mirror must not be served, or nil. The error is NotFound if no rule covers it, Corrupt if it is
// damaged, and Denied if the rule is for another repository. The rules need Prefix, URL, Allowed and FoldCase only.
func Check(rules []Rule, path git.RepoPath, marks places.MirrorMarks) error {
	rule, requested := findRule(rules, path)
	if rule == nil {
		return noTable(path)
	}
	s, err := loadState(marks)
	if err == nil {
		_, err = s.pathBelow(rule, requested)
	}
	return err
}

func noTable(path git.RepoPath) error {
	return fault.New(fault.NotFound, "no [[mirror]] table covers the mirror %s any more: restore the table, or use "+
		"packhorse mirror detach or remove", path)
}

// isOwn reports whether a repository without an origin has a path.
func (m *Mirrors) isOwn(path git.RepoPath) bool {
	_, err := m.node.Directory(path)
	return err == nil && !m.isMirror(path)
}

// lookUp returns a mirror that was used before and still exists; nil if there is none.
func (m *Mirrors) lookUp(path git.RepoPath) *mirror {
	m.mu.Lock()
	r := m.known[path]
	m.mu.Unlock()
	if r == nil {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(r.dir, stateFile)); errors.Is(err, fs.ErrNotExist) { // deleted by others
		m.forget(r)
		return nil
	}
	return r
}

// keep adds a mirror, unless another request was faster.
func (m *Mirrors) keep(r *mirror) *mirror {
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.known[r.path]; other != nil {
		return other
	}
	m.known[r.path] = r
	return r
}

func (m *Mirrors) forget(r *mirror) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[r.path] == r {
		delete(m.known, r.path)
	}
}

// joinOpening returns the running opening of a path, or a new one that the caller has to run. It returns nil if the
// mirror was opened since lookUp: opening it twice would remove the files of its running update.
func (m *Mirrors) joinOpening(path git.RepoPath, create bool, caller string) (o *opening, own bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.opening[path]; o != nil || m.known[path] != nil {
		return o, false
	}
	o = &opening{create: create, caller: caller, done: make(chan struct{})}
	m.opening[path] = o
	return o, true
}

// runOpening loads or creates a mirror.
func (m *Mirrors) runOpening(o *opening, path git.RepoPath, rule *Rule, originPath string, auth node.Secret) {
	if o.mirror, o.err = m.load(path); o.mirror != nil {
		if o.err = o.mirror.setRule(rule, originPath); o.err != nil {
			o.mirror = nil
		}
	}
	if fault.Is(o.err, fault.NotFound) {
		if o.err = fault.New(fault.NotFound, "no mirror %s: add it with packhorse mirror add", path); o.create {
			o.mirror, o.err = m.create(path, rule, originPath, auth, o.caller)
		}
	}
	m.mu.Lock()
	delete(m.opening, path)
	if o.mirror != nil {
		m.known[path] = o.mirror
	}
	m.mu.Unlock()
	close(o.done)
}

// load opens an existing mirror, without a rule, and removes what an earlier process left in it. It returns nil for a
// repository without an origin.
func (m *Mirrors) load(path git.RepoPath) (*mirror, error) {
	marks, err := m.node.MirrorMarks(path)
	if err != nil || !marks.Any() {
		return nil, err
	}
	s, err := loadState(marks)
	if err != nil {
		return nil, err
	}
	if err := m.node.RemoveIngestLeftovers(path); err != nil {
		m.log.Warn("cannot remove the leftovers of a mirror", "repository", path.String(), "error", err)
	}
	return &mirror{m: m, path: path, dir: marks.Dir, orphan: true, state: *s, saved: *s}, nil
}

// absence is the answer of an origin that a repository does not exist for the mirror's own credential.
type absence struct {
	err   error
	until time.Time
}

const (
	absentTime = 30 * time.Second
	maxAbsent  = 10_000
)

// create creates a mirror and starts its first update.
func (m *Mirrors) create(path git.RepoPath, rule *Rule, originPath string, auth node.Secret,
	caller string) (*mirror, error) {
	ctx, cancel := context.WithTimeout(origin.WithCaller(m.ctx, caller), checkTimeout)
	defer cancel()
	start, at := m.now(), rule.URL.String()+originPath
	if last, ok := m.absent.Get(at); auth.IsZero() && caller != "" && ok && start.Before(last.until) {
		return nil, last.err
	}
	refs, err := rule.list(ctx, originPath, auth)
	if auth.IsZero() && fault.Is(err, fault.NotFound) {
		m.absent.Add(at, absence{err, start.Add(absentTime)})
	}
	if err != nil {
		return nil, err
	}
	s := state{Origin: rule.URL.String(), Path: originPath, Moved: refs.Moved, Created: start}
	_, err = m.node.Create(ctx, path, storage.CreateOptions{Format: refs.Format, AnyName: true, Mirror: s.encode()})
	if err != nil {
		return nil, err
	}
	dir, err := m.node.Directory(path)
	if err != nil {
		return nil, err
	}
	m.log.Info("created a mirror", "repository", path.String(), "origin", rule.Origin.Host())
	r := &mirror{m: m, path: path, dir: dir, rule: rule, state: s, saved: s}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version, r.offer = refs.Version, refs.Offer
	r.last = &originCheck{start: start, done: make(chan struct{}), refs: refs,
		update: r.startUpdate(refs, auth, start, false)}
	close(r.last.done)
	return r, nil
}

// isRefusal reports whether the origin refused a request because of its credential or its path.
func isRefusal(err error) bool {
	return fault.Is(err, fault.NotFound) || fault.Is(err, fault.Denied) || fault.Is(err, fault.Unauthenticated)
}

// isOfCaller reports whether another caller may get another answer of the origin.
func isOfCaller(err error) bool { return isRefusal(err) || origin.IsOfCaller(err) }

// originURL returns the URL of the repository at the origin.
func (r *mirror) originURL() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	base := r.state.Origin
	if !r.orphan {
		base = r.rule.URL.String()
	}
	return strings.TrimSuffix(base, "/") + "/" + r.state.currentPath()
}
