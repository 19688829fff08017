package ci

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

// node is the index of a commit in a History.
type node int32

type commit struct {
	id      git.ObjectID
	date    int64 // of the committer, seconds
	level   int32 // one more than the highest level of a parent
	parents []node
}

type tag struct {
	name      string
	id        git.ObjectID
	annotated bool
}

// History is the history of a branch with its tags and later pushes. Safe for concurrent use.
type History struct {
	mu      sync.RWMutex // guards all fields
	index   map[git.ObjectID]node
	commits []commit // parents come before their children
	tags    map[node][]tag
}

// NewHistory returns an empty history.
func NewHistory() *History { return &History{index: map[git.ObjectID]node{}, tags: map[node][]tag{}} }

// LogFormat is the --format of `git log --topo-order --reverse` for Read.
const LogFormat = "%H %ct %P"

// Read adds the commits in the output of git log with LogFormat.
func (h *History) Read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			return fmt.Errorf("bad line %.80q in the log", lines.Text())
		}
		date, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return fmt.Errorf("bad date %.40q in the log", fields[1])
		}
		ids := make([]git.ObjectID, 0, len(fields)-1)
		for i, f := range fields {
			if i == 1 {
				continue
			}
			id, err := git.ParseObjectID(f)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		if err := h.Add(ids[0], date, ids[1:]...); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Add adds a commit, whose parents must exist. It ignores an existing commit.
func (h *History) Add(id git.ObjectID, date int64, parents ...git.ObjectID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.index[id]; ok {
		return nil
	}
	c := commit{id: id, date: date, parents: make([]node, 0, len(parents))}
	for _, p := range parents {
		at, ok := h.index[p]
		if !ok {
			return fmt.Errorf("the parent %s of %s is not in the history", p, id)
		}
		c.parents = append(c.parents, at)
		c.level = max(c.level, h.commits[at].level+1)
	}
	h.index[id] = node(len(h.commits))
	h.commits = append(h.commits, c)
	return nil
}

// Tag adds a tag of a commit. peeled is zero for a tag that is not annotated. Tags of other objects are ignored,
// because no machine meets them.
func (h *History) Tag(name string, id, peeled git.ObjectID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := tag{name, id, !peeled.IsZero()}
	if !t.annotated {
		peeled = id
	}
	if at, ok := h.index[peeled]; ok && !slices.Contains(h.tags[at], t) {
		h.tags[at] = append(h.tags[at], t)
	}
}

// Behind returns the n-th ancestor of a commit by first parents, or the root.
func (h *History) Behind(tip git.ObjectID, n int) (git.ObjectID, error) {
	at, err := h.find(tip)
	if err != nil {
		return tip, err
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	for ; n > 0 && len(h.commits[at].parents) > 0; n-- {
		at = h.commits[at].parents[0]
	}
	return h.commits[at].id, nil
}

func (h *History) find(id git.ObjectID) (node, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	at, ok := h.index[id]
	if !ok {
		return 0, fmt.Errorf("commit %s is not in the history: another client has pushed", id)
	}
	return at, nil
}

func (h *History) id(at node) git.ObjectID {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.commits[at].id
}

// boundary is the shallow boundary of a fetch with this depth (git-fetch(1), "--depth").
func (h *History) boundary(at node, depth int) map[node]bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	cut, seen, level := map[node]bool{}, map[node]bool{at: true}, []node{at}
	for ; len(level) > 0; depth-- {
		var next []node
		for _, at := range level {
			if depth <= 1 {
				cut[at] = true
				continue
			}
			for _, p := range h.commits[at].parents {
				if !seen[p] {
					seen[p] = true
					next = append(next, p)
				}
			}
		}
		level = next
	}
	return cut
}

// walk visits the commits that are reachable from starts in a history with the boundary cut, down to the given level.
func (h *History) walk(starts []node, cut map[node]bool, level int32) map[node]bool {
	seen := map[node]bool{}
	stack := slices.Clone(starts)
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[at] || h.commits[at].level < level {
			continue
		}
		seen[at] = true
		if !cut[at] {
			stack = append(stack, h.commits[at].parents...)
		}
	}
	return seen
}

// tagsAt returns the tags of these commits that a machine does not have, sorted by name.
func (h *History) tagsAt(m *Machine, ids ...git.ObjectID) []want {
	h.mu.RLock()
	defer h.mu.RUnlock()
	var list []want
	for i, id := range ids {
		at, ok := h.index[id]
		if !ok || slices.Contains(ids[:i], id) {
			continue
		}
		for _, t := range h.tags[at] {
			if _, has := m.tags[t.name]; !has {
				list = append(list, want{t.id, t.name})
			}
		}
	}
	slices.SortFunc(list, func(a, b want) int { return strings.Compare(a.ref, b.ref) })
	return list
}

// follow adds the tags of all reachable commits to a machine whose tool follows tags. The machine keeps them when a
// later boundary hides their commits.
func (h *History) follow(m *Machine) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if m.Tool != GitLab || len(h.tags) == 0 {
		return
	}
	for at := range h.walk(m.tips(), m.shallow, 0) {
		for _, t := range h.tags[at] {
			m.tags[t.name] = at
		}
	}
}

// tips are the commits of the machine's refs, in the order of the refs' names. Those of tags come last.
func (m *Machine) tips() []node {
	tips := make([]node, 0, len(m.refs)+len(m.tags))
	for _, refs := range []map[string]node{m.refs, m.tags} {
		for _, name := range slices.Sorted(maps.Keys(refs)) {
			tips = append(tips, refs[name])
		}
	}
	return tips
}
