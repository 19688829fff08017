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
	"github.com/packhorse-git/packhorse/internal/sidechannel"
)

// upload is a request that is sent while its answer may come already: what a session with state says after its first
// part, or a push. A goroutine reads it from the client, and holds one part of it. It ends with the request, with the
// call, or with an error of either; but while a client with state says nothing it waits until the client's connection
// ends.
type upload struct {
	request  io.Reader
	stateful bool
	push     bool                              // nothing is sent before the node asks for it
	message  func(*internalv1.RequestData) any // of the call
	relay    *relay
	started  bool

	mu     sync.Mutex // held while a message is sent
	failed atomic.Pointer[uploadError]
	word   *time.Timer // of the node, that is waited for after an error; good once done is closed

	done    chan struct{}        // closed when nobody reads the request any more
	channel *sidechannel.Channel // the road; nil: the call. Good once done is closed
	release func() bool          // ends the channel's watch over the call
}

// uploadError is why a request did not get to the node whole.
type uploadError struct{ err error }

func newUpload(request io.Reader, session node.Session, message func(*internalv1.RequestData) any) *upload {
	return &upload{request: request, stateful: !session.Stateless, message: message, done: make(chan struct{})}
}

// start begins to send.
func (u *upload) start() error {
	if u.started {
		return u.relay.cut(errors.New("a request was asked for twice"))
	}
	u.started = true
	go u.run()
	return nil
}

func (u *upload) run() {
	defer close(u.done)
	buf := requestBuffers.Get().(*[firstData]byte)
	defer requestBuffers.Put(buf)
	err := u.send(&requestParts{request: u.request, buf: buf, stateful: u.stateful, call: u.relay.call})
	if err == nil || errors.Is(err, io.EOF) { // after io.EOF the node's answer says more
		return
	}
	u.failed.Store(&uploadError{err})
	if _, ofClient := errors.AsType[requestError](err); ofClient {
		u.relay.leave()
		return
	}
	u.word = time.AfterFunc(lastWord, u.relay.leave)
}

// send sends all of it. A push that is short goes with the call.
func (u *upload) send(parts *requestParts) error {
	if !u.push {
		return u.byCall(parts)
	}
	var first *internalv1.RequestData
	if !u.stateful {
		var err error
		if first, err = parts.next(); err != nil {
			return err
		}
	}
	if u.relay.pool != nil && (first == nil || !first.Last) {
		return u.byChannel(parts, first)
	}
	if err := u.relay.send(&internalv1.DataPath{Path: &internalv1.DataPath_InBand{InBand: &internalv1.InBand{}}}); err != nil {
		return err
	}
	if first != nil {
		if err := u.sendPart(first); err != nil || first.Last {
			return err
		}
	}
	return u.byCall(parts)
}

// byCall sends the request in messages of the call.
func (u *upload) byCall(parts *requestParts) error {
	for {
		part, err := parts.next()
		if err != nil {
			return err
		}
		if err := u.sendPart(part); err != nil || part.Last {
			return err
		}
	}
}

func (u *upload) sendPart(part *internalv1.RequestData) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.relay.stream.Send(u.message(part))
}

// byChannel names a side channel, and sends the request there.
func (u *upload) byChannel(parts *requestParts, part *internalv1.RequestData) error {
	r := u.relay
	c, err := r.pool.Get(r.call)
	if err != nil {
		r.node.lost(err)
		return r.ofRoad(err)
	}
	u.channel, u.release = c, context.AfterFunc(r.call, c.Abort)
	road := &internalv1.SideChannel{Name: c.Name(), Transfer: c.Transfer()}
	if err := r.send(&internalv1.DataPath{Path: &internalv1.DataPath_SideChannel{SideChannel: road}}); err != nil {
		return err
	}
	sender := c.Send(-1)
	for {
		if part != nil {
			_, err := sender.Write(part.Data)
			if err == nil && part.Last {
				err = sender.End(nil)
			} else if err == nil && u.stateful {
				err = sender.Flush()
			}
			if err != nil {
				return r.ofRoad(err)
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

// whole waits until a stateless request is sent to its end: a client over HTTP reads no answer before, and whoever
// writes one to it takes what is left of the request.
func (u *upload) whole() error {
	if u == nil || u.stateful || !u.started {
		return nil
	}
	select {
	case <-u.done:
		return u.broke()
	case <-u.relay.call.Done():
		return u.relay.call.Err()
	}
}

// broke is why the request did not get to the node whole, as far as that is known.
func (u *upload) broke() error {
	if failed := u.failed.Load(); failed != nil {
		return failed.err
	}
	return nil
}

// end ends what may still be under way after a session that ended with err, and says what it failed with.
func (u *upload) end(err error) error {
	if !u.started {
		return err
	}
	if err != nil {
		u.relay.leave()
		if client, ok := u.request.(interface{ Interrupt() }); ok && !u.stateful {
			client.Interrupt() // it may say nothing for long
		}
	}
	if !u.stateful {
		<-u.done
	}
	select {
	case <-u.done:
		if u.word != nil {
			u.word.Stop()
		}
		if u.channel != nil {
			u.release()
			if err != nil {
				u.channel.Abort()
			}
			u.channel.Release() // closes it, unless the node has taken all
		}
	default: // ends with the call at the latest, or in a read with the client
	}
	if wrong, ok := errors.AsType[requestError](err); ok {
		return wrong.error
	}
	return err
}

// failed is the error of the call, unless the request's own is the cause.
func (r *relay) failed(err error) error {
	if r.up == nil || !r.up.started || r.ctx.Err() != nil || connect.IsWireError(err) {
		return r.node.failed(r.ctx, err)
	}
	cause := r.up.broke()
	if _, ofClient := errors.AsType[requestError](cause); ofClient {
		return cause
	}
	if cause == nil {
		cause = err
	}
	if !r.up.push {
		return r.node.failed(r.ctx, cause)
	}
	r.node.lost(err)
	return &fault.Error{
		Kind: fault.Unavailable, RetryAfter: fault.RetrySoon, Err: cause,
		Msg: "the storage node " + r.node.Name +
			" was lost in the middle of the push; look whether your refs have changed, and push again if not",
	}
}
