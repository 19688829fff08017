package storage

import (
	"context"
	"crypto/rand"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

// ReceivePack takes a push. When it has answered, what was pushed is what everybody sees, and whoever watches the repository has been told.
func (n *Node) ReceivePack(ctx context.Context, path git.RepoPath, session node.Session, pusher node.Pusher, request io.Reader,
	reply node.ResponseWriter) (outcome node.Outcome, err error) {
	if n.pushes == nil {
		return node.Outcome{}, errNoPushes()
	}
	h, err := n.acquire(path)
	if err != nil {
		return node.Outcome{}, err
	}
	defer n.release(h)
	if missing := h.Objects.MissingAlternate(); missing != nil { // git refuses the push if it needs what is missing
		n.log.Error("a push to a damaged repository", "repository", path.String(), "error", missing)
	}
	ctx, span := inflight.Trace(ctx, "receive-pack")
	defer func() { traceOutcome(span, &outcome, err) }()
	first := false
	if n.setHead {
		snap, err := h.Refs.Snapshot(ctx)
		if err != nil {
			return node.Outcome{}, err
		}
		if first, err = isEmpty(snap); err != nil {
			return node.Outcome{}, err
		}
	}
	target := receivepack.Target{Repo: h.Repo, Path: path, Changed: func(ctx context.Context, done []receivepack.Update) {
		if first {
			n.adoptHead(ctx, h, path, done)
		}
		n.pushed(ctx, h, path)
	}}
	return n.pushes.Serve(ctx, target, session, pusher, request, reply)
}

func errNoPushes() error { return fault.New(fault.Denied, "this server does not accept pushes") }

// Settle is receivepack.Server's: pushes to a node before this one that may still change refs.
func (n *Node) Settle(ctx context.Context) (alive []string) {
	if n.pushes == nil {
		return nil
	}
	return n.pushes.WaitForEarlierPushes(ctx)
}

// Complete is receivepack.Server's: atomic pushes to a node before this one of which it is not certain that no half is to be seen.
func (n *Node) Complete(ctx context.Context) (left []string) {
	if n.pushes == nil {
		return nil
	}
	return n.pushes.CompleteAtomicPushes(ctx)
}

// Current tells what a ref points at, whether fetches see it or not; the zero ID: it does not exist. Errors: those of opening the repository.
func (n *Node) Current(ctx context.Context, path git.RepoPath, ref git.RefName) (git.ObjectID, error) {
	h, snap, _, err := n.snapshot(ctx, path)
	if err != nil {
		return git.ObjectID{}, err
	}
	defer n.release(h)
	found, _, err := snap.Unhidden().Lookup(ref)
	return found.ID, err
}

// advertisePush begins a push.
func (n *Node) advertisePush(ctx context.Context, h *handle, session node.Session, reply node.ResponseWriter) (node.Outcome, error) {
	if n.pushes == nil {
		return node.Outcome{}, errNoPushes()
	}
	return n.pushes.Advertise(ctx, h.Repo, session, rand.Text(), reply)
}

// tellLimit is how long a push waits for those who watch to be told: a file system that hangs must not keep back what is done.
const tellLimit = 5 * time.Second

// pushed makes known what a push did, before its client is told: the snapshot of refs is of now, and watches are told.
func (n *Node) pushed(ctx context.Context, h *handle, path git.RepoPath) {
	if err := h.Refresh(); err != nil {
		n.log.Warn("cannot look at a repository after a push", "repository", path.String(), "error", err)
	}
	if _, err := h.Refs.Snapshot(ctx); err != nil {
		n.log.Warn("cannot read a repository's refs after a push", "repository", path.String(), "error", err)
	}
	soon, cancel := context.WithTimeout(ctx, tellLimit)
	defer cancel()
	n.tell(soon, path)
}
