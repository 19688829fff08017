// Package wire has the JSON documents of Git LFS's API (docs/api of git-lfs), for the server and for the client of
// other servers.
package wire

import "time"

// MediaType is the content type of all documents.
const MediaType = "application/vnd.git-lfs+json"

// Values of BatchRequest.
const (
	Upload   = "upload"   // an Operation
	Download = "download" // an Operation
	Basic    = "basic"    // a transfer: whole objects by GET and PUT
	SHA256   = "sha256"   // a HashAlgo
)

// BatchRequest asks about objects before their transfer (docs/api/batch.md).
type BatchRequest struct {
	Operation string   `json:"operation"`
	Transfers []string `json:"transfers,omitempty"` // empty means Basic
	Ref       *Ref     `json:"ref,omitempty"`
	Objects   []Object `json:"objects"`
	HashAlgo  string   `json:"hash_algo,omitempty"` // empty means SHA256
}

// Ref is the branch or tag that the client works with.
type Ref struct {
	Name string `json:"name"`
}

// Object names an object.
type Object struct {
	OID  string `json:"oid"`
	Size int64  `json:"size"`
}

// BatchResponse is the answer to a BatchRequest.
type BatchResponse struct {
	Transfer string         `json:"transfer,omitempty"` // empty means Basic
	Objects  []ObjectAnswer `json:"objects"`
	HashAlgo string         `json:"hash_algo,omitempty"`
}

// ObjectAnswer has what the client has to do with an object. An object of an upload without actions and without an
// error is there already.
type ObjectAnswer struct {
	Object
	Authenticated bool         `json:"authenticated,omitempty"` // Actions need no credentials
	Actions       *Actions     `json:"actions,omitempty"`
	Error         *ObjectError `json:"error,omitempty"`
}

// Actions are requests for one object.
type Actions struct {
	Download *Action `json:"download,omitempty"`
	Upload   *Action `json:"upload,omitempty"`
	Verify   *Action `json:"verify,omitempty"` // after the upload: a POST of an Object
}

// Action is a request to send.
type Action struct {
	Href      string            `json:"href"`
	Header    map[string]string `json:"header,omitempty"`
	ExpiresIn int64             `json:"expires_in,omitempty"` // seconds; it wins over ExpiresAt
	ExpiresAt time.Time         `json:"expires_at,omitzero"`
}

// ObjectError is why one object cannot be transferred. Code is a status of HTTP: 404, 409, 410, 422 or another one.
type ObjectError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Error is the body of a response with an error status.
type Error struct {
	Message       string `json:"message"`
	Documentation string `json:"documentation_url,omitempty"`
	RequestID     string `json:"request_id,omitempty"`
}

// LockRequest creates a lock (docs/api/locking.md).
type LockRequest struct {
	Path string `json:"path"`
	Ref  *Ref   `json:"ref,omitempty"`
}

// Lock is a lock.
type Lock struct {
	ID       string    `json:"id"`
	Path     string    `json:"path"`
	LockedAt time.Time `json:"locked_at"`
	Owner    *Owner    `json:"owner,omitempty"`
}

// Owner is the owner of a lock.
type Owner struct {
	Name string `json:"name"`
}

// LockResponse has the lock that was created or removed. With status 409 it is the existing lock and a message.
type LockResponse struct {
	Lock    *Lock  `json:"lock,omitempty"`
	Message string `json:"message,omitempty"`
}

// LockList is a part of the list of locks.
type LockList struct {
	Locks      []Lock `json:"locks"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// VerifyLocksRequest asks for the locks of the caller and of others.
type VerifyLocksRequest struct {
	Ref    *Ref   `json:"ref,omitempty"`
	Cursor string `json:"cursor,omitempty"`
	Limit  int    `json:"limit,omitempty"` // zero means the server's own limit
}

// VerifyLocksResponse is a part of the answer to a VerifyLocksRequest.
type VerifyLocksResponse struct {
	Ours       []Lock `json:"ours"`
	Theirs     []Lock `json:"theirs"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// UnlockRequest removes a lock.
type UnlockRequest struct {
	Force bool `json:"force,omitempty"`
	Ref   *Ref `json:"ref,omitempty"`
}
