package remote

import (
	"context"
	"net/http"
	"net/url"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// maxCall is the maximum size of a message of the public API in bytes.
const maxCall = 16 << 20

// frame is an encoded message.
type frame struct{ data []byte }

var _ router.Calls = (*Node)(nil)

// Call implements router.Calls.
func (n *Node) Call(ctx context.Context, c node.Call, receive func([]byte) error) error {
	if s := n.state.Load(); !s.reachable {
		return &node.UnsentError{Err: s.err}
	}
	if err := n.checkRules(c.HasRules); err != nil {
		return err
	}
	l := n.link.Load()
	err, refused := makeCall(ctx, connect.NewClient[frame, frame](l.client, l.base+c.Procedure, l.options,
		connect.WithReadMaxBytes(maxCall)), c, n.addSecret, receive)
	switch {
	case refused != nil:
		return refused
	case isDialError(err):
		return &node.UnsentError{Err: n.failed(ctx, err)}
	case err != nil:
		return n.failed(ctx, err)
	}
	return nil
}

// Local makes calls of the node in the same process, through a client that needs no network.
type Local struct{ Client connect.HTTPClient }

// Call implements router.Calls.
func (l Local) Call(ctx context.Context, c node.Call, receive func([]byte) error) error {
	err, refused := makeCall(ctx, connect.NewClient[frame, frame](l.Client, "http://localhost"+c.Procedure,
		connect.WithGRPCWeb(), connect.WithCodec(codec{}), connect.WithAcceptCompression("gzip", nil, nil)), c,
		func(http.Header) {}, receive)
	if refused != nil {
		return refused
	}
	return faultrpc.From(err)
}

// makeCall makes a call with one message. In gRPC it looks the same for procedures of all kinds. refused is the error
// of receive.
func makeCall(ctx context.Context, client *connect.Client[frame, frame], c node.Call, secret func(http.Header),
	receive func([]byte) error) (err, refused error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := connect.NewRequest(&frame{c.Request})
	secret(request.Header())
	inflight.From(ctx).Forward(request.Header().Set)
	inflight.InjectTrace(ctx, request.Header())
	addStore(request.Header(), c.StoreID)
	request.Header().Set(node.ShareHeader, url.QueryEscape(c.Caller))
	if c.Actor != "" {
		request.Header().Set(node.ActorHeader, url.QueryEscape(c.Actor))
	}
	if c.Reachable != "" {
		request.Header().Set(node.ReachableHeader, c.Reachable)
	}
	stream, err := client.CallServerStream(ctx, request)
	if err != nil {
		return err, nil
	}
	defer stream.Close()
	for stream.Receive() {
		if refused = receive(stream.Msg().data); refused != nil {
			cancel() // otherwise Close reads the rest
			return nil, refused
		}
	}
	inflight.From(ctx).AddUsageHeader(stream.ResponseTrailer().Get(inflight.UsageHeader))
	return stream.Err(), nil
}
