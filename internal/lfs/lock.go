package lfs

import "time"

// Lock is a lock of a file: its owner asks others not to change it.
type Lock struct {
	ID    string // at most 128 bytes, safe in a URL and a log
	Path  string // of the file in the repository
	Owner string // name of the caller who made it
	Time  time.Time
	Ours  bool // the caller of the request owns it
}

// LockAction is what a LockRequest asks for.
type LockAction uint8

const (
	// CreateLock makes a lock of Path. If another one has it, the error is of kind Exists and LockAnswer.Locks has that
	// lock.
	CreateLock LockAction = iota
	// ListLocks lists the locks that match ID and Path, in ascending order of their paths.
	ListLocks
	// Unlock removes the lock with the ID. Without Force, that of another owner is Denied. An unknown one is NotFound.
	Unlock
)

// LockRequest is a request about locks of a repository.
type LockRequest struct {
	Action LockAction
	Caller string // the owner of the locks that Ours reports
	Path   string // "": any, for ListLocks
	ID     string // "": any, for ListLocks
	Ref    string // of the client's branch, for an origin; "": none
	Force  bool
	Cursor string // LockAnswer.Next of the part before; "": the first part
	Limit  int    // maximum number of locks; 0: the node's own limit
}

// LockAnswer is the answer to a LockRequest: the lock that was made or removed, or the listed ones.
type LockAnswer struct {
	Locks []Lock
	Next  string // the cursor of the next part; "": none
}
