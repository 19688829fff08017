package storage

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

const (
	// maxSummaries is the maximum number of summaries in memory.
	maxSummaries = 20_000
	// summarizeParallel is the number of repositories that are summarized at the same time.
	summarizeParallel = 16
)

// summaries has the summaries of repositories, as long as the files on which they depend have the same IDs, or their
// marks are the same. It is safe for concurrent use. The zero value is empty.
type summaries struct {
	mu     sync.Mutex
	byPath map[string]summary
}

type summary struct {
	Description
	mark  string // of marker; "": it depends on files
	files []string
	ids   []disk.ID
}

// marker are Places that know of changes without files.
type marker interface {
	// Marks returns a text for each path that changes with the repository. "" means that there is no such text.
	Marks(ctx context.Context, paths []string, isFurther bool) ([]string, error)
}

// get returns the summary of a repository if it is current. mark is the present one.
func (s *summaries) get(path, mark string) (Description, bool) {
	s.mu.Lock()
	known, ok := s.byPath[path]
	s.mu.Unlock()
	ok = ok && known.mark == mark
	for i := range known.files {
		id, err := disk.Stat(known.files[i])
		ok = ok && err == nil && id == known.ids[i]
	}
	return known.Description, ok
}

// put keeps a summary. The IDs are those of its files at a time after which it was made.
func (s *summaries) put(path string, made summary, at time.Time) {
	for _, id := range made.ids {
		if !id.Settled(at) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPath == nil || len(s.byPath) >= maxSummaries {
		s.byPath = make(map[string]summary)
	}
	s.byPath[path] = made
}

// Summarize describes repositories for a list: their paths, formats, HEADs, sizes of packs, numbers of refs, settings
// and times of pushes. Paths without a repository are left out, and one that cannot be read has only its path.
// isFurther reports that they were just listed.
func (n *Node) Summarize(ctx context.Context, paths []string, isFurther bool) ([]Description, error) {
	marks := make([]string, len(paths))
	if m, ok := n.places.(marker); ok {
		var err error
		if marks, err = m.Marks(ctx, paths, isFurther); err != nil {
			return nil, err
		}
	}
	all := make([]*Description, len(paths))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(summarizeParallel)
	for i, name := range paths {
		if known, ok := n.summaries.get(name, marks[i]); ok {
			all[i] = &known
			continue
		}
		group.Go(func() error {
			path, err := git.ParseRepoPath(name)
			if err != nil {
				return fault.Wrap(fault.Invalid, err.Error(), err)
			}
			d, err := n.summarize(ctx, path, marks[i])
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case fault.Is(err, fault.NotFound):
				return nil
			case err != nil:
				d = Description{Path: name}
			}
			all[i] = &d
			return nil
		})
	}
	err := group.Wait()
	var found []Description
	for _, d := range all {
		if d != nil {
			found = append(found, *d)
		}
	}
	return found, err
}

// datedBranches is the number of branches whose commits are read for the age of a repository.
const datedBranches = 50

// committedAt returns the latest committer date of HEAD and the first branches. Those that cannot be read do not count.
func committedAt(r *repo.Repo, snap *refs.Snapshot) (at time.Time) {
	ids := []git.ObjectID{snap.Head().ID}
	_ = snap.Each("refs/heads/", func(ref refs.Ref) error {
		ids = append(ids, ref.ID)
		if len(ids) > datedBranches {
			return refs.ErrStop
		}
		return nil
	})
	for _, id := range ids {
		if c, err := r.Graph.Commit(id); err == nil && c.Date > max(at.Unix(), 0) {
			at = time.Unix(c.Date, 0)
		}
	}
	return at
}

func (n *Node) summarize(ctx context.Context, path git.RepoPath, mark string) (d Description, err error) {
	h, err := n.acquire(ctx, path)
	if err != nil {
		return d, err
	}
	made, at := summary{mark: mark}, time.Now()
	if !h.place.MirrorMarks().Any() { // otherwise n.acquire decides each time
		made.files = h.place.Files()
	}
	n.release(h)
	for _, file := range made.files {
		id, err := disk.Stat(file)
		if err != nil {
			return d, fault.Wrap(fault.Unavailable, "cannot read the repository", err)
		}
		made.ids = append(made.ids, id)
	}
	h, snap, version, err := n.snapshot(ctx, path)
	if err != nil {
		return d, err
	}
	defer n.release(h)
	d = Description{Path: h.found.Path().String(), Format: h.Format, Head: snap.Head(), Version: version,
		Settings: places.ReadSettings(h.Common, h.Config()), PushedAt: h.place.PushedAt(),
		Expires: h.place.Expires()}
	if d.Refs, err = countRefs(ctx, snap); err != nil {
		return d, err
	}
	if d.PushedAt.IsZero() {
		d.CommittedAt = committedAt(h.Repo, snap)
	}
	d.Size, err = h.place.PackBytes()
	if made.Description = d; err == nil && (made.files != nil || mark != "") && d.Path == path.String() {
		n.summaries.put(d.Path, made, at)
	}
	return d, err
}
