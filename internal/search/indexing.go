package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// indexing is one process that does one job after the other.
type indexing struct {
	child *child
	w     ipc.Writer
	out   ipc.Reader
	jobs  int   // that it has done
	bytes int64 // of content in them
}

const (
	// mostJobs is how many jobs a process does, and mostBytes about how much content it is given: what it has of memory is given back then. To start one costs
	// several times as much as to index a small repository.
	mostJobs  = 200
	mostBytes = 64 << 20
	// jobTime bounds a job that indexes; its process is killed then.
	jobTime = 2 * time.Hour
	// spareTime is for how long a process waits for the next job.
	spareTime = 5 * time.Second
)

// hire has a process take a job: the one that waits for work in a lane, or a new one. The error says why none did.
func (e *Engine) hire(ctx context.Context, l lane, job ipc.Job) (*indexing, error) {
	if x := e.spare[l]; x != nil {
		e.spare[l] = nil
		err := x.take(ctx, job)
		if err == nil {
			return x, nil
		}
		if x.end(true); ctx.Err() != nil {
			return nil, abandoned(ctx)
		}
		// It has ended while it waited, which is not the repository's doing.
		e.metrics.deaths.WithLabelValues(string(WorkIndex)).Inc()
		e.log.Warn("a process that waited for something to index has ended; another one takes its place", "error", x.crash(err))
	}
	c, err := startChild(e.indexSpec)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot index", err)
	}
	x := &indexing{child: c, w: ipc.NewWriter(c.stdin, 256<<10), out: ipc.NewReader(c.stdout, 64<<10)}
	if err := x.take(ctx, job); err != nil {
		if x.end(true); ctx.Err() != nil {
			return nil, abandoned(ctx)
		}
		return nil, x.crash(err)
	}
	return x, nil
}

// take gives the process a job, and waits until it has it.
func (x *indexing) take(ctx context.Context, job ipc.Job) error {
	defer context.AfterFunc(ctx, x.child.kill)()
	if err := errors.Join(x.w.JSON(ipc.KindJob, job), x.w.Flush()); err != nil {
		return err
	}
	kind, _, err := x.out.Frame(nil)
	if err == nil && kind != ipc.KindTaken {
		err = fmt.Errorf("frame %q where a job is to be taken", kind)
	}
	return err
}

func abandoned(ctx context.Context) error {
	return fault.Wrap(fault.KindOf(ctx.Err()), "indexing was abandoned", ctx.Err())
}

// retire ends the process that waits for work in a lane, if there is one. The lane's own goroutine calls it.
func (e *Engine) retire(l lane) {
	if x := e.spare[l]; x != nil {
		e.spare[l] = nil
		x.end(e.ctx.Err() != nil)
	}
}

// more counts a job that was reported on, and tells whether the process can do another one.
func (x *indexing) more(r *ipc.Report) bool {
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
func (x *indexing) report(each func(ipc.Kind, []byte) error) (r ipc.Report, err error) {
	var buf []byte
	for {
		var kind ipc.Kind
		if kind, buf, err = x.out.Frame(buf); err != nil {
			return r, err
		}
		if kind == ipc.KindReport {
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
type feeder func(context.Context, ipc.Writer) error

// do has a process do a job, in a lane; each takes what it says before its report.
func (e *Engine) do(ctx context.Context, l lane, job ipc.Job, feed feeder, each func(ipc.Kind, []byte) error) (ipc.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	x, err := e.hire(ctx, l, job)
	if err != nil {
		return ipc.Report{}, err
	}
	stop := context.AfterFunc(ctx, x.child.kill)
	defer stop()
	e.begin(l, x.child)
	defer e.finish(l)
	if feed != nil {
		if err = feed(ctx, x.w); err == nil {
			err = x.w.Flush()
		}
	}
	if err != nil && !isBrokenPipe(err) { // of the source: the process must not take what came for all
		x.end(true)
		return ipc.Report{}, err
	}
	report, err := x.report(each)
	if stop() && err == nil && l != laneNone && x.more(&report) {
		e.spare[l] = x
		return report, nil
	}
	x.end(err != nil)
	if err != nil {
		if ctx.Err() != nil {
			return report, abandoned(ctx)
		}
		return report, x.crash(err)
	}
	return report, nil
}

func isBrokenPipe(err error) bool {
	var p *os.PathError
	return errors.As(err, &p) && p.Op == "write" || errors.Is(err, io.ErrClosedPipe)
}

// inspect lists the shards in the index. Broken ones have an error.
func (e *Engine) inspect(ctx context.Context) (list []ipc.Shard, err error) {
	report, err := e.do(ctx, laneNone, ipc.Job{Dir: e.shards(), Inspect: true}, nil, func(kind ipc.Kind, b []byte) error {
		var s ipc.Shard
		if kind != ipc.KindShard {
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
