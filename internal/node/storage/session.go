package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Advertise begins a session on a repository. Each session has a unique ID (gitprotocol-v2(5), "session-id").
func (n *Node) Advertise(ctx context.Context, path git.RepoPath, session node.Session, response node.ResponseWriter) (
	outcome node.Outcome, err error) {
	ctx, finish := n.traceStore(ctx, response)
	defer func() { finish(&outcome) }()
	h, err := n.acquireCurrent(ctx, path)
	if fault.Is(err, fault.Unavailable) && session.Service != protocol.ReceivePack && session.Version == protocol.V2 {
		h, err = n.acquireKnown(ctx, path, err) // the answer has no refs
	}
	if err != nil {
		return node.Outcome{}, err
	}
	defer n.release(h)
	if session.Service == protocol.ReceivePack {
		if n.pushes == nil {
			return node.Outcome{}, errNoPushes()
		}
		return n.pushes.Advertise(ctx, h.Repo, session, rand.Text(), response)
	}
	outcome, err = n.server.Advertise(ctx, h.Repo, session, rand.Text(), response)
	if outcome.Dangling {
		n.logDangling(h, path)
	}
	return outcome, err
}

// packetReaders has the buffers of requests.
var packetReaders = sync.Pool{New: func() any { return pktline.NewReader(nil) }}

// UploadPack serves one request of a fetch session.
func (n *Node) UploadPack(ctx context.Context, path git.RepoPath, session node.Session, request io.Reader,
	response node.ResponseWriter) (outcome node.Outcome, err error) {
	ctx, finish := n.traceStore(ctx, response)
	defer func() { finish(&outcome) }()
	packets := packetReaders.Get().(*pktline.Reader)
	packets.Reset(request)
	defer func() {
		packets.Reset(nil)
		packetReaders.Put(packets)
	}()
	outcome, err = n.serveFetch(ctx, path, session, packets, response)
	_, isReported := errors.AsType[*node.ReportedError](err)
	if errors.Is(err, refs.ErrGone) && !isReported && packets.Rewind() { // another repository may have the path
		outcome, err = n.serveFetch(ctx, path, session, packets, response)
	}
	return outcome, err
}

// serveFetch is UploadPack for a request whose packets can be read.
func (n *Node) serveFetch(ctx context.Context, path git.RepoPath, session node.Session, packets *pktline.Reader,
	response node.ResponseWriter) (outcome node.Outcome, err error) {
	h, err := n.acquire(ctx, path)
	if err != nil {
		return node.Outcome{}, err
	}
	defer n.release(h)
	ctx, span := inflight.Trace(ctx, "upload-pack")
	defer func() { traceOutcome(span, &outcome, err) }()
	outcome, err = n.server.Serve(ctx, h.Repo, session, packets, response)
	if outcome.Dangling {
		n.logDangling(h, path)
	}
	return outcome, err
}

// ReceivePack serves a push. When it returns, every request sees the changes, and the watchers of the repository have
// been notified. The report may have waited for the warm-up.
func (n *Node) ReceivePack(ctx context.Context, path git.RepoPath, session node.Session, pusher node.Pusher,
	request io.Reader, response node.ResponseWriter) (outcome node.Outcome, err error) {
	if n.pushes == nil {
		return node.Outcome{}, errNoPushes()
	}
	ctx, finish := n.traceStore(ctx, response)
	defer func() { finish(&outcome) }()
	h, shadow, err := n.beginPush(ctx, path)
	if err != nil {
		return node.Outcome{}, err
	}
	defer n.release(h)
	if shadow != nil {
		defer shadow.Close()
	}
	if missing := h.Objects.MissingAlternate(); missing != nil { // Git refuses the push if it needs the missing objects
		n.log.Error("push to a damaged repository", "repository", path.String(), "error", missing)
	}
	ctx, span := inflight.Trace(ctx, "receive-pack")
	defer func() { traceOutcome(span, &outcome, err) }()
	waited := time.Duration(0)
	target, _, err := n.pushTarget(ctx, h, shadow, path, &waited)
	if err != nil {
		return node.Outcome{}, err
	}
	outcome, err = n.pushes.Serve(ctx, target, session, pusher, request, response)
	outcome.Push.Warmup = waited
	return outcome, err
}

// pushTarget returns the target of a push, and the refs before it. waited is set to how long the push waits for the
// warm-up.
func (n *Node) pushTarget(ctx context.Context, h *handle, shadow receivepack.Shadow, path git.RepoPath,
	waited *time.Duration) (receivepack.Target, *refs.Snapshot, error) {
	snap, err := n.noteRefs(ctx, h)
	if err != nil {
		return receivepack.Target{}, nil, err
	}
	isFirst, err := isEmpty(snap)
	return receivepack.Target{Repo: h.Repo, Path: path, Incarnation: h.version(snap).Incarnation, Shadow: shadow,
		LFS: n.lfsStates(h), Gates: &n.claims.Gates,
		Changed: func(ctx context.Context, updates []receivepack.Update) {
			if isFirst {
				n.adoptHead(ctx, h, path, updates)
			}
			if prepared := n.publish(ctx, h, path); prepared != nil {
				*waited = n.warmer.wait(ctx, h, prepared)
			}
		}}, snap, err
}

// beginPush opens the repository of a push, which the caller has to release, and its shadow if it is in a store. If the
// repository is gone, another one may have its path.
func (n *Node) beginPush(ctx context.Context, path git.RepoPath) (*handle, receivepack.Shadow, error) {
	for isLast := false; ; isLast = true {
		h, err := n.acquire(ctx, path)
		if err != nil {
			return nil, nil, err
		}
		shadow, err := h.place.Push(ctx)
		if err == nil {
			return h, shadow, nil
		}
		isFresh := h.isFresh()
		n.release(h)
		if isLast || isFresh || !isReplaced(err) {
			return nil, nil, err
		}
	}
}

func errNoPushes() error { return fault.New(fault.Denied, "this server does not accept pushes") }

// notifyTimeout bounds how long a push waits until watchers are notified, because the file system may hang.
const notifyTimeout = 5 * time.Second

// publish makes changes of refs visible to all requests, and notifies watchers. It returns a channel for warmer.wait.
func (n *Node) publish(ctx context.Context, h *handle, path git.RepoPath) (prepared <-chan struct{}) {
	h.place.NotePush()
	if err := h.Refresh(); err != nil {
		n.log.Warn("cannot refresh a repository after a change", "repository", path.String(), "error", err)
	}
	if _, err := h.Refs.SnapshotOf(ctx, nil); err != nil {
		n.log.Warn("cannot read a repository's refs after a change", "repository", path.String(), "error", err)
	}
	return n.notify(ctx, path)
}

// notify is publish when everything is visible.
func (n *Node) notify(ctx context.Context, path git.RepoPath) (prepared <-chan struct{}) {
	prepared = n.refsChanged(path)
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	n.hub.Notify(ctx, path)
	return prepared
}

// noteRefs makes later fetches know the refs that a repository has before a change. It returns them.
func (n *Node) noteRefs(ctx context.Context, h *handle) (*refs.Snapshot, error) {
	snap, err := h.Refs.SnapshotOf(ctx, nil)
	if err == nil && n.server != nil {
		n.server.NoteRefs(h.Repo, snap)
	}
	return snap, err
}

// WaitForEarlierPushes waits until no push to an earlier node can change refs any more; see package receivepack.
func (n *Node) WaitForEarlierPushes(ctx context.Context) (ids []string) {
	if n.pushes == nil {
		return nil
	}
	return n.pushes.Recovery().WaitForEarlierPushes(ctx)
}

// CompleteAtomicPushes waits until each atomic push to an earlier node is complete or did not begin; see package
// receivepack.
func (n *Node) CompleteAtomicPushes(ctx context.Context) (ids []string) {
	if n.pushes == nil {
		return nil
	}
	return n.pushes.Recovery().CompleteAtomicPushes(ctx)
}

// RefValue returns the object ID of a ref, also of a hidden one. The zero ID means that the ref does not exist. Errors
// are those of opening the repository.
func (n *Node) RefValue(ctx context.Context, path git.RepoPath, ref git.RefName) (git.ObjectID, error) {
	h, snap, _, err := n.snapshot(ctx, path)
	if err != nil {
		return git.ObjectID{}, err
	}
	defer n.release(h)
	found, _, err := snap.Unhidden().Lookup(ref)
	return found.ID, err
}

// traceStore returns a context that traces what the request needs of an object store, and a function that adds it to
// the outcome. If the store cannot be reached, the response announces the age of the refs.
func (n *Node) traceStore(ctx context.Context, response node.ResponseWriter) (context.Context,
	func(*node.Outcome)) {
	onStale := func(time.Duration) {}
	if w, ok := response.(node.StalenessWriter); ok {
		onStale = w.SetStaleness
	}
	ctx, trace := node.WithStoreTrace(ctx, onStale)
	return ctx, trace.Fill
}

// traceOutcome ends the span of a request with its outcome.
func traceOutcome(span *inflight.Span, o *node.Outcome, err error) {
	if span == nil {
		return
	}
	span.Text("packhorse.command", string(o.Command))
	span.Attributes("packhorse.", o.Attrs(nil))
	failure := ""
	if err != nil {
		failure = fault.KindOf(err).String()
	}
	span.End(failure)
}
