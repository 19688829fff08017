package storage

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// maxWriteTries is how often a change is made because other changes were faster.
const maxWriteTries = 10

// errMoved is in the chain of the error of a change that may succeed when it is built again.
var errMoved = errors.New("the repository was changed meanwhile")

// Write makes a change; see package write. When it returns without an error, the change is durable and every request
// sees it. Errors: those of Change.Build, Aborted if a ref has another value than expected, Denied by a rule or a hook,
// Invalid, Full, and Unavailable.
func (n *Node) Write(ctx context.Context, path git.RepoPath, c write.Change) (write.Result, error) {
	if n.pushes == nil {
		return write.Result{}, errNoPushes()
	}
	ctx, span := inflight.Trace(ctx, "write")
	result, err := n.write(ctx, path, &c)
	if span != nil {
		failure := ""
		if err != nil {
			failure = fault.KindOf(err).String()
		}
		span.End(failure)
	}
	return result, err
}

func (n *Node) write(ctx context.Context, path git.RepoPath, c *write.Change) (result write.Result, err error) {
	w := n.writes.enter(n, n.places.Name(path))
	defer n.writes.leave(w)
	p := &pendingWrite{ctx: ctx, change: c, done: make(chan struct{})}
	n.writes.add(w, p)
	<-p.done
	if !p.needGit {
		return p.result, p.err
	}
	for try := range maxWriteTries {
		if result, err = n.tryWrite(ctx, w, path, c, try > 0); !errors.Is(err, errMoved) {
			break
		}
	}
	if err == nil {
		result.Version = n.versionOf(ctx, path)
	}
	return result, err
}

// versionOf returns the version after a change; zero if the repository is gone.
func (n *Node) versionOf(ctx context.Context, path git.RepoPath) git.Version {
	h, _, version, err := n.latestSnapshot(ctx, path)
	if err == nil {
		n.release(h)
	} else if !fault.Is(err, fault.NotFound) {
		n.log.Warn("cannot determine the version after a change", "repository", path.String(), "error", err)
	}
	return version
}

// tryWrite makes a change with git receive-pack. alone keeps other calls from changing the repository meanwhile. They
// were faster before.
func (n *Node) tryWrite(ctx context.Context, w *writer, path git.RepoPath, c *write.Change, alone bool) (write.Result,
	error) {
	if alone {
		w.Lock()
		defer w.Unlock()
	} else {
		w.RLock()
		defer w.RUnlock()
	}
	if err := ctx.Err(); err != nil {
		return write.Result{}, err
	}
	return n.writeByGit(ctx, path, c)
}

// writeByGit makes a change with git receive-pack, in any kind of repository.
func (n *Node) writeByGit(ctx context.Context, path git.RepoPath, c *write.Change) (result write.Result, err error) {
	h, shadow, err := n.beginPush(ctx, path)
	if err != nil {
		return result, err
	}
	defer n.release(h)
	if shadow != nil {
		defer shadow.Close()
	}
	if err := checkNoMirror(h.place.MirrorMarks()); err != nil {
		return result, err
	}
	target, snap, err := n.pushTarget(ctx, h, shadow, path, new(time.Duration))
	if err != nil {
		return result, err
	}
	state, err := newWriteState(ctx, target, snap)
	if err != nil {
		return result, err
	}
	defer state.done()
	plan, err := c.Build(ctx, state)
	if err != nil {
		return result, err
	}
	plan.Updates = slices.DeleteFunc(slices.Clone(plan.Updates), isNoop)
	if err = state.check(ctx, plan, c); errors.Is(err, errNeedsGit) {
		err = nil
	}
	if err != nil || c.DryRun || len(plan.Updates) == 0 {
		return result, err
	}
	pack, err := write.NewPack(h.Format, plan.Objects)
	if err != nil {
		return result, err
	}
	changed, err := n.pushes.Change(ctx, target, receivepack.Change{Pusher: c.Pusher, Options: c.Options,
		Updates: plan.Updates, Atomic: c.Atomic, Pack: pack.Reader()})
	result.Messages = changed.Messages
	if err != nil {
		return result, err
	}
	return result, n.refusals(&result, c, changed.Refused)
}

func isNoop(u receivepack.Update) bool { return u.Old == u.New || u.Old.IsZero() && u.New.IsZero() }

// refusals sets the refused updates of a result, or returns the error of the whole change. A change may be built again
// if another one was faster, and nothing of it was made.
func (n *Node) refusals(result *write.Result, c *write.Change, refused []error) error {
	made := 0
	var first error
	for _, err := range refused {
		switch {
		case err == nil:
			made++
		case first == nil || fault.Is(first, fault.Aborted) && !fault.Is(err, fault.Aborted): // not because of another one
			first = err
		}
	}
	switch {
	case first == nil:
		return nil
	case made == 0 && fault.Is(first, fault.Aborted):
		return &fault.Error{Kind: fault.Aborted, Msg: fault.Message(first), Err: errors.Join(errMoved, first)}
	case len(refused) == 1 || c.Atomic && made == 0:
		return first
	}
	result.Refused = refused
	return nil
}

// checkNoMirror refuses changes of a mirror, and names its origin.
func checkNoMirror(marks places.MirrorMarks) error {
	if !marks.Any() {
		return nil
	}
	var state struct{ Origin, Path string }
	text, err := os.ReadFile(filepath.Join(marks.Dir, places.MirrorFile))
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	origin, urlErr := url.Parse(state.Origin)
	if err != nil || urlErr != nil || state.Origin == "" {
		return fault.New(fault.Precondition, "the repository is a mirror: change it at its origin")
	}
	origin.User = nil
	return fault.New(fault.Precondition, "the repository is a mirror: change it at its origin, %s",
		origin.JoinPath(strings.TrimPrefix(state.Path, "/")))
}
