package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	// indexPage is the maximum number of events that are read at once.
	indexPage = 1000
	// indexAge is the time after which all names are read again, although events report all changes.
	indexAge = time.Hour
	// pagesAge is the time for which further pages of a list need no question to the bucket.
	pagesAge = 5 * time.Second
)

// nameIndex has the names of all repositories, and the last records with events. One question to the bucket finds all
// events since the last one, so removed names cost nothing. It is safe for concurrent use.
type nameIndex struct {
	using    *semaphore.Weighted // held for the fields below; waiting callers can leave
	position string              // after the events that it has; "": it has no names
	read     time.Time           // when all names were read
	asked    time.Time           // when the last question began
	ids      map[string]string   // by path
	records  map[string]uint64   // the last records with events since the names were read, by ID
	sorted   []indexedName       // nil: to be made
}

type indexedName struct{ key, path string }

// refresh brings the index up to date: it has all changes before the call. For a further page it may be a little older.
func (s *Store) refreshIndex(ctx context.Context, isFurther bool) error {
	x := &s.index
	now := time.Now()
	switch {
	case isFurther && now.Sub(x.asked) < pagesAge && x.position != "":
		return nil
	case x.position == "" || now.Sub(x.read) > indexAge:
		if err := s.readIndex(ctx); err != nil {
			return err
		}
	}
	changed, position := make(map[string]bool), x.position
	for {
		list, next, err := s.events.Read(ctx, position, indexPage)
		if fault.Is(err, fault.OutOfRange) { // it was not asked for a month
			x.position = ""
			return s.refreshIndex(ctx, false)
		}
		if err != nil {
			return err
		}
		for i := range list {
			e := &list[i]
			x.records[e.Incarnation] = max(x.records[e.Incarnation], e.Record)
			if e.Kind != event.Push && e.Kind != event.Configure {
				changed[string(e.Repository)], changed[string(e.Former)] = true, true
			}
		}
		if len(list) == 0 {
			if err := s.resolveIndexed(ctx, changed); err != nil {
				return err // with the former position
			}
			x.position, x.asked = next, now
			return nil
		}
		position = next
	}
}

// resolveIndexed looks up paths with events of creation, renaming or deletion. Events of several repositories at one
// path can come in another order, and a creation may have failed in the end.
func (s *Store) resolveIndexed(ctx context.Context, changed map[string]bool) error {
	x := &s.index
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listParallel)
	for name := range changed {
		path, err := git.ParseRepoPath(name)
		if err != nil { // "", as the former path of most events
			continue
		}
		group.Go(func() error {
			found, err := s.resolve(ctx, path)
			mu.Lock()
			defer mu.Unlock()
			x.sorted = nil
			if isOfRepository(err) && found.name != nil { // it is listed, and cannot be opened
				s.log.Warn("cannot read a repository that is listed", "repository", name, "error", err)
				x.ids[name] = found.name.ID
				return nil
			}
			if delete(x.ids, name); err == nil && found.state != nil {
				x.ids[name] = found.name.ID
			}
			return err
		})
	}
	return group.Wait()
}

// readIndex reads all names. Events that come meanwhile are applied afterwards.
func (s *Store) readIndex(ctx context.Context) error {
	x := &s.index
	_, position, err := s.events.Read(ctx, event.Now, 1)
	if err != nil {
		return err
	}
	ids := make(map[string]string)
	for after, hasMore := "", true; hasMore; {
		var heads []nameHead
		if heads, hasMore, err = s.listNames(ctx, after); err != nil {
			return err
		}
		for _, n := range heads {
			after = n.path.String()
			ids[after] = n.id
		}
	}
	x.position, x.read, x.ids, x.records, x.sorted = position, time.Now(), ids, make(map[string]uint64), nil
	return nil
}

// List implements places.Places, in the order of the keys of names.
func (s *Store) List(ctx context.Context, q places.ListQuery) (page places.Page, err error) {
	if err := s.refused(); err != nil {
		return page, err
	}
	x := &s.index
	if err := x.using.Acquire(ctx, 1); err != nil {
		return page, err
	}
	if err := s.refreshIndex(ctx, q.IsFurther); err != nil {
		x.using.Release(1)
		return page, err
	}
	if x.sorted == nil {
		x.sorted = make([]indexedName, 0, len(x.ids))
		for path := range x.ids {
			x.sorted = append(x.sorted, indexedName{replog.AfterName(path), path})
		}
		slices.SortFunc(x.sorted, func(a, b indexedName) int { return strings.Compare(a.key, b.key) })
	}
	names := x.sorted
	x.using.Release(1)
	after := max(replog.AfterName(q.After), replog.NamesBelow(q.Prefix))
	from, isExact := slices.BinarySearchFunc(names, after, func(n indexedName, key string) int {
		return strings.Compare(n.key, key)
	})
	if isExact {
		from++
	}
	for _, n := range names[from:] {
		if !strings.HasPrefix(n.path, q.Prefix) {
			break
		}
		if len(page.Paths) == q.Limit {
			page.Next = page.Paths[q.Limit-1]
			break
		}
		if has, err := s.hasLabels(ctx, n.path, q.Labels); err != nil {
			return page, err
		} else if has {
			page.Paths = append(page.Paths, n.path)
		}
	}
	return page, nil
}

// Marks returns texts that change when the repositories at paths do: with each event, and now and then. isFurther is
// ListQuery.IsFurther.
func (s *Store) Marks(ctx context.Context, paths []string, isFurther bool) ([]string, error) {
	x := &s.index
	if err := x.using.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer x.using.Release(1)
	if err := s.refreshIndex(ctx, isFurther); err != nil {
		return nil, err
	}
	marks := make([]string, len(paths))
	for i, path := range paths {
		if id := x.ids[path]; id != "" {
			marks[i] = fmt.Sprint(id, "/", x.read.UnixNano(), "/", x.records[id]) // each read begins without records
		}
	}
	return marks, nil
}

// hasLabels reports whether the repository at a path has labels.
func (s *Store) hasLabels(ctx context.Context, name string, labels []string) (bool, error) {
	if len(labels) == 0 {
		return true, nil
	}
	path, err := git.ParseRepoPath(name)
	if err != nil {
		return false, err
	}
	found, err := s.Acquire(ctx, path)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer found.Release()
	state, err := found.(*place).current(ctx)
	if err != nil || !state.has(found.Path()) {
		return false, errors.Join(err)
	}
	settings := make(places.Settings)
	for _, c := range state.record.Config {
		settings.Add(c.Key, c.Value)
	}
	return places.HasLabels(settings[places.LabelKey], labels), nil
}
