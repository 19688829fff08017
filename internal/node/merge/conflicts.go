package merge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// MaxConflicts is the maximum number of conflicts in a result. Further ones are left out.
const MaxConflicts = 10_000

// Conflict is a path that cannot be merged.
type Conflict struct {
	Path    string
	Kinds   []string // Git's stable types: "contents", "modify/delete", ...
	Stages  [3]Stage // base, ours, theirs; zero: there is none
	Message string   // Git's messages, each with a newline
}

// Stage is a version of a file with conflicts.
type Stage struct {
	Mode uint32
	ID   git.ObjectID
}

// ParseStage parses "MODE ID STAGE TAB PATH" (git-ls-files(1), git-merge-tree(1)). side is that of Conflict.Stages.
func ParseStage(line string) (path string, side int, s Stage, err error) {
	facts, path, _ := strings.Cut(line, "\t")
	var id string
	if _, err = fmt.Sscanf(facts, "%o %s %d", &s.Mode, &id, &side); err == nil {
		s.ID, err = git.ParseObjectID(id)
	}
	if side--; err != nil || path == "" || side < base || side > theirs {
		err = errOutput
	}
	return path, side, s, err
}

// conflicts collects the conflicts of a merge.
type conflicts struct {
	list   []Conflict
	byPath map[string]int
	more   bool // more than MaxConflicts
}

// at returns the conflict of a path; nil if there are too many.
func (c *conflicts) at(path string) *Conflict {
	i, ok := c.byPath[path]
	if !ok {
		if len(c.list) == MaxConflicts {
			c.more = true
			return nil
		}
		i = len(c.list)
		c.byPath[path] = i
		c.list = append(c.list, Conflict{Path: path})
	}
	return &c.list[i]
}

// message adds a message about paths to those that have stages, or else to the first path. Messages that are not about
// conflicts are ignored.
func (c *conflicts) message(paths []string, kind, text string) {
	name, isConflict := strings.CutPrefix(kind, "CONFLICT (")
	if !isConflict || len(paths) == 0 {
		return
	}
	name = strings.TrimSuffix(name, ")")
	staged := slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		i, ok := c.byPath[path]
		return !ok || c.list[i].Stages == [3]Stage{}
	})
	if len(staged) == 0 {
		staged = paths[:1]
	}
	for _, path := range staged {
		if at := c.at(path); at != nil {
			if !slices.Contains(at.Kinds, name) {
				at.Kinds = append(at.Kinds, name)
			}
			at.Message += text
		}
	}
}
