package client

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"

	"connectrpc.com/connect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// lookups sends the calls that programs wait for, and that are answered from memory, on the shortest way: connections of their own (package
// direct). Others share one HTTP/2 connection.
type lookups struct {
	packhorsev1connect.RefServiceClient
	short packhorsev1connect.RefServiceClient
}

func (l lookups) Resolve(ctx context.Context, r *connect.Request[packhorsev1.ResolveRequest]) (*connect.Response[packhorsev1.ResolveResponse], error) {
	return l.short.Resolve(ctx, r)
}

func (l lookups) ResolveMany(ctx context.Context, r *connect.Request[packhorsev1.ResolveManyRequest]) (
	*connect.Response[packhorsev1.ResolveManyResponse], error) {
	return l.short.ResolveMany(ctx, r)
}

func (l lookups) Exists(ctx context.Context, r *connect.Request[packhorsev1.ExistsRequest]) (*connect.Response[packhorsev1.ExistsResponse], error) {
	return l.short.Exists(ctx, r)
}

// dialShort makes connections for HTTP/1.1 to the node at base.
func dialShort(dial func(ctx context.Context, network, address string) (net.Conn, error), base string, config *tls.Config) func(context.Context) (net.Conn, error) {
	u, _ := url.Parse(base) // ours
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
