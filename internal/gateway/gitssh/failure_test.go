package gitssh

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

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
