package remote

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
)

// lastWord is how long a node whose channel broke may take to say why.
const lastWord = 2 * time.Second

// byChannel relays an answer that comes on a side channel. The call is watched meanwhile: what the node has to say of a
// failure, it says there.
func (r *relay) byChannel() (*internalv1.End, error) {
	c, err := r.pool.Get(r.call)
	if err != nil {
		r.node.lost(err)
		return nil, r.ofRoad(err)
	}
	defer c.Release() // closes it, unless both directions have ended well
	defer context.AfterFunc(r.call, c.Abort)()
	road := &internalv1.SideChannel{Name: c.Name(), Transfer: c.Transfer()}
	if err := r.send(&internalv1.DataPath{Path: &internalv1.DataPath_SideChannel{SideChannel: road}}); err != nil {
		return nil, err
	}
	word := make(chan error, 1)
	go func() { word <- r.listen(c) }()
	receiver := c.Receive()
	failed := r.copy(receiver)
	if failed == nil {
		r.whole.Store(true)
		patience := time.AfterFunc(r.node.stall(), r.leave)
		err := <-word
		if !patience.Stop() && err != nil && r.ctx.Err() == nil {
			err = r.cut(errors.New("the call does not end after the side channel"))
		}
		if err != nil {
			return nil, err
		}
		return r.part.other.GetEnd(), nil
	}
	if receiver.Err() == nil { // it is the client who has gone
		r.leave()
		<-word
		return nil, &node.ClientConnError{Err: failed}
	}
	patience := time.AfterFunc(lastWord, r.leave)
	defer patience.Stop()
	err = <-word
	switch said := r.part.other.GetEnd().GetFault(); {
	case r.ctx.Err() != nil:
		return nil, r.ctx.Err()
	case err != nil && patience.Stop():
		failed = err
	case said != nil:
		r.outcome = outcomeOf(r.ctx, r.part.other.GetEnd().GetOutcome())
		return nil, faultrpc.Fault(said)
	default:
		failed = r.ofRoad(failed)
	}
	if c.Transfer() > 1 && r.sent == 0 && !r.lost && fault.Is(failed, fault.Unavailable) {
		return nil, &node.StaleConnError{Err: failed}
	}
	return nil, failed
}

// ofRoad is a failure of a side channel as it is told: whatever it is called there, it says nothing of the repository,
// and nothing for clients.
func (r *relay) ofRoad(err error) error {
	switch {
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case fault.Is(err, fault.Exhausted):
		return err
	}
	return &fault.Error{
		Kind: fault.Unavailable, Msg: "the connection for packs to the storage node " + r.node.Name +
			" failed; try again", RetryAfter: fault.RetrySoon, Err: err,
	}
}

// stall is how long the node may keep silent where all was said.
func (n *Node) stall() time.Duration {
	if n.ChannelStall > 0 {
		return n.ChannelStall
	}
	return time.Minute
}

// listen waits for the last part on the call. If that is no good one, nothing more is to be expected of the channel.
func (r *relay) listen(c *sidechannel.Channel) error {
	err := r.receive()
	if err != nil {
		c.Abort()
		if o, ok := faultrpc.Detail[*internalv1.Outcome](err); ok {
			r.outcome = outcomeOf(r.ctx, o)
		}
		if errors.Is(err, io.EOF) {
			return r.cut(errors.New("the call ended without an end of the answer"))
		}
		r.lost = !connect.IsWireError(err)
		return r.node.failed(r.ctx, err)
	}
	end := r.part.other.GetEnd()
	if end == nil {
		c.Abort()
		return r.cut(errors.New("a part that is not the end, beside a side channel"))
	}
	if end.GetFault() != nil && !end.GetFaultReported() {
		c.Abort()
	} else {
		c.Due()
	}
	return nil
}

// copy relays the channel's bytes.
func (r *relay) copy(from *sidechannel.Receiver) error {
	length, err := from.Length()
	if err != nil {
		return err
	}
	if length >= 0 {
		r.hasLength, r.length = true, length
	}
	r.begin()
	_, err = from.WriteTo((*toClient)(r))
	return err
}

// toClient is the relay's reply as a channel's receiver writes to it.
type toClient relay

func (t *toClient) Write(p []byte) (int, error) {
	n, err := t.reply.Write(p)
	(*relay)(t).count(int64(n))
	return n, err
}

// ReadFrom hands src on whole, so that the kernel can move it.
func (t *toClient) ReadFrom(src io.Reader) (n int64, err error) {
	if to, ok := t.reply.(io.ReaderFrom); ok {
		n, err = to.ReadFrom(src)
	} else {
		n, err = io.Copy(struct{ io.Writer }{t.reply}, src)
	}
	(*relay)(t).count(n)
	return n, err
}

func (t *toClient) Flush() error { return t.reply.Flush() }
