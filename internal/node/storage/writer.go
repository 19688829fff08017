package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

const (
	// writerIdle is how long the writer of a repository, with its Git process, waits for another change.
	writerIdle = 5 * time.Second
	// maxBatch and maxBatchBytes limit the changes that share a pack, in bytes of their objects.
	maxBatch      = 256
	maxBatchBytes = 32 << 20
	// maxSharedTries is how often a change is made together with others. After that it is alone, because one that cannot
	// be made fails all.
	maxSharedTries = 3
	// maxKnown is the maximum number of objects that a writer remembers.
	maxKnown = 100_000
)

// writer makes the changes of one repository. It runs while there are changes, and some time longer.
type writer struct {
	sync.RWMutex // held for reading by batches and by changes with git receive-pack, and for writing by their repetitions
	node         *Node
	path         git.RepoPath
	users        int             // guarded by writeTable.mu
	waiting      []*pendingWrite // the same
	isRunning    bool            // the same
	wake         chan struct{}   // has room for one
	updater      *receivepack.Updater
	known        map[git.ObjectID]bool // objects of the repository; see writeBatch.has
	removals     uint64                // for which known is valid
	special      map[string]bool       // names and IDs of files; see writeBatch.learn
	learned      git.ObjectID          // the commit that was learned last
}

// pendingWrite is a change that waits for its batch.
type pendingWrite struct {
	ctx    context.Context
	change *write.Change
	tries  int

	plan    write.Plan
	done    chan struct{} // closed when the following fields are valid
	result  write.Result
	err     error
	needGit bool // the caller has to make the change by Git
}

func (p *pendingWrite) end(err error) {
	p.err = err
	close(p.done)
}

// writeTable has the repositories that are being changed by calls.
type writeTable struct {
	mu      sync.Mutex
	byPath  map[git.RepoPath]*writer
	closing chan struct{} // closed by close
	running sync.WaitGroup
}

// close ends all writers. No change may be waiting.
func (t *writeTable) close() {
	close(t.closing)
	t.running.Wait()
}

// enter returns the writer of a repository, for leave.
func (t *writeTable) enter(n *Node, path git.RepoPath) *writer {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.byPath[path]
	if w == nil {
		w = &writer{node: n, path: path, wake: make(chan struct{}, 1), known: make(map[git.ObjectID]bool),
			special: make(map[string]bool)}
		t.byPath[path] = w
	}
	w.users++
	return w
}

func (t *writeTable) leave(w *writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(t.byPath, w.path)
	}
}

// add has the writer make a change.
func (t *writeTable) add(w *writer, p *pendingWrite) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.waiting = append(w.waiting, p)
	if !w.isRunning {
		w.isRunning = true
		w.users++
		t.running.Go(w.run)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns the changes that wait; with last, none means that run ends.
func (t *writeTable) take(w *writer, last bool) []*pendingWrite {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(len(w.waiting), maxBatch)
	taken := w.waiting[:n:n]
	w.waiting = w.waiting[n:]
	w.isRunning = !last || n > 0
	return taken
}

// run makes batches until the writer is idle.
func (w *writer) run() {
	t := &w.node.writes
	defer t.leave(w)
	idle := time.NewTimer(writerIdle)
	defer idle.Stop()
	for {
		last := false
		batch := t.take(w, false)
		if len(batch) == 0 {
			idle.Reset(writerIdle)
			select {
			case <-w.wake:
			case <-idle.C:
				last = true
			case <-t.closing:
				last = true
			}
			if last {
				w.updater.Close() // before another run can begin
				w.updater = nil
			}
			if batch = t.take(w, last); last && len(batch) == 0 {
				return
			}
		}
		for len(batch) > 0 {
			batch = w.makeBatch(batch)
		}
	}
}

// makeBatch makes changes together. It returns those that have to be built again.
func (w *writer) makeBatch(batch []*pendingWrite) (again []*pendingWrite) {
	w.RLock()
	defer w.RUnlock()
	ctx := context.Background()
	n := w.node
	h, shadow, err := n.beginPush(ctx, w.path)
	if err == nil {
		defer n.release(h)
		err = checkNoMirror(h.place.MirrorMarks())
	}
	if shadow != nil {
		defer shadow.Close()
	}
	var b *writeBatch
	if err == nil {
		var release func()
		if release, err = n.claims.Gates.Hold(ctx, h.Common); err == nil {
			defer release()
		}
		if err == nil && shadow == nil && !h.IsThere() {
			err = fault.New(fault.NotFound, "no repository %s here", w.path)
		}
	}
	if err == nil {
		if removals := n.claims.Gates.Removals(); removals != w.removals {
			w.removals = removals
			clear(w.known)
			err = h.Refresh()
		}
	}
	if err == nil {
		b, err = w.newBatch(ctx, h, shadow)
	}
	if err != nil || b == nil { // or all need Git
		w.updater.Close()
		w.updater = nil
		for _, p := range batch {
			p.needGit = err == nil
			p.end(err)
		}
		return nil
	}
	defer b.state.done()
	for i, p := range batch {
		isAlone := p.tries >= maxSharedTries || len(b.accepted) > 0 && b.accepted[0].tries >= maxSharedTries
		if b.bytes > maxBatchBytes || isAlone && len(b.accepted) > 0 {
			again = append(again, batch[i:]...)
			break
		}
		if !b.add(p) {
			again = append(again, p)
		}
	}
	if len(b.accepted) == 0 {
		return again
	}
	return append(w.commit(ctx, b), again...)
}

// writeBatch is a batch while it is built.
type writeBatch struct {
	writer   *writer
	target   receivepack.Target
	state    *writeState
	accepted []*pendingWrite
	objects  []*write.Object
	bytes    int64
	version  git.Version // after its changes
}

// newBatch returns an empty batch; nil if the repository's changes need Git.
func (w *writer) newBatch(ctx context.Context, h *handle, shadow receivepack.Shadow) (*writeBatch, error) {
	n := w.node
	target, snap, err := n.pushTarget(ctx, h, shadow, w.path, nil)
	if err != nil {
		return nil, err
	}
	needsGit, err := n.pushes.NeedsGit(target)
	if err != nil || needsGit {
		return nil, err
	}
	if isFirst, err := isEmpty(snap); err != nil || isFirst {
		return nil, err
	}
	target.Head = snap.Unhidden().Head().Target
	b := &writeBatch{writer: w, target: target}
	b.target.Changed = func(ctx context.Context, _ []receivepack.Update) {
		if shadow != nil { // its pack was moved into the local copy
			n.publish(ctx, h, w.path)
			return
		}
		b.version = n.versionOf(ctx, w.path)
		n.notify(ctx, w.path)
	}
	b.state, err = newWriteState(ctx, target, snap)
	return b, err
}

// add builds a change on the state after those before it. It reports false if the change has to be built again after
// the batch, because its result would depend on changes that may fail.
func (b *writeBatch) add(p *pendingWrite) bool {
	if p.ctx.Err() != nil {
		p.end(p.ctx.Err())
		return true
	}
	plan, err := b.build(p)
	if err == nil {
		plan.Updates = slices.DeleteFunc(slices.Clone(plan.Updates), isNoop)
		err = b.state.check(p.ctx, plan, p.change)
		if !p.change.DryRun && (errors.Is(err, errNeedsGit) || err == nil && b.needsGit(plan)) {
			if len(b.accepted) > 0 {
				return false
			}
			p.needGit = true
			p.end(nil)
			return true
		}
	}
	if p.change.DryRun {
		plan = write.Plan{}
	}
	if (err != nil || len(plan.Updates) == 0) && len(b.state.values) > 0 {
		return false
	}
	if err != nil {
		p.end(err)
		return true
	}
	p.plan, b.accepted = plan, append(b.accepted, p)
	b.state.add(plan)
	b.objects = append(b.objects, plan.Objects...)
	for _, o := range plan.Objects {
		b.bytes += o.StreamSize()
	}
	return true
}

// build calls Change.Build.
func (b *writeBatch) build(p *pendingWrite) (plan write.Plan, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			b.writer.node.log.Error("panic in a change", "panic", cause, "stack", string(debug.Stack()))
			err = fault.Wrap(fault.Internal, "internal error; see the node's log", fmt.Errorf("panic: %v", cause))
		}
	}()
	return p.change.Build(p.ctx, b.state)
}

// commit makes the accepted changes. It returns those that have to be built again. One that fails too often is made by
// Git.
func (w *writer) commit(ctx context.Context, b *writeBatch) (again []*pendingWrite) {
	n := w.node
	var pending []*pendingWrite
	var changes []receivepack.Change
	for _, p := range b.accepted {
		p.err = nil
		if len(p.plan.Updates) > 0 {
			pending = append(pending, p)
			changes = append(changes, receivepack.Change{Pusher: p.change.Pusher, Options: p.change.Options,
				Updates: p.plan.Updates, Atomic: p.change.Atomic})
		}
	}
	if len(changes) > 0 {
		err := b.store()
		errs := slices.Repeat([]error{err}, len(changes))
		if err == nil {
			w.updater, errs = n.pushes.Update(ctx, w.updater, b.target, changes)
		}
		for i, p := range pending {
			p.err = errs[i]
		}
	}
	if b.version == (git.Version{}) {
		b.version = n.versionOf(ctx, w.path)
	}
	for _, p := range b.accepted {
		p.result.Version = b.version
		if !errors.Is(p.err, receivepack.ErrNotUpdated) {
			p.end(p.err)
		} else if p.tries++; p.tries <= maxWriteTries && !fault.Is(p.err, fault.Exhausted) { // no slot for an Updater
			again = append(again, p)
		} else {
			p.needGit = true
			p.end(nil)
		}
	}
	return again
}

// store writes the new objects into the shadow, or into the repository where they become visible.
func (b *writeBatch) store() error {
	pack, err := write.NewPack(b.target.Format, b.objects)
	if err != nil || pack.Len() == 0 {
		return err
	}
	if shadow := b.target.Shadow; shadow != nil {
		return pack.Store(filepath.Join(shadow.Repo().Common, "objects/pack"), false)
	}
	if err := pack.Store(filepath.Join(b.target.Common, "objects/pack"), true); err != nil {
		return err
	}
	return b.target.Objects.Add(pack.Name())
}
