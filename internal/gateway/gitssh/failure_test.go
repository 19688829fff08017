package gitssh

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// TestFailureLimit exceeds the log lines for one address and for all addresses. The others are counted.
func TestFailureLimit(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	l := newFailureLimit()
	l.now = func() time.Time { return now }
	source := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
	}
	take := func(i, times int) (lines, suppressed int) {
		for range times {
			if ok, before := l.take(source(i)); ok {
				lines++
				suppressed += before
			}
		}
		return lines, suppressed
	}
	if lines, suppressed := take(1, 100); lines != failureBurst || suppressed != 0 {
		t.Errorf("lines = %d, suppressed = %d, want %d and 0", lines, suppressed, failureBurst)
	}
	if lines, suppressed := take(2, 1); lines != 1 || suppressed != 100-failureBurst {
		t.Errorf("another address: lines = %d, suppressed = %d, want 1 and %d", lines, suppressed, 100-failureBurst)
	}
	now = now.Add(failurePause)
	if lines, suppressed := take(1, 2); lines != 1 || suppressed != 0 {
		t.Errorf("after a pause: lines = %d, suppressed = %d, want 1 and 0", lines, suppressed)
	}
	now = now.Add(time.Hour)
	lines := 0
	for i := range 3 * manyFailures {
		n, _ := take(i, 1)
		lines += n
	}
	if lines != failureBurst*failureShare || len(l.sources) > manyFailures {
		t.Errorf("many addresses: lines = %d, stored = %d, want %d and at most %d", lines, len(l.sources),
			failureBurst*failureShare, manyFailures)
	}
}

func TestHandshakeFailures(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"key_exchange": &ssh.AlgorithmNegotiationError{What: "key exchange"},
		"host_key":     &ssh.AlgorithmNegotiationError{What: "host key"},
		"cipher":       &ssh.AlgorithmNegotiationError{What: "server to client cipher"},
		"mac":          fmt.Errorf("wrapped: %w", &ssh.AlgorithmNegotiationError{What: "client to server MAC"}),
		"closed":       fmt.Errorf("ssh: overflow reading version string: %w", io.EOF),
		"protocol":     errors.New("ssh: unexpected message type 5"),
	} {
		if got := handshakeFailure(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	if got := logged("a\x1b[2Jb\nc\xff" + strings.Repeat("x", 1<<20)); !strings.HasPrefix(got, "a?[2Jb?c?x") ||
		len(got) > maxLoggedClient {
		t.Errorf("logged client = %d bytes, %.40q, want at most %d without control characters", len(got), got,
			maxLoggedClient)
	}
}

// TestProxyHeaderRefusal: an SSH client shows its user why a header in front of its connection is refused.
func TestProxyHeaderRefusal(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_ = client.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(client, "PROXY TCP4 192.0.2.7 192.0.2.8 5555 22\r\n")
	io.WriteString(server, "SSH-2.0-test\r\n")
	wire := &wireConn{Conn: server}
	if _, err := wire.Read(make([]byte, 100)); !errors.Is(err, errProxyHeader) {
		t.Errorf("read of the server: error = %v, want %v", err, errProxyHeader)
	}
	_, _, _, err = ssh.NewClientConn(client, "test", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err == nil || !strings.Contains(err.Error(), errProxyHeader.Error()) ||
		!strings.Contains(err.Error(), "disconnect, reason 2") {
		t.Errorf("error of the client = %v, want the reason %v", err, errProxyHeader)
	}
}

func TestRefusalOfKeys(t *testing.T) {
	t.Parallel()
	for want, errs := range map[string][]error{
		"no key was offered": {ssh.ErrNoAuth},
		"the key is not known (a); it expired (b)": {ssh.ErrNoAuth, errors.New("the key is not known (a)"),
			errors.New("it expired (b)")},
	} {
		if got := refusalOf(&ssh.ServerAuthError{Errors: errs}).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
