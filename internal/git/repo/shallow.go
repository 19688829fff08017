package repo

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/graph"
)

// maxShallowFile is the maximum size of the shallow file in bytes: 1.6 million commits.
const maxShallowFile = 64 << 20

// shallowFile caches the content of the shallow file. It is safe for concurrent use.
type shallowFile struct{ known atomic.Pointer[shallowState] }

type shallowState struct {
	id  disk.ID
	ids []git.ObjectID
	set func() graph.Commits // of the IDs, made by the first call
}

// Shallow returns the commits whose parents the repository lacks (gitrepository-layout(5), "shallow"), sorted and
// without duplicates. The caller must not change the list, which is shared. It is nil for a complete repository. The
// file is read only if it has changed.
func (r *Repo) Shallow() ([]git.ObjectID, error) {
	state, err := r.shallowState()
	if state == nil {
		return nil, err
	}
	return state.ids, nil
}

// ShallowSet is Shallow as a set.
func (r *Repo) ShallowSet() (graph.Commits, error) {
	state, err := r.shallowState()
	if state == nil {
		return nil, err
	}
	return state.set(), nil
}

// shallowState returns the content of the shallow file; nil if there is none.
func (r *Repo) shallowState() (*shallowState, error) {
	path := filepath.Join(r.Common, "shallow")
	id, err := disk.Stat(path)
	if err != nil {
		return nil, cannotRead("shallow file", err)
	}
	if id == (disk.ID{}) {
		return nil, nil
	}
	if known := r.shallow.known.Load(); known != nil && known.id == id {
		return known, nil
	}
	if err := r.options.checkContained(path, "shallow file"); err != nil {
		return nil, err
	}
	text, file, err := readFile(path, maxShallowFile)
	if err != nil {
		return nil, cannotRead("shallow file", err)
	}
	var ids []git.ObjectID
	for line := range strings.Lines(string(text)) {
		id, err := git.ParseObjectID(strings.TrimSuffix(line, "\n"))
		if err != nil || id.Format() != r.Format {
			return nil, fault.Wrap(fault.Corrupt, "the repository's shallow file is damaged",
				fmt.Errorf("line %.80q", line))
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, git.ObjectID.Compare)
	ids = slices.Compact(ids)
	state := &shallowState{file.id, ids, sync.OnceValue(func() graph.Commits { return graph.NewCommits(ids...) })}
	if file.settled {
		r.shallow.known.Store(state)
	}
	return state, nil
}
