package lookup

import (
	"cmp"
	"context"
	"slices"
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
	list, entries, err := c.entriesOf(e.id)
	if err != nil {
		return err
	}
	shallow, err := r.ShallowSet()
	if err != nil {
		return err
	}
	s := &lastSearch{differ: differ{operation: c}, isCached: len(shallow) == 0, key: lastKey{r.Common, dir, id},
		list: list, entries: entries}
	if dir != "" {
		s.memo = newPathMemo(c, dir)
	}
	if err := s.run(shallow); err != nil {
		return err
	}
	return send(list)
}

// entriesOf lists a tree.
func (c *operation) entriesOf(tree git.ObjectID) (list []LastCommit, entries []treeEntry, err error) {
	data, err := c.tree(tree)
	if err != nil {
		return nil, nil, err
	}
	defer c.drop(int64(len(data)))
	for rest := data; len(rest) > 0; {
		mode, name, id, next, err := pack.CutEntry(rest, c.repo.Format)
		if err != nil {
			return nil, nil, damagedTree(tree, err)
		}
		if len(list) == maxLastEntries {
			return nil, nil, fault.InField("path", fault.New(fault.Invalid, "a directory with more than %d entries",
				maxLastEntries))
		}
		list, rest = append(list, LastCommit{Name: string(name), Type: TreeEntry{Mode: mode}.Type()}), next
		entries = append(entries, treeEntry{id, mode})
	}
	return list, entries, nil
}

// lastSearch finds the last commits of the entries of one directory.
type lastSearch struct {
	differ
	isCached bool // the boundary of a shallow repository can move, so that its results are not cached
	key      lastKey
	memo     *pathMemo // finds the directory; nil: it is the root
	list     []LastCommit
	entries  []treeEntry    // of the list
	found    []git.ObjectID // the last commits of the list's entries
	passed   []graph.From   // some of the commits that the search passed, with the entries that were searched there
	rest     []graph.From   // the search goes on there
}

// maxPassed is the maximum number of passed commits of a search.
const maxPassed = 4096

// run fills in the commits of the list.
func (s *lastSearch) run(shallow graph.Commits) error {
	names := make([]string, len(s.list))
	s.found = make([]git.ObjectID, len(s.list))
	all := graph.From{Commit: s.key.commit, Entries: make([]int32, len(s.list))}
	for i := range s.list {
		names[i], all.Entries[i] = s.list[i].Name, int32(i)
	}
	from := []graph.From{all}
	if results := s.last.get(s.key); s.isCached && len(results) > 0 && len(results[0].rest) > 0 {
		from = results[0].rest // of an earlier search
		for i, e := range results[0].list {
			s.list[i].Commit = e.Commit
		}
	}
	o := graph.LastChangeOptions{Dir: s.key.dir, Names: names, Split: s.split, Equal: s.equal, Known: s.known,
		MaxVisited: maxVisited,
		Begin: func() {
			s.passed, s.rest = nil, nil
			clear(s.found)
		},
		Rest: func(commit git.ObjectID, entries []int32) {
			s.rest = append(s.rest, graph.From{Commit: commit, Entries: slices.Clone(entries)})
		},
		Found: func(commit git.ObjectID, entries []int32) {
			for _, e := range entries {
				s.found[e] = commit
			}
		}}
	err := s.repo.Graph.LastChanges(s.ctx, from, shallow, o)
	if err != nil && s.ctx.Err() == nil {
		return err
	}
	// a later call continues a search that took too long
	tail, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.bounds.tail)
	defer cancel()
	s.ctx = tail
	commits := make(map[git.ObjectID]*Commit)
	for i, id := range s.found {
		if id.IsZero() {
			continue // known, or not found in time
		}
		if commits[id] == nil {
			commit, err := s.commit(id)
			if err = cmp.Or(s.ctx.Err(), err); err == nil {
				err = s.hold(commit.memory()) // until the call ends
			}
			if err != nil {
				return err
			}
			commits[id] = &commit
		}
		s.list[i].Commit = commits[id]
	}
	if results := s.last.get(s.key); s.isCached && (len(results) == 0 || results[0].has != nil) {
		s.last.add(s.key, s.list, s.passed, s.rest)
	}
	return err
}

// known fills in entries from cached results for a commit. It implements graph.LastChangeOptions.Known.
func (s *lastSearch) known(commit git.ObjectID, entries []int32) (known int) {
	if !s.isCached {
		return 0
	}
	for _, result := range s.last.get(lastKey{s.key.repository, s.key.dir, commit}) {
		for i := known; i < len(entries); i++ {
			e := entries[i]
			if c := result.get(s.list[e].Name); c != nil {
				s.list[e].Commit = c
				entries[i], entries[known] = entries[known], e
				known++
			}
		}
	}
	if rest := entries[known:]; len(rest) > 0 && commit != s.key.commit && len(s.passed) < maxPassed &&
		s.remembers(commit) {
		s.passed = append(s.passed, graph.From{Commit: commit, Entries: slices.Clone(rest)})
	}
	return known
}

// remembers reports whether searches that pass a commit remember it.
func (s *lastSearch) remembers(commit git.ObjectID) bool {
	raw := commit.Raw()
	return int(raw[len(raw)-1])%s.bounds.passedStep == 0
}

// split implements graph.LastChangeOptions.Split.
func (s *lastSearch) split(parent git.ObjectID, entries []int32) (same int, err error) {
	dir, err := s.dirOf(parent)
	if err != nil || dir.mode != pack.ModeTree {
		return 0, err
	}
	data, err := s.tree(dir.id)
	if err != nil {
		return 0, err
	}
	defer s.drop(int64(len(data)))
	slices.Sort(entries) // as in the tree
	tree := side{tree: dir.id, rest: data}
	if err := s.next(&tree); err != nil {
		return 0, err
	}
	for i, e := range entries {
		want := side{treeEntry: s.entries[e], name: []byte(s.list[e].Name)}
		order := compareEntries(&tree, &want)
		for ; order < 0; order = compareEntries(&tree, &want) {
			if err := s.next(&tree); err != nil {
				return 0, err
			}
		}
		if order == 0 && tree.treeEntry == want.treeEntry {
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
