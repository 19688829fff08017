package remote

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// errorTimeout is how long to wait for a node's error after its side channel broke.
const errorTimeout = 2 * time.Second

// silenceTimeout is how long a node may be silent after a transfer.
const silenceTimeout = time.Minute

// copyFromChannel copies a response from a side channel to the client. At the same time it waits for the end of the
// call, in which the node reports a failure.
func (r *response) copyFromChannel() (*internalv1.End, error) {
	c, err := r.openChannel()
	if err != nil {
		return nil, err
	}
	defer c.Release() // closes it, unless both directions have ended well
	defer context.AfterFunc(r.callCtx, c.Abort)()
	if err := r.sendChannel(c); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- r.awaitEnd(c) }()
	receiver := c.Receive()
	failure := r.copy(receiver)
	if failure == nil {
		r.complete.Store(true)
		timer := time.AfterFunc(cmp.Or(r.node.ChannelStall, silenceTimeout), r.hangUp)
		err := <-ended
		if !timer.Stop() && err != nil && r.ctx.Err() == nil {
			err = r.invalid("the call does not end after the side channel")
		}
		if err != nil {
			return nil, err
		}
		return r.part.other.GetEnd(), nil
	}
	if receiver.Err() == nil { // the client has disconnected
		r.hangUp()
		<-ended
		return nil, &node.ClientConnError{Err: failure}
	}
	timer := time.AfterFunc(errorTimeout, r.hangUp)
	defer timer.Stop()
	err = <-ended
	switch reported := r.part.other.GetEnd().GetFault(); {
	case r.ctx.Err() != nil:
		return nil, r.ctx.Err()
	case err != nil && timer.Stop():
		failure = err
	case reported != nil:
		if r.outcome, err = r.node.outcomeOf(r.ctx, r.part.other.GetEnd().GetOutcome()); err == nil {
			err = faultrpc.Fault(reported)
		}
		return nil, err
	default:
		failure = r.channelError(failure)
	}
	if c.Transfer() > 1 && r.sent == 0 && !r.cutOff && fault.Is(failure, fault.Unavailable) {
		return nil, &node.StaleConnError{Err: failure}
	}
	return nil, failure
}

// openChannel takes a side channel from the pool.
func (r *response) openChannel() (*sidechannel.Channel, error) {
	c, err := r.pool.Get(r.callCtx)
	if err != nil {
		r.node.markLost(err)
		return nil, r.channelError(err)
	}
	return c, nil
}

// sendChannel names a side channel as the data path.
func (r *response) sendChannel(c *sidechannel.Channel) error {
	channel := &internalv1.SideChannel{Name: c.Name(), Transfer: c.Transfer()}
	return r.sendPath(&internalv1.DataPath{Path: &internalv1.DataPath_SideChannel{SideChannel: channel}})
}

// channelError returns the error of a side channel for the client. Its kind does not describe the repository.
func (r *response) channelError(err error) error {
	switch {
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case fault.Is(err, fault.Exhausted):
		return err
	}
	return &fault.Error{
		Kind: fault.Unavailable, RetryAfter: fault.RetrySoon, Err: err,
		Msg: "the connection for packs to the storage node " + r.node.Name + " failed; try again",
	}
}

// awaitEnd waits for the last part of the call. If the session failed, it aborts the channel.
func (r *response) awaitEnd(c *sidechannel.Channel) error {
	err := r.receive()
	if err != nil {
		c.Abort()
		r.outcome = r.node.outcomeOfError(r.ctx, err)
		if errors.Is(err, io.EOF) {
			return r.invalid("the call ended before the end of the response")
		}
		r.cutOff = !connect.IsWireError(err)
		return r.node.failed(r.ctx, err)
	}
	end := r.part.other.GetEnd()
	if end == nil {
		c.Abort()
		return r.invalid("got another part than the end after a side channel")
	}
	if end.GetFault() != nil && !end.GetFaultReported() {
		c.Abort()
	} else {
		c.Due()
	}
	return nil
}

// copy copies the channel's bytes to the client.
func (r *response) copy(from *sidechannel.Receiver) error {
	length, err := from.Length()
	if err != nil {
		return err
	}
	if length >= 0 {
		r.hasLength, r.length = true, length
	}
	r.begin()
	_, err = from.WriteTo((*clientWriter)(r))
	return err
}

// clientWriter is the response as a channel's receiver writes to it.
type clientWriter response

func (c *clientWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	(*response)(c).count(int64(n))
	return n, err
}

// ReadFrom passes src to the response unchanged, so that the kernel can copy.
func (c *clientWriter) ReadFrom(src io.Reader) (n int64, err error) {
	if to, ok := c.w.(io.ReaderFrom); ok {
		n, err = to.ReadFrom(src)
	} else {
		n, err = io.Copy(struct{ io.Writer }{c.w}, src)
	}
	(*response)(c).count(n)
	return n, err
}

func (c *clientWriter) Flush() error { return c.w.Flush() }
