package remote

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
)

// pipes is a listener whose connections are made in the process: a clock that is not real works with them.
type pipes struct {
	conns chan net.Conn
	end   chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.end:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.end) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// A node that is away is found within a second of its return, whatever it did to those who looked for it before. The
// clock is not real: nothing here depends on how fast the machine is.
func TestFoundWithinASecond(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, away := range map[string]func(ctx context.Context) (net.Conn, error){
		"refuses":        func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") },
		"never connects": hang,
		"never answers": func(ctx context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs) // ends when ours is closed
			return ours, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mux := http.NewServeMux()
				mux.Handle(healthCheck, connect.NewUnaryHandler(healthCheck,
					func(context.Context, *connect.Request[healthv1.HealthCheckRequest]) (
						*connect.Response[healthv1.HealthCheckResponse], error) {
						return connect.NewResponse(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}), nil
					}))
				server := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
				server.Protocols.SetUnencryptedHTTP2(true)
				listener := &pipes{conns: make(chan net.Conn), end: make(chan struct{})}
				go server.Serve(listener)
				defer server.Close()

				n, err := newNode(Options{Name: "one", Address: "127.0.0.1:1", InBand: true,
					Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				var checks []time.Time
				there := true
				n.connect = func(ctx context.Context) (net.Conn, error) {
					mu.Lock()
					checks = append(checks, time.Now())
					up := there
					mu.Unlock()
					if !up {
						return away(ctx)
					}
					ours, theirs := net.Pipe()
					listener.conns <- theirs
					return ours, nil
				}
				n.startChecks()
				defer n.Close()
				time.Sleep(10 * time.Second)
				if n.Ready() != nil {
					t.Fatal("a node that is there is not ready: ", n.Ready())
				}
				for _, pause := range []time.Duration{7 * time.Second, 20*time.Second + 123*time.Millisecond,
					time.Minute} {
					mu.Lock()
					there, checks = false, nil
					mu.Unlock()
					n.link.Load().transport.CloseIdleConnections()
					n.link.Store(n.newLink()) // its connections break
					for n.Ready() == nil {
						time.Sleep(time.Millisecond)
					}
					since := time.Now()
					late := make(chan error, 1) // of a session that was about to begin
					go func() {
						request, err := http.NewRequest("POST", "http://one/", http.NoBody)
						if err == nil {
							_, err = n.link.Load().unaryClient.Do(request)
						}
						late <- err
					}()
					for range pause / (10 * time.Millisecond) {
						time.Sleep(10 * time.Millisecond)
						n.markLost(errors.New("what still runs fails")) // which must not use up the looks
					}
					select {
					case err := <-late:
						if err == nil {
							t.Error("a node that is away has answered")
						}
					default:
						t.Errorf("a session still waits, %v after the node went", pause)
					}
					mu.Lock()
					there = true
					last := since
					for _, at := range append(checks, time.Now()) {
						if at.Before(since) {
							continue // it was taken for reachable then
						}
						if d := at.Sub(last); d > downInterval {
							t.Errorf("%v after it went, %v without a look", at.Sub(since), d)
						}
						last = at
					}
					if len(checks) > int(pause/downInterval)+11 {
						t.Errorf("%d looks in %v", len(checks), pause)
					}
					mu.Unlock()
					time.Sleep(time.Second)
					synctest.Wait()
					if n.Ready() != nil {
						t.Errorf("not found within a second of its return after %v: %v", pause, n.Ready())
					}
					time.Sleep(10 * time.Second)
				}
			})
		})
	}
}
