package origin

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// sessions opens sessions with the services of an SSH origin.
type sessions interface {
	// open starts a service on a repository and asks for protocol version 2. Operands follow the path and need no
	// quotation marks. The session ends with ctx or Close. An error of the connection means an outage. An error of kind
	// Unauthenticated, Denied or NotFound is the origin's.
	open(ctx context.Context, path string, service protocol.Service, operands ...string) (io.ReadWriteCloser, error)
	io.Closer
}

// stream is a session over a stream, in which both sides take turns. The origin has sent its advertisement.
type stream struct {
	*answer
	lines *pktline.Reader
	known repository
	write func(p []byte) (int, error)
}

// streamRefs is Refs in a session.
func (o *Origin) streamRefs(ctx context.Context, path string, prefixes []string) (*Refs, error) {
	list := o.listing(prefixes)
	s, err := o.openStream(ctx, opRefs, path, list, func(s *stream) error {
		if s.known.version == protocol.V0 {
			_, err := s.write(pktline.AppendFlush(nil)) // the client wants nothing
			return err
		}
		if _, err := s.write(s.known.lsRefs(o.o.Agent, prefixes)); err != nil {
			return err
		}
		return list.readLsRefs(s.lines)
	})
	if err != nil {
		return nil, err
	}
	return list.result(s.known.advertisement), s.Close()
}

// streamFetch is Fetch in a session.
func (o *Origin) streamFetch(ctx context.Context, path string, f FetchRequest) (*Pack, error) {
	var pack *Pack
	if _, err := o.openStream(ctx, opFetch, path, o.listing([]string{"HEAD"}), func(s *stream) error {
		if err := s.known.checkFormat(&f); err != nil {
			return err
		}
		body := f.v2(o.o.Agent)
		if s.known.version == protocol.V0 {
			body = f.v0(o.o.Agent, s.known.advertisement)
		}
		if _, err := s.write(body); err != nil {
			return err
		}
		pack = newPack(s.answer, s.lines, s.known.version, f.Progress)
		return pack.Begin()
	}); err != nil {
		return nil, err
	}
	return pack, nil
}

// openStream opens a session of upload-pack under the limits, reads the advertisement and uses the session. Afterwards
// the caller closes it, unless there is an error.
func (o *Origin) openStream(ctx context.Context, operation, path string, list *listing,
	use func(*stream) error) (s *stream, err error) {
	start := func(ctx context.Context) (io.ReadWriteCloser, error) {
		return o.sessions.open(ctx, path, protocol.UploadPack)
	}
	err = o.openSession(ctx, operation, path, start, func(a *answer, body io.Writer) (err error) {
		s = &stream{answer: a, lines: pktline.NewReader(a), write: func(p []byte) (int, error) {
			n, err := body.Write(p)
			if err != nil {
				err = a.explain(err)
			}
			return n, err
		}}
		if s.known.advertisement, err = readAdvertisement(s.lines, list); err == nil {
			err = use(s)
		} else if r, ok := errors.AsType[reportedError](err); ok {
			err = classify(r)
		}
		return err
	})
	return s, err
}

// openSession opens a session under the limits, and uses it. Afterwards the caller closes the answer, unless there is
// an error.
func (o *Origin) openSession(ctx context.Context, operation, path string,
	start func(context.Context) (io.ReadWriteCloser, error), use func(a *answer, body io.Writer) error) error {
	return o.limited(ctx, operation, path, operation == opFetch, func(leave func()) error {
		ctx, cancel := context.WithCancelCause(ctx)
		unwatch := context.AfterFunc(o.closing, func() { cancel(errClosed) })
		stop := func() {}
		if operation != opFetch {
			stop = o.limits.await()
		}
		defer stop()
		late := time.AfterFunc(o.o.AnswerTimeout, func() { cancel(errNoAnswer) })
		defer late.Stop()
		explain := func(err error) error { return o.transportError(ctx, err) }
		body, err := start(ctx)
		if err != nil {
			err = explain(err)
			unwatch()
			cancel(nil)
			return err
		}
		a := &answer{body: body, explain: explain, cancel: cancel, leave: func() { unwatch(); leave() },
			begun: func() { stop(); o.limits.hear() }}
		a.watch(o.o.Stall, operation, operation == opFetch)
		if err = use(a, body); err != nil {
			_ = a.Close()
		}
		return err
	})
}
