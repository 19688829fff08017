// Package merge merges commits of a repository without a working copy. Results are those of git merge-tree with its
// usual configuration: settings of the repository have no effect.
//
// Trees are merged in process where the result is certain (treeMerge). For other merges, a `git merge-tree` runs, which
// stays for further merges of the repository (worker). It works in a git directory of its own (package scratch), so
// that no configuration can run a program, and new objects do not get into the repository. The files .gitattributes of
// the target choose among Git's built-in merge drivers.
//
// A merge with one base is a merge of three trees. Git versions before 2.40 have no such call, so Git gets three
// commits with these trees. It gets the real commits only if they have several bases.
package merge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/edit"
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

// trees merges three trees. The zero base is the empty tree. Names of files with conflicts and messages can have the
// IDs of the two commits.
func (m *Merger) trees(ctx context.Context, v *view, three [3]git.ObjectID, a, b git.ObjectID) (Check, error) {
	if three[base].IsZero() {
		three[base] = emptyTree(v.repo.Format)
	}
	switch {
	case three[base] == three[theirs], three[ours] == three[theirs]:
		return Check{Tree: three[ours]}, nil
	case three[base] == three[ours]:
		return Check{Tree: three[theirs]}, nil
	}
	t := treeMerge{ctx: ctx, view: v, made: make(map[git.ObjectID][]byte)}
	if tree, isCertain, err := t.merge(three); err != nil || isCertain {
		return Check{Tree: tree}, err
	}
	return m.byGit(ctx, v, request{three, a, b, false})
}

// commits merges two commits with their merge bases.
func (m *Merger) commits(ctx context.Context, v *view, bases []git.ObjectID, a, b git.ObjectID) (Check, error) {
	var three [3]git.ObjectID
	for side, id := range [3]git.ObjectID{ours: a, theirs: b} {
		if side == base && len(bases) > 0 {
			id = bases[0]
		}
		if id.IsZero() {
			continue
		}
		c, _, err := v.commit(ctx, id)
		if err != nil {
			return Check{}, err
		}
		three[side] = c.Tree
	}
	if len(bases) < 2 {
		return m.trees(ctx, v, three, a, b)
	}
	return m.byGit(ctx, v, request{three, a, b, true})
}

// request is a merge by Git.
type request struct {
	trees [3]git.ObjectID
	a, b  git.ObjectID // commits
	// hasBases means that the bases are those of the commits. Otherwise the trees are merged.
	hasBases bool
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
	if w.labels = nil; !r.hasBases {
		if a, b, err = w.commitTrees(v, r.trees); err != nil {
			return found, err
		}
		w.labels = strings.NewReplacer(a.String(), r.a.String(), b.String(), r.b.String())
	}
	if found, err = w.merge(ctx, a, b, v.repo.Format); err != nil {
		return Check{}, fault.Wrap(fault.KindOf(err), fmt.Sprintf("merge of %s and %s", r.a, r.b), err)
	}
	if !found.Tree.IsZero() && v.isKept {
		known := []edit.Entry{{Mode: pack.ModeTree, ID: r.trees[ours]}, {Mode: pack.ModeTree, ID: r.trees[theirs]}}
		err = w.collect(v, edit.Entry{Mode: pack.ModeTree, ID: found.Tree}, known)
	}
	return found, err
}

// commitTrees makes commits of our and of their tree, whose merge base has the base.
func (w *worker) commitTrees(v *view, three [3]git.ObjectID) (a, b git.ObjectID, err error) {
	for id, o := range v.objects { // the results of earlier merges
		if err := w.put(id, o.typ, o.data); err != nil {
			return a, b, err
		}
	}
	var ids [3]git.ObjectID
	for i, tree := range three {
		text := "tree " + tree.String() + "\n"
		if i != base {
			text += "parent " + ids[base].String() + "\n"
		}
		text += fmt.Sprintf("author a <> 0 +0000\ncommitter a <> %d +0000\n\n", i)
		ids[i] = write.ObjectID(v.repo.Format, git.Commit, []byte(text))
		if err := w.put(ids[i], git.Commit, []byte(text)); err != nil {
			return a, b, err
		}
	}
	return ids[ours], ids[theirs], nil
}

// put makes an object readable for Git.
func (w *worker) put(id git.ObjectID, typ git.ObjectType, data []byte) error {
	if w.written[id] {
		return nil
	}
	w.written[id] = true
	return w.dir.Put(id, typ, data)
}

var errTooLarge = fault.New(fault.Invalid, "the result has more than %d bytes of new objects", maxResult)

// collect adds an object that Git has written, with everything in it that is new. Known entries with the same name are
// not.
func (w *worker) collect(v *view, e edit.Entry, known []edit.Entry) error {
	if _, isAdded := v.objects[e.ID]; isAdded || e.Mode == pack.ModeGitlink || slices.ContainsFunc(known, e.Same) {
		return nil
	}
	typ, data, err := w.dir.Read(e.ID, maxResult)
	switch {
	case fault.Is(err, fault.NotFound): // it is in the repository
		return nil
	case fault.Is(err, fault.Invalid), v.bytes+int64(len(data)) > maxResult:
		return errTooLarge
	case err != nil:
		return err
	}
	v.add(e.ID, typ, data)
	if w.written[e.ID] = true; typ != git.Tree {
		return nil
	}
	var below [][]edit.Entry
	for _, k := range known {
		if k.Mode == pack.ModeTree {
			list, _, err := v.tree(k.ID)
			if err != nil {
				return err
			}
			below = append(below, list)
		}
	}
	list, err := edit.ParseTree(data, v.repo.Format)
	for _, e := range list {
		known = known[:0:0]
		for _, other := range below {
			known = append(known, edit.FindEntry(other, string(e.Name)))
		}
		err = errors.Join(err, w.collect(v, e, known))
	}
	return err
}
