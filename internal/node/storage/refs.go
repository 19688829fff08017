package storage

import (
	"context"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Resolved is a ref, the object that it peels to (zero: it is not an annotated tag), and the version of the repository.
type Resolved struct {
	refs.Ref
	Version git.Version
	Purges  string // changes when objects are purged; empty without purged objects
}

// Resolve finds the ref for a name: a full name, HEAD or "@", or a short name (gitrevisions(7), "<refname>"). HEAD is
// the only name outside of refs/. Errors: NotFound if the ref does not exist, Invalid for an invalid name, and those of
// opening a repository.
func (n *Node) Resolve(ctx context.Context, path git.RepoPath, name string) (Resolved, error) {
	h, snap, version, err := n.snapshot(ctx, path)
	if err != nil {
		return Resolved{}, err
	}
	defer n.release(h)
	return resolveRef(h.Repo, snap, version, name)
}

// Question is one name in one repository.
type Question struct {
	Path git.RepoPath
	Name string
}

// ResolveMany is Resolve for up to MaxNames names of any repositories. It calls answer once for each name, in any
// order, with its own error. Names of one repository see one state of it. The error is Invalid for too many names, or
// that of ctx. There are no calls of answer after an error.
func (n *Node) ResolveMany(ctx context.Context, questions []Question, answer func(i int, r Resolved, err error)) error {
	path := func(i int) git.RepoPath { return questions[i].Path }
	return n.batch(ctx, "names", len(questions), path, func(group []int, h *handle, at state, err error) {
		for _, i := range group {
			if err != nil {
				answer(i, Resolved{}, err)
				continue
			}
			r, err := resolveRef(h.Repo, at.snap, at.version, questions[i].Name)
			answer(i, r, err)
		}
	})
}

// resolveRef finds a name in a snapshot.
func resolveRef(r *repo.Repo, snap *refs.Snapshot, version git.Version, name string) (Resolved, error) {
	if name == "@" {
		name = string(git.HEAD)
	}
	if err := checkName(name); err != nil {
		return Resolved{}, err
	}
	if _, err := git.ParseObjectID(name); err == nil { // for Git this is the object, even if such a ref exists
		return Resolved{}, fault.New(fault.NotFound, "%s is an object ID, not a ref", name)
	}
	found, err := snap.Expand(name)
	if err != nil {
		return Resolved{}, err
	}
	if len(found) == 0 {
		if target := snap.Head().Target; name == string(git.HEAD) && target != "" {
			return Resolved{}, fault.New(fault.NotFound, "HEAD points to %s, which does not exist yet", target)
		}
		return Resolved{}, fault.New(fault.NotFound, "no ref %q in this repository", name)
	}
	ref := found[0]
	ref.Peeled, ref.PeelKnown, err = r.PeelRef(ref)
	return Resolved{ref, version, r.PurgeMark()}, err
}

// checkName refuses invalid names. A short name is valid if it makes a valid ref below refs/.
func checkName(name string) error {
	if name == string(git.HEAD) || git.IsSafeRefName("refs/"+name) {
		return nil
	}
	return fault.New(fault.Invalid, "invalid ref name %q", fault.Short(name))
}

// Exists reports whether a ref with this full name exists. A broken one does not. The errors are those of Resolve.
func (n *Node) Exists(ctx context.Context, path git.RepoPath, name string) (bool, git.Version, error) {
	full, err := git.ParseRefName(name)
	if err != nil {
		return false, git.Version{}, fault.Wrap(fault.Invalid, "use the full name of a ref, such as refs/heads/main", err)
	}
	h, snap, version, err := n.snapshot(ctx, path)
	if err != nil {
		return false, git.Version{}, err
	}
	defer n.release(h)
	_, ok, err := snap.Lookup(full)
	return ok, version, err
}

// RefQuery selects refs.
type RefQuery struct {
	Prefix  string      // of the full name
	Pattern string      // for the full name, see Glob; "": any
	After   git.RefName // only names after this one
	Limit   int         // maximum number of refs; 0: no limit
	Peel    bool        // fill in the objects that annotated tags peel to
}

// RefBatch is a part of a list of refs.
type RefBatch struct {
	Refs    []refs.Ref // at most MaxBatch; valid until send returns
	Version git.Version
	Last    bool
	Next    git.RefName // in the last batch, if the limit was reached: value of After for the next list
}

// MaxBatch is the maximum number of refs in a batch.
const MaxBatch = 1000

// ListRefs lists refs of one state of the repository in the order of their names, without HEAD. It calls send for each
// batch, at least once. An error of send ends the list and is returned. Memory does not grow with the number of refs.
func (n *Node) ListRefs(ctx context.Context, path git.RepoPath, q RefQuery, send func(RefBatch) error) error {
	match := func(string) bool { return true }
	if q.Pattern != "" {
		g, err := ParseGlob(q.Pattern)
		if err != nil {
			return err
		}
		match = g.Match
		switch literal := g.Literal(); {
		case strings.HasPrefix(literal, q.Prefix):
			q.Prefix = literal
		case !strings.HasPrefix(q.Prefix, literal):
			match = func(string) bool { return false }
		}
	}
	h, snap, version, err := n.snapshot(ctx, path)
	if err != nil {
		return err
	}
	defer n.release(h)
	l := refList{ctx: ctx, repo: h.Repo, query: q, match: match, send: send, batch: RefBatch{Version: version}}
	if err := snap.EachAfter(q.Prefix, q.After, l.add); err != nil {
		return err
	}
	l.batch.Last = true
	return send(l.batch)
}

// refList is a list in progress.
type refList struct {
	ctx   context.Context
	repo  *repo.Repo
	query RefQuery
	match func(name string) bool
	send  func(RefBatch) error

	batch   RefBatch
	listed  int
	visited int
}

func (l *refList) add(ref refs.Ref) error {
	if l.visited++; l.visited%MaxBatch == 0 {
		if err := l.ctx.Err(); err != nil {
			return err
		}
	}
	if !l.match(string(ref.Name)) {
		return nil
	}
	if l.query.Limit > 0 && l.listed == l.query.Limit {
		l.batch.Next = git.RefName(strings.Clone(string(l.batch.Refs[len(l.batch.Refs)-1].Name)))
		return refs.ErrStop
	}
	if len(l.batch.Refs) == MaxBatch { // only now, because the last batch must not be empty: it may need Next
		if err := l.send(l.batch); err != nil {
			return err
		}
		l.batch.Refs = l.batch.Refs[:0]
	}
	if l.query.Peel {
		var err error
		if ref.Peeled, ref.PeelKnown, err = l.repo.PeelRef(ref); err != nil {
			return err
		}
	} else {
		ref.Peeled, ref.PeelKnown = git.ObjectID{}, false
	}
	l.batch.Refs = append(l.batch.Refs, ref)
	l.listed++
	return nil
}
