package mirror

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Status describes a mirror.
type Status struct {
	Path     string    `json:"path"`               // here, without ".git"
	Origin   string    `json:"origin"`             // URL of the repository at the origin
	Complete bool      `json:"complete"`           // the first update has ended well
	Updating bool      `json:"updating"`           // an update is running
	Progress string    `json:"progress,omitempty"` // of the running update, such as "43 %, 120 MiB"
	Created  time.Time `json:"created"`
	Fresh    time.Time `json:"fresh,omitzero"`   // when the origin last had the state that the mirror has
	Updated  time.Time `json:"updated,omitzero"` // the last update that changed refs
	Error    string    `json:"error,omitempty"`  // why the last check or update failed; "" if it did not
	Orphan   bool      `json:"orphan,omitempty"` // no rule covers it, so that it is not served as a mirror
}

// ListResult is a part of the list of mirrors.
type ListResult struct {
	Mirrors []Status `json:"mirrors"`
	Next    string   `json:"next,omitempty"` // value of after for the next part; "": this is the last one
}

// List lists mirrors in the order of their paths. after is the Next of the previous part, "" for the first.
func (m *Mirrors) List(ctx context.Context, after string) (ListResult, error) {
	return ListResult{}, errNotYet
}

// Status describes one mirror. The error is NotFound if the path is not that of a mirror.
func (m *Mirrors) Status(ctx context.Context, path git.RepoPath) (Status, error) {
	return Status{}, errNotYet
}

// Add creates a mirror with the mirror's own credential and waits until the origin has answered. The first update goes
// on in the background. An existing mirror is not changed. The error is NotFound if no rule covers the path or the
// origin has no such repository, and Exists if a repository without an origin has the path. Others are those of the
// origin.
func (m *Mirrors) Add(ctx context.Context, path git.RepoPath) (Status, error) {
	return Status{}, errNotYet
}

// Refresh checks the origin now and waits for the update. The update goes on if ctx ends. If the origin wants a
// caller's credential, the next caller's request checks the origin.
func (m *Mirrors) Refresh(ctx context.Context, path git.RepoPath) (Status, error) {
	return Status{}, errNotYet
}

// Remove deletes a mirror with its repository.
func (m *Mirrors) Remove(ctx context.Context, path git.RepoPath) error { return errNotYet }

// Detach makes an ordinary repository of a mirror: it keeps its objects and refs and has no origin any more. It accepts
// pushes if the node does. Errors: Unavailable if the first update has not ended.
func (m *Mirrors) Detach(ctx context.Context, path git.RepoPath) error { return errNotYet }
