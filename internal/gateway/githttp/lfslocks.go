package githttp

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
)

// The locking API (docs/api/locking.md). Callers who may write may also remove the locks of others, with force, as in
// Gitea. Locks prevent mistakes, and callers who may write can change the files anyway.

// lfsLock creates a lock.
func (q *request) lfsLock() {
	var document wire.LockRequest
	if !q.readLocks(&document) {
		return
	}
	answer := q.LFSLocks(lfs.LockRequest{Action: lfs.CreateLock, Path: document.Path, Ref: nameOf(document.Ref)}, nil)
	status, message := http.StatusCreated, ""
	switch {
	case q.Err == nil:
	case fault.Is(q.Err, fault.Exists) && len(answer.Locks) == 1:
		status, message = http.StatusConflict, fault.Message(q.Err)
	default:
		q.fail(q.Err)
		return
	}
	lock := wire.NewLock(&answer.Locks[0])
	q.json(status, wire.MediaType, wire.LockResponse{Lock: &lock, Message: message})
}

// readLocks reads the document of a caller who may write; if it cannot, it responds.
func (q *request) readLocks(document any) bool {
	q.Op = gateway.LFSLocks
	return q.isLFSDocument() && q.mayLFS(auth.Write) && q.readLFS(document)
}

// askLocks has a node answer a request about locks; if it cannot, it responds with the error.
func (q *request) askLocks(request lfs.LockRequest) (answer lfs.LockAnswer, ok bool) {
	if answer = q.LFSLocks(request, nil); q.Err != nil {
		q.fail(q.Err)
	}
	return answer, q.Err == nil
}

func nameOf(ref *wire.Ref) string {
	if ref == nil {
		return ""
	}
	return ref.Name
}

// lfsListLocks lists locks.
func (q *request) lfsListLocks() {
	q.Op = gateway.LFSLocks
	if !q.method(http.MethodGet) || !q.takesLFS() || !q.mayLFS(auth.Read) {
		return
	}
	query, err := url.ParseQuery(q.r.URL.RawQuery)
	limit := 0
	if text := query.Get("limit"); err == nil && text != "" {
		limit, err = strconv.Atoi(text)
	}
	if err != nil || limit < 0 {
		q.refuse(http.StatusUnprocessableEntity, "bad query: use path, id, cursor, limit and refspec")
		return
	}
	answer, ok := q.askLocks(lfs.LockRequest{Action: lfs.ListLocks, Path: query.Get("path"), ID: query.Get("id"),
		Ref: query.Get("refspec"), Cursor: query.Get("cursor"), Limit: limit})
	if !ok {
		return
	}
	list := wire.LockList{Locks: make([]wire.Lock, len(answer.Locks)), NextCursor: answer.Next}
	for i := range answer.Locks {
		list.Locks[i] = wire.NewLock(&answer.Locks[i])
	}
	q.json(http.StatusOK, wire.MediaType, list)
}

// lfsVerifyLocks lists the locks of the caller and those of others, before a push.
func (q *request) lfsVerifyLocks() {
	var document wire.VerifyLocksRequest
	if !q.readLocks(&document) {
		return
	}
	answer, ok := q.askLocks(lfs.LockRequest{Action: lfs.ListLocks, Ref: nameOf(document.Ref), Cursor: document.Cursor,
		Limit: max(document.Limit, 0)})
	if !ok {
		return
	}
	list := wire.VerifyLocksResponse{Ours: []wire.Lock{}, Theirs: []wire.Lock{}, NextCursor: answer.Next}
	for i := range answer.Locks {
		if lock := wire.NewLock(&answer.Locks[i]); answer.Locks[i].Ours {
			list.Ours = append(list.Ours, lock)
		} else {
			list.Theirs = append(list.Theirs, lock)
		}
	}
	q.json(http.StatusOK, wire.MediaType, list)
}

// lfsUnlock removes a lock.
func (q *request) lfsUnlock(id string) {
	var document wire.UnlockRequest
	if !q.readLocks(&document) {
		return
	}
	answer, ok := q.askLocks(lfs.LockRequest{Action: lfs.Unlock, ID: id, Force: document.Force,
		Ref: nameOf(document.Ref)})
	if ok {
		lock := wire.NewLock(&answer.Locks[0])
		q.json(http.StatusOK, wire.MediaType, wire.LockResponse{Lock: &lock})
	}
}
