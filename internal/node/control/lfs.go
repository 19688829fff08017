package control

import (
	"context"
	"crypto/sha256"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// lfsService serves Git LFS.
type lfsService struct{ *Server }

var _ internalv1connect.LFSServiceHandler = (*lfsService)(nil)

// serveUnary serves a request with one message each way, and returns its outcome.
func (s *lfsService) serveUnary(ctx context.Context, operation, caller string, message sessionMessage,
	answer answerFunc) (outcome *internalv1.Outcome, err error) {
	send := func(part *internalv1.SessionResponse) error {
		outcome = part.GetEnd().GetOutcome()
		return nil
	}
	request := &request{last: true, short: true, memory: new(admit.Holding)}
	err = s.serveSession(ctx, operation, caller, message, request, send,
		func(ctx context.Context, x *sessionCall) (node.Outcome, error) {
			x.response.seat.Stay()
			return answer(ctx, x)
		})
	return outcome, err
}

// Batch returns the states of objects.
func (s *lfsService) Batch(ctx context.Context, r *connect.Request[internalv1.BatchRequest]) (
	*connect.Response[internalv1.BatchResponse], error) {
	batch, err := batchOf(r.Msg)
	if err != nil {
		return nil, err
	}
	answer := &internalv1.BatchResponse{}
	answer.Outcome, err = s.serveUnary(ctx, "lfs_batch", r.Header().Get(callerHeader), r.Msg,
		func(ctx context.Context, x *sessionCall) (node.Outcome, error) {
			states, outcome, err := s.Sessions.LFSBatch(ctx, x.repo, x.session, batch)
			for _, state := range states {
				answer.States = append(answer.States, byte(state.State))
				if state.State == lfs.Refused {
					answer.Refusals = append(answer.Refusals, refusalMessage(state.Err))
				}
			}
			return outcome, err
		})
	return responseOf(answer, err)
}

// maxRefusal is the maximum length of the reason for a refused object in bytes. A response has many.
const maxRefusal = 256

func refusalMessage(err error) *packhorsev1.Fault {
	m := faultrpc.Message(err)
	m.Message = strings.ToValidUTF8(m.Message[:min(len(m.Message), maxRefusal)], "")
	return m
}

// batchOf checks a batch.
func batchOf(m *internalv1.BatchRequest) (lfs.Batch, error) {
	ids, sizes := m.GetOids(), m.GetSizes()
	if len(m.GetRef()) > maxLockText {
		return lfs.Batch{}, fault.New(fault.Invalid, "ref longer than %d bytes", maxLockText)
	}
	if len(sizes) > lfs.MaxBatch || len(ids) != len(sizes)*sha256.Size {
		return lfs.Batch{}, fault.New(fault.Invalid,
			"invalid batch: want up to %d IDs of %d bytes and as many sizes, got %d bytes and %d sizes", lfs.MaxBatch,
			sha256.Size, len(ids), len(sizes))
	}
	b := lfs.Batch{Upload: m.GetUpload(), Ref: m.GetRef(), Objects: make([]lfs.Object, len(sizes))}
	for i, size := range sizes {
		if size < 0 {
			return b, fault.New(fault.Invalid, "invalid size of an LFS object: %d", size)
		}
		b.Objects[i] = lfs.Object{OID: lfs.OID(ids[i*sha256.Size:]), Size: size}
	}
	return b, nil
}

// objectOf checks the name of an object.
func objectOf(m *internalv1.LFSObject) (o lfs.Object, err error) {
	if len(m.GetOid()) != sha256.Size || m.GetSize() < 0 {
		return o, fault.New(fault.Invalid, "invalid LFS object: want an ID of %d bytes and a size, got %d bytes and %d",
			sha256.Size, len(m.GetOid()), m.GetSize())
	}
	return lfs.Object{OID: lfs.OID(m.GetOid()), Size: m.GetSize()}, nil
}

// receiveTransfer receives the first message of a transfer, and checks its object and the offset in it.
func receiveTransfer(stream *sessionStream) (start *internalv1.SessionStart, o lfs.Object, err error) {
	if start, err = receiveStart(stream, protocol.UploadPack, protocol.ReceivePack); err != nil {
		return nil, o, err
	}
	o, err = objectOf(start.GetObject())
	if offset := start.GetOffset(); err == nil && (offset < 0 || offset > o.Size) {
		err = fault.New(fault.Invalid, "invalid offset in an LFS object of %d bytes: %d", o.Size, offset)
	}
	return start, o, err
}

// Download sends an object.
func (s *lfsService) Download(ctx context.Context, stream *sessionStream) error {
	start, object, err := receiveTransfer(stream)
	if err != nil {
		return err
	}
	download := lfs.Download{Object: object, Offset: start.GetOffset(), Length: start.GetLength()}
	request := &request{last: true, memory: new(admit.Holding)}
	return s.serveStream(ctx, "lfs_download", stream, start, request,
		func(ctx context.Context, x *sessionCall) (node.Outcome, error) {
			o, err := s.Sessions.LFSDownload(ctx, x.repo, x.session, download, x.response)
			o.LFS.Object = object.OID.String()
			return o, err
		})
}

// Upload receives an object. The gateway sends the content only when the node first reads it, as in a push.
func (s *lfsService) Upload(ctx context.Context, stream *sessionStream) error {
	start, object, err := receiveTransfer(stream)
	if err != nil {
		return err
	}
	if len(start.GetRef()) > maxLockText {
		return fault.New(fault.Invalid, "ref longer than %d bytes", maxLockText)
	}
	upload := lfs.Upload{Object: object, Offset: start.GetOffset(), Partial: start.GetPartial(), Ref: start.GetRef()}
	return s.serveStream(ctx, "lfs_upload", stream, start, nil,
		func(ctx context.Context, x *sessionCall) (o node.Outcome, err error) {
			if err := x.response.seat.Move(s.Lanes.Push); err != nil {
				return o, err
			}
			content := &push{response: x.response, receive: stream.Receive}
			x.objectBytes, o, err = s.Sessions.LFSUpload(ctx, x.repo, x.session, upload, content)
			o.LFS.Object = object.OID.String()
			if content.from != nil { // otherwise the node has the object already, and the gateway sends nothing
				x.response.complete = content.end
			}
			return o, err
		})
}

// Part returns how much of an object an interrupted upload has left.
func (s *lfsService) Part(ctx context.Context, r *connect.Request[internalv1.PartRequest]) (
	*connect.Response[internalv1.PartResponse], error) {
	object, err := objectOf(r.Msg.GetObject())
	if err != nil {
		return nil, err
	}
	answer := &internalv1.PartResponse{}
	answer.Outcome, err = s.serveUnary(ctx, "lfs_part", r.Header().Get(callerHeader), r.Msg,
		func(ctx context.Context, x *sessionCall) (o node.Outcome, err error) {
			answer.ObjectBytes, o, err = s.Sessions.LFSPart(ctx, x.repo, x.session, object)
			return o, err
		})
	return responseOf(answer, err)
}

// lockActions are the actions of the API. An action that is not among them is invalid.
var lockActions = map[internalv1.LockAction]lfs.LockAction{
	internalv1.LockAction_LOCK_ACTION_CREATE: lfs.CreateLock,
	internalv1.LockAction_LOCK_ACTION_LIST:   lfs.ListLocks,
	internalv1.LockAction_LOCK_ACTION_UNLOCK: lfs.Unlock,
}

// maxLockText is the maximum length of each text in a request about locks in bytes. A cursor has a path of up to 4 KiB
// in base64.
const maxLockText = 8 << 10

// lockRequestOf checks a request about locks.
func lockRequestOf(m *internalv1.LocksRequest) (q lfs.LockRequest, err error) {
	action, ok := lockActions[m.GetAction()]
	if !ok {
		return q, fault.New(fault.Invalid, "unknown action of a request about locks: %d", m.GetAction())
	}
	q = lfs.LockRequest{Action: action, Caller: m.GetCaller(), Path: string(m.GetPath()), ID: m.GetId(), Ref: m.GetRef(),
		Force: m.GetForce(), Cursor: m.GetCursor(), Limit: int(m.GetLimit())}
	for _, text := range []string{q.Caller, q.Path, q.ID, q.Ref, q.Cursor} {
		if len(text) > maxLockText {
			return q, fault.New(fault.Invalid, "request about locks with a text longer than %d bytes", maxLockText)
		}
	}
	if q.Limit < 0 {
		return q, fault.New(fault.Invalid, "invalid limit of a list of locks: %d", q.Limit)
	}
	return q, nil
}

// Locks makes, lists or removes locks.
func (s *lfsService) Locks(ctx context.Context, r *connect.Request[internalv1.LocksRequest]) (
	*connect.Response[internalv1.LocksResponse], error) {
	question, err := lockRequestOf(r.Msg)
	if err != nil {
		return nil, err
	}
	answer := &internalv1.LocksResponse{}
	answer.Outcome, err = s.serveUnary(ctx, "lfs_locks", r.Header().Get(callerHeader), r.Msg,
		func(ctx context.Context, x *sessionCall) (node.Outcome, error) {
			found, outcome, err := s.Sessions.LFSLocks(ctx, x.repo, x.session, question)
			for _, lock := range found.Locks {
				answer.Locks = append(answer.Locks, lockMessage(lock))
			}
			answer.Next = found.Next
			if fault.Is(err, fault.Exists) && len(found.Locks) == 1 { // an error of the call has no room for the lock
				answer.Conflict = faultrpc.Message(err)
				err = &node.ReportedError{Err: err}
			}
			return outcome, err
		})
	return responseOf(answer, err)
}

func lockMessage(l lfs.Lock) *internalv1.Lock {
	return &internalv1.Lock{Id: l.ID, Path: []byte(l.Path), Owner: strings.ToValidUTF8(l.Owner, "?"),
		Time: timestamppb.New(l.Time), Ours: l.Ours}
}
