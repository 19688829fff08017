package mirror

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// Status describes a mirror.
type Status struct {
	Path     string    `json:"path"`               // here, without ".git"
	Origin   string    `json:"origin"`             // URL of the repository at the origin
	Complete bool      `json:"complete"`           // the first update has ended well
	Updating bool      `json:"updating"`           // an update is running
	Progress string    `json:"progress,omitempty"` // of the running update, such as "43 %, 120.00 MiB"
	Created  time.Time `json:"created"`
	Fresh    time.Time `json:"fresh,omitzero"`    // when the origin last had the state that the mirror has
	Updated  time.Time `json:"updated,omitzero"`  // the last update that changed refs
	Error    string    `json:"error,omitempty"`   // why the last check or update failed; "" if it did not
	Stale    bool      `json:"stale,omitempty"`   // it is older than stale_for, or not complete: it is not served meanwhile
	Orphan   bool      `json:"orphan,omitempty"`  // no rule covers it: it is not served
	Refused  bool      `json:"refused,omitempty"` // it is damaged or that of another origin: it is not served; see Error
}

func (r *mirror) status() Status {
	url := r.originURL()
	r.mu.Lock()
	defer r.mu.Unlock()
	stale := r.state.Error != "" &&
		(!r.state.Complete || r.rule != nil && r.m.now().Sub(r.state.Fresh) > r.rule.StaleFor)
	s := Status{Path: r.path.String(), Origin: url, Complete: r.state.Complete, Updating: r.running != nil,
		Progress: r.text, Created: r.state.Created, Fresh: r.state.Fresh, Updated: r.state.Updated, Error: r.state.Error,
		Stale: stale, Orphan: r.orphan}
	if r.orphan {
		s.Error = noTable(r.path).Error()
	}
	return s
}

// ListResult is a part of the list of mirrors.
type ListResult struct {
	Mirrors []Status `json:"mirrors"`
	Next    string   `json:"next,omitempty"` // value of after for the next part; "": this is the last one
}

// List lists mirrors in the order of their paths. after is the Next of the previous part, "" for the first.
func (m *Mirrors) List(ctx context.Context, after string) (ListResult, error) {
	paths, next, err := m.list(ctx, after)
	if err != nil {
		return ListResult{}, err
	}
	list := ListResult{Mirrors: []Status{}, Next: next}
	for _, path := range paths {
		if s, err := m.Status(ctx, path); err == nil {
			list.Mirrors = append(list.Mirrors, s)
		}
	}
	return list, ctx.Err()
}

// list returns the paths of mirrors in a page of the node's repositories.
func (m *Mirrors) list(ctx context.Context, after string) (paths []git.RepoPath, next string, err error) {
	page, err := m.node.List(ctx, places.ListQuery{After: after, All: true})
	if err != nil {
		return nil, "", err
	}
	for _, name := range page.Paths {
		path, err := git.ParseRepoPath(strings.TrimSuffix(name, ".git"))
		if err == nil && m.node.HasMirrorMark(name) {
			paths = append(paths, path)
		}
	}
	return paths, page.Next, nil
}

// Status describes one mirror, also one that is refused. The error is NotFound if the path is not that of a mirror.
func (m *Mirrors) Status(ctx context.Context, path git.RepoPath) (Status, error) {
	r, err := m.existing(ctx, path)
	marks, missing := m.node.MirrorMarks(path)
	if err == nil && missing == nil && !r.isOrphan() { // it may have been damaged since it was opened
		err = m.mayServe(path, marks)
	}
	switch {
	case err == nil:
		return r.status(), nil
	case ctx.Err() == nil && missing == nil && marks.Any():
		s := Status{Path: path.String(), Error: err.Error(), Refused: true}
		if saved, err := loadState(marks); err == nil {
			s.Origin = strings.TrimSuffix(saved.Origin, "/") + "/" + saved.currentPath()
		}
		return s, nil
	}
	return Status{}, err
}

// existing returns a mirror, even one without a rule.
func (m *Mirrors) existing(ctx context.Context, path git.RepoPath) (*mirror, error) {
	r, err := m.openExisting(ctx, path)
	if err == nil && r == nil {
		err = fault.New(fault.NotFound, "no mirror at %s", path)
	}
	return r, err
}

// Add creates a mirror with the mirror's own credential and waits until the origin has answered. The first update goes
// on in the background. An existing mirror is not changed. The error is NotFound if no rule covers the path or the
// origin has no such repository, and Exists if a repository without an origin has the path. Others are those of the
// origin.
func (m *Mirrors) Add(ctx context.Context, path git.RepoPath) (Status, error) {
	r, err := m.openCovered(ctx, path, node.Secret{}, true)
	switch {
	case err != nil:
		return Status{}, ownRefused(err)
	case r == nil:
		return Status{}, fault.New(fault.Exists, "%s is a repository without an origin", path)
	}
	return r.status(), nil
}

// Refresh checks the origin now and waits for the update, but at most ten seconds. The update goes on if ctx ends. If
// the origin does not accept the mirror's own credential, the next request of a caller checks the origin.
func (m *Mirrors) Refresh(ctx context.Context, path git.RepoPath) (Status, error) {
	r, err := m.existing(ctx, path)
	if err != nil {
		return Status{}, err
	}
	if r.isOrphan() {
		return r.status(), fault.New(fault.NotFound, "no rule allows the mirror %s any more", path)
	}
	r.mu.Lock()
	r.suspect = r.m.now()
	r.mu.Unlock()
	result, err := r.check(ctx, node.Secret{}, true)
	if errors.Is(err, errUpdating) {
		err = nil
	}
	if err == nil {
		err = result.Err
	}
	return r.status(), ownRefused(err)
}

// ownRefused adds to the refusal of a request with the mirror's own credential what can be done.
func ownRefused(err error) error {
	if !fault.Is(err, fault.Unauthenticated) {
		return err
	}
	return fault.Wrap(fault.Unauthenticated, "the origin wants a credential for the mirror: set token_file in "+
		"its [[mirror]] table, or fetch from the mirror with yours", err)
}

// Remove deletes a mirror with its repository, also one that is refused. The errors are those of storage.Node.Delete.
func (m *Mirrors) Remove(ctx context.Context, path git.RepoPath) error {
	return m.end(ctx, path, func(path git.RepoPath) error {
		err := m.node.Delete(ctx, path, places.DeleteOptions{})
		if err == nil {
			m.log.Info("removed a mirror", "repository", path.String())
		}
		return err
	})
}

// Detach makes an ordinary repository of a mirror, also of one that is refused. The repository keeps its objects and
// refs and has no origin any more. It accepts pushes if the node does. The error is Unavailable if the first update has
// not ended.
func (m *Mirrors) Detach(ctx context.Context, path git.RepoPath) error {
	if r, err := m.existing(ctx, path); err == nil && !r.complete() {
		return fault.New(fault.Unavailable, "the mirror %s is not complete yet: wait for its first update, or remove it",
			path)
	}
	return m.end(ctx, path, func(path git.RepoPath) error {
		marks, err := m.node.MirrorMarks(path)
		if err == nil && marks.Key {
			err = m.node.SetMirrorKey(ctx, marks.Dir, false)
		}
		if err == nil && marks.File {
			err = errors.Join(os.Remove(filepath.Join(marks.Dir, stateFile)), disk.SyncDir(marks.Dir))
		}
		if err != nil {
			return fault.Wrap(fault.Unavailable, "cannot remove the marks of the mirror", err)
		}
		m.log.Info("detached a mirror", "repository", path.String())
		return nil
	})
}

// end ends a mirror and its updates before do, which removes the repository or its marks.
func (m *Mirrors) end(ctx context.Context, path git.RepoPath, do func(git.RepoPath) error) error {
	r, err := m.existing(ctx, path)
	if err != nil {
		if !m.isMirror(path) {
			return err
		}
		r = m.lookUp(path) // nil: it was not used since the start
	}
	if r != nil {
		path = r.path
		r.remove()
		defer m.forget(r)
	}
	return do(path)
}
