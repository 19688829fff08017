package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search/link"
)

const (
	modeType    = 0o170000
	modeGitlink = 0o160000
	// maxBranches is how many branches of a repository can be told apart.
	maxBranches = 64
	// maxDiffering bounds the files that differ between the branches of one repository.
	maxDiffering = 1_000_000
	// jobTime bounds a job that indexes; its process is killed then.
	jobTime = 2 * time.Hour
)

// indexing is one process that does one job after the other.
type indexing struct {
	child *child
	w     link.Writer
	out   link.Reader
	jobs  int   // that it has done
	bytes int64 // of content in them
}

const (
	// mostJobs is how many jobs a process does, and mostBytes about how much content it is given: what it has of memory is given back then. To start one costs
	// several times as much as to index a small repository.
	mostJobs  = 200
	mostBytes = 64 << 20
	// spareTime is for how long a process waits for the next job.
	spareTime = 5 * time.Second
)

// takeIndexing gives the process that waits for work in a lane, or a new one.
func (e *Engine) takeIndexing(l lane) (*indexing, error) {
	if x := e.spare[l]; x != nil {
		e.spare[l] = nil
		select {
		case <-x.child.done:
			x.end(false)
		default:
			return x, nil
		}
	}
	c, err := startChild(e.indexSpec)
	if err != nil {
		return nil, err
	}
	return &indexing{child: c, w: link.NewWriter(c.stdin, 256<<10), out: link.NewReader(c.stdout, 64<<10)}, nil
}

// retire ends the process that waits for work in a lane, if there is one. The lane's own goroutine calls it.
func (e *Engine) retire(l lane) {
	if x := e.spare[l]; x != nil {
		e.spare[l] = nil
		x.end(e.ctx.Err() != nil)
	}
}

// more counts a job that was reported on, and tells whether the process can do another one.
func (x *indexing) more(r *link.Report) bool {
	x.jobs++
	x.bytes += r.Bytes
	return !r.Failed() && x.jobs < mostJobs && x.bytes < mostBytes
}

// end waits for the process, which has nothing more to do, or kills it.
func (x *indexing) end(kill bool) {
	x.child.stdin.Close()
	if kill {
		x.child.kill()
	}
	<-x.child.done
	x.child.stdout.Close()
}

// report reads what became of the job; each takes the frames before it.
func (x *indexing) report(each func(link.Kind, []byte) error) (r link.Report, err error) {
	var buf []byte
	for {
		var kind link.Kind
		if kind, buf, err = x.out.Frame(buf); err != nil {
			return r, err
		}
		if kind == link.KindReport {
			return r, json.Unmarshal(buf, &r)
		}
		if err := each(kind, buf); err != nil {
			return r, err
		}
	}
}

// errDied marks that the process ended by itself, which is not the source's fault.
var errDied = errors.New("no report came")

// crash is why a process that indexes ended without a report.
func (x *indexing) crash(err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: "the process that indexes has ended: " + x.child.why(), Err: errors.Join(errDied, err)}
}

// feeder writes what belongs to a job.
type feeder func(context.Context, link.Writer) error

// do has a process do a job, in a lane; each takes what it says before its report.
func (e *Engine) do(ctx context.Context, l lane, job link.Job, feed feeder, each func(link.Kind, []byte) error) (link.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	x, err := e.takeIndexing(l)
	if err != nil {
		return link.Report{}, fault.Wrap(fault.Unavailable, "cannot index", err)
	}
	stop := context.AfterFunc(ctx, x.child.kill)
	defer stop()
	e.begin(l, x.child)
	defer e.finish(l)
	err = x.w.JSON(link.KindJob, job)
	if err == nil && feed != nil {
		err = feed(ctx, x.w)
	}
	if err == nil {
		err = x.w.Flush()
	}
	if err != nil && !isBrokenPipe(err) { // of the source: the process must not take what came for all
		x.end(true)
		return link.Report{}, err
	}
	report, err := x.report(each)
	if stop() && err == nil && l != laneNone && x.more(&report) {
		e.spare[l] = x
		return report, nil
	}
	x.end(err != nil)
	if err != nil {
		if ctx.Err() != nil {
			return report, fault.Wrap(fault.KindOf(ctx.Err()), "indexing was abandoned", ctx.Err())
		}
		return report, x.crash(err)
	}
	return report, nil
}

func isBrokenPipe(err error) bool {
	var p *os.PathError
	return errors.As(err, &p) && p.Op == "write" || errors.Is(err, io.ErrClosedPipe)
}

// document writes a file; what is no file has no place in the index.
func document(w link.Writer, f *File, branches uint64) error {
	if f.Gone || f.Mode&modeType == modeGitlink || len(f.Path) == 0 {
		return nil
	}
	return w.Document(link.Document{Branches: branches, Size: max(f.Size, 0), Path: f.Path, Content: f.Content})
}

// full feeds all files of some branches: those of the first, then what is different in each other one. A file that is the same in several branches is
// one document.
func (e *Engine) full(repository git.RepoPath, heads []Head, run *job) feeder {
	return func(ctx context.Context, w link.Writer) error {
		commits := make([]git.ObjectID, len(heads))
		for i, h := range heads {
			commits[i] = h.Commit
		}
		if len(commits) == 0 {
			return run.finish(w)
		}
		differs, versions, err := e.differences(ctx, repository, commits)
		if err != nil {
			return err
		}
		all := uint64(1)<<len(commits) - 1
		if len(commits) == maxBranches {
			all = ^uint64(0)
		}
		err = e.o.Source.Files(ctx, repository, commits[0], git.ObjectID{}, e.o.MaxFile, func(f File) error {
			return run.feed(document(w, &f, all&^differs[string(f.Path)]))
		})
		for i := 1; i < len(commits) && err == nil; i++ {
			err = e.o.Source.Files(ctx, repository, commits[i], commits[0], e.o.MaxFile, func(f File) error {
				key := versionKey(&f)
				mask := versions[key]
				delete(versions, key)
				if f.Gone || mask == 0 {
					return nil
				}
				return run.feed(document(w, &f, mask))
			})
		}
		if err != nil {
			return err
		}
		return run.finish(w)
	}
}

func versionKey(f *File) string { return string(f.Path) + "\x00" + string(f.ID.Raw()) }

// differences tells of each path in which branches it differs from the first, and of each version of it there in which it is.
func (e *Engine) differences(ctx context.Context, repository git.RepoPath, commits []git.ObjectID) (differs, versions map[string]uint64, err error) {
	differs, versions = map[string]uint64{}, map[string]uint64{}
	for i := 1; i < len(commits); i++ {
		if commits[i] == commits[0] {
			continue
		}
		err := e.o.Source.Files(ctx, repository, commits[i], commits[0], 0, func(f File) error {
			if len(versions) >= maxDiffering {
				return fault.New(fault.Exhausted, "more than %d files differ between the branches", maxDiffering)
			}
			differs[string(f.Path)] |= 1 << i
			if !f.Gone {
				versions[versionKey(&f)] |= 1 << i
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return differs, versions, nil
}

// delta feeds what differs between two commits of the only branch, up to so many files.
func (e *Engine) delta(repository git.RepoPath, from, to git.ObjectID, run *job, limit int) feeder {
	return func(ctx context.Context, w link.Writer) error {
		n := 0
		err := e.o.Source.Files(ctx, repository, to, from, e.o.MaxFile, func(f File) error {
			if n++; n > limit {
				return errTooMuch
			}
			if err := w.Frame(link.KindGone, f.Path); err != nil {
				return err
			}
			return run.feed(document(w, &f, 1))
		})
		if err != nil {
			return err
		}
		return run.finish(w)
	}
}

// errTooMuch marks that there are more files than the fast lane is for.
var errTooMuch = errors.New("there are more files than are indexed at once beside others")

// feed is called after each document.
func (run *job) feed(err error) error {
	if n := run.files.Add(1); err == nil && run.most > 0 && n > run.most {
		return errTooMuch
	}
	return err
}

// finish has the process put the new files in their places. If it is killed while it does, they do not belong together.
func (run *job) finish(w link.Writer) error {
	run.finishing.Store(true)
	return w.Frame(link.KindFinish, nil)
}

// inspect lists the shards in the index. Broken ones have an error.
func (e *Engine) inspect(ctx context.Context) (list []link.Shard, err error) {
	report, err := e.do(ctx, laneNone, link.Job{Dir: e.shards(), Inspect: true}, nil, func(kind link.Kind, b []byte) error {
		var s link.Shard
		if kind != link.KindShard {
			return fmt.Errorf("frame %q", kind)
		}
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		list = append(list, s)
		return nil
	})
	if err == nil && report.Error != "" {
		err = errors.New(report.Error)
	}
	return list, err
}

// removeShard removes a file of the index, and what belongs to it.
func (e *Engine) removeShard(name string) error {
	if name != filepath.Base(name) {
		return fmt.Errorf("%q is no file of the index", name)
	}
	err := os.Remove(filepath.Join(e.shards(), name))
	os.Remove(filepath.Join(e.shards(), name+".meta"))
	return err
}

// sweep removes what killed processes left behind. No process that indexes runs.
func (e *Engine) sweep() {
	entries, err := os.ReadDir(e.shards())
	if err != nil {
		return
	}
	for _, f := range entries {
		name := f.Name()
		meta, isMeta := strings.CutSuffix(name, ".meta")
		if strings.HasSuffix(name, ".tmp") || isMeta && !exists(filepath.Join(e.shards(), meta)) {
			os.Remove(filepath.Join(e.shards(), name))
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// deltaLimit is how many files at most are put on top of an index at once.
const deltaLimit = 20_000

// index brings a repository's index up to date.
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
	if e.settle(ctx, r, task, run, report, err) {
		if err := e.secure(task.ID, report.Shards); err != nil {
			e.log.Warn("it is not certain that a part of the search index is on the disk: it is made anew at the next start", "repository", r.path.String(), "error", err)
		}
	}
}

// prepare makes a job for a repository; none, if it has become pointless.
func (e *Engine) prepare(r *repository, l lane, cancel context.CancelFunc) (task link.Job, feed feeder, run *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	want := branches(r.current)
	if _, busy := e.jobs[r]; busy || e.repos[r.path] != r || !r.looked {
		return task, nil, nil
	}
	if len(want) == 0 { // an empty repository, or a HEAD that leads nowhere
		if err := e.dropShards(r.path); err != nil {
			e.log.Warn("cannot remove a repository from the search index", "repository", r.path.String(), "error", err)
		}
		r.indexed, r.shards, r.deltas = nil, 0, 0
		e.judge(r)
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
	run = &job{kind: kindFull, began: time.Now(), cancel: cancel}
	task = link.Job{
		Dir: e.shards(), ID: r.id, Repository: r.path.String(), Branches: want,
		MaxFile: int(e.o.MaxFile), ShardSize: int(e.o.ShardSize), Ctags: e.o.Ctags, First: r.shards == 0 && len(r.indexed) == 0,
	}
	for other := range e.jobs {
		task.First = task.First && other.path != r.path // of one that is gone, whose job is not over
	}
	if r.plain {
		task.Ctags = ""
	}
	switch {
	case l == laneFast && e.deltaFits(r, want) && !slices.Equal(want, r.indexed):
		from, err := git.ParseObjectID(r.indexed[0].Commit)
		if err == nil {
			run.kind, task.Delta = kindDelta, true
			feed = e.delta(r.path, from, r.current[0].Commit, run, deltaLimit)
		}
	case slices.Equal(want, r.indexed) && r.deltas == 0 && !r.rebuild:
		return task, nil, nil
	case slices.Equal(want, r.indexed):
		run.kind = kindAnew
	}
	if feed == nil {
		if l == laneFast {
			run.most = smallFiles
		}
		feed = e.full(r.path, r.current, run)
	}
	e.jobs[r] = run
	r.jobs++
	return task, feed, run
}

// settle notes what became of a job, and tells whether the repository has a new index.
func (e *Engine) settle(ctx context.Context, r *repository, task link.Job, run *job, report link.Report, err error) bool {
	took := time.Since(run.began)
	e.mu.Lock()
	if err != nil {
		e.clean(r)
	}
	delete(e.jobs, r)
	mine := e.byID[task.ID] == r
	cancelled := ctx.Err() != nil
	result := "ok"
	switch {
	case err == nil && report.Rebuild, errors.Is(err, errTooMuch), err != nil && task.Delta && fault.Is(err, fault.NotFound):
		result = "rebuild"
		r.rebuild, r.big = true, r.big || !task.Delta
	case err != nil && cancelled:
		result = "cancelled"
	case err != nil:
		result = "failed"
	}
	r.rebuild = r.rebuild || err != nil && run.finishing.Load()
	e.metrics.jobs.WithLabelValues(run.kind, result).Inc()
	e.metrics.jobSeconds.WithLabelValues(run.kind).Observe(took.Seconds())
	if result == "ok" && mine {
		if !r.changed.IsZero() && len(r.indexed) > 0 {
			e.metrics.freshSeconds.Observe(time.Since(r.changed).Seconds())
		}
		if len(r.indexed) == 0 {
			e.unload(r, len(report.Shards))
		}
		r.indexed, r.shards, r.size, r.failed, r.died, r.err = task.Branches, len(report.Shards), report.Size, 0, false, ""
		if task.Delta {
			r.deltas++
		} else {
			r.deltas, r.rebuild = 0, false
		}
		r.changed = time.Time{}
		e.metrics.documents.Add(float64(report.Documents))
		e.metrics.documentBytes.Add(float64(report.Bytes))
	}
	if result != "failed" {
		if mine {
			e.judge(r)
		} else if e.repos[r.path] == r {
			e.enqueue(r, laneLook, time.Now())
		}
	}
	if !mine {
		e.dropLate(r.path)
	}
	e.mu.Unlock()
	if result == "failed" {
		e.retry(r, err, took)
	}
	e.log.Debug("indexed a repository", "repository", r.path.String(), "kind", run.kind, "result", result, "files", report.Documents,
		"bytes", report.Bytes, "took", took.Round(time.Millisecond).String())
	return result == "ok" && mine
}

// dropLate removes what a job put into the index whose repository was gone by then, or another one. The caller holds e.mu.
func (e *Engine) dropLate(path git.RepoPath) {
	for other := range e.jobs {
		if other.path == path {
			return // which puts its own in the place of these
		}
	}
	if r := e.repos[path]; r != nil && len(r.indexed) > 0 {
		return
	}
	if err := e.dropShards(path); err != nil {
		e.log.Warn("cannot remove a repository from the search index", "repository", path.String(), "error", err)
	}
}

// clean removes the files that are not whole which a job left that did not end well. The job still counts as running. The caller holds e.mu.
func (e *Engine) clean(r *repository) {
	for other := range e.jobs {
		if other != r && other.path == r.path {
			return // they may be its
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

// retry has a repository indexed again after a failure. When the process died in the middle of its files' renaming they do not belong together, so none
// is kept; when it died again, then without symbols, because ctags is a program that others' files are given to.
func (e *Engine) retry(r *repository, err error, took time.Duration) {
	if errors.Is(err, errDied) {
		e.metrics.deaths.WithLabelValues(string(WorkIndex)).Inc()
		e.mu.Lock()
		r.rebuild = true
		r.plain = r.plain || r.died
		r.died = true
		e.mu.Unlock()
	}
	e.failed(r, err, took)
}
