package search

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// restarts has the pauses before a new worker.
var restarts = retry.Policy{First: 100 * time.Millisecond, Max: 30 * time.Second}

const (
	// steady is the lifetime of a worker after which the pauses start again.
	steady = time.Minute
	// maxIdle is the maximum number of idle sockets to the worker.
	maxIdle = 32
)

// searchWorker keeps one search worker running.
type searchWorker struct {
	spec    childSpec
	build   ipc.Build // of this program
	onCrash func()    // called when a worker has ended unexpectedly
	ready   chan struct{}

	mu      sync.Mutex
	control *net.UnixConn // nil if the worker does not run, or has not loaded its shards
	worker  int           // number of workers so far
	idle    []*conversation
	crashes int
	reason  string // reason for a missing worker
}

// conversation is one socket to the worker.
type conversation struct {
	net.Conn
	r      *bufio.Reader
	w      *bufio.Writer
	worker int
}

// run starts a worker whenever the last one has ended, until ctx ends.
func (s *searchWorker) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		start := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > steady {
			failures = 0
		}
		failures++
		s.mu.Lock()
		s.crashes++
		s.reason = err.Error()
		s.mu.Unlock()
		s.spec.log.Warn("search worker ended; another one is started", "error", err, "after",
			time.Since(start).Round(time.Millisecond).String(), "in", restarts.Pause(failures).String())
		s.onCrash()
		_ = retry.Sleep(ctx, restarts.Pause(failures))
	}
}

// once starts a worker and waits for its end. It always returns an error.
func (s *searchWorker) once(ctx context.Context) error {
	own, child, err := socketPair()
	if err != nil {
		return err
	}
	defer own.Close()
	spec := s.spec
	spec.control = child
	c, err := startChild(spec)
	child.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, c.kill)()
	go func() {
		<-c.done
		own.SetReadDeadline(time.Unix(1, 0))
	}()
	r := bufio.NewReader(own)
	if err = ipc.ReadHello(r, s.build); err == nil {
		_, err = r.ReadByte() // it has loaded the index
	}
	mismatch, ok := errors.AsType[*ipc.MismatchError](err)
	switch {
	case ok:
		c.kill()
	case err == nil:
		s.open(own)
	}
	<-c.done
	s.close()
	if ok {
		return mismatch
	}
	return errors.New(c.reason())
}

func (s *searchWorker) open(control *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spec.log.Info("search index is open")
	s.control, s.reason = control, ""
	s.worker++
	if s.ready != nil {
		close(s.ready)
		s.ready = nil
	}
}

func (s *searchWorker) close() {
	s.mu.Lock()
	idle := s.idle
	s.control, s.idle = nil, nil
	s.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
}

// socketPair returns the two ends of a socket, the first as a connection. Child processes do not inherit them.
func socketPair() (*net.UnixConn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0]) // a process that kept an end would hide that the other has gone
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	f, child := os.NewFile(uintptr(fds[0]), "search"), os.NewFile(uintptr(fds[1]), "search")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		child.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), child, nil
}

func (s *searchWorker) unavailable() error {
	return fault.Retry(fault.Unavailable, fault.RetrySoon, "the search worker is starting; try again")
}

// connect returns an idle socket to the worker, or a new one.
func (s *searchWorker) connect() (*conversation, error) {
	s.mu.Lock()
	control, worker := s.control, s.worker
	if n := len(s.idle); n > 0 {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return c, nil
	}
	s.mu.Unlock()
	if control == nil {
		return nil, s.unavailable()
	}
	own, child, err := socketPair()
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot reach the search worker", err)
	}
	defer child.Close()
	if _, _, err := control.WriteMsgUnix([]byte{1}, unix.UnixRights(int(child.Fd())), nil); err != nil {
		own.Close()
		return nil, s.unavailable()
	}
	return &conversation{Conn: own, r: bufio.NewReaderSize(own, 64<<10), w: bufio.NewWriter(own), worker: worker}, nil
}

// release keeps a socket without a running request for later, or closes it.
func (s *searchWorker) release(c *conversation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.worker == s.worker && s.control != nil && len(s.idle) < maxIdle {
		s.idle = append(s.idle, c)
	} else {
		c.Close()
	}
}

// ask sends a request to the search worker and calls each for every batch of results.
func (s *searchWorker) ask(ctx context.Context, request *workerv1.SearchRequest,
	each func(Batch) error) (*workerv1.SearchEnd, error) {
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	end, err := c.ask(request, each)
	if whole := stop(); err == nil && whole {
		s.release(c)
	} else {
		c.Close()
	}
	if err != nil && ctx.Err() != nil {
		err = fault.Wrap(fault.KindOf(ctx.Err()), "the search was cancelled", ctx.Err())
	}
	return end, err
}

func (c *conversation) ask(request *workerv1.SearchRequest, each func(Batch) error) (*workerv1.SearchEnd, error) {
	if err := errors.Join(ipc.Write(c.w, request), c.w.Flush()); err != nil {
		return nil, errLost(err)
	}
	for {
		var response workerv1.SearchResponse
		if err := ipc.Read(c.r, &response); err != nil {
			return nil, errLost(err)
		}
		if b := response.Batch; b != nil {
			if err := each(Batch{Results: int(b.Results), Matches: int(b.Matches), JSON: b.Elements}); err != nil {
				return nil, err
			}
		}
		if end := response.End; end != nil {
			return end, endError(end)
		}
	}
}

// endError returns the error that ended a search, or nil.
func endError(end *workerv1.SearchEnd) error {
	switch kind := fault.Kind(end.ErrorKind); {
	case end.Error == "":
		return nil
	case kind == fault.Internal:
		return fault.Wrap(fault.Internal, "the search failed", errors.New(end.Error))
	default:
		return fault.New(kind, "%s", end.Error)
	}
}

// errLost returns the error of a search whose worker has ended.
func errLost(err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: "the search worker ended during the search; try again",
		RetryAfter: fault.RetrySoon, Err: err}
}
