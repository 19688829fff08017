// Package merge merges commits of a repository without a working copy. Results are those of git merge-tree with its
// usual configuration: settings of the repository have no effect.
//
// Trees are merged in process where the result is certain (treeMerge). For other merges, a `git merge-tree` runs, which
// stays for further merges of the repository (worker). It works in a git directory of its own (package scratch), so
// that no configuration can run a program, and new objects do not get into the repository. The files .gitattributes of
// the target choose among Git's built-in merge drivers.
//
// A rebase or a pick is a merge of three trees. Git versions before 2.40 have no such call, so Git gets three commits
// with these trees.
package merge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Class is the class of Git commands that merge. See WorkerAge for its time limit.
const Class process.Class = "merge"

// Options configure a Merger.
type Options struct {
	Runner *process.Runner
	Space  *scratch.Space
}

// Merger merges commits. It is safe for concurrent use.
type Merger struct {
	runner  *process.Runner
	space   *scratch.Space
	config  [][2]string    // for Git, in tests
	workers sync.WaitGroup // their processes and files

	mu   sync.Mutex
	idle []*worker // the oldest first
}

// New creates a Merger.
func New(o Options) *Merger {
	return &Merger{runner: o.Runner, space: o.Space}
}

// Close ends all processes. No merge may be running.
func (m *Merger) Close() {
	for w := m.take(anyWorker); w != nil; w = m.take(anyWorker) {
		m.close(w)
	}
	m.workers.Wait()
}

// request is a merge of trees.
type request struct {
	trees [3]git.ObjectID
	// a and b are our and their commit. Their IDs can be in names of files with conflicts and in messages.
	a, b git.ObjectID
	// isReplay means that the base is not that of the commits.
	isReplay bool
}

// trees merges three trees.
func (m *Merger) trees(ctx context.Context, v *view, r request) (Check, error) {
	switch r.trees[base] {
	case r.trees[theirs]:
		return Check{Tree: r.trees[ours]}, nil
	case r.trees[ours]:
		return Check{Tree: r.trees[theirs]}, nil
	}
	if r.trees[ours] == r.trees[theirs] {
		return Check{Tree: r.trees[ours]}, nil
	}
	t := treeMerge{ctx: ctx, view: v}
	if tree, isCertain, err := t.merge(r.trees); err != nil || isCertain {
		return Check{Tree: tree}, err
	}
	return m.byGit(ctx, v, r)
}

// commits merges two commits with their merge bases.
func (m *Merger) commits(ctx context.Context, v *view, bases []git.ObjectID, a, b git.ObjectID) (Check, error) {
	three := [3]git.ObjectID{ours: a, theirs: b}
	copy(three[:1], bases)
	for side, id := range three {
		var err error
		if three[side], err = v.treeOf(ctx, id); err != nil {
			return Check{}, err
		}
	}
	r := request{three, a, b, false}
	if len(bases) < 2 {
		return m.trees(ctx, v, r)
	}
	return m.byGit(ctx, v, r)
}

func (m *Merger) byGit(ctx context.Context, v *view, r request) (found Check, err error) {
	files, err := v.attributes(ctx, r.trees)
	if err != nil {
		return found, err
	}
	key := workerKey{v.repo.Incarnation, v.repo.Common, files.key()}
	w := m.take(func(w *worker) bool { return w.key == key })
	if w != nil {
		found, err = w.outcome(ctx, v, r)
		m.finish(w, err == nil)
		// The repository may have changed in a way that a process does not notice.
		if err == nil || ctx.Err() != nil || fault.Is(err, fault.Invalid) {
			return found, err
		}
	}
	if w, err = m.start(ctx, key, v.repo, files); err != nil {
		return found, err
	}
	found, err = w.outcome(ctx, v, r)
	m.finish(w, err == nil)
	return found, err
}

// outcome merges by Git, and reads the new objects.
func (w *worker) outcome(ctx context.Context, v *view, r request) (found Check, err error) {
	a, b := r.a, r.b
	if w.labels = nil; r.isReplay {
		if a, b, err = w.commitTrees(v, r.trees); err != nil {
			return found, err
		}
		w.labels = strings.NewReplacer(a.String(), r.a.String(), b.String(), r.b.String())
	}
	if found, err = w.merge(ctx, a, b, v.repo.Format); err != nil {
		return Check{}, fault.Wrap(fault.KindOf(err), fmt.Sprintf("merge of %s and %s", r.a, r.b), err)
	}
	if found.Tree.IsZero() || v.objects == nil {
		return found, nil
	}
	made, err := w.dir.Objects(found.Tree)
	return found, errors.Join(err, v.add(made...))
}

// commitTrees makes commits of our and of their tree, whose merge base has the base.
func (w *worker) commitTrees(v *view, three [3]git.ObjectID) (a, b git.ObjectID, err error) {
	for _, o := range v.objects { // the results of earlier merges
		if err := w.dir.Put(o.ID, o.Type, o.Data); err != nil {
			return a, b, err
		}
	}
	var ids [3]git.ObjectID
	parent := ""
	for i, tree := range three {
		if ids[i], err = w.commit(tree, parent, i); err != nil {
			return a, b, err
		}
		parent = "parent " + ids[base].String() + "\n"
	}
	return ids[ours], ids[theirs], nil
}

// commit makes a commit.
func (w *worker) commit(tree git.ObjectID, parent string, date int) (git.ObjectID, error) {
	text := fmt.Appendf(nil, "tree %s\n%sauthor a <> 0 +0000\ncommitter a <> %d +0000\n\n", tree, parent, date)
	id := write.ObjectID(tree.Format(), git.Commit, text)
	return id, w.dir.Put(id, git.Commit, text)
}
