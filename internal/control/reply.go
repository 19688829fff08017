package control

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
)

// maxData is how much of an answer one message carries, in bytes: what a transfer holds in memory, whatever its size.
const maxData = 128 << 10

var dataBuffers = sync.Pool{New: func() any { return new([maxData]byte) }}

// reply carries a session's answer over a call. What is short leaves when it is whole, so that an error that comes before
// that is the call's own. It keeps the call in the lane that it belongs in: small until a pack or a long answer is to be sent,
// then that of hits or of cold packs.
type reply struct {
	*Server
	ctx     context.Context
	running *inflight.Request
	seat    *admit.Seat
	caller  string
	request *request     // nil: of a push, whose answer goes on the call
	whole   func() error // waits until the request is whole, before the answer begins
	state   bool         // of a session with state: answers follow each other
	send    func(*internalv1.ResponsePart) error

	road    string               // which one was named; "" for none
	begun   bool                 // something of the answer has left
	claimed *sidechannel.Channel // the road, if it is one
	channel *sidechannel.Channel // the same, if it is the answer's
	sender  *sidechannel.Sender  // of the channel; nil until the first byte
	abort   func() bool          // stops the channel's watch over ctx
	buf     *[maxData]byte       // nil until needed
	n       int                  // bytes of buf
	bytes   bulk.Tally           // those of buf are not sent yet
}

func newReply(ctx context.Context, x *exchange, seat *admit.Seat, request *request, send func(*internalv1.ResponsePart) error) *reply {
	r := &reply{Server: x.Server, ctx: ctx, running: inflight.From(ctx), seat: seat, caller: x.caller, request: request, state: !x.session.Stateless, send: send}
	if r.whole = request.end; request == nil {
		r.whole = func() error { return nil }
	}
	return r
}

// Length announces the length of the whole answer. It leaves with the first byte.
func (r *reply) SetLength(n int64) {
	if !r.state {
		r.bytes.Announce(n)
	}
}

// Bulk moves the call from the small lane to that of long answers, and has the caller name the road.
func (r *reply) StartBulk(cold bool) error {
	if r.request == nil {
		return nil
	}
	if r.request.short {
		return errLong
	}
	if err := r.whole(); err != nil {
		return err
	}
	if err := r.seat.Move(r.Lanes.Long(cold)); err != nil {
		return err
	}
	r.running.SetStage(inflight.Packing)
	if r.state {
		if err := r.flush(); err != nil {
			return err
		}
	}
	road, err := r.ask(cold)
	if err != nil {
		return err
	}
	switch road := road.GetPath().(type) {
	case *internalv1.DataPath_InBand:
		r.road = "inband"
		return nil
	case *internalv1.DataPath_SideChannel:
		r.road = "channel"
		r.channel, err = r.claim(road.SideChannel)
		return err
	}
	return fault.New(fault.Invalid, "this node does not know the road that the caller named")
}

// Hold counts memory that the session takes.
func (r *reply) ReserveMemory(n int64) error {
	if r.request == nil {
		return nil
	}
	return r.request.memory.Grow(n)
}

// ofRoad is the error of a claim as the call's: it is one between gateway and node, and says nothing of the repository.
func ofRoad(err error) error {
	if fault.Is(err, fault.Cancelled) || fault.Is(err, fault.Deadline) {
		return err
	}
	return fault.Wrap(fault.Unavailable, "the side channel cannot be used; try again", err)
}

// out begins the answer on the channel.
func (r *reply) out() *sidechannel.Sender {
	if r.sender == nil {
		r.begun = true
		r.running.SetStage(inflight.Sending)
		length, announced := r.bytes.Announced()
		if !announced {
			length = -1
		}
		r.sender = r.channel.Send(length)
		r.sender.HandFiles()
	}
	return r.sender
}

// ask has the caller name the road, and waits for it.
func (r *reply) ask(cold bool) (*internalv1.DataPath, error) {
	if err := r.deliver(&internalv1.ResponsePart{Part: &internalv1.ResponsePart_DataPathRequest{DataPathRequest: &internalv1.DataPathRequest{Cold: cold}}}); err != nil {
		return nil, err
	}
	type answer struct {
		road *internalv1.DataPath
		err  error
	}
	named := make(chan answer, 1)
	go func() { // ends with the call at the latest
		road, err := r.request.road()
		named <- answer{road, err}
	}()
	patience := time.NewTimer(r.RoadWait)
	defer patience.Stop()
	select {
	case a := <-named:
		return a.road, a.err
	case <-r.ctx.Done():
		return nil, r.ctx.Err()
	case <-patience.C:
		return nil, fault.New(fault.Deadline, "the caller named no road for the answer in time")
	}
}

// Write keeps p until a message is full.
func (r *reply) Write(p []byte) (int, error) {
	if r.channel != nil {
		n, err := r.out().Write(p)
		r.bytes.Add(int64(n))
		r.running.Sent(int64(n))
		return n, err
	}
	done := 0
	for {
		n := copy(r.room(), p[done:])
		r.n += n
		done += n
		if done == len(p) {
			return done, nil
		}
		if err := r.flush(); err != nil {
			return done, err
		}
	}
}

// ReadFrom sends src, mostly a part of a file: by the kernel on a channel, else it is read into messages.
func (r *reply) ReadFrom(src io.Reader) (int64, error) {
	if r.channel != nil {
		live := bulk.CountTo(src, r.running)
		n, err := r.out().ReadFrom(src)
		r.bytes.AddFrom(src, n)
		if !live {
			r.running.Sent(n)
		}
		return n, err
	}
	var done int64
	for {
		if r.n == maxData {
			if err := r.flush(); err != nil {
				return done, err
			}
		}
		n, err := src.Read(r.room())
		r.n += n
		done += int64(n)
		if err == io.EOF {
			return done, nil
		} else if err != nil {
			return done, err
		}
	}
}

// room is where the next bytes go; after a flush there is some.
func (r *reply) room() []byte {
	if r.buf == nil {
		r.buf = dataBuffers.Get().(*[maxData]byte)
	}
	return r.buf[r.n:]
}

// Flush sends what is kept.
func (r *reply) Flush() error {
	if r.channel != nil {
		return r.out().Flush()
	}
	return r.flush()
}

// begin sends the announced length, once the request is known to be whole.
func (r *reply) begin() error {
	if r.begun {
		return nil
	}
	if err := r.whole(); err != nil {
		return err
	}
	r.begun = true
	r.running.SetStage(inflight.Sending)
	length, announced := r.bytes.Announced()
	if !announced {
		return nil
	}
	return r.deliver(&internalv1.ResponsePart{Part: &internalv1.ResponsePart_Length{Length: uint64(length)}})
}

// flush sends what is kept.
func (r *reply) flush() error {
	if err := r.begin(); err != nil || r.n == 0 {
		return err
	}
	if err := r.deliver(&internalv1.ResponsePart{Part: &internalv1.ResponsePart_Data{Data: r.buf[:r.n]}}); err != nil {
		return err
	}
	r.bytes.Add(int64(r.n))
	r.running.Sent(int64(r.n))
	r.n = 0
	return nil
}

// deliver sends a message to a caller who may have gone.
func (r *reply) deliver(a *internalv1.ResponsePart) error {
	if err := r.send(a); err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// commit sends what is left. A whole answer has the length that was announced.
func (r *reply) commit(whole bool) error {
	if whole {
		if err := r.bytes.Check(int64(r.n)); err != nil {
			return err
		}
	}
	if r.channel == nil {
		return r.flush()
	}
	if err := r.out().End(nil); err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// close leaves the lane and counts. It is called whatever happened.
func (r *reply) close() {
	r.seat.Leave()
	if r.claimed != nil {
		r.abort()
		if r.ctx.Err() != nil {
			r.claimed.Abort() // an answer that ended with a word for the client waits for nobody to acknowledge it
		}
		r.claimed.Release() // closes it, if what it carried has not ended well
	}
	if r.buf != nil {
		dataBuffers.Put(r.buf)
		r.buf = nil
	}
	r.Pump.Count(&r.bytes)
}
