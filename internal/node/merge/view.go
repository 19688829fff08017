package merge

import (
	"context"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

const (
	maxObject = 64 << 20  // bytes of a commit or a tree
	maxResult = 256 << 20 // bytes of all new objects of one request
)

// view has the objects of a repository, which the caller holds, and new ones. It is used by one goroutine.
type view struct {
	repo    *repo.Repo
	objects map[git.ObjectID]object // new ones
	bytes   int64                   // of the new ones
	isKept  bool                    // new objects are needed
	shallow graph.Commits
}

type object struct {
	typ  git.ObjectType
	data []byte
}

func newView(r *repo.Repo) (*view, error) {
	shallow, err := r.ShallowSet()
	return &view{repo: r, objects: make(map[git.ObjectID]object), shallow: shallow}, err
}

// read reads a commit or a tree.
func (v *view) read(id git.ObjectID, want git.ObjectType) ([]byte, error) {
	if o, ok := v.objects[id]; ok && o.typ == want {
		return o.data, nil
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

// add adds an object.
func (v *view) add(id git.ObjectID, typ git.ObjectType, data []byte) {
	if _, ok := v.objects[id]; !ok {
		v.objects[id] = object{typ, data}
		v.bytes += int64(len(data))
	}
}

// tree reads a tree.
func (v *view) tree(id git.ObjectID) ([]edit.Entry, []byte, error) {
	data, err := v.read(id, git.Tree)
	if err != nil {
		return nil, nil, err
	}
	list, err := edit.ParseTree(data, v.repo.Format)
	return list, data, err
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

// list returns the new objects for a change.
func (v *view) list() []*write.Object {
	list := make([]*write.Object, 0, len(v.objects))
	for _, o := range v.objects {
		list = append(list, write.NewObject(v.repo.Format, o.typ, o.data))
	}
	return list
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
