package githttp

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
)

// The locking API (docs/api/locking.md). Callers who may write may also remove the locks of others, with force, as in
// Gitea. Locks prevent mistakes, and callers who may write can change the files anyway.

// lfsLock creates a lock.
func (q *request) lfsLock() {
	q.Op = gateway.LFSLocks
	var document wire.LockRequest
	if !q.isLFSDocument() || !q.mayLFS(auth.Write) || !q.readLFS(&document) {
		return
	}
	var answer lfs.LockAnswer
	ask := lfs.LockRequest{Action: lfs.CreateLock, Path: document.Path, Ref: nameOf(document.Ref)}
	created := q.askLocks(ask, &answer)
	switch {
	case !created && fault.Is(q.Err, fault.Exists) && len(answer.Locks) == 1:
		lock := wire.NewLock(&answer.Locks[0])
		q.json(http.StatusConflict, wire.MediaType, wire.LockResponse{Lock: &lock, Message: fault.Message(q.Err)})
	case !created:
		q.fail(q.Err)
	default:
		q.sendLock(http.StatusCreated, answer)
	}
}

// askLocks has a node answer a request about locks. It does not respond.
func (q *request) askLocks(ask lfs.LockRequest, answer *lfs.LockAnswer) (ok bool) {
	seat, err := q.Enter()
	if err != nil {
		q.Err = err
		return false
	}
	defer seat.Leave()
	*answer = q.LFSLocks(ask, nil)
	return q.Err == nil
}

// sendLock sends the lock that was created or removed.
func (q *request) sendLock(status int, answer lfs.LockAnswer) {
	if len(answer.Locks) != 1 {
		q.fail(fault.New(fault.Internal, "the storage node returned %d locks instead of one", len(answer.Locks)))
		return
	}
	lock := wire.NewLock(&answer.Locks[0])
	q.json(status, wire.MediaType, wire.LockResponse{Lock: &lock})
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
	var answer lfs.LockAnswer
	if !q.askLocks(lfs.LockRequest{Action: lfs.ListLocks, Path: query.Get("path"), ID: query.Get("id"),
		Ref: query.Get("refspec"), Cursor: query.Get("cursor"), Limit: limit}, &answer) {
		q.fail(q.Err)
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
	q.Op = gateway.LFSLocks
	var document wire.VerifyLocksRequest
	if !q.isLFSDocument() || !q.mayLFS(auth.Write) || !q.readLFS(&document) {
		return
	}
	var answer lfs.LockAnswer
	if !q.askLocks(lfs.LockRequest{Action: lfs.ListLocks, Ref: nameOf(document.Ref), Cursor: document.Cursor,
		Limit: max(document.Limit, 0)}, &answer) {
		q.fail(q.Err)
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
	q.Op = gateway.LFSLocks
	var document wire.UnlockRequest
	if !q.isLFSDocument() || !q.mayLFS(auth.Write) || !q.readLFS(&document) {
		return
	}
	var answer lfs.LockAnswer
	if !q.askLocks(lfs.LockRequest{Action: lfs.Unlock, ID: id, Force: document.Force, Ref: nameOf(document.Ref)},
		&answer) {
		q.fail(q.Err)
		return
	}
	q.sendLock(http.StatusOK, answer)
}
