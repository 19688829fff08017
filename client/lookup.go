package client

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// lookups sends short look-ups on separate HTTP/1.1 connections (package unaryhttp), which is faster. Other calls
// share an HTTP/2 connection, and so do look-ups if a proxy supports nothing else.
type lookups struct {
	packhorsev1connect.RefServiceClient
	short   packhorsev1connect.RefServiceClient
	blocked atomic.Int64 // no HTTP/1.1 until this time, in Unix nanoseconds
}

// blockedFor is the time without HTTP/1.1 after it failed and HTTP/2 did not.
const blockedFor = time.Minute

// lookup makes a call over HTTP/1.1, and over HTTP/2 if no node responds.
func lookup[Q, A any](ctx context.Context, l *lookups, request *connect.Request[Q],
	call func(packhorsev1connect.RefServiceClient, context.Context, *connect.Request[Q]) (*connect.Response[A],
		error)) (*connect.Response[A], error) {
	if time.Now().UnixNano() < l.blocked.Load() {
		return call(l.RefServiceClient, ctx, request)
	}
	answer, err := call(l.short, ctx, request)
	if err == nil || connect.IsWireError(err) || ctx.Err() != nil {
		return answer, err
	}
	answer, again := call(l.RefServiceClient, ctx, request)
	if again != nil && !connect.IsWireError(again) {
		return nil, err
	}
	l.blocked.Store(time.Now().Add(blockedFor).UnixNano())
	return answer, again
}

func (l *lookups) Resolve(ctx context.Context,
	r *connect.Request[packhorsev1.ResolveRequest]) (*connect.Response[packhorsev1.ResolveResponse], error) {
	return lookup(ctx, l, r, packhorsev1connect.RefServiceClient.Resolve)
}

func (l *lookups) ResolveMany(ctx context.Context, r *connect.Request[packhorsev1.ResolveManyRequest]) (
	*connect.Response[packhorsev1.ResolveManyResponse], error) {
	return lookup(ctx, l, r, packhorsev1connect.RefServiceClient.ResolveMany)
}

func (l *lookups) ResolveRevisions(ctx context.Context, r *connect.Request[packhorsev1.ResolveRevisionsRequest]) (
	*connect.Response[packhorsev1.ResolveRevisionsResponse], error) {
	return lookup(ctx, l, r, packhorsev1connect.RefServiceClient.ResolveRevisions)
}

func (l *lookups) Exists(ctx context.Context,
	r *connect.Request[packhorsev1.ExistsRequest]) (*connect.Response[packhorsev1.ExistsResponse], error) {
	return lookup(ctx, l, r, packhorsev1connect.RefServiceClient.Exists)
}

// dialShort returns a function that makes HTTP/1.1 connections to the node at base.
func dialShort(dial func(ctx context.Context, network, address string) (net.Conn, error), base string,
	config *tls.Config) func(context.Context) (net.Conn, error) {
	u, _ := url.Parse(base) // base is from parseAddress
	address := u.Host
	if u.Scheme == "http" {
		return func(ctx context.Context) (net.Conn, error) { return dial(ctx, "tcp", address) }
	}
	if config = config.Clone(); config == nil {
		config = &tls.Config{}
	}
	config.NextProtos = []string{"http/1.1"}
	if config.ServerName == "" {
		config.ServerName = u.Hostname()
	}
	return func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		secure := tls.Client(c, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			c.Close()
			return nil, err
		}
		return secure, nil
	}
}
