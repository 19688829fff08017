package search

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// indexWorker is a process that performs jobs one after the other.
type indexWorker struct {
	child *child
	w     *bufio.Writer
	out   *bufio.Reader
	jobs  int   // completed jobs
	bytes int64 // bytes of content in them
}

const (
	// maxJobs is the maximum number of jobs of a process, and maxJobBytes the approximate amount of content. Its memory is
	// released then. Starting a process costs several times as much as indexing a small repository.
	maxJobs     = 200
	maxJobBytes = 64 << 20
	// jobTimeout is the time limit of an indexing job. Its process is killed then.
	jobTimeout = 2 * time.Hour
	// spareTime is the time that a process waits for the next job.
	spareTime = 5 * time.Second
)

// startJob sends a job to the waiting process of a lane, or to a new one. The error has the reason for which none took
// it.
func (e *Engine) startJob(ctx context.Context, l lane, job *workerv1.Job) (*indexWorker, error) {
	if x := e.spares[l]; x != nil {
		e.spares[l] = nil
		err := x.take(ctx, job)
		if err == nil {
			return x, nil
		}
		if x.end(true); ctx.Err() != nil {
			return nil, errAbandoned(ctx)
		}
		// It ended while it waited. The repository is not the cause.
		e.metrics.deaths.WithLabelValues(string(WorkIndex)).Inc()
		e.log.Warn("idle index worker ended; another one is started", "error",
			x.crash(err))
	}
	c, err := startChild(e.indexSpec)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot index", err)
	}
	x := &indexWorker{child: c, w: bufio.NewWriterSize(c.stdin, 256<<10), out: bufio.NewReaderSize(c.stdout, 64<<10)}
	stop := context.AfterFunc(ctx, c.kill)
	err = ipc.ReadHello(x.out, e.o.Build)
	stop()
	if err == nil {
		err = x.take(ctx, job)
	}
	if err != nil {
		if x.end(true); ctx.Err() != nil {
			return nil, errAbandoned(ctx)
		}
		if mismatch, ok := errors.AsType[*ipc.MismatchError](err); ok {
			return nil, fault.Wrap(fault.Unavailable, "cannot index", mismatch)
		}
		return nil, x.crash(err)
	}
	return x, nil
}

// take sends a job to the process, and waits until it is received.
func (x *indexWorker) take(ctx context.Context, job *workerv1.Job) error {
	defer context.AfterFunc(ctx, x.child.kill)()
	if err := errors.Join(ipc.Write(x.w, &workerv1.IndexRequest{Job: job}), x.w.Flush()); err != nil {
		return err
	}
	var response workerv1.IndexResponse
	err := ipc.Read(x.out, &response)
	if err == nil && !response.Accepted {
		err = errors.New("the index worker did not accept a job")
	}
	return err
}

func errAbandoned(ctx context.Context) error {
	return fault.Wrap(fault.KindOf(ctx.Err()), "indexing was cancelled", ctx.Err())
}

// endSpare ends the waiting process of a lane, if there is one. Only the lane's goroutine calls it.
func (e *Engine) endSpare(l lane) {
	if x := e.spares[l]; x != nil {
		e.spares[l] = nil
		x.end(e.ctx.Err() != nil)
	}
}

// more counts a completed job, and reports whether the process can do another one.
func (x *indexWorker) more(r *workerv1.Report) bool {
	x.jobs++
	x.bytes += r.Bytes
	return r.Error == "" && !r.Rebuild && x.jobs < maxJobs && x.bytes < maxJobBytes
}

// end waits for the idle process, or kills it.
func (x *indexWorker) end(kill bool) {
	x.child.stdin.Close()
	if kill {
		x.child.kill()
	}
	<-x.child.done
	x.child.stdout.Close()
}

// report reads the responses to a job up to its report, and calls each for every shard.
func (x *indexWorker) report(each func(*workerv1.Shard)) (*workerv1.Report, error) {
	for {
		var response workerv1.IndexResponse
		if err := ipc.Read(x.out, &response); err != nil {
			return nil, err
		}
		if response.Shard != nil && each != nil {
			each(response.Shard)
		}
		if response.Report != nil {
			return response.Report, nil
		}
	}
}

// errCrashed reports that the process ended by itself. The source is not the cause.
var errCrashed = errors.New("no report came")

// crash is the reason for which an indexing process ended without a report.
func (x *indexWorker) crash(err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: "the process that indexes has ended: " + x.child.reason(),
		Err: errors.Join(errCrashed, err)}
}

// feeder writes the data of a job.
type feeder func(context.Context, io.Writer) error

func (e *Engine) setSlowStart(t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slowStart = t
}

// do performs a job in a lane. each receives the responses before the report.
func (e *Engine) do(ctx context.Context, l lane, job *workerv1.Job, feed feeder,
	each func(*workerv1.Shard)) (*workerv1.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	x, err := e.startJob(ctx, l, job)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, x.child.kill)
	defer stop()
	if l == laneSlow {
		e.setSlowStart(time.Now())
		defer e.setSlowStart(time.Time{})
	}
	if feed != nil {
		if err = feed(ctx, x.w); err == nil {
			err = x.w.Flush()
		}
	}
	if err != nil && !isBrokenPipe(err) { // an error of the source: the process must not use the incomplete data
		x.end(true)
		return nil, err
	}
	report, err := x.report(each)
	if stop() && err == nil && l != laneNone && x.more(report) {
		e.spares[l] = x
		return report, nil
	}
	x.end(err != nil)
	if err != nil {
		if ctx.Err() != nil {
			return nil, errAbandoned(ctx)
		}
		return nil, x.crash(err)
	}
	return report, nil
}

func isBrokenPipe(err error) bool {
	var p *os.PathError
	return errors.As(err, &p) && p.Op == "write" || errors.Is(err, io.ErrClosedPipe)
}

// inspect lists the shards in the index. Broken ones have an error.
func (e *Engine) inspect(ctx context.Context) (list []*workerv1.Shard, err error) {
	report, err := e.do(ctx, laneNone, &workerv1.Job{Dir: e.shards(), Inspect: true}, nil,
		func(s *workerv1.Shard) { list = append(list, s) })
	if err == nil && report.Error != "" {
		err = errors.New(report.Error)
	}
	return list, err
}
