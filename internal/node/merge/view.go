package merge

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

const (
	maxObject = 64 << 20 // bytes of a commit or a tree
	maxTrees  = 8 << 20  // bytes of view.trees
)

// view has the objects of a repository, which the caller holds, and new ones. It is used by one goroutine.
type view struct {
	repo    *repo.Repo
	objects map[git.ObjectID]*write.Object // new ones; nil: they are not needed
	bytes   int64                          // of the new ones
	shallow graph.Commits

	trees, older map[git.ObjectID]tree // recently read; older is the former value of trees
	treeBytes    int                   // of trees, about
}

// tree is a tree that was read. It must not be changed.
type tree struct {
	entries     []edit.Entry
	isCanonical bool // Git would write it in the same way
}

func newView(r *repo.Repo) (*view, error) {
	shallow, err := r.ShallowSet()
	return &view{repo: r, shallow: shallow, trees: make(map[git.ObjectID]tree)}, err
}

// read reads a commit or a tree.
func (v *view) read(id git.ObjectID, want git.ObjectType) ([]byte, error) {
	if o, ok := v.objects[id]; ok && o.Type == want {
		return o.Data, nil
	}
	typ, data, err := v.repo.Objects.Read(id, maxObject)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil, fault.Wrap(fault.Corrupt, fmt.Sprintf("the repository is incomplete: %s %s is missing", want, id), err)
	case err == nil && typ != want:
		return nil, fault.New(fault.Corrupt, "object %s is a %s where a %s should be", id, typ, want)
	}
	return data, err
}

// add adds new objects. The error is Invalid if there are too many.
func (v *view) add(list ...*write.Object) error {
	for _, o := range list {
		if v.objects[o.ID] == nil {
			v.objects[o.ID] = o
			v.bytes += o.Size
		}
	}
	if v.bytes > scratch.MaxBytes {
		return fault.New(fault.Invalid, "the result has more than %d bytes of new objects", int64(scratch.MaxBytes))
	}
	return nil
}

// tree reads a tree; the zero ID has no entries.
func (v *view) tree(id git.ObjectID) (t tree, err error) {
	if id.IsZero() {
		return tree{isCanonical: true}, nil
	}
	t, ok := v.trees[id]
	if ok {
		return t, nil
	}
	if t, ok = v.older[id]; !ok {
		if t, err = v.parse(id); err != nil {
			return t, err
		}
	}
	if v.treeBytes > maxTrees {
		v.trees, v.older, v.treeBytes = make(map[git.ObjectID]tree), v.trees, 0
	}
	v.trees[id] = t
	v.treeBytes += len(t.entries) * 120 // with its name
	return t, nil
}

// canonicalModes are the modes that git writes.
var canonicalModes = []uint32{pack.ModeFile, pack.ModeTree, pack.ModeExecutable, pack.ModeSymlink, pack.ModeGitlink}

// parse reads a tree.
func (v *view) parse(id git.ObjectID) (t tree, err error) {
	data, err := v.read(id, git.Tree)
	if err == nil {
		t.entries, err = edit.ParseTree(data, v.repo.Format)
	}
	t.isCanonical = bytes.Equal(edit.FormatTree(t.entries), data) && slices.IsSortedFunc(t.entries, edit.CompareEntries) &&
		!slices.ContainsFunc(t.entries, func(e edit.Entry) bool {
			return !slices.Contains(canonicalModes, e.Mode) || e.ID == emptyTree(v.repo.Format)
		})
	return t, err
}

// commit reads a commit.
func (v *view) commit(ctx context.Context, id git.ObjectID) (c pack.Commit, data []byte, err error) {
	if err := ctx.Err(); err != nil {
		return c, nil, err
	}
	if data, err = v.read(id, git.Commit); err != nil {
		return c, nil, err
	}
	c, err = pack.ParseCommit(data, v.repo.Format)
	return c, data, fault.Wrap(fault.Corrupt, "commit "+id.String()+" is damaged", err)
}

// treeOf returns the tree of a commit; of the zero ID the empty one.
func (v *view) treeOf(ctx context.Context, id git.ObjectID) (git.ObjectID, error) {
	if id.IsZero() {
		return emptyTree(v.repo.Format), nil
	}
	c, _, err := v.commit(ctx, id)
	return c.Tree, err
}

// emptyTree returns the ID of a tree without entries.
func emptyTree(format git.ObjectFormat) git.ObjectID {
	if format == git.SHA256 {
		return emptySHA256
	}
	return emptySHA1
}

var (
	emptySHA1   = write.ObjectID(git.SHA1, git.Tree, nil)
	emptySHA256 = write.ObjectID(git.SHA256, git.Tree, nil)
)
