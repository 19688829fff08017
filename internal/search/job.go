package search

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
)

// job is a running job.
type job struct {
	kind   string
	start  time.Time
	files  atomic.Int64 // files sent to it
	cancel context.CancelFunc

	meter    meter
	maxFiles int64       // maximum number of files; zero means no limit
	allSent  atomic.Bool // all data is sent, so it may be moving files to their places
}

// deltaLimit is the maximum number of files of one delta.
const deltaLimit = 20_000

// index updates a repository's index.
func (e *Engine) index(r *repository, l lane) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	task, feed, run := e.prepare(r, l, cancel)
	if run == nil {
		return
	}
	report, err := e.do(ctx, l, task, feed, nil)
	if err == nil && report.Error != "" {
		err = errors.New(report.Error)
		if report.Full {
			err = fmt.Errorf("the index cannot be written to: %w", err)
		}
	}
	if e.recordResult(ctx, r, task, run, report, err) {
		if err := e.secure(r, task.Id, report.Shards); err != nil {
			e.log.Warn("index shards may not be on disk; their repository is indexed again at the next start",
				"repository", r.path.String(), "error", err)
		}
	}
}

// prepare returns a job for a repository, or nil if there is nothing to do.
func (e *Engine) prepare(r *repository, l lane, cancel context.CancelFunc) (task *workerv1.Job, feed feeder, run *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	want := branches(r.current)
	if _, busy := e.jobs[r]; busy || e.repos[r.path] != r || !r.hasCurrent {
		return task, nil, nil
	}
	if len(want) == 0 { // an empty repository, or a HEAD without a commit
		e.dropIndex(r)
		e.schedule(r)
		return task, nil, nil
	}
	if r.id == 0 {
		id, err := e.catalogue.add(r.path, r.incarnation)
		if err != nil {
			r.err = e.reason(err)
			e.enqueue(r, l, time.Now().Add(retryDir))
			return task, nil, nil
		}
		r.id = id
		e.byID[id] = r
	}
	run = &job{kind: kindFull, start: time.Now(), cancel: cancel, meter: e.newMeter()}
	task = &workerv1.Job{
		Dir: e.shards(), Id: r.id, Repository: r.path.String(), Branches: want,
		MaxFile: e.o.MaxFile, ShardSize: e.o.ShardSize, Ctags: e.o.Ctags, First: r.shards == 0 && len(r.indexed) == 0,
	}
	for other := range e.jobs {
		task.First = task.First && other.path != r.path // a job of a removed repository that is still running
	}
	if r.noSymbols {
		task.Ctags = ""
	}
	switch {
	case l == laneFast && e.deltaFits(r, want) && !sameBranches(want, r.indexed):
		from, err := git.ParseObjectID(r.indexed[0].Commit)
		if err == nil {
			run.kind, task.Delta = kindDelta, true
			run.meter.files, run.meter.bytes = r.files, r.bytes
			feed = e.delta(r.path, from, r.current[0].Commit, run, deltaLimit)
		}
	case sameBranches(want, r.indexed) && r.deltas == 0 && !r.needsRebuild:
		return task, nil, nil
	case sameBranches(want, r.indexed):
		run.kind = kindCompact
	}
	if feed == nil {
		if l == laneFast {
			run.maxFiles = smallFiles
		}
		feed = e.full(r.path, r.current, run)
	}
	e.jobs[r] = run
	r.jobs++
	return task, feed, run
}

func (e *Engine) newMeter() meter {
	return meter{maxFiles: e.o.MaxFiles, maxBytes: e.o.MaxBytes, maxFile: e.o.MaxFile}
}

// recordResult records the result of a job, and reports whether the repository has a new index.
func (e *Engine) recordResult(ctx context.Context, r *repository, task *workerv1.Job, run *job, report *workerv1.Report,
	err error) bool {
	took := time.Since(run.start)
	e.mu.Lock()
	if err != nil {
		e.removeIncomplete(r)
	}
	delete(e.jobs, r)
	mine := e.byID[task.Id] == r
	cancelled := ctx.Err() != nil
	result := "ok"
	switch {
	case err == nil && report.Rebuild, errors.Is(err, errTooMuch), err != nil && task.Delta &&
		(fault.Is(err, fault.NotFound) || errors.Is(err, errTooLarge)):
		result = "rebuild"
		r.needsRebuild, r.isBig = true, r.isBig || !task.Delta
	case err != nil && cancelled:
		result = "cancelled"
	case err != nil:
		result = "failed"
	}
	r.needsRebuild = r.needsRebuild || err != nil && run.allSent.Load()
	e.metrics.jobs.WithLabelValues(run.kind, result).Inc()
	if result == "ok" && mine {
		if !r.firstChange.IsZero() && len(r.indexed) > 0 {
			e.metrics.freshSeconds.Observe(time.Since(r.firstChange).Seconds())
		}
		if len(r.indexed) == 0 {
			e.unload(r, len(report.Shards))
		}
		r.indexed, r.shards = task.Branches, len(report.Shards)
		r.indexFailures, r.hasCrashed, r.err = 0, false, ""
		r.files, r.bytes, r.seal = run.meter.files, run.meter.bytes, ""
		if task.Delta {
			r.deltas++
			r.namesOnly += int(report.NamesOnly)
		} else {
			r.deltas, r.needsRebuild, r.namesOnly = 0, false, int(report.NamesOnly)
		}
		r.firstChange = time.Time{}
	}
	r.tooLarge = nil
	if result == "failed" && errors.Is(err, errTooLarge) {
		r.tooLarge = task.Branches
	}
	if result != "failed" {
		if mine {
			e.schedule(r)
		} else if e.repos[r.path] == r {
			e.enqueue(r, laneCheck, time.Now())
		}
	}
	if !mine {
		e.dropLate(r.path)
	}
	e.mu.Unlock()
	if result == "failed" {
		e.retry(r, err, took)
	}
	e.log.Debug("indexed a repository", "repository", r.path.String(), "kind", run.kind, "result", result, "files",
		report.GetDocuments(),
		"bytes", report.GetBytes(), "took", took.Round(time.Millisecond).String())
	return result == "ok" && mine
}

// dropLate removes the result of a job whose repository was removed or replaced meanwhile. The caller holds e.mu.
func (e *Engine) dropLate(path git.RepoPath) {
	for other := range e.jobs {
		if other.path == path {
			return // that job replaces these
		}
	}
	if r := e.repos[path]; r != nil && len(r.indexed) > 0 {
		return
	}
	if err := e.dropShards(path); err != nil {
		e.log.Warn("cannot remove a repository from the search index", "repository", path.String(), "error", err)
	}
}

// removeIncomplete removes incomplete files of a failed job. The job still counts as running. The caller holds e.mu.
func (e *Engine) removeIncomplete(r *repository) {
	for other := range e.jobs {
		if other != r && other.path == r.path {
			return // they may belong to that job
		}
	}
	entries, err := os.ReadDir(e.shards())
	if err != nil {
		return
	}
	prefix := shardPrefix(r.path) + "_v"
	for _, f := range entries {
		if strings.HasPrefix(f.Name(), prefix) && strings.HasSuffix(f.Name(), ".tmp") {
			os.Remove(filepath.Join(e.shards(), f.Name()))
		}
	}
}

// retry schedules a repository again after a failure. If the process crashed while it renamed its files, they are
// inconsistent, so all are removed. After a second crash the index is made without symbols, because ctags parses
// untrusted files.
func (e *Engine) retry(r *repository, err error, took time.Duration) {
	if errors.Is(err, errCrashed) {
		e.metrics.deaths.WithLabelValues(string(WorkIndex)).Inc()
		e.mu.Lock()
		r.needsRebuild = true
		r.noSymbols = r.noSymbols || r.hasCrashed
		r.hasCrashed = true
		e.mu.Unlock()
	}
	e.scheduleRetry(r, err, took)
}
