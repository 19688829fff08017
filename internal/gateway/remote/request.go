package remote

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// requestError is an error of the client's request.
type requestError struct{ error }

func (e requestError) Unwrap() error { return e.error }

// requestParts splits a client's request into the parts that messages carry.
type requestParts struct {
	request  io.Reader
	buf      *[requestPartSize]byte
	stateful bool            // each Read is a part: the client may wait for a response before it sends more
	call     context.Context // reading stops when it ends; nil: never
	part     internalv1.RequestData
}

// next returns the next part, which is valid until the next call.
func (p *requestParts) next() (*internalv1.RequestData, error) {
	k, err := 0, error(nil)
	for m := 0; k < len(p.buf) && err == nil && (k == 0 || !p.stateful); k += m {
		// not io.ReadFull, which hides the error of an interrupted request
		if p.call != nil && p.call.Err() != nil {
			return nil, p.call.Err()
		}
		m, err = p.request.Read(p.buf[k:])
	}
	if err != nil && err != io.EOF {
		return nil, requestError{err}
	}
	p.part.Data, p.part.Last = p.buf[:k], err == io.EOF
	return &p.part, nil
}

// requestStream is a request that is sent while its response may arrive: the request of a stateful session after its
// first part, a push, or an upload to Git LFS. A goroutine reads it from the client, and buffers one part of it. The
// goroutine ends with the request, with the call, or with an error of either. While a stateful client is silent, it
// waits until the client's connection ends.
type requestStream struct {
	request  io.Reader
	stateful bool
	push     bool // nothing is sent before the node requests it
	// lossAdvice is the end of the message for a client whose connection to the node was lost.
	lossAdvice  string
	objectBytes int64 // result of an upload to Git LFS
	response    *response
	started     bool

	mu       sync.Mutex // held while a message is sent
	failure  atomic.Pointer[streamFailure]
	endTimer *time.Timer // limits the wait for the node after an error; valid after done is closed

	done    chan struct{}        // closed when the request is not read any more
	channel *sidechannel.Channel // nil: the request is part of the call; valid after done is closed
	unwatch func() bool          // stops the abort of the channel with the call
}

// streamFailure is the reason why the node did not get the whole request.
type streamFailure struct{ err error }

func newRequestStream(request io.Reader, session node.Session) *requestStream {
	return &requestStream{request: request, stateful: !session.Stateless, done: make(chan struct{})}
}

// start begins to send.
func (s *requestStream) start() error {
	if s.started {
		return s.response.invalid("it requested the client's data twice")
	}
	s.started = true
	go s.run()
	return nil
}

func (s *requestStream) run() {
	defer close(s.done)
	buf := requestBuffers.Get().(*[requestPartSize]byte)
	defer requestBuffers.Put(buf)
	err := s.send(&requestParts{request: s.request, buf: buf, stateful: s.stateful, call: s.response.callCtx})
	if err == nil || errors.Is(err, io.EOF) { // after io.EOF the node's response has the reason
		return
	}
	s.failure.Store(&streamFailure{err})
	if _, ofClient := errors.AsType[requestError](err); ofClient {
		s.response.hangUp()
		return
	}
	s.endTimer = time.AfterFunc(errorTimeout, s.response.hangUp)
}

// send sends the whole request. A short push is part of the call.
func (s *requestStream) send(parts *requestParts) error {
	if !s.push {
		return s.sendInBand(parts)
	}
	var first *internalv1.RequestData
	if !s.stateful {
		var err error
		if first, err = parts.next(); err != nil {
			return err
		}
	}
	if s.response.pool != nil && (first == nil || !first.Last) {
		return s.sendByChannel(parts, first)
	}
	inBand := &internalv1.DataPath{Path: &internalv1.DataPath_InBand{InBand: &internalv1.InBand{}}}
	if err := s.response.sendPath(inBand); err != nil {
		return err
	}
	if first != nil {
		if err := s.sendPart(first); err != nil || first.Last {
			return err
		}
	}
	return s.sendInBand(parts)
}

// sendInBand sends the request in messages of the call.
func (s *requestStream) sendInBand(parts *requestParts) error {
	for {
		part, err := parts.next()
		if err != nil {
			return err
		}
		if err := s.sendPart(part); err != nil || part.Last {
			return err
		}
	}
}

func (s *requestStream) sendPart(part *internalv1.RequestData) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.response.call.Send(dataMessage(part))
}

// sendByChannel names a side channel, and sends the request there.
func (s *requestStream) sendByChannel(parts *requestParts, part *internalv1.RequestData) error {
	r := s.response
	c, err := r.openChannel()
	if err != nil {
		return err
	}
	s.channel, s.unwatch = c, context.AfterFunc(r.callCtx, c.Abort)
	if err := r.sendChannel(c); err != nil {
		return err
	}
	sender := c.Send(-1)
	for {
		if part != nil {
			_, err := sender.Write(part.Data)
			if err == nil && part.Last {
				err = sender.End(nil)
			} else if err == nil && s.stateful {
				err = sender.Flush()
			}
			if err != nil {
				return r.channelError(err)
			}
			if part.Last {
				return nil
			}
		}
		if part, err = parts.next(); err != nil {
			_ = sender.End(fault.Wrap(fault.Cancelled, "the client's request was cut off", err))
			return err
		}
	}
}

// wait waits until a stateless request was sent completely. An HTTP client does not read the response before, and
// writing the response would read the rest of the request.
func (s *requestStream) wait() error {
	if s == nil || s.stateful || !s.started {
		return nil
	}
	select {
	case <-s.done:
		return s.err()
	case <-s.response.callCtx.Done():
		return s.response.callCtx.Err()
	}
}

// err returns why the node did not get the whole request; nil if that is not known.
func (s *requestStream) err() error {
	if failure := s.failure.Load(); failure != nil {
		return failure.err
	}
	return nil
}

// end ends the stream after a session that ended with err, and returns the error for the client.
func (s *requestStream) end(err error) error {
	if !s.started {
		return err
	}
	if err != nil {
		s.response.hangUp()
		if client, ok := s.request.(interface{ Interrupt() }); ok && !s.stateful {
			client.Interrupt() // it may be silent for long
		}
	}
	if !s.stateful {
		<-s.done
	}
	select {
	case <-s.done:
		if s.endTimer != nil {
			s.endTimer.Stop()
		}
		if s.channel != nil {
			s.unwatch()
			if err != nil {
				s.channel.Abort()
			}
			s.channel.Release() // closes it, unless the node has received all
		}
	default: // ends with the call at the latest, or in a Read with the client
	}
	if failure, ok := errors.AsType[requestError](err); ok {
		return failure.error
	}
	return err
}

// failed returns the error of the call, unless the request's own error is the cause.
func (r *response) failed(err error) error {
	if r.request == nil || !r.request.started || r.ctx.Err() != nil || connect.IsWireError(err) {
		return r.node.failed(r.ctx, err)
	}
	cause := r.request.err()
	if _, ofClient := errors.AsType[requestError](cause); ofClient {
		return cause
	}
	if cause == nil {
		cause = err
	}
	if !r.request.push {
		return r.node.failed(r.ctx, cause)
	}
	r.node.markLost(err)
	return &fault.Error{
		Kind: fault.Unavailable, RetryAfter: fault.RetrySoon, Err: cause,
		Msg: "the connection to the storage node " + r.node.Name + " was lost during " + r.request.lossAdvice,
	}
}
