package control

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// ReceivePack serves a push. The gateway sends the request only when the node first reads it, so that an early refusal
// costs nothing.
func (t *sessionService) ReceivePack(ctx context.Context, stream *sessionStream) error {
	start, err := receiveStart(stream, protocol.ReceivePack)
	if err != nil {
		return err
	}
	pusher, err := pusherOf(start.GetPusher())
	if err != nil {
		return err
	}
	return t.serveStream(ctx, "receive_pack", stream, start, nil,
		func(ctx context.Context, x *sessionCall) (node.Outcome, error) {
			if err := x.response.seat.Move(t.Lanes.Push); err != nil {
				return node.Outcome{}, err
			}
			p := &push{response: x.response, receive: stream.Receive}
			if x.session.Stateless {
				x.response.complete = p.end
			}
			return t.Sessions.ReceivePack(ctx, x.repo, x.session, pusher, p, x.response)
		})
}

// checkStore refuses a push, or another change, for another object store. The node can have been restarted with another
// one a moment ago, before the gateway's next health check.
func (s *Server) checkStore(want string) error {
	if want == "" || s.Store != nil && s.Store.StoreID() == want {
		return nil
	}
	return fault.Retry(fault.Unavailable, fault.RetrySoon,
		"this storage node is not in the object store of its route any more; try again")
}

// maxPusher is the maximum length of a pusher's name in bytes.
const maxPusher = 128

// pusherOf checks the name and the address of a pusher, which are used in environments and logs.
func pusherOf(p *internalv1.Pusher) (node.Pusher, error) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@+"
	name, address := p.GetName(), p.GetAddress()
	if len(name) > maxPusher || strings.Trim(name, letters) != "" {
		return node.Pusher{}, fault.New(fault.Invalid, "invalid pusher name: use up to %d letters, digits and ._-@+",
			maxPusher)
	}
	_, err := netip.ParseAddr(address)
	if err != nil && address != "" {
		return node.Pusher{}, fault.New(fault.Invalid, "invalid pusher address: want an IP address")
	}
	rules, err := node.RefRulesOf(p.GetRules())
	return node.Pusher{Name: name, Address: address, Rules: rules}, fault.InField("rules", err)
}

// push reads the request of a push, or the content of an upload, through the data path that the gateway chooses. It is
// not safe for concurrent use. In a stateful session a Read may be pending when the push has ended.
type push struct {
	response *responseStream
	receive  func() (*internalv1.SessionRequest, error)

	from io.Reader // nil until the data path is known
	data []byte    // remaining data of the last message
	last bool      // no more messages follow
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

// begin asks the gateway for the data path. The client may be slow.
func (p *push) begin() error {
	r := p.response
	part := &internalv1.SessionResponse_DataPathRequest{DataPathRequest: &internalv1.DataPathRequest{}}
	if err := r.deliver(&internalv1.SessionResponse{Part: part}); err != nil {
		return err
	}
	m, err := p.receive()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	channel, err := r.use(m.GetDataPath())
	switch {
	case channel != nil:
		p.from = channel.Receive()
	case err == nil:
		p.from = messages{p}
	}
	return err
}

// end reads the rest of the request, which has to be complete before the response begins.
func (p *push) end() error {
	_, err := io.Copy(io.Discard, struct{ io.Reader }{p})
	return err
}

// messages reads the request of a push from the messages of its call.
type messages struct{ *push }

func (m messages) Read(b []byte) (int, error) {
	for len(m.data) == 0 {
		if m.last {
			return 0, io.EOF
		}
		data, err := receivePart(m.receive())
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
