package receivepack

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// Gates keep the removal of unreachable objects and changes of refs apart, by common directory. A change looks whether
// the objects exist that it needs, which no ref may reach yet, and then sets refs. No object may be removed in between.
//
// A push may last for hours, and Git is not asked anything in an ordinary one. So a push that begins while the
// repository is not being collected keeps objects from being removed until its end. Others keep them only from the
// pre-receive script on. If some were removed before, they look again.
//
// The zero value has no repositories. A nil pointer lets everything pass.
type Gates struct {
	mu       sync.Mutex
	byDir    map[string]*gate
	removals uint64 // completed, of all repositories
}

type gate struct {
	users, collections int
	early              int           // changes that began without a collection, and have not ended
	changes            int           // all that have not ended
	closed             chan struct{} // closed when changes may begin again; nil: they may
	// changing has one unit for each of the others that set refs, and all for a removal of objects.
	changing *semaphore.Weighted
}

const maxChanging = 1 << 30

// Passage is one change of refs.
type Passage struct {
	gates    *Gates
	dir      string
	gate     *gate
	isEarly  bool
	passed   bool
	removals uint64
}

// enter returns the gate of a directory, for leave. g.mu is held.
func (g *Gates) enter(dir string) *gate {
	if g.byDir == nil {
		g.byDir = make(map[string]*gate)
	}
	if g.byDir[dir] == nil {
		g.byDir[dir] = &gate{changing: semaphore.NewWeighted(maxChanging)}
	}
	g.byDir[dir].users++
	return g.byDir[dir]
}

// leave ends the use of a gate. g.mu is held.
func (g *Gates) leave(dir string, of *gate) {
	if of.users--; of.users == 0 {
		delete(g.byDir, dir)
	}
}

// Enter begins a change of refs, which has to call Leave. While the gate is closed it waits. The repository may have
// another path afterwards. The error is that of ctx.
func (g *Gates) Enter(ctx context.Context, dir string) (*Passage, error) {
	if g == nil {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &Passage{gates: g, dir: dir, gate: g.enter(dir)}
	for p.gate.closed != nil {
		wait := p.gate.closed
		g.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		g.mu.Lock()
		if err := ctx.Err(); err != nil {
			g.leave(dir, p.gate)
			return nil, err
		}
	}
	p.removals = g.removals
	p.gate.changes++
	if p.isEarly = p.gate.collections == 0; p.isEarly {
		p.gate.early++
	}
	return p, nil
}

// Close waits until no change of refs runs, and keeps others from beginning until open is called, which must be soon.
// The caller has claimed the repository.
func (g *Gates) Close(ctx context.Context, dir string) (open func(), err error) {
	g.mu.Lock()
	of := g.enter(dir)
	of.closed = make(chan struct{})
	g.mu.Unlock()
	open = func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		close(of.closed)
		of.closed = nil
		g.leave(dir, of)
	}
	for g.isChanging(of) {
		if err := retry.Sleep(ctx, earlyCheck); err != nil {
			open()
			return nil, err
		}
	}
	return open, nil
}

func (g *Gates) isChanging(of *gate) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return of.changes > 0
}

// MustPass reports whether the change has to call Pass before it sets refs.
func (p *Passage) MustPass() bool { return p != nil && !p.isEarly }

// Pass waits while objects are removed, and keeps them until Leave. It reports whether some may have been removed since
// Enter, in any repository. The error is that of ctx.
func (p *Passage) Pass(ctx context.Context) (removed bool, err error) {
	if !p.MustPass() || p.passed {
		return false, nil
	}
	if err := p.gate.changing.Acquire(ctx, 1); err != nil {
		return false, err
	}
	p.passed = true
	return p.gates.Removals() != p.removals, nil
}

// Leave ends the change. Further calls have no effect.
func (p *Passage) Leave() {
	if p == nil || p.gate == nil {
		return
	}
	if p.passed {
		p.gate.changing.Release(1)
	}
	p.gates.mu.Lock()
	defer p.gates.mu.Unlock()
	if p.isEarly {
		p.gate.early--
	}
	p.gate.changes--
	p.gates.leave(p.dir, p.gate)
	p.gate = nil
}

// Hold keeps the objects of a repository until release is called, which must be soon. The error is that of ctx.
func (g *Gates) Hold(ctx context.Context, dir string) (release func(), err error) {
	p, err := g.Enter(ctx, dir)
	if err == nil {
		_, err = p.Pass(ctx)
	}
	if err != nil {
		p.Leave()
		return nil, err
	}
	return p.Leave, nil
}

// Removals returns a number that is another one after objects were removed.
func (g *Gates) Removals() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.removals
}

// Collection is the collection of one repository.
type Collection struct {
	gates *Gates
	dir   string
	gate  *gate
}

// Collect begins a collection, which has to call End.
func (g *Gates) Collect(dir string) *Collection {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &Collection{gates: g, dir: dir, gate: g.enter(dir)}
	c.gate.collections++
	return c
}

// End ends the collection.
func (c *Collection) End() {
	c.gates.mu.Lock()
	defer c.gates.mu.Unlock()
	c.gate.collections--
	c.gates.leave(c.dir, c.gate)
}

const (
	earlyWait  = 10 * time.Minute // for pushes that began before a collection
	earlyCheck = 20 * time.Millisecond
)

// Remove calls fn, which may remove objects, while no change of refs needs them.
func (c *Collection) Remove(ctx context.Context, fn func() error) error {
	return RemoveTogether(ctx, []*Collection{c}, fn)
}

// RemoveTogether is Collection.Remove for repositories that share objects. No change of refs waits for a push that
// began before the collections.
func RemoveTogether(ctx context.Context, collections []*Collection, fn func() error) error {
	for until := time.Now().Add(earlyWait); slices.ContainsFunc(collections, (*Collection).isEarly); {
		if time.Now().After(until) {
			return fault.Retry(fault.Unavailable, fault.RetryMuchLater,
				"no object was removed, because a push takes long; try again")
		}
		if err := retry.Sleep(ctx, earlyCheck); err != nil {
			return err
		}
	}
	for _, c := range collections { // no more changes are early
		if err := c.gate.changing.Acquire(ctx, maxChanging); err != nil {
			return err
		}
		defer c.gate.changing.Release(maxChanging)
	}
	err := fn()
	for _, c := range collections {
		c.gates.mu.Lock()
		c.gates.removals++
		c.gates.mu.Unlock()
	}
	return err
}

func (c *Collection) isEarly() bool {
	c.gates.mu.Lock()
	defer c.gates.mu.Unlock()
	return c.gate.early > 0
}

// pass keeps the objects that the push needs until its refs are set. If some may have been removed since Git has looked
// for them, it looks again.
func (p *pushSession) pass(ctx context.Context, quarantine string, updates []Update) error {
	removed, err := p.passage.Pass(ctx)
	if err != nil || !removed {
		return err
	}
	err = p.newObjects(ctx, quarantine, updates, func([]byte) error { return nil }, "--quiet")
	if err != nil {
		return fault.Wrap(fault.Unavailable, "objects that the push needs have expired meanwhile: push again", err)
	}
	return nil
}

// newObjects calls fn with each object that updates make reachable, as a line of git rev-list.
func (p *pushSession) newObjects(ctx context.Context, quarantine string, updates []Update, fn func([]byte) error,
	args ...string) error {
	var ids strings.Builder
	for _, u := range updates {
		if !u.New.IsZero() {
			ids.WriteString(u.New.String() + "\n")
		}
	}
	var env []string
	if quarantine != "" {
		env = process.ObjectsEnv(quarantine, p.target.Common+"/objects")
	}
	return p.revList(ctx, env, strings.NewReader(ids.String()), fn,
		append(args, "--objects", "--stdin", "--not", "--all")...)
}
