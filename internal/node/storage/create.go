package storage

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// CreateOptions configure a new repository.
type CreateOptions struct {
	Format git.ObjectFormat // zero: SHA-1
	Branch string           // that HEAD names, without refs/heads/; "": main
	// AnyName allows components of the path that begin with a dot or a dash, as on other Git hosts: "team/.github".
	AnyName bool
	Mirror  []byte // content of places.MirrorFile; nil: it is not a mirror
	// RequestID makes a repeated Create succeed: if the repository exists and was created with this ID, it is described.
	// Empty means that a repeated Create fails.
	RequestID string
	Settings  places.Settings
}

var requestID = regexp.MustCompile(`^[A-Za-z0-9._-]{0,64}$`)

const (
	maxDepth     = 64  // components of the path of a new repository
	maxComponent = 250 // bytes of each, so that suffixes fit
)

// Create creates an empty bare repository at PATH.git, for a path with or without ".git", and the directories above it.
// It is atomic, and durable if there is no error. The error is Exists if the path, one above it or one below it is
// taken. It is Invalid for an invalid path or branch, and Denied for a place where repositories are not allowed. Other
// errors are those of Git.
func (n *Node) Create(ctx context.Context, path git.RepoPath, o CreateOptions) (d Description, err error) {
	defer func() { n.changedRepository("create", path, err) }()
	if err := o.check(); err != nil {
		return d, err
	}
	name, err := newPath(path, o.AnyName)
	if err != nil {
		return d, err
	}
	head := git.RefName(places.BranchPrefix + o.Branch)
	err = n.record(ctx, event.Create, name, func() error {
		if o.Mirror == nil {
			return n.places.Create(ctx, n.places.Name(name), o.Format, head, o.RequestID, o.Settings)
		}
		return n.places.Import(ctx, n.places.Name(name), func(ctx context.Context, dir string) error {
			if err := places.Initialize(ctx, n.runner, dir, o.Format, head); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, places.MirrorFile), o.Mirror, 0o600); err != nil {
				return places.WriteError(err)
			}
			if err := n.SetMirrorKey(ctx, dir, true); err != nil {
				return err
			}
			return places.SyncTree(dir)
		})
	})
	return n.describeNew(ctx, path, name, err)
}

// describeNew describes a repository that was created; err is the result. name is its path on disk.
func (n *Node) describeNew(ctx context.Context, path, name git.RepoPath, err error) (Description, error) {
	if places.IsChanged(err) {
		n.RefsChanged(path)
	}
	if err != nil {
		return Description{}, err
	}
	d, err := n.Describe(ctx, name)
	return d, fault.Wrap(fault.KindOf(err), "the repository was created, but cannot be described", err)
}

var escaped = regexp.MustCompile("%[0-9A-Fa-f]{2}")

// newPath returns the path on disk of a new repository. anyName is CreateOptions.AnyName.
func newPath(path git.RepoPath, anyName bool) (git.RepoPath, error) {
	name := strings.TrimSuffix(path.String(), ".git")
	components := strings.Split(name, "/")
	if len(components) > maxDepth {
		return git.RepoPath{}, fault.New(fault.Invalid, "path with more than %d components", maxDepth)
	}
	for _, c := range components {
		switch {
		case c == "" || !anyName && (c[0] == '.' || c[0] == '-') || c == repo.PrivateDir || strings.HasSuffix(c, ".git") ||
			strings.HasSuffix(c, ".lock"):
			return git.RepoPath{}, fault.New(fault.Invalid, "path component %.80q: it must not begin with a dot or a dash, "+
				"or end in .lock; only the last one can end in .git", c)
		case escaped.MatchString(c): // a proxy that decodes paths twice must not find another repository
			return git.RepoPath{}, fault.New(fault.Invalid, "path component %.80q: it looks percent-encoded", c)
		case len(c) > maxComponent:
			return git.RepoPath{}, fault.New(fault.Invalid, "path component longer than %d bytes", maxComponent)
		}
	}
	path, err := git.ParseRepoPath(name + ".git")
	return path, fault.Wrap(fault.Invalid, "the path is too long", err)
}

// check sets the defaults, and refuses a branch that Git does not create.
func (o *CreateOptions) check() error {
	if o.Format == 0 {
		o.Format = git.SHA1
	}
	if o.Branch == "" {
		o.Branch = "main"
	}
	if _, err := git.ParseRefName(places.BranchPrefix + o.Branch); err != nil || o.Branch[0] == '-' || o.Branch == "HEAD" {
		return fault.New(fault.Invalid, "invalid branch name %q", fault.Short(o.Branch))
	}
	if !requestID.MatchString(o.RequestID) {
		return invalidRequestID(o.RequestID)
	}
	return nil
}

func invalidRequestID(id string) error {
	return fault.New(fault.Invalid, `invalid request ID %q: use at most 64 letters, digits, ".", "_" and "-"`, fault.Short(id))
}

// Import creates a repository with all refs and HEAD of another one, but without its configuration. It is atomic, and
// durable if there is no error. The errors are those of Create, and Corrupt if its objects are refused.
func (n *Node) Import(ctx context.Context, path git.RepoPath, o places.ImportOptions) (d Description, err error) {
	defer func() { n.changedRepository("import", path, err) }()
	fill, err := places.Clone(n.runner, o)
	if err != nil {
		return d, err
	}
	name, err := newPath(path, false)
	if err != nil {
		return d, err
	}
	err = n.record(ctx, event.Create, name, func() error { return n.places.Import(ctx, n.places.Name(name), fill) })
	return n.describeNew(ctx, path, name, err)
}

// Delete removes a repository; see places.Places.
func (n *Node) Delete(ctx context.Context, path git.RepoPath, o places.DeleteOptions) (err error) {
	defer func() { n.changedRepository("delete", path, err) }()
	err = n.record(ctx, event.Delete, path, func() error { return n.places.Delete(ctx, n.places.Name(path), o) })
	if places.IsChanged(err) {
		n.RefsChanged(path)
	}
	return err
}

// Rename gives a repository another path, with or without ".git". The errors are those of Create and Delete. The error
// is also Denied for a mirror.
func (n *Node) Rename(ctx context.Context, from, to git.RepoPath) (err error) {
	defer func() { n.changedRepository("rename", from, err, "to", to.String()) }()
	target, err := newPath(to, false)
	if err != nil {
		return err
	}
	h, err := n.acquire(ctx, from)
	if err != nil {
		return err
	}
	isMirror := h.place.MirrorMarks().Any()
	n.release(h)
	if isMirror {
		return fault.New(fault.Denied, "%s is a mirror, whose path leads to its origin: make an ordinary repository of it "+
			"first (packhorse mirror detach)", from)
	}
	e := &event.Event{Kind: event.Rename, Repository: event.NameOf(target), Former: event.NameOf(from)}
	err = n.recordAs(ctx, e, target, func() error {
		return n.places.Rename(ctx, n.places.Name(from), n.places.Name(target))
	})
	if places.IsChanged(err) {
		n.RefsChanged(from)
		n.RefsChanged(to)
	}
	return err
}

// List lists repositories; see places.Places. A mirror that must not be read is not listed, unless the query has All.
func (n *Node) List(ctx context.Context, q places.ListQuery) (places.Page, error) {
	if q.Limit <= 0 || q.Limit > places.MaxPage {
		q.Limit = places.MaxPage
	}
	q.Accept = n.checkMirror
	return n.places.List(ctx, q)
}
