package router

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// Calls makes calls of a node's public API. A Node that implements it takes such calls. It is safe for concurrent use.
type Calls interface {
	// Call passes each message of the response to receive, whose error ends the call and is returned. Other errors have
	// a fault kind. A node.UnsentError means that the node has not begun the call.
	Call(ctx context.Context, call node.Call, receive func(message []byte) error) error
}

// AccessLog is the node.AccessLog of the store of a gateway's nodes. The store of the first node that answers is used
// for the life of the process.
type AccessLog struct {
	Router *Router
	store  atomic.Pointer[string] // nil: not known yet
}

// ReadAccess implements node.AccessLog.
func (l *AccessLog) ReadAccess(ctx context.Context, after uint64) (node.AccessRecords, error) {
	var m internalv1.AccessServiceReadResponse
	err := l.call(ctx, "Read", &internalv1.AccessServiceReadRequest{After: after}, &m, false)
	found := node.AccessRecords{At: m.GetAt(), Changes: m.GetChanges()}
	if len(m.GetCheckpoint()) > 0 {
		found.Checkpoint = m.GetCheckpoint()
	}
	return found, err
}

// AppendAccess implements node.AccessLog.
func (l *AccessLog) AppendAccess(ctx context.Context, head uint64, change, checkpoint []byte) (bool, error) {
	var m internalv1.AccessServiceAppendResponse
	err := l.call(ctx, "Append", &internalv1.AccessServiceAppendRequest{Head: head, Change: change,
		Checkpoint: checkpoint}, &m, true)
	return m.GetAppended(), err
}

// call makes a call. A change is not sent to a second node after the first one may have got it.
func (l *AccessLog) call(ctx context.Context, method string, request, response proto.Message, isChange bool) error {
	text, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	result := error(fault.Retry(fault.Unavailable, fault.RetrySoon, "no storage node with a store is ready"))
	for _, m := range l.Router.routing.Load().members {
		calls, ok := m.Node.(Calls)
		id, _ := m.storeID()
		if pinned := l.store.Load(); !ok || id == "" || pinned != nil && *pinned != id || !m.isReady() || !m.acquire() {
			continue
		}
		result = calls.Call(ctx, node.Call{Procedure: "/packhorse.internal.v1.AccessService/" + method, Request: text},
			func(message []byte) error { return proto.Unmarshal(message, response) })
		m.release()
		if result == nil {
			l.store.CompareAndSwap(nil, &id)
		}
		if _, unsent := errors.AsType[*node.UnsentError](result); result == nil || isChange && !unsent || ctx.Err() != nil {
			break
		}
	}
	return result
}
