package lookup

import (
	"context"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// maxLastEntries is the maximum number of entries of a directory for LastCommits.
const maxLastEntries = 100_000

// LastCommit is an entry of a directory with the last commit that changed it. Entries share commits.
type LastCommit struct {
	Name   string
	Type   git.ObjectType
	Commit *Commit
}

// LastCommits calls send once with the last commit of each entry of a directory: that of git log -1 REVISION -- PATH.
// Entries are in git's order. Results are cached, and those of earlier commits shorten the search. It is an error of
// kind Invalid to visit more than 2,000,000 commits, or to read a directory with more than 100,000 entries.
func (l *Reader) LastCommits(ctx context.Context, r *repo.Repo, in PathIn, send func([]LastCommit) error) error {
	c, err := l.begin(ctx, r)
	if err != nil {
		return err
	}
	defer c.end()
	id, err := c.commitOf(in.Revision)
	if err != nil {
		return fault.InField("revision", err)
	}
	dir := strings.TrimSuffix(in.Path, "/")
	e, err := c.find(PathIn{id.String(), dir})
	if err == nil && e.mode != pack.ModeTree {
		err = fault.New(fault.Invalid, "path %q is not a directory", fault.Short(in.Path))
	}
	if err != nil {
		return fault.InField("path", err)
	}
	list, err := c.entriesOf(e.id)
	if err != nil {
		return err
	}
	shallow, err := r.ShallowSet()
	if err != nil {
		return err
	}
	s := &lastSearch{differ: differ{operation: c}, isCached: len(shallow) == 0, key: lastKey{r.Common, dir, id},
		list: list, index: make(map[string]int32, len(list)), changed: make([]int, len(list)),
		trees: make(map[git.ObjectID][]byte)}
	if dir != "" {
		s.memo = newPathMemo(c, dir)
	}
	if err := s.run(shallow); err != nil {
		return err
	}
	return send(list)
}

// entriesOf lists a tree.
func (c *operation) entriesOf(tree git.ObjectID) ([]LastCommit, error) {
	data, err := c.tree(tree)
	if err != nil {
		return nil, err
	}
	defer c.drop(int64(len(data)))
	var list []LastCommit
	for rest := data; len(rest) > 0; {
		mode, name, _, next, err := pack.CutEntry(rest, c.repo.Format)
		if err != nil {
			return nil, damagedTree(tree, err)
		}
		if len(list) == maxLastEntries {
			return nil, fault.InField("path", fault.New(fault.Invalid, "a directory with more than %d entries",
				maxLastEntries))
		}
		list, rest = append(list, LastCommit{Name: string(name), Type: TreeEntry{Mode: mode}.Type()}), next
	}
	return list, nil
}

// keptTrees is the number of trees that a search keeps.
const keptTrees = 64

// lastSearch finds the last commits of the entries of one directory.
type lastSearch struct {
	differ
	isCached bool // the boundary of a shallow repository can move, so that its results are not cached
	key      lastKey
	memo     *pathMemo // finds the directory; nil: it is the root
	list     []LastCommit
	index    map[string]int32 // of the names in list
	changed  []int            // by entry: the last comparison that found a change
	count    int              // of comparisons
	trees    map[git.ObjectID][]byte
}

// run fills in the commits of the list.
func (s *lastSearch) run(shallow graph.Commits) error {
	names, found := make([]string, len(s.list)), make([]git.ObjectID, len(s.list))
	for i := range s.list {
		names[i] = s.list[i].Name
		s.index[names[i]] = int32(i)
	}
	o := graph.LastChangeOptions{Dir: s.key.dir, Names: names, Split: s.split, Equal: s.equal, Known: s.known,
		MaxVisited: maxVisited,
		Found: func(commit git.ObjectID, entries []int32) {
			for _, e := range entries {
				found[e] = commit
			}
		}}
	if err := s.repo.Graph.LastChanges(s.ctx, s.key.commit, shallow, o); err != nil {
		return err
	}
	commits := make(map[git.ObjectID]*Commit)
	for i, id := range found {
		if id.IsZero() {
			continue // known
		}
		if commits[id] == nil {
			commit, err := s.commit(id)
			if err == nil {
				err = s.hold(commit.memory()) // until the call ends
			}
			if err != nil {
				return err
			}
			commits[id] = &commit
		}
		s.list[i].Commit = commits[id]
	}
	if s.isCached && s.last.get(s.key) == nil {
		s.last.add(s.key, s.list)
	}
	return nil
}

// known fills in entries from the cached result for a commit. It implements graph.LastChangeOptions.Known.
func (s *lastSearch) known(commit git.ObjectID, entries []int32) bool {
	if !s.isCached {
		return false
	}
	result := s.last.get(lastKey{s.key.repository, s.key.dir, commit})
	if result == nil {
		return false
	}
	for _, e := range entries {
		if s.list[e].Commit = result[s.list[e].Name]; s.list[e].Commit == nil { // a damaged tree
			return false
		}
	}
	return true
}

// split implements graph.LastChangeOptions.Split.
func (s *lastSearch) split(parent, commit git.ObjectID, entries []int32) (same int, err error) {
	old, err := s.dirOf(parent)
	if err != nil {
		return 0, err
	}
	now, err := s.dirOf(commit)
	switch {
	case err != nil:
		return 0, err
	case old == now:
		return len(entries), nil
	case old.mode != pack.ModeTree || now.mode != pack.ModeTree:
		return 0, nil
	}
	if err := s.compare(old.id, now.id); err != nil {
		return 0, err
	}
	for i, e := range entries {
		if s.changed[e] != s.count {
			entries[i], entries[same] = entries[same], e
			same++
		}
	}
	return same, nil
}

// equal implements graph.LastChangeOptions.Equal. So the directory is not searched for in most commits.
func (s *lastSearch) equal(parent, commit git.ObjectID) {
	if e, ok := s.memo.known[pathKey{commit, 0}]; ok {
		s.memo.put(pathKey{parent, 0}, e)
	}
}

// dirOf finds the directory below a root tree.
func (s *lastSearch) dirOf(root git.ObjectID) (treeEntry, error) {
	if s.memo == nil {
		return treeEntry{root, pack.ModeTree}, nil
	}
	return s.memo.at(root, 0)
}

// compare marks the entries that differ between two trees.
func (s *lastSearch) compare(old, now git.ObjectID) error {
	s.count++
	a, err := s.openKept(old)
	if err != nil {
		return err
	}
	b, err := s.openKept(now)
	if err != nil {
		return err
	}
	return s.pairs(&a, &b, func(name []byte, old, now treeEntry) error {
		if old == now {
			return nil
		}
		if i, ok := s.index[string(name)]; ok {
			s.changed[i] = s.count
		}
		return nil
	})
}

// openKept is open for trees that are mostly compared twice, with those of a child and of a parent.
func (s *lastSearch) openKept(tree git.ObjectID) (side, error) {
	if data, ok := s.trees[tree]; ok {
		o := side{tree: tree, data: data, rest: data}
		return o, s.next(&o)
	}
	if len(s.trees) == keptTrees {
		for id, data := range s.trees {
			s.drop(int64(len(data)))
			delete(s.trees, id)
		}
	}
	o, err := s.open(tree)
	if err == nil {
		s.trees[tree] = o.data
	}
	return o, err
}
