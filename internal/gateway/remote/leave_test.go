package remote

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// silentCall is a call whose answer does not come. Its read side is for one at a time.
type silentCall struct {
	connect.StreamingClientConn
	receiving chan struct{}
	left      chan struct{}
	reading   atomic.Int32
	together  atomic.Bool
	closed    atomic.Bool
}

func (c *silentCall) enter() func() {
	if c.reading.Add(1) > 1 {
		c.together.Store(true)
	}
	return func() { c.reading.Add(-1) }
}

func (c *silentCall) Receive(any) error {
	defer c.enter()()
	close(c.receiving)
	<-c.left
	return errors.New("cancelled")
}

func (c *silentCall) CloseResponse() error {
	defer c.enter()()
	c.closed.Store(true)
	return nil
}

func (c *silentCall) CloseRequest() error {
	select {
	case <-c.left:
	default:
		close(c.left)
	}
	return nil
}

func (*silentCall) Spec() connect.Spec         { return connect.Spec{} }
func (*silentCall) Send(any) error             { return nil }
func (*silentCall) RequestHeader() http.Header { return http.Header{} }

// replacedCall replaces the connection of calls.
type replacedCall struct {
	connect.Interceptor
	conn connect.StreamingClientConn
}

func (replacedCall) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

func (r replacedCall) WrapStreamingClient(connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(context.Context, connect.Spec) connect.StreamingClientConn { return r.conn }
}

type noReply struct{ io.Writer }

func (noReply) SetLength(int64)      {}
func (noReply) StartBulk(bool) error { return nil }

func (noReply) ReserveMemory(int64) error { return nil }
func (noReply) Flush() error              { return nil }

// A client that disconnects ends a call without a second reader of its response.
func TestLeavingReadsNothing(t *testing.T) {
	t.Parallel()
	n := &Node{Options: Options{Name: "one"}, kick: make(chan struct{}, 1)}
	n.state.Store(&state{reachable: true})
	n.link.Store(&link{})
	call := &silentCall{receiving: make(chan struct{}), left: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-call.receiving
		cancel()
	}()
	client := connect.NewClient[internalv1.SessionRequest, internalv1.SessionResponse](http.DefaultClient, "http://one",
		connect.WithInterceptors(replacedCall{conn: call}))
	_, err := n.session(ctx, noReply{io.Discard}, nil, &sessionCall{
		open: func(*link) openSession { return client.CallBidiStream },
	})
	if !fault.Is(err, fault.Cancelled) || call.together.Load() || !call.closed.Load() {
		t.Errorf("%v; two readers: %v; response closed: %v", err, call.together.Load(), call.closed.Load())
	}
}

var _ node.ResponseWriter = noReply{}
