package origin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
)

// Locks passes a request about locks to the server with the caller's credential. Owners are those of the server.
func (r LFSRepository) Locks(ctx context.Context, q lfs.LockRequest) (lfs.LockAnswer, error) {
	ref := refOf(q.Ref)
	switch q.Action {
	case lfs.CreateLock:
		return r.changeLock(ctx, "/locks", wire.LockRequest{Path: q.Path, Ref: ref})
	case lfs.Unlock:
		if !isLockID(q.ID) {
			return lfs.LockAnswer{}, fault.New(fault.NotFound, "there is no lock %.70q", q.ID)
		}
		return r.changeLock(ctx, "/locks/"+q.ID+"/unlock", wire.UnlockRequest{Force: q.Force, Ref: ref})
	}
	if q.Path == "" && q.ID == "" {
		// only this request says whose locks they are, but the server may demand more of the caller for it
		answer, err := r.verifyLocks(ctx, wire.VerifyLocksRequest{Ref: ref, Cursor: q.Cursor, Limit: q.Limit})
		switch fault.KindOf(err) {
		case fault.Denied, fault.Unauthenticated, fault.NotFound:
		default:
			return answer, err
		}
	}
	return r.listLocks(ctx, q)
}

// refOf returns a ref by its name; nil for "".
func refOf(name string) *wire.Ref {
	if name == "" {
		return nil
	}
	return &wire.Ref{Name: name}
}

// changeLock creates or removes a lock.
func (r LFSRepository) changeLock(ctx context.Context, path string, in any) (lfs.LockAnswer, error) {
	var response wire.LockResponse
	err := r.send(ctx, lfsCall{method: http.MethodPost, path: path, writes: true, in: in}, &response)
	if e, ok := errors.AsType[*Error](err); ok && fault.Is(err, fault.Exists) {
		if json.Unmarshal(e.Body, &response) != nil || response.Lock == nil {
			return lfs.LockAnswer{}, err
		}
		answer, invalid := r.lockAnswer(nil, []wire.Lock{*response.Lock}, "")
		return answer, errors.Join(err, invalid)
	}
	if err != nil {
		return lfs.LockAnswer{}, err
	}
	if response.Lock == nil {
		return lfs.LockAnswer{}, fault.New(fault.Unavailable, "origin %s answered without a lock", r.Origin.Host())
	}
	return r.lockAnswer([]wire.Lock{*response.Lock}, nil, "")
}

func (r LFSRepository) verifyLocks(ctx context.Context, in wire.VerifyLocksRequest) (lfs.LockAnswer, error) {
	var response wire.VerifyLocksResponse
	err := r.send(ctx, lfsCall{method: http.MethodPost, path: "/locks/verify", writes: true, in: in}, &response)
	if err != nil {
		return lfs.LockAnswer{}, err
	}
	return r.lockAnswer(response.Ours, response.Theirs, response.NextCursor)
}

func (r LFSRepository) listLocks(ctx context.Context, q lfs.LockRequest) (lfs.LockAnswer, error) {
	query := url.Values{}
	for key, value := range map[string]string{"path": q.Path, "id": q.ID, "cursor": q.Cursor, "refspec": q.Ref} {
		if value != "" {
			query.Set(key, value)
		}
	}
	if q.Limit > 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	var response wire.LockList
	err := r.send(ctx, lfsCall{method: http.MethodGet, path: "/locks", query: query, writes: true}, &response)
	if err != nil {
		return lfs.LockAnswer{}, err
	}
	return r.lockAnswer(nil, response.Locks, response.NextCursor)
}

// lockAnswer translates locks of the caller and of others.
func (r LFSRepository) lockAnswer(ours, others []wire.Lock, next string) (lfs.LockAnswer, error) {
	answer := lfs.LockAnswer{Next: next, Locks: make([]lfs.Lock, 0, len(ours)+len(others))}
	for i, w := range slices.Concat(ours, others) {
		if !isLockID(w.ID) || len(next) > 1024 {
			return lfs.LockAnswer{}, fault.New(fault.Unavailable, "origin %s sent an invalid lock", r.Origin.Host())
		}
		l := lfs.Lock{ID: w.ID, Path: w.Path, Time: w.LockedAt, Ours: i < len(ours)}
		if w.Owner != nil {
			l.Owner = Printable(w.Owner.Name)
		}
		answer.Locks = append(answer.Locks, l)
	}
	slices.SortFunc(answer.Locks, func(a, b lfs.Lock) int { return strings.Compare(a.Path, b.Path) })
	return answer, nil
}

// isLockID reports whether the ID of a lock can be part of a URL as it is.
func isLockID(id string) bool {
	return id != "" && len(id) <= 128 && !strings.Contains(id, "..") && id != "." &&
		!strings.ContainsFunc(id, func(c rune) bool {
			return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("-_=.~", c)
		})
}
