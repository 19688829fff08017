package search

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 30 * time.Second
	// steady is how long a process has to live for its end to count as the first one again.
	steady = time.Minute
	// maxIdle is how many sockets to the process are kept open while nobody uses them.
	maxIdle = 32
)

// searching keeps one process that searches running.
type searching struct {
	spec  childSpec
	died  func() // is told each time that the process has ended by itself
	ready chan struct{}

	mu      sync.Mutex
	control *net.UnixConn // nil: it does not run, or has not loaded its shards
	life    int           // counts processes
	idle    []*conversation
	deaths  int
	why     string // it does not run
}

// conversation is one socket to the process.
type conversation struct {
	net.Conn
	r    ipc.Reader
	w    ipc.Writer
	buf  []byte
	life int
}

// run starts the process again and again until ctx ends.
func (s *searching) run(ctx context.Context) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		began := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			backoff = firstBackoff
		}
		s.mu.Lock()
		s.deaths++
		s.why = err.Error()
		s.mu.Unlock()
		s.spec.log.Warn("the process that searches has ended; another one is started", "error", err, "after", time.Since(began).Round(time.Millisecond).String(), "in", backoff.String())
		s.died()
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// once starts the process and waits for its end, which is an error always.
func (s *searching) once(ctx context.Context) error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	spec := s.spec
	spec.control = theirs
	c, err := startChild(spec)
	theirs.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, c.kill)()
	go func() {
		<-c.done
		ours.SetReadDeadline(time.Unix(1, 0))
	}()
	var ready [1]byte
	if _, err := io.ReadFull(ours, ready[:]); err == nil {
		s.begin(ours)
	}
	<-c.done
	s.end()
	return errors.New(c.why())
}

func (s *searching) begin(control *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spec.log.Info("the search index is open: searches are answered")
	s.control, s.why = control, ""
	s.life++
	if s.ready != nil {
		close(s.ready)
		s.ready = nil
	}
}

func (s *searching) end() {
	s.mu.Lock()
	idle := s.idle
	s.control, s.idle = nil, nil
	s.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
}

// socketPair makes a socket with two ends, one as a connection. No process inherits them by chance.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := pairOfSockets()
	if err != nil {
		return nil, nil, err
	}
	f, theirs := os.NewFile(uintptr(fds[0]), "search"), os.NewFile(uintptr(fds[1]), "search")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

func (s *searching) unavailable() error {
	return fault.Retry(fault.Unavailable, time.Second, "the process that searches is being started; try again in a moment")
}

// take gives a socket to the process.
func (s *searching) take() (*conversation, error) {
	s.mu.Lock()
	control, life := s.control, s.life
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
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot reach the process that searches", err)
	}
	defer theirs.Close()
	if _, _, err := control.WriteMsgUnix([]byte{1}, unix.UnixRights(int(theirs.Fd())), nil); err != nil {
		ours.Close()
		return nil, s.unavailable()
	}
	return &conversation{Conn: ours, r: ipc.NewReader(ours, 64<<10), w: ipc.NewWriter(ours, 8<<10), life: life}, nil
}

// give takes a socket back on which nothing is under way.
func (s *searching) give(c *conversation) {
	s.mu.Lock()
	if keep := c.life == s.life && s.control != nil && len(s.idle) < maxIdle; keep {
		s.idle = append(s.idle, c)
		c = nil
	}
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// ask has the process search. Each batch is good until the next one.
func (s *searching) ask(ctx context.Context, q ipc.Request, set ipc.Set, each func(Batch) error) (ipc.End, error) {
	c, err := s.take()
	if err != nil {
		return ipc.End{}, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	end, err := c.ask(q, set, each)
	if whole := stop(); err == nil && whole {
		s.give(c)
	} else {
		c.Close()
	}
	if err != nil && ctx.Err() != nil {
		err = fault.Wrap(fault.KindOf(ctx.Err()), "the search was abandoned", ctx.Err())
	}
	return end, err
}

func (c *conversation) ask(q ipc.Request, set ipc.Set, each func(Batch) error) (end ipc.End, err error) {
	c.buf = q.Append(c.buf[:0])
	if err := c.w.Frame(ipc.KindRequest, c.buf); err != nil {
		return end, lost(err)
	}
	if q.Limited {
		c.w.Frame(ipc.KindRepositories, set.Bytes())
	}
	if err := c.w.Flush(); err != nil {
		return end, lost(err)
	}
	for {
		var kind ipc.Kind
		if kind, c.buf, err = c.r.Frame(c.buf); err != nil {
			return end, lost(err)
		}
		switch kind {
		case ipc.KindBatch:
			var b Batch
			if b.Results, b.Matches, b.JSON, err = ipc.ParseBatch(c.buf); err != nil {
				return end, lost(err)
			}
			if err := each(b); err != nil {
				return end, err
			}
		case ipc.KindEnd:
			if end, err = ipc.ParseEnd(c.buf); err != nil {
				return end, lost(err)
			}
			switch {
			case end.Error != "" && fault.Kind(end.Kind) == fault.Internal:
				return end, fault.Wrap(fault.Internal, "the search failed", errors.New(end.Error))
			case end.Error != "":
				return end, fault.New(fault.Kind(end.Kind), "%s", end.Error)
			}
			return end, nil
		default:
			return end, lost(errors.New("frame " + strconv.QuoteRune(rune(kind))))
		}
	}
}

// lost is what a search fails with whose process has gone.
func lost(err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: "the process that searches ended during the search; try again in a moment", RetryAfter: time.Second, Err: err}
}
