package sidechannel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// A channel is its opener's, by its name, and each number is good for one claim.
func TestClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "tcp", Options{Wait: 50 * time.Millisecond}, PoolOptions{})
	gateway, err := w.pool.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	name := gateway.Name()
	refused := func(why string, kind fault.Kind, name string, transfer uint64, caller string) {
		t.Helper()
		counter := w.node.refused.WithLabelValues(why)
		before := value(counter)
		if c, err := w.server.Claim(t.Context(), name, transfer, caller); c != nil || !fault.Is(err, kind) {
			t.Errorf("%s: %v, want %v", why, err, kind)
		}
		if value(counter) != before+1 {
			t.Errorf("%s: not counted", why)
		}
	}
	flipped := strings.Map(func(r rune) rune {
		if r == rune(name[31]) {
			return 'z'
		}
		return r
	}, name)
	refused("name", fault.Invalid, "", 1, "gateway")
	refused("name", fault.Invalid, strings.Repeat("a", 1<<20), 1, "gateway")
	refused("unknown", fault.Unavailable, strings.Repeat("0", nameLength), 1, "gateway")
	refused("unknown", fault.Unavailable, flipped, 1, "gateway")
	refused("caller", fault.Denied, name, 1, "somebody")
	refused("caller", fault.Denied, name, 1, "")
	refused("replayed", fault.Denied, name, 0, "gateway")
	refused("number", fault.Invalid, name, 2, "gateway")
	refused("number", fault.Invalid, name, 1<<63, "gateway")
	node, err := w.server.Claim(t.Context(), name, 1, "gateway")
	if err != nil {
		t.Fatal(err)
	}
	refused("replayed", fault.Denied, name, 1, "gateway")
	refused("busy", fault.Unavailable, name, 2, "gateway")
	refused("number", fault.Invalid, name, 3, "gateway")
	if err := node.Send(unknown).End(nil); err != nil {
		t.Fatal(err)
	}
	node.Release()
	refused("busy", fault.Unavailable, name, 2, "gateway") // not acknowledged
	if _, err := gateway.Receive().Length(); err != nil {
		t.Fatal(err)
	}
	gateway.Release()
	gateway.Abort() // after the end of the transfer: no effect
	until(t, "the acknowledgement", func() bool { return value(w.node.idle) == 1 })
	refused("replayed", fault.Denied, name, 1, "gateway")
	gateway, err = w.pool.Get(t.Context())
	if err != nil || gateway.Name() != name || gateway.Transfer() != 2 {
		t.Fatalf("the next transfer is %d: %v", gateway.Transfer(), err)
	}
	gateway.Release()
	until(t, "the channel to be closed", func() bool { return value(w.node.idle) == 0 })
	refused("unknown", fault.Unavailable, name, 2, "gateway")
}

// A claim waits until the earlier transfer is acknowledged. Of many claims only one gets the channel.
func TestClaimWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "unix", Options{Wait: time.Minute}, PoolOptions{})
	gateway, node := w.transfer()
	type result struct {
		c   *Channel
		err error
	}
	results := make(chan result)
	for range 4 {
		go func() {
			c, err := w.server.Claim(context.Background(), gateway.Name(), 2, "gateway")
			results <- result{c, err}
		}()
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.server.Claim(cancelled, gateway.Name(), 2, "gateway"); !fault.Is(err, fault.Cancelled) {
		t.Errorf("a cancelled claim: %v", err)
	}
	s := node.Send(3)
	_, _ = s.Write([]byte("abc"))
	if err := s.End(nil); err != nil {
		t.Fatal(err)
	}
	node.Release()
	if got, err := io.ReadAll(gateway.Receive()); err != nil || string(got) != "abc" {
		t.Fatalf("%q, %v", got, err)
	}
	gateway.Release()
	won := 0
	for range 4 {
		if r := <-results; r.err == nil {
			won++
			defer r.c.Release()
		} else if !fault.Is(r.err, fault.Denied) {
			t.Error(r.err)
		}
	}
	if won != 1 {
		t.Errorf("%d claims of one transfer went well, want 1", won)
	}
}

// ask sends a request as written, and gives the answer's status and text.
func ask(t *testing.T, w *world, request string) (*http.Response, string, net.Conn) {
	t.Helper()
	c, err := w.dialRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	if answer.StatusCode != http.StatusSwitchingProtocols {
		b, _ := io.ReadAll(answer.Body)
		text = string(b)
	}
	return answer, text, c
}

func TestUpgradeRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "tcp", Options{Max: 1}, PoolOptions{})
	const upgrade = "Connection: keep-alive, Upgrade\r\nUpgrade: packhorse-channel/1\r\n"
	for request, status := range map[string]int{
		"POST /packhorse/channel HTTP/1.1\r\nHost: n\r\n" + upgrade +
			"Content-Length: 0\r\n\r\n": 405,
		"GET /packhorse/channel HTTP/1.1\r\nHost: n\r\n\r\n": 426,
		"GET /packhorse/channel HTTP/1.0\r\n" + upgrade +
			"\r\n": 426,
		"GET /packhorse/channel HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n": 426,
		"GET /packhorse/channel HTTP/1.1\r\nHost: n\r\nUpgrade: packhorse-channel/1\r\n\r\n":              426,
		"GET /packhorse/channel HTTP/1.1\r\nHost: n\r\n" + upgrade +
			"Content-Length: 3\r\n\r\nabc": 400,
		"GET /packhorse/channel HTTP/1.1\r\nHost: n\r\n" + upgrade +
			"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 400,
		"GET /packhorse/channel HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: packhorse-channel/2, " +
			"packhorse-channel/11\r\n\r\n": 426,
	} {
		answer, text, _ := ask(t, w, request)
		if answer.StatusCode != status || len(text) < 10 {
			t.Errorf("%q is answered %d %q, want %d", request, answer.StatusCode, text, status)
		}
	}
	one, err := w.pool.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.pool.Get(t.Context())
	if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) != time.Second ||
		!strings.Contains(err.Error(), "as many as it may have") {
		t.Errorf("one channel too many: %v", err)
	}
	if n := value(w.node.opened.WithLabelValues("full")) + value(w.gateway.opened.WithLabelValues("full")); n != 2 {
		t.Errorf("counted %v times, want 2", n)
	}
	one.Release()
	until(t, "room for another", func() bool {
		c, err := w.pool.Get(t.Context())
		if err == nil {
			c.Release()
		}
		return err == nil
	})
}

// Bytes that a peer sends with its request, or before a claim, are kept for the transfer if they belong to it.
func TestBytesBeforeTheClaim(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 3000)
	whole := string(headerBytes(header{kind: start, transfer: 1, length: 3000})) +
		string(headerBytes(header{kind: data, transfer: 1, length: 3000})) + body +
		string(headerBytes(header{kind: end, transfer: 1, length: 3000}))
	for _, early := range []int{0, 1, 23, 24, 25, 48, 50, 1000, 3048, 3050, len(whole)} {
		w := newWorld(t, "tcp", Options{}, PoolOptions{})
		request := "GET /packhorse/channel HTTP/1.1\r\nHost: n\r\nCaller: me\r\nConnection: Upgrade\r\nUpgrade: " +
			"packhorse-channel/1\r\n\r\n"
		answer, _, c := ask(t, w, request+whole[:early])
		node, err := w.server.Claim(t.Context(), answer.Header.Get(nameHeader), 1, "me")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, whole[early:])
		to, received := client(t)
		if n, err := node.Receive().WriteTo(to); err != nil || n != 3000 || string(received()) != body {
			t.Errorf("%d bytes early: %d bytes arrived: %v", early, n, err)
		}
		node.Release()
		var ack [headerSize]byte
		if _, err := io.ReadFull(c, ack[:]); err != nil || string(ack[:]) != string(headerBytes(header{kind: end,
			transfer: 1})) {
			t.Errorf("acknowledged with %x: %v", ack, err)
		}
	}
}

// TestHostilePeers checks that every violation of the protocol closes the channel, at the node and at the gateway.
func TestHostilePeers(t *testing.T) {
	t.Parallel()
	head := func(h header) string { return string(headerBytes(h)) }
	for name, test := range map[string]struct {
		bytes   string
		claimed bool
		reason  reason
	}{
		"END while idle":    {head(header{kind: end, transfer: 1}), false, closeUnexpected},
		"DATA while idle":   {head(header{kind: data, transfer: 1, length: 5}), false, closeProtocol},
		"next but one":      {head(header{kind: start, transfer: 2, length: 5}), false, closeProtocol},
		"no header":         {strings.Repeat("\x00", headerSize), false, closeProtocol},
		"HTTP":              {"GET / HTTP/1.1\r\nHost: n\r\n\r\n", false, closeProtocol},
		"absurd START":      {head(header{kind: start, transfer: 1, length: maxLength + 1}), true, closeProtocol},
		"another's number":  {head(header{kind: start, transfer: 3, length: 5}), true, closeProtocol},
		"DATA first":        {head(header{kind: data, transfer: 1, length: 5}), true, closeProtocol},
		"END with a length": {head(header{kind: end, transfer: 1, length: 5}), true, closeProtocol},
		"absurd DATA": {head(header{kind: start, transfer: 1, length: unknown}) +
			head(header{kind: data, transfer: 1, length: 1 << 62}), true, closeProtocol},
		"DATA beyond the length": {head(header{kind: start, transfer: 1}) +
			head(header{kind: data, transfer: 1, length: 1}), true, closeProtocol},
		"START twice": {head(header{kind: start, transfer: 1, length: unknown}) +
			head(header{kind: start, transfer: 1, length: 1}), true, closeProtocol},
		"END of another": {head(header{kind: start, transfer: 1}) + head(header{kind: end, transfer: 2}), true,
			closeProtocol},
		"END too early": {head(header{kind: start, transfer: 1, length: unknown}) +
			head(header{kind: end, transfer: 1, length: 7}), true, closeProtocol},
		"closed in a header": {head(header{kind: start, transfer: 1})[:7], true, closeBroken},
		"closed after a START": {head(header{kind: start, transfer: 1, length: 10}) +
			head(header{kind: data, transfer: 1, length: 10}) + "12345", true, closeBroken},
		"closed before the END": {head(header{kind: start, transfer: 1, length: 5}) +
			head(header{kind: data, transfer: 1, length: 5}) + "12345", true, closeBroken},
		"closed between the DATA": {head(header{kind: start, transfer: 1, length: unknown}) +
			head(header{kind: data, transfer: 1, length: 1}) + "1", true, closeBroken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "tcp", Options{}, PoolOptions{})
			request := "GET /packhorse/channel HTTP/1.1\r\nHost: n\r\nCaller: me\r\nConnection: Upgrade\r\nUpgrade: " +
				"packhorse-channel/1\r\n\r\n"
			answer, _, c := ask(t, w, request)
			if !test.claimed {
				_, _ = io.WriteString(c, test.bytes)
			} else {
				node, err := w.server.Claim(t.Context(), answer.Header.Get(nameHeader), 1, "me")
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(c, test.bytes)
				_ = c.(*net.TCPConn).CloseWrite()
				if got, err := io.ReadAll(node.Receive()); err == nil {
					t.Errorf("%q is whole", got)
				}
				defer node.Release()
			}
			until(t, "the channel to be closed",
				func() bool { return value(w.node.closed.WithLabelValues(string(test.reason))) == 1 })
			if b, err := io.ReadAll(c); len(b) != 0 && err == nil {
				t.Errorf("the peer received %q", b)
			}
		})
	}
}

// A gateway's pool meets nodes that send arbitrary answers.
func TestHostileNodes(t *testing.T) {
	t.Parallel()
	const good = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " +
		"packhorse-channel/1\r\nPackhorse-Channel: "
	for answer, kind := range map[string]fault.Kind{
		"":                         fault.Unavailable,
		"HTTP/1.1 101 Switching":   fault.Unavailable,
		"SSH-2.0-x\r\n\r\n":        fault.Unavailable,
		strings.Repeat("x", 1<<20): fault.Unavailable,
		"HTTP/1.1 101 Switching Protocols\r\n\r\n": fault.Unavailable,
		good + "short\r\n\r\n":                     fault.Unavailable,
		good + strings.Repeat("\xff", nameLength) +
			"\r\n\r\n": fault.Unavailable,
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello":           fault.Unavailable,
		"HTTP/1.1 401 Unauthorized\r\nContent-Length: 5\r\n\r\nwho??": fault.Denied,
		"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 99999999\r\n\r\n" +
			strings.Repeat("x", 1<<20): fault.Exhausted,
		// it opens, and is closed
		good + strings.Repeat("0f", nameLength/2) +
			"\r\n\r\nwhat nobody has asked for": fault.Kind(255),
	} {
		t.Run(fmt.Sprintf("%.60q", answer), func(t *testing.T) {
			t.Parallel()
			var peers sync.WaitGroup
			defer peers.Wait()
			w := newWorld(t, "tcp", Options{}, PoolOptions{Dial: func(context.Context) (net.Conn, error) {
				near, far := socketPair(t)
				peers.Go(func() {
					defer far.Close()
					_, _ = http.ReadRequest(bufio.NewReader(far))
					_, _ = io.WriteString(far, answer)
					if kind == fault.Kind(255) {
						_, _ = io.Copy(io.Discard, far)
					}
				})
				return near, nil
			}})
			c, err := w.pool.Get(t.Context())
			if kind != fault.Kind(255) {
				if !fault.Is(err, kind) || fault.RetryAfter(err) > time.Hour || len(fault.Message(err)) > 200 {
					t.Errorf("got %v: %.200v, want %v", fault.KindOf(err), err, kind)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Receive().Length(); err == nil {
				t.Error("accepted a header that is not a transfer, want an error")
			}
			c.Release()
		})
	}
}

// socketPair is two ends of a TCP connection.
func socketPair(t *testing.T) (near, far net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// Channels that are opened and left are closed, by the node's limit of idle time.
func TestManyIdleChannels(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			many := map[string]int{"unix": 1000, "tcp": 100, "tls": 20}[kind] // handshakes cost CPU time
			w := newWorld(t, kind, Options{Max: many, Idle: time.Second}, PoolOptions{})
			var left []*Channel
			for range many {
				c, err := w.pool.Get(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				left = append(left, c)
			}
			until(t, "all to be closed", func() bool {
				return value(w.node.closed.WithLabelValues("idle")) == float64(many) && value(w.gateway.busy) == 0
			})
			if _, err := left[0].Receive().Length(); !fault.Is(err, fault.Unavailable) {
				t.Errorf("a channel that the node has closed: %v", err)
			}
			c, err := w.pool.Get(t.Context())
			if err != nil {
				t.Fatalf("another one: %v", err)
			}
			c.Release()
		})
	}
}
