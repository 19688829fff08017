package remote

import (
	"context"
	"errors"
	"io"
	"math"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
)

// callLFS makes a unary call of Git LFS.
func callLFS[Q, B any, A interface {
	*B
	GetOutcome() *internalv1.Outcome
}](ctx context.Context, n *Node, session node.Session, request *Q,
	call func(internalv1connect.LFSServiceClient, context.Context, *connect.Request[Q]) (*connect.Response[B], error)) (
	answer A, o node.Outcome, err error) {
	if err := n.checkCredential(session); err != nil {
		return nil, o, err
	}
	if s := n.state.Load(); !s.reachable {
		return nil, o, &node.UnsentError{Err: s.err}
	}
	r := connect.NewRequest(request)
	n.addHeaders(ctx, r.Header())
	addStore(r.Header(), session.StoreID)
	response, err := call(n.link.Load().lfs, ctx, r)
	if err != nil {
		o = n.outcomeOfError(ctx, err)
		failure := n.failed(ctx, err)
		if isDialError(err) {
			failure = &node.UnsentError{Err: failure}
		}
		return nil, o, failure
	}
	answer = response.Msg
	o, err = n.outcomeOf(ctx, answer.GetOutcome())
	return answer, o, err
}

func objectMessage(o lfs.Object) *internalv1.LFSObject {
	return &internalv1.LFSObject{Oid: o.OID[:], Size: o.Size}
}

// LFSBatch returns the states of objects, in their order.
func (n *Node) LFSBatch(ctx context.Context, repo git.RepoPath, session node.Session, b lfs.Batch) (
	[]lfs.Status, node.Outcome, error) {
	if len(b.Objects) > lfs.MaxBatch {
		return nil, node.Outcome{}, fault.New(fault.Invalid, "batch of more than %d LFS objects", lfs.MaxBatch)
	}
	request := &internalv1.BatchRequest{Repository: repo.String(), Session: sessionMessage(session), Upload: b.Upload,
		Ref: b.Ref, Oids: make([]byte, 0, len(b.Objects)*len(lfs.OID{})), Sizes: make([]int64, len(b.Objects))}
	for i := range b.Objects {
		request.Oids = append(request.Oids, b.Objects[i].OID[:]...)
		request.Sizes[i] = b.Objects[i].Size
	}
	answer, o, err := callLFS(ctx, n, session, request, internalv1connect.LFSServiceClient.Batch)
	if err != nil {
		return nil, o, err
	}
	states := make([]lfs.Status, len(answer.GetStates()))
	refusals := answer.GetRefusals()
	for i, state := range answer.GetStates() {
		states[i].State = lfs.State(state)
		switch {
		case states[i].State < lfs.Refused:
		case states[i].State == lfs.Refused && len(refusals) > 0:
			states[i].Err, refusals = faultrpc.Fault(refusals[0]), refusals[1:]
			o.LFS.Refused++
		default:
			return nil, o, n.invalidResponse(errors.New("unknown state of an LFS object, or no reason for a refused one"))
		}
	}
	if len(states) != len(b.Objects) {
		return nil, o, n.invalidResponse(errors.New("another number of states than of LFS objects"))
	}
	return states, o, nil
}

// LFSDownload sends an object, or a part of it, to the client.
func (n *Node) LFSDownload(ctx context.Context, repo git.RepoPath, session node.Session, d lfs.Download,
	w node.ResponseWriter) (o node.Outcome, err error) {
	if err := n.checkCredential(session); err != nil {
		return o, err
	}
	session.Stateless = true
	return n.session(ctx, w, nil, &sessionCall{
		open: func(l *link) openSession { return l.lfs.Download },
		start: &internalv1.SessionStart{Repository: repo.String(), Session: sessionMessage(session),
			Object: objectMessage(d.Object), Offset: d.Offset, Length: d.Length},
	})
}

// LFSUpload stores an object. Like the request of a push, content is not read before the node has admitted the upload,
// because until then another node may take it. size is the number of bytes of the object that the node has.
func (n *Node) LFSUpload(ctx context.Context, repo git.RepoPath, session node.Session, u lfs.Upload,
	content io.Reader) (size int64, o node.Outcome, err error) {
	if err := n.checkCredential(session); err != nil {
		return 0, o, err
	}
	session.Stateless = true
	stream := newRequestStream(content, session)
	stream.push, stream.lossAdvice = true, "the upload; upload the object again"
	o, err = n.session(ctx, nil, stream, &sessionCall{
		storeID: session.StoreID,
		open:    func(l *link) openSession { return l.lfs.Upload },
		start: &internalv1.SessionStart{Repository: repo.String(), Session: sessionMessage(session),
			Object: objectMessage(u.Object), Offset: u.Offset, Partial: u.Partial, Ref: u.Ref},
	})
	if err != nil {
		return 0, o, err
	}
	return stream.objectBytes, o, n.checkObjectBytes(stream.objectBytes, u.Object)
}

// checkObjectBytes checks how many bytes of an object a node reports.
func (n *Node) checkObjectBytes(size int64, o lfs.Object) error {
	if size < 0 || size > o.Size {
		return n.invalidResponse(errors.New("impossible number of bytes of an LFS object"))
	}
	return nil
}

// LFSPart returns how many bytes of an object an interrupted upload has left.
func (n *Node) LFSPart(ctx context.Context, repo git.RepoPath, session node.Session, object lfs.Object) (
	int64, node.Outcome, error) {
	request := &internalv1.PartRequest{Repository: repo.String(), Session: sessionMessage(session),
		Object: objectMessage(object)}
	answer, o, err := callLFS(ctx, n, session, request, internalv1connect.LFSServiceClient.Part)
	if err != nil {
		return 0, o, err
	}
	return answer.GetObjectBytes(), o, n.checkObjectBytes(answer.GetObjectBytes(), object)
}

// lockActions are the actions of the API.
var lockActions = [...]internalv1.LockAction{
	lfs.CreateLock: internalv1.LockAction_LOCK_ACTION_CREATE,
	lfs.ListLocks:  internalv1.LockAction_LOCK_ACTION_LIST,
	lfs.Unlock:     internalv1.LockAction_LOCK_ACTION_UNLOCK,
}

// LFSLocks makes, lists or removes locks.
func (n *Node) LFSLocks(ctx context.Context, repo git.RepoPath, session node.Session, q lfs.LockRequest) (
	found lfs.LockAnswer, o node.Outcome, err error) {
	request := &internalv1.LocksRequest{Repository: repo.String(), Session: sessionMessage(session),
		Action: lockActions[q.Action], Caller: q.Caller, Path: []byte(q.Path), Id: q.ID, Ref: q.Ref, Force: q.Force,
		Cursor: q.Cursor, Limit: int32(min(q.Limit, math.MaxInt32))}
	answer, o, err := callLFS(ctx, n, session, request, internalv1connect.LFSServiceClient.Locks)
	if err != nil {
		return found, o, err
	}
	for _, l := range answer.GetLocks() {
		found.Locks = append(found.Locks, lfs.Lock{ID: l.GetId(), Path: string(l.GetPath()), Owner: l.GetOwner(),
			Time: l.GetTime().AsTime(), Ours: l.GetOurs()})
	}
	found.Next = answer.GetNext()
	if conflict := answer.GetConflict(); conflict != nil {
		return found, o, faultrpc.Fault(conflict)
	}
	return found, o, nil
}
