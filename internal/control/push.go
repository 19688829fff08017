package control

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
)

// ReceivePack takes a push. The caller is asked for the request when it is first read: a push that is refused before has cost nothing.
func (t *transfers) ReceivePack(ctx context.Context, stream *connect.BidiStream[internalv1.ReceivePackRequest, internalv1.ReceivePackResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return noStart(err)
	}
	start := first.GetStart()
	if start == nil {
		return noStart(io.EOF)
	}
	if err := served(start.GetSession(), protocol.ReceivePack); err != nil {
		return err
	}
	pusher, err := pusherOf(start.GetPusher())
	if err != nil {
		return err
	}
	send := func(a *internalv1.ResponsePart) error { return stream.Send(&internalv1.ReceivePackResponse{Part: a}) }
	return t.exchange(ctx, "receive_pack", stream.RequestHeader().Get(callerHeader), start.GetRepository(), start.GetSession(), nil, send,
		func(ctx context.Context, x *exchange) (node.Outcome, error) {
			x.updates = start.GetUpdates()
			if err := x.reply.seat.Move(t.Lanes.Push); err != nil {
				return node.Outcome{}, err
			}
			p := &push{reply: x.reply, receive: stream.Receive}
			if x.session.Stateless {
				x.reply.whole = p.end
			}
			return t.Node.ReceivePack(ctx, x.repo, x.session, pusher, p, x.reply)
		})
}

// maxPusher bounds a pusher's name, in bytes.
const maxPusher = 128

// pusherOf checks what a caller says of who pushes: it goes into environments and logs.
func pusherOf(p *internalv1.Pusher) (node.Pusher, error) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@+"
	name, address := p.GetName(), p.GetAddress()
	if len(name) > maxPusher || strings.Trim(name, letters) != "" {
		return node.Pusher{}, fault.New(fault.Invalid, "the pusher's name may have letters, digits and ._-@+ alone, at most %d", maxPusher)
	}
	if _, err := netip.ParseAddr(address); err != nil && address != "" {
		return node.Pusher{}, fault.New(fault.Invalid, "the pusher's address is no IP address")
	}
	return node.Pusher{Name: name, Address: address}, nil
}

// push reads what a client pushes, by the road that the caller names for it. Used by one goroutine at a time; in a session with state one may
// still wait in it when the push has ended.
type push struct {
	reply   *reply
	receive func() (*internalv1.ReceivePackRequest, error)

	from io.Reader // nil until the road is named
	data []byte    // that came in the call's last message
	last bool      // nothing follows
	err  error
}

func (p *push) Read(b []byte) (int, error) {
	if p.from == nil && p.err == nil {
		p.err = p.begin()
	}
	if p.err != nil {
		return 0, p.err
	}
	return p.from.Read(b)
}

// begin has the caller name the road. The client behind it may be slow.
func (p *push) begin() error {
	r := p.reply
	if err := r.deliver(&internalv1.ResponsePart{Part: &internalv1.ResponsePart_DataPathRequest{DataPathRequest: &internalv1.DataPathRequest{}}}); err != nil {
		return err
	}
	m, err := p.receive()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch road := m.GetDataPath().GetPath().(type) {
	case *internalv1.DataPath_InBand:
		r.road, p.from = "inband", messages{p}
		return nil
	case *internalv1.DataPath_SideChannel:
		r.road = "channel"
		channel, err := r.claim(road.SideChannel)
		if err == nil {
			p.from = channel.Receive()
		}
		return err
	}
	return fault.New(fault.Invalid, "the caller named no road for the request that this node knows")
}

// end reads to the end of the request, which has to be whole before the answer begins.
func (p *push) end() error {
	_, err := io.Copy(io.Discard, struct{ io.Reader }{p})
	return err
}

// messages reads a push out of the messages of its call.
type messages struct{ *push }

func (m messages) Read(b []byte) (int, error) {
	for len(m.data) == 0 {
		if m.last {
			return 0, io.EOF
		}
		message, err := m.receive()
		if errors.Is(err, io.EOF) {
			err = fault.New(fault.Invalid, "the request ends before its last part")
		}
		data := message.GetData()
		switch {
		case err != nil:
		case data == nil:
			err = fault.New(fault.Invalid, "a part of the request has to follow")
		case len(data.GetData()) > maxRequestData:
			err = fault.New(fault.Invalid, "a part of the request is longer than %d bytes", maxRequestData)
		}
		if err != nil {
			m.err = err
			return 0, err
		}
		m.data, m.last = data.GetData(), data.GetLast()
	}
	n := copy(b, m.data)
	m.data = m.data[n:]
	return n, nil
}

// claim takes the channel that the caller named. It is given back with the reply.
func (r *reply) claim(road *internalv1.SideChannel) (*sidechannel.Channel, error) {
	if r.Channels == nil {
		return nil, fault.New(fault.Invalid, "this node has no side channels")
	}
	channel, err := r.Channels.Claim(r.ctx, road.GetName(), road.GetTransfer(), r.caller)
	if err != nil {
		return nil, ofRoad(err)
	}
	r.claimed, r.abort = channel, context.AfterFunc(r.ctx, channel.Abort)
	return channel, nil
}
