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

	lru "github.com/hashicorp/golang-lru/v2"

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
	config  [][2]string // for Git, in tests
	certain func()      // is called after a merge in process, in tests; may be nil
	known   *lru.Cache[knownKey, Check]

	busy    chan struct{}  // has an element for each worker in use, or about to be
	workers sync.WaitGroup // their processes and files

	mu   sync.Mutex
	idle []*worker // the oldest first
}

// New creates a Merger.
func New(o Options) *Merger {
	known, _ := lru.New[knownKey, Check](maxKnown) // the size is valid
	return &Merger{runner: o.Runner, space: o.Space, known: known,
		busy: make(chan struct{}, max(1, o.Runner.Slots(Class)))}
}

// Close ends all processes. No merge may be running.
func (m *Merger) Close() {
	for w := m.take(anyWorker); w != nil; w = m.take(anyWorker) {
		m.close(w)
	}
	m.workers.Wait()
}

// outcome is the result of a merge.
type outcome struct {
	tree        git.ObjectID // zero: there are conflicts
	conflicts   []Conflict
	more        bool // there are more conflicts
	renameLimit bool // the search for renames was limited
}

// trees merges three trees. The zero base is the empty tree. Names of files with conflicts and messages can have the
// IDs of the two commits.
func (m *Merger) trees(ctx context.Context, v *view, three [3]git.ObjectID, a, b git.ObjectID) (outcome, error) {
	if three[base].IsZero() {
		three[base] = emptyTree(v.repo.Format)
	}
	switch {
	case three[base] == three[theirs], three[ours] == three[theirs]:
		return outcome{tree: three[ours]}, nil
	case three[base] == three[ours]:
		return outcome{tree: three[theirs]}, nil
	}
	t := treeMerge{ctx: ctx, view: v, attributes: make(map[string]git.ObjectID)}
	tree, isCertain, err := t.merge(three)
	if err != nil {
		return outcome{}, err
	}
	if isCertain {
		if m.certain != nil {
			m.certain()
		}
		return outcome{tree: tree}, nil
	}
	return m.byGit(ctx, v, &t, request{three, a, b, false})
}

// commits merges two commits with their merge bases.
func (m *Merger) commits(ctx context.Context, v *view, bases []git.ObjectID, a, b git.ObjectID) (outcome, error) {
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
			return outcome{}, err
		}
		three[side] = c.Tree
	}
	if len(bases) < 2 {
		return m.trees(ctx, v, three, a, b)
	}
	t := treeMerge{ctx: ctx, view: v, attributes: make(map[string]git.ObjectID)}
	if _, _, err := t.merge(three); err != nil { // for the attributes
		return outcome{}, err
	}
	return m.byGit(ctx, v, &t, request{three, a, b, true})
}

// request is a merge by Git.
type request struct {
	trees [3]git.ObjectID
	a, b  git.ObjectID // commits
	// hasBases means that the bases are those of the commits. Otherwise the trees are merged.
	hasBases bool
}

func (m *Merger) byGit(ctx context.Context, v *view, t *treeMerge, r request) (found outcome, err error) {
	files, err := v.attributes(t.attributes)
	if err != nil {
		return found, err
	}
	for fresh := false; ; fresh = true {
		w, err := m.worker(ctx, v.repo, files, fresh)
		if err != nil {
			return found, err
		}
		found, err = w.outcome(ctx, v, r)
		wasReused := w.reused
		m.finish(w, err == nil)
		// The repository may have changed in a way that a process does not notice.
		if err == nil || !wasReused || ctx.Err() != nil || fault.Is(err, fault.Invalid) {
			return found, err
		}
	}
}

// outcome merges by Git, and reads the new objects.
func (w *worker) outcome(ctx context.Context, v *view, r request) (outcome, error) {
	a, b := r.a, r.b
	if w.labels = nil; !r.hasBases {
		var err error
		if a, b, err = w.commitTrees(v, r.trees); err != nil {
			return outcome{}, err
		}
		w.labels = strings.NewReplacer(a.String(), r.a.String(), b.String(), r.b.String())
	}
	found, err := w.merge(ctx, a, b, v.repo.Format)
	if err != nil {
		return outcome{}, err
	}
	result := outcome{conflicts: found.conflicts, more: found.more, renameLimit: found.renameLimit}
	if found.clean {
		result.tree = found.tree
		err = w.collect(v, found.tree, r.trees[ours], r.trees[theirs])
	}
	return result, err
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

// collect adds a tree that Git has written, with everything in it that is new. Entries of known trees are not.
func (w *worker) collect(v *view, tree git.ObjectID, known ...git.ObjectID) error {
	if _, isAdded := v.objects[tree]; isAdded || slices.Contains(known, tree) {
		return nil
	}
	typ, data, err := w.dir.Read(tree, maxObject)
	if fault.Is(err, fault.NotFound) {
		return nil // it is in the repository
	} else if err != nil || typ != git.Tree {
		return errors.Join(errOutput, err)
	}
	old, subtrees := make(map[git.ObjectID]bool), make(map[string][]git.ObjectID)
	for _, k := range known {
		if err := v.entries(k, func(isTree bool, name string, id git.ObjectID) error {
			if old[id] = true; isTree {
				subtrees[name] = append(subtrees[name], id)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if w.add(v, git.Tree, data); v.bytes > maxResult {
		return errTooLarge
	}
	return v.entries(tree, func(isTree bool, name string, id git.ObjectID) error {
		switch {
		case old[id]:
			return nil
		case isTree:
			return w.collect(v, id, subtrees[name]...)
		}
		return w.collectBlob(v, id)
	})
}

func (w *worker) collectBlob(v *view, id git.ObjectID) error {
	typ, data, err := w.dir.Read(id, maxResult)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil
	case fault.Is(err, fault.Invalid), v.bytes+int64(len(data)) > maxResult:
		return errTooLarge
	case err == nil:
		w.add(v, typ, data)
	}
	return err
}

// add adds an object that Git has written.
func (w *worker) add(v *view, typ git.ObjectType, data []byte) { w.written[v.add(typ, data)] = true }
