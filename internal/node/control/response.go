package control

import (
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// maxData is the maximum size of the data in one message in bytes, which a session keeps in memory.
const maxData = 128 << 10

var dataBuffers = sync.Pool{New: func() any { return new([maxData]byte) }}

// responseStream sends the response of a session through a call, and implements node.ResponseWriter. A short response
// is sent when it is complete, so that an earlier error can be the error of the call. StartBulk moves the session from
// the small lane to that of hits or of cold packs.
type responseStream struct {
	*Server
	ctx      context.Context
	running  *inflight.Request
	seat     *admit.Seat
	caller   string
	request  *request     // nil: of a push, whose response is in the call
	complete func() error // waits until the request is complete, before the response begins
	state    bool         // the session is stateful and can have several responses
	send     func(*internalv1.SessionResponse) error

	dataPath string               // for the log: "inband", "channel" or ""
	begun    bool                 // a part of the response was sent
	claimed  *sidechannel.Channel // the data path, if it is a side channel
	channel  *sidechannel.Channel // the same, if it is for the response
	sender   *sidechannel.Sender  // of the channel; nil until the first byte
	abort    func() bool          // stops aborting the channel with ctx
	buf      *[maxData]byte       // nil until needed
	n        int                  // bytes in buf
	bytes    bulk.Tally           // sent, without those in buf
}

func newResponseStream(ctx context.Context, x *sessionCall, seat *admit.Seat, request *request,
	send func(*internalv1.SessionResponse) error) *responseStream {
	r := &responseStream{Server: x.Server, ctx: ctx, running: inflight.From(ctx), seat: seat, caller: x.caller,
		request: request, state: !x.session.Stateless, send: send}
	if r.complete = request.end; request == nil {
		r.complete = func() error { return nil }
	}
	return r
}

// SetLength implements node.ResponseWriter. The length is sent before the first byte.
func (r *responseStream) SetLength(n int64) {
	if !r.state {
		r.bytes.Announce(n)
	}
}

// SetStaleness implements node.StalenessWriter. In a unary session the age is part of the outcome.
func (r *responseStream) SetStaleness(age time.Duration) {
	if r.request != nil && !r.request.short {
		part := &internalv1.SessionResponse_Staleness{Staleness: durationpb.New(age)}
		_ = r.deliver(&internalv1.SessionResponse{Part: part})
	}
}

// StartBulk implements node.ResponseWriter. It asks the gateway for the data path.
func (r *responseStream) StartBulk(cold bool) error {
	if r.request == nil {
		return nil
	}
	if r.request.short {
		return errTooLong
	}
	if err := r.complete(); err != nil {
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
	path, err := r.requestDataPath(cold)
	if err != nil {
		return err
	}
	r.channel, err = r.use(path)
	return err
}

// ReserveMemory implements node.ResponseWriter.
func (r *responseStream) ReserveMemory(n int64) error {
	if r.request == nil {
		return nil
	}
	return r.request.memory.Grow(n)
}

// use takes the data path that the gateway has chosen: nil for the call itself, or a side channel, which close
// releases.
func (r *responseStream) use(path *internalv1.DataPath) (*sidechannel.Channel, error) {
	switch path := path.GetPath().(type) {
	case *internalv1.DataPath_InBand:
		r.dataPath = "inband"
		return nil, nil
	case *internalv1.DataPath_SideChannel:
		if r.dataPath = "channel"; r.Channels == nil {
			return nil, fault.New(fault.Invalid, "this node has no side channels")
		}
		channel, err := r.Channels.Claim(r.ctx, path.SideChannel.GetName(), path.SideChannel.GetTransfer(), r.caller)
		if err == nil {
			r.claimed, r.abort = channel, context.AfterFunc(r.ctx, channel.Abort)
		} else if !fault.Is(err, fault.Cancelled) && !fault.Is(err, fault.Deadline) {
			err = fault.Wrap(fault.Unavailable, "cannot use the side channel; try again", err) // the repository is fine
		}
		return channel, err
	}
	return nil, fault.New(fault.Invalid, "unknown data path")
}

// out starts the response on the side channel.
func (r *responseStream) out() *sidechannel.Sender {
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

// requestDataPath asks the gateway for the data path and waits for it.
func (r *responseStream) requestDataPath(cold bool) (*internalv1.DataPath, error) {
	part := &internalv1.SessionResponse_DataPathRequest{DataPathRequest: &internalv1.DataPathRequest{Cold: cold}}
	if err := r.deliver(&internalv1.SessionResponse{Part: part}); err != nil {
		return nil, err
	}
	type result struct {
		path *internalv1.DataPath
		err  error
	}
	received := make(chan result, 1)
	go func() { // ends with the call
		path, err := r.request.receiveDataPath()
		received <- result{path, err}
	}()
	patience := time.NewTimer(r.DataPathWait)
	defer patience.Stop()
	select {
	case result := <-received:
		return result.path, result.err
	case <-r.ctx.Done():
		return nil, r.ctx.Err()
	case <-patience.C:
		return nil, fault.New(fault.Deadline, "the gateway did not choose a data path in time")
	}
}

// Write implements io.Writer. It collects data until a message is full.
func (r *responseStream) Write(p []byte) (int, error) {
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

// ReadFrom implements io.ReaderFrom. The kernel copies parts of files to a side channel. Otherwise src is read into
// messages.
func (r *responseStream) ReadFrom(src io.Reader) (int64, error) {
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

// room returns the free part of the buffer.
func (r *responseStream) room() []byte {
	if r.buf == nil {
		r.buf = dataBuffers.Get().(*[maxData]byte)
	}
	return r.buf[r.n:]
}

// Flush implements node.ResponseWriter.
func (r *responseStream) Flush() error {
	if r.channel != nil {
		return r.out().Flush()
	}
	return r.flush()
}

// begin sends the announced length when the request is complete.
func (r *responseStream) begin() error {
	if r.begun {
		return nil
	}
	if err := r.complete(); err != nil {
		return err
	}
	r.begun = true
	r.running.SetStage(inflight.Sending)
	length, announced := r.bytes.Announced()
	if !announced {
		return nil
	}
	return r.deliver(&internalv1.SessionResponse{Part: &internalv1.SessionResponse_Length{Length: uint64(length)}})
}

// flush sends the buffer as a message.
func (r *responseStream) flush() error {
	if err := r.begin(); err != nil || r.n == 0 {
		return err
	}
	part := &internalv1.SessionResponse_Data{Data: r.buf[:r.n]}
	if err := r.deliver(&internalv1.SessionResponse{Part: part}); err != nil {
		return err
	}
	r.bytes.Add(int64(r.n))
	r.running.Sent(int64(r.n))
	r.n = 0
	return nil
}

// deliver sends a message. The error is a node.ClientConnError.
func (r *responseStream) deliver(a *internalv1.SessionResponse) error {
	if err := r.send(a); err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// commit sends the rest of the response. A successful one must have the announced length.
func (r *responseStream) commit(success bool) error {
	if success {
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

// close leaves the lane and releases everything. It is always called.
func (r *responseStream) close() {
	r.seat.Leave()
	if r.claimed != nil {
		r.abort()
		if r.ctx.Err() != nil {
			r.claimed.Abort() // do not wait for the acknowledgement
		}
		r.claimed.Release() // closes it after an incomplete transfer
	}
	if r.buf != nil {
		dataBuffers.Put(r.buf)
		r.buf = nil
	}
	r.Pump.Count(&r.bytes)
}
