package search

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// purgeTimeout is how long Purge waits for the processes.
const purgeTimeout = 10 * time.Second

// Purge removes the shards of a repository, which can have the content of objects that were purged, and waits until
// searches do not use them. The repository is indexed again. With a mark, which is that of Head's incarnation, it does
// not remove shards that were made after the purge.
func (e *Engine) Purge(ctx context.Context, path git.RepoPath, mark string) error {
	ctx, cancel := context.WithTimeout(ctx, purgeTimeout)
	defer cancel()
	select {
	case <-e.opened: // which takes a moment after the start
	case <-ctx.Done():
	}
	e.mu.Lock()
	if reason := e.unavailable; reason != "" {
		e.mu.Unlock()
		return fault.New(fault.Unavailable, "%s", reason)
	}
	r := e.repos[path]
	if r == nil || r.id == 0 || mark != "" && strings.HasSuffix(r.incarnation, mark) {
		e.mu.Unlock()
		return nil
	}
	var old ipc.Set
	old.Add(r.id)
	running := e.jobs[r]
	e.renumber(r)
	e.enqueue(r, laneCheck, time.Now())
	err := e.dropShards(path) // renumber only logs its error
	e.mu.Unlock()
	for err == nil {
		e.mu.Lock()
		isRunning := running != nil && e.jobs[r] == running
		e.mu.Unlock()
		e.poke()
		end, askErr := e.searchWorker.ask(ctx, &workerv1.SearchRequest{ListShards: true, TimeoutMs: loadTimeout,
			Repositories: &workerv1.RepositorySet{Bits: old}}, func(Batch) error { return nil })
		if askErr == nil && len(end.Repositories) == 0 && !isRunning {
			return nil
		}
		if !fault.Is(askErr, fault.Unavailable) { // it starts, or another one does
			err = askErr
		}
		err = cmp.Or(err, retry.Sleep(ctx, firstLoadCheck))
	}
	return fault.Wrap(fault.Unavailable, "old shards may still be in use", err)
}

// Copies returns the shards of a repository that have the content of blobs.
func (e *Engine) Copies(ctx context.Context, path git.RepoPath, ids []git.ObjectID) (copies []string, err error) {
	job := &workerv1.Job{Dir: e.shards(), Inspect: true, Repository: shardPrefix(path)}
	for _, id := range ids {
		job.Blobs = append(job.Blobs, id.String())
	}
	report, err := e.do(ctx, laneNone, job, nil, func(s *workerv1.Shard) {
		if s.HasBlob {
			copies = append(copies, s.File)
		}
	})
	if err == nil && report.Error != "" {
		err = fault.New(fault.Unavailable, "the shards cannot be searched for copies: %s", report.Error)
	}
	return copies, err
}
