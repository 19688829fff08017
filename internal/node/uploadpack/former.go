package uploadpack

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	maxFormerValues = 1000 // of one repository; the oldest are forgotten
	maxHistories    = 2000 // repositories; half of them are forgotten then, those that were not listed for longest
	sweepInterval   = time.Minute
)

// formerValues remembers, for each repository, which values its visible refs had when they were listed last. A partial
// clone may still need objects of a commit that its branch has lost by a force push. It is safe for concurrent use.
type formerValues struct {
	mu        sync.Mutex
	histories map[string]*refHistory // by incarnation
	swept     time.Time
}

// refHistory has the former values of one repository's refs.
type refHistory struct {
	used  time.Time     // guarded by formerValues.mu
	grace time.Duration // the same; 0: not listed by this process

	mu     sync.Mutex
	last   *refs.Snapshot // nil: not listed by this process
	listed time.Time      // when the refs of last were listed for the last time
	values map[formerValue]time.Time
}

type formerValue struct {
	Name git.RefName
	ID   git.ObjectID
}

// list records that a client learns the refs of a snapshot. After an error it lacks some of the values
// that refs have lost since the listing before.
func (f *formerValues) list(r *repo.Repo, snapshot *refs.Snapshot) error {
	grace, now := r.Policy().Grace, time.Now()
	if grace <= 0 { // an administrator may have turned it off to make an object unavailable
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.histories, r.Incarnation)
		return nil
	}
	h := f.of(r.Incarnation, grace)
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	if h.last != snapshot {
		err = h.add(snapshot, now, grace)
	}
	h.listed = now
	return err
}

// after returns the values that refs have lost within the grace of the repository's policy. Values of refs that are
// hidden now are not among them.
func (f *formerValues) after(r *repo.Repo, snapshot *refs.Snapshot) (ids []git.ObjectID) {
	grace, now := r.Policy().Grace, time.Now()
	if grace <= 0 {
		return nil
	}
	h := f.of(r.Incarnation, grace)
	h.mu.Lock()
	defer h.mu.Unlock()
	for value, until := range h.values {
		if now.Sub(until) < grace && !snapshot.Hides(value.Name) {
			ids = append(ids, value.ID)
		}
	}
	return ids
}

// of returns the history of a repository. It forgets histories of which nothing is within the grace any more, because
// their snapshots keep replaced and deleted files on the disk.
func (f *formerValues) of(incarnation string, grace time.Duration) *refHistory {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.swept) >= sweepInterval {
		f.swept = now
		maps.DeleteFunc(f.histories, func(_ string, h *refHistory) bool { return h.grace > 0 && now.Sub(h.used) >= h.grace })
	}
	h := f.histories[incarnation]
	if h == nil {
		if len(f.histories) >= maxHistories {
			byUse := slices.SortedFunc(maps.Keys(f.histories), func(a, b string) int {
				return f.histories[a].used.Compare(f.histories[b].used)
			})
			for _, old := range byUse[:maxHistories/2] {
				delete(f.histories, old)
			}
		}
		h = &refHistory{values: map[formerValue]time.Time{}}
		if f.histories == nil {
			f.histories = map[string]*refHistory{}
		}
		f.histories[incarnation] = h
	}
	h.used, h.grace = now, grace
	return h
}

// add adds the values that the refs of the last snapshot have lost. If the refs have a Source, it names them, because
// other nodes list refs as well. After an error, which a damaged file of the last snapshot causes, some are missing.
func (h *refHistory) add(snapshot *refs.Snapshot, now time.Time, grace time.Duration) (err error) {
	put := func(name git.RefName, id git.ObjectID, until time.Time) {
		if key := (formerValue{name, id}); !id.IsZero() && until.After(h.values[key]) {
			h.values[key] = until
		}
	}
	for _, v := range snapshot.Former() {
		put(v.Name, v.ID, v.Until)
	}
	if !snapshot.HasSource() && h.last != nil && now.Sub(h.listed) < grace {
		err = refs.Diff(h.last, snapshot, func(c refs.Change) error {
			if c.Old.ID != c.New.ID {
				put(c.Old.Name, c.Old.ID, h.listed)
			}
			return nil
		})
	}
	maps.DeleteFunc(h.values, func(_ formerValue, until time.Time) bool { return now.Sub(until) >= grace })
	if len(h.values) > maxFormerValues*11/10 { // not each time, because sorting takes long
		byAge := slices.SortedFunc(maps.Keys(h.values), func(a, b formerValue) int {
			return cmp.Or(h.values[b].Compare(h.values[a]), cmp.Compare(a.Name, b.Name), a.ID.Compare(b.ID))
		})
		for _, value := range byAge[maxFormerValues:] {
			delete(h.values, value)
		}
	}
	h.last = snapshot
	return err
}

// NoteRefs records that a client learns the refs of a snapshot, or that they are about to change. An error is only
// logged: few clients need former values.
func (s *Server) NoteRefs(r *repo.Repo, snapshot *refs.Snapshot) {
	if err := s.former.list(r, snapshot); err != nil {
		s.options.Log.Warn("cannot remember the former values of refs", "dir", r.Dir, "error", err)
	}
}

// Former returns the values that refs have lost within the grace, which clients may still fetch.
func (s *Server) Former(r *repo.Repo, snapshot *refs.Snapshot) (ids []git.ObjectID, err error) {
	s.NoteRefs(r, snapshot)
	for _, id := range s.former.after(r, snapshot) {
		found, err := r.Objects.Has(id)
		if err != nil {
			return nil, err
		}
		if found {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// savedValue is a former value in a file, by incarnation of its repository.
type savedValue struct {
	Name git.RefName `json:"name"`
	ID   string      `json:"id"`
	Time time.Time   `json:"time"`
}

// LoadFormer reads the former values of refs that SaveFormer has written. A missing file is not an error.
func (s *Server) LoadFormer(path string) error {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var saved map[string][]savedValue
	if err == nil {
		err = json.Unmarshal(content, &saved)
	}
	if err != nil {
		return err
	}
	for incarnation, values := range saved {
		h := s.former.of(incarnation, 0)
		for _, v := range values {
			id, err := git.ParseObjectID(v.ID)
			if err != nil {
				return err
			}
			h.values[formerValue{v.Name, id}] = v.Time
		}
	}
	return nil
}

// SaveFormer writes the former values of refs to a file for the next process.
func (s *Server) SaveFormer(path string) error {
	s.former.mu.Lock()
	histories := maps.Clone(s.former.histories)
	s.former.mu.Unlock()
	saved := map[string][]savedValue{}
	for incarnation, h := range histories {
		h.mu.Lock()
		for value, until := range h.values {
			saved[incarnation] = append(saved[incarnation], savedValue{value.Name, value.ID.String(), until})
		}
		h.mu.Unlock()
	}
	content, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return disk.ReplaceFile(path, content)
}
