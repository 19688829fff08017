package sidechannel

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// After the peer has reported the end elsewhere, silence has a limit at every position.
func TestSilenceAfterTheEnd(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		for name, send := range map[string]func(t *testing.T, s *Sender){
			"nothing": nil,
			"a run": func(t *testing.T, s *Sender) {
				_, _ = s.Write([]byte("some"))
				_ = s.Flush()
			},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, kind, Options{Stall: time.Hour}, PoolOptions{Stall: 100 * time.Millisecond})
				gateway, node := w.transfer()
				defer node.Release()
				defer gateway.Release()
				if send != nil {
					send(t, node.Send(unknown))
				}
				received := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, gateway.Receive())
					received <- err
				}()
				gateway.Due()
				if err := <-received; !fault.Is(err, fault.Unavailable) {
					t.Errorf("got %v", err)
				}
				if value(w.gateway.closed.WithLabelValues("stall")) != 1 {
					t.Error("counted no stall, want one")
				}
			})
		}
	}
}

// A transfer that completes in time after Due succeeds, and leaves no limit behind.
func TestDueLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "tcp", Options{}, PoolOptions{})
	for range 3 {
		gateway, node := w.transfer()
		gateway.Due()
		go func() {
			s := node.Send(unknown)
			for range 3 {
				_, _ = s.Write([]byte("some"))
				_ = s.Flush()
			}
			_ = s.End(nil)
			node.Release()
		}()
		if got, err := io.ReadAll(gateway.Receive()); err != nil || string(got) != "somesomesome" {
			t.Errorf("%q, %v", got, err)
		}
		gateway.Release()
	}
	if n := value(w.gateway.opened.WithLabelValues("ok")); n != 1 {
		t.Errorf("%v channels were opened, want 1", n)
	}
}

// hijacked is the connection of a request whose peer reads nothing.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// A peer that does not read the answer blocks no other.
func TestUnreadResponse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "tcp", Options{Stall: time.Hour}, PoolOptions{})
	near, far := net.Pipe()
	defer far.Close()
	r, _ := http.NewRequest(http.MethodGet, Path, nil)
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		w.server.Upgrade(hijacked{conn: near}, r, "gateway")
	}()
	var l *line
	until(t, "the line", func() bool {
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		for _, l = range w.server.lines {
		}
		return l != nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	claimed := make(chan error, 1)
	go func() {
		_, err := w.server.Claim(ctx, l.name, 1, "gateway")
		claimed <- err
	}()
	cancel()
	if err := <-claimed; !fault.Is(err, fault.Cancelled) {
		t.Errorf("the claim: %v", err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		w.server.Close()
	}()
	<-closed
	<-opened
}

// A retired pool keeps no connection, but running transfers continue.
func TestRetiredPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "tcp", Options{}, PoolOptions{})
	gateway, node := w.transfer()
	if w.pool.Retire() {
		t.Error("Retire() = true during a transfer, want false")
	}
	go func() {
		s := node.Send(4)
		_, _ = s.Write([]byte("some"))
		_ = s.End(nil)
		node.Release()
	}()
	if got, err := io.ReadAll(gateway.Receive()); err != nil || string(got) != "some" {
		t.Errorf("%q, %v", got, err)
	}
	gateway.Release()
	until(t, "the pool to be empty", w.pool.Retire)
	if n := value(w.gateway.closed.WithLabelValues("surplus")); n != 1 {
		t.Errorf("%v channels were closed, want 1", n)
	}
}

// One caller cannot take all channels from others, but it may use all channels if it is alone.
func TestChannelsAreShared(t *testing.T) {
	t.Parallel()
	caller := "a"
	w := newWorld(t, "tcp", Options{Max: 8},
		PoolOptions{Header: func() http.Header { return http.Header{"Caller": {caller}} }})
	get := func(as string) (*Channel, error) {
		caller = as
		return w.pool.Get(t.Context())
	}
	var all []*Channel
	take := func(as string, n int) {
		t.Helper()
		for range n {
			c, err := get(as)
			if err != nil {
				t.Fatalf("%s is refused: %v", as, err)
			}
			all = append(all, c)
		}
	}
	take("b", 1)
	take("a", 6)
	if _, err := get("a"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("a seventh for one of two: %v", err)
	}
	take("b", 1)
	for _, c := range all {
		c.Release()
	}
	until(t, "all to be closed", func() bool {
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		return w.server.count == 0 && len(w.server.counts) == 0
	})
	all = nil
	take("a", 8)
	for _, c := range all {
		c.Release()
	}
}
