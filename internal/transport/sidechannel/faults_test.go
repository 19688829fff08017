package sidechannel

import (
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// A peer that stops in the middle of something is cut off by the stall limit, on either side and in either direction.
func TestStalls(t *testing.T) {
	t.Parallel()
	const stall = 200 * time.Millisecond
	for name, test := range map[string]func(t *testing.T, w *world, gateway, node *Channel){
		"node takes nothing": func(t *testing.T, _ *world, gateway, _ *Channel) {
			s := gateway.Send(64 << 20)
			var err error
			for err == nil {
				_, err = s.Write(make([]byte, 1<<20))
			}
			if !fault.Is(err, fault.Unavailable) {
				t.Errorf("got %v", err)
			}
		},
		"gateway takes nothing": func(t *testing.T, _ *world, _, node *Channel) {
			f, _ := tempFile(t, 32<<20)
			if _, err := node.Send(unknown).ReadFrom(&bulk.Section{File: f, N: 32 << 20}); !fault.Is(err,
				fault.Unavailable) {
				t.Errorf("got %v", err)
			}
		},
		"node sends less than it announced": func(t *testing.T, _ *world, gateway, node *Channel) {
			s := node.Send(1000)
			_, _ = s.Write([]byte("abc"))
			_ = s.Flush()
			to, received := client(t)
			if _, err := gateway.Receive().WriteTo(to); !fault.Is(err, fault.Unavailable) ||
				gateway.Receive().Err() == nil || string(received()) != "abc" {
				t.Errorf("got %v", err)
			}
		},
		"node does not end": func(t *testing.T, _ *world, gateway, node *Channel) {
			s := node.Send(3)
			_, _ = s.Write([]byte("abc"))
			_ = s.Flush()
			if got, err := io.ReadAll(gateway.Receive()); !fault.Is(err, fault.Unavailable) || string(got) != "abc" {
				t.Errorf("got %q, %v", got, err)
			}
		},
		"half a header": func(t *testing.T, _ *world, gateway, node *Channel) {
			_, _ = node.line.Conn.Write([]byte{byte(start), 0, 0})
			if _, err := gateway.Receive().Length(); !fault.Is(err, fault.Unavailable) {
				t.Errorf("got %v", err)
			}
		},
		"gateway does not acknowledge": func(t *testing.T, w *world, gateway, node *Channel) {
			_ = node.Send(unknown).End(nil)
			node.Release()
			if _, err := w.server.Claim(t.Context(), gateway.Name(), 2, "gateway"); !fault.Is(err, fault.Unavailable) {
				t.Errorf("got %v", err)
			}
		},
	} {
		for _, kind := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, kind, Options{Stall: stall},
					PoolOptions{Stall: stall, NoFiles: name == "gateway takes nothing"})
				gateway, node := w.transfer()
				test(t, w, gateway, node)
				gateway.Release()
				node.Release()
				until(t, "the channel to be closed",
					func() bool { return value(w.node.busy)+value(w.gateway.busy) == 0 })
				if value(w.node.closed.WithLabelValues("stall"))+value(w.gateway.closed.WithLabelValues("stall")) == 0 {
					t.Error("counted no stall, want one")
				}
			})
		}
	}
}

// The end of a peer is noticed at once, while idle, and while a transfer waits for data from its node.
func TestKilledPeer(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind, Options{}, PoolOptions{})
			gateway, node := w.transfer()
			gateway.line.below.Close() // as the kernel does for a process that is killed
			until(t, "the node to notice", func() bool { return value(w.node.busy) == 0 })
			if _, err := node.Send(unknown).Write([]byte("x")); !fault.Is(err, fault.Unavailable) {
				t.Errorf("a write after the gateway's end: %v", err)
			}
			node.Release()
			gateway.Release()

			gateway, node = w.transfer()
			waited := make(chan error, 1)
			go func() {
				_, err := gateway.Receive().Length()
				waited <- err
			}()
			node.line.below.Close()
			if err := <-waited; !fault.Is(err, fault.Unavailable) {
				t.Errorf("a wait for a node that ended: %v", err)
			}
			node.Release()
			gateway.Release()

			for range 3 { // idle ones
				gateway, node = w.transfer()
				_ = node.Send(unknown).End(nil)
				node.Release()
				_, _ = io.ReadAll(gateway.Receive())
				gateway.Release()
				until(t, "the node to be idle", func() bool { return value(w.node.idle) == 1 })
				node.line.below.Close()
				if kind == "tls" { // the pool cannot examine those
					until(t, "the pool to notice", func() bool { return value(w.gateway.idle) == 0 })
				}
				next, err := w.pool.Get(t.Context())
				if err != nil || next.Name() == gateway.Name() {
					t.Errorf("the pool gave a channel that is closed: %v", err)
				}
				next.Release()
				until(t, "the channels to be closed", func() bool { return value(w.node.idle) == 0 })
			}
		})
	}
}

// TestPoolLimits checks that a pool closes returned connections when it is full, and idle ones after the timeout.
func TestPoolLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "unix", Options{}, PoolOptions{MaxIdle: 2, Idle: time.Second})
	var gateways []*Channel
	for range 3 {
		gateway, node := w.transfer()
		_ = node.Send(unknown).End(nil)
		node.Release()
		_, _ = io.ReadAll(gateway.Receive())
		gateways = append(gateways, gateway)
	}
	for _, c := range gateways {
		c.Release()
	}
	until(t, "one to be closed, and then all", func() bool {
		return value(w.gateway.closed.WithLabelValues("surplus")) == 1 &&
			value(w.gateway.closed.WithLabelValues("idle")) == 2
	})
	until(t, "the node to notice", func() bool { return value(w.node.closed.WithLabelValues("peer")) == 3 })
	w.pool.Close()
	if _, err := w.pool.Get(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a closed pool: %v", err)
	}
}

// A cancelled dial leaves nothing behind.
func TestCancelledOpening(t *testing.T) {
	t.Parallel()
	var far net.Conn
	dialed := make(chan bool)
	w := newWorld(t, "tcp", Options{}, PoolOptions{Dial: func(context.Context) (net.Conn, error) {
		var near net.Conn
		near, far = socketPair(t)
		close(dialed)
		return near, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-dialed
		cancel()
	}()
	if _, err := w.pool.Get(ctx); !fault.Is(err, fault.Cancelled) {
		t.Errorf("got %v", err)
	}
	defer far.Close()
	if _, err := io.Copy(io.Discard, far); err != nil {
		t.Errorf("the connection stays: %v", err)
	}
}

// proxy is between a gateway and its node. rnd determines its behaviour for each connection and direction.
type proxy struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	pumps sync.WaitGroup
	stop  chan struct{}
}

// Dial connects to the node through the proxy.
func (p *proxy) Dial(t *testing.T, ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn,
	error) {
	to, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	near, far := socketPair(t)
	cut := func(from, to net.Conn) {
		p.mu.Lock()
		after, what, step := int64(400+p.rnd.IntN(300_000)), p.rnd.IntN(6), 1+p.rnd.IntN(64<<10)
		p.mu.Unlock()
		p.pumps.Go(func() {
			defer from.Close()
			defer to.Close()
			buf := make([]byte, step)
			for n := int64(0); n < after; {
				k, err := from.Read(buf[:min(int64(len(buf)), after-n)])
				if _, werr := to.Write(buf[:k]); err != nil || werr != nil {
					return
				}
				if n += int64(k); what == 0 {
					time.Sleep(time.Millisecond) // the proxy's pace
				}
			}
			switch what {
			case 1: // reset
				if tcp, ok := to.(*net.TCPConn); ok {
					_ = tcp.SetLinger(0)
				}
			case 2: // half-closed, for a while
				_ = to.(interface{ CloseWrite() error }).CloseWrite()
				_, _ = io.Copy(io.Discard, from)
			case 3: // the connection is silent, without an error at either end
				<-p.stop
			}
		})
	}
	cut(far, to)
	cut(to, far)
	return near, nil
}

// TestCutConnections breaks connections at random. A transfer that seems complete is complete, and no transfer has
// bytes of another.
func TestCutConnections(t *testing.T) {
	t.Parallel()
	_, content := tempFile(t, 1<<20)
	f, _ := tempFile(t, 1<<20)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			p := &proxy{rnd: rand.New(rand.NewPCG(seed, 1)), stop: make(chan struct{})}
			var w *world
			w = newWorld(t, kind, Options{Stall: time.Second, Wait: time.Second}, PoolOptions{
				Stall: time.Second,
				Dial: func(ctx context.Context) (net.Conn, error) {
					return p.Dial(t, ctx, w.dialRaw)
				},
			})
			whole, broken := 0, 0
			var mu sync.Mutex
			var all sync.WaitGroup
			for worker := range 8 {
				all.Go(func() {
					rnd := rand.New(rand.NewPCG(seed, uint64(worker)))
					for range 12 {
						ok := cutTransfer(t, w, rnd, f, content)
						mu.Lock()
						if ok {
							whole++
						} else {
							broken++
						}
						mu.Unlock()
					}
				})
			}
			all.Wait()
			w.pool.Close()
			close(p.stop)
			p.pumps.Wait()
			t.Logf("%d transfers whole, %d broken", whole, broken)
		})
	}
}

// cutTransfer runs one transfer down and possibly up, and reports whether it succeeded at the gateway.
func cutTransfer(t *testing.T, w *world, rnd *rand.Rand, f io.ReaderAt, content []byte) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	gateway, err := w.pool.Get(ctx)
	if err != nil {
		return false
	}
	defer gateway.Release()
	parts, whole := randomParts(rnd, content)
	length := int64(len(whole))
	if rnd.IntN(2) == 0 {
		length = unknown
	}
	up := rnd.IntN(2) == 0
	node, err := w.server.Claim(ctx, gateway.Name(), gateway.Transfer(), "gateway")
	if err != nil {
		return false
	}
	// Possibly no byte passes in either direction, without an error at either end. The limit of the control call then ends
	// the transfer on both sides.
	limit := time.AfterFunc(3*time.Second, func() {
		gateway.Abort()
		node.Abort()
	})
	defer limit.Stop()
	var ends sync.WaitGroup
	defer ends.Wait()
	if up {
		ends.Go(func() {
			s := gateway.Send(unknown)
			if _, err := s.Write(whole); err == nil {
				_ = s.End(nil)
			}
		})
	}
	ends.Go(func() {
		defer node.Release()
		s := node.Send(length)
		for _, p := range parts {
			if _, err := s.ReadFrom(io.NewSectionReader(f, p.offset, p.n)); err != nil {
				gateway.Abort() // as the control call's failure does
				return
			}
		}
		if s.End(nil) != nil {
			gateway.Abort()
			return
		}
		if up {
			if got, err := io.ReadAll(node.Receive()); err == nil && sha256.Sum256(got) != sha256.Sum256(whole) {
				t.Errorf("the node received %d bytes that look whole, want %d", len(got), len(whole))
			}
		}
	})
	got, err := io.ReadAll(gateway.Receive())
	if err == nil && sha256.Sum256(got) != sha256.Sum256(whole) {
		t.Errorf("the gateway received %d bytes that look whole, want %d", len(got), len(whole))
	}
	return err == nil
}
