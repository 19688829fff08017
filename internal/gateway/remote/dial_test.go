package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A caller who has less time than a connection may take does not take the node out of service.
func TestImpatientCallers(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	silent := func(context.Context) (net.Conn, error) {
		c, peer := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, peer) }() // until the handshake is given up
		return c, nil
	}
	for name, c := range map[string]struct {
		reach  func(context.Context) (net.Conn, error)
		time   time.Duration // that the caller has; 0: as much as is needed
		ofNode bool
	}{
		"hangs, a short time":         {hangs, time.Second, false},
		"hangs, a long time":          {hangs, time.Hour, true},
		"hangs":                       {hangs, 0, true},
		"no handshake, a short time":  {silent, time.Second, false},
		"no handshake, a longer time": {silent, dialLimit + time.Second, false},
		"no handshake, enough time":   {silent, time.Hour, true},
		"refuses at once": {func(context.Context) (net.Conn, error) { return nil, errors.New("refused") },
			time.Second, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, err := newNode(Options{
				Name: "n", Address: "node.test:1", Log: slog.New(slog.DiscardHandler),
				TLS: func() *tls.Config { return &tls.Config{ServerName: "node.test"} },
			})
			if err != nil {
				t.Fatal(err)
			}
			n.connect = c.reach
			ctx, cancel := context.WithCancel(t.Context())
			if c.time > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.time)
			}
			defer cancel()
			_, err = n.dial(ctx, "h2", nil)
			n.markLost(err)
			if err == nil || isDialError(err) != c.ofNode || n.Reachable() == c.ofNode {
				t.Errorf("%s: %v (of the node: %v), the node is reachable: %v", name, err, isDialError(err),
					n.Reachable())
			}
		})
	}
}
