package githttp_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// session is a node's session after the request was read and the pack is about to be sent.
func session(send func(ctx context.Context, reply node.ResponseWriter) error) *fakeNode {
	return &fakeNode{advertise: advertise, serve: func(ctx context.Context, request io.Reader,
		reply node.ResponseWriter) (node.Outcome, error) {
		outcome := node.Outcome{Command: protocol.CommandFetch}
		if _, err := readAll(request); err != nil {
			return outcome, err
		}
		if err := reply.StartBulk(true); err != nil {
			return outcome, err
		}
		return outcome, send(ctx, reply)
	}}
}

// TestHangUpWhileWaiting disconnects clients while their pack is made. That ends the wait, for each form of the body.
func TestHangUpWhileWaiting(t *testing.T) {
	t.Parallel()
	large := strings.Repeat(string(pktline.Append(nil, strings.Repeat("x", 9996))), 20) + "0000"
	for name, request := range map[string]string{
		"short":         post("Content-Length: 24") + lsRefs,
		"chunked":       post("Transfer-Encoding: chunked") + chunked(lsRefs, 5),
		"long":          post("Content-Length: "+strconv.Itoa(len(large))) + large,
		"long, chunked": post("Transfer-Encoding: chunked") + chunked(large, 9000),
		"gzip, chunked": post("Content-Encoding: gzip", "Transfer-Encoding: chunked") + chunked(zipped(large), 50),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waiting, ended := make(chan struct{}), make(chan error, 1)
			s := serve(t, session(func(ctx context.Context, _ node.ResponseWriter) error {
				close(waiting)
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute):
				}
				ended <- ctx.Err()
				return ctx.Err()
			}), options{})
			c := s.dial()
			c.send(request)
			<-waiting
			c.Close()
			if err := <-ended; err == nil {
				t.Error("error of the session = nil, want one")
			}
			if !eventually(func() bool { return s.value("packhorse_requests_total{operation=fetch,result=cancelled}") == 1 }) {
				t.Errorf("log = %s, want 1 request counted as cancelled", s.log)
			}
		})
	}
}

func dataFile(t *testing.T, size int) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), size/16), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func sendFile(f *os.File, size int64) func(context.Context, node.ResponseWriter) error {
	return func(_ context.Context, reply node.ResponseWriter) error {
		reply.SetLength(size + 4)
		if _, err := reply.Write([]byte("0000")); err != nil {
			return err
		}
		if err := reply.Flush(); err != nil {
			return err
		}
		if _, err := io.Copy(reply, &bulk.Section{File: f, N: size}); err != nil {
			return &node.ClientConnError{Err: err}
		}
		return nil
	}
}

func TestClientThatReadsNothingOrGoes(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	f := dataFile(t, size)
	s := serve(t, session(sendFile(f, size)), options{writeStall: 100 * time.Millisecond})
	silent, gone := s.dial(), s.dial()
	for _, c := range []*connection{silent, gone} {
		c.send(post("Content-Length: 24") + lsRefs)
	}
	_, _ = io.CopyN(io.Discard, gone.r, 1<<20)
	gone.Close()
	if !eventually(func() bool { return s.value("packhorse_requests_total{operation=fetch,result=cancelled}") == 2 }) {
		t.Errorf("log = %s, want 2 requests counted as cancelled", s.log)
	}
}

func TestCopiesByTheKernelAndNot(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	f := dataFile(t, size)
	fetch := func(t *testing.T, s *server, c *connection, request string) {
		t.Helper()
		c.send(request)
		response, body, err := c.answer()
		if err != nil || len(body) != size+4 || response.ContentLength != size+4 {
			t.Fatalf("%s: %d bytes, length %d, %v", response.Status, len(body), response.ContentLength, err)
		}
	}
	t.Run("TCP", func(t *testing.T) {
		t.Parallel()
		s := serve(t, session(sendFile(f, size)), options{})
		c := s.dial()
		fetch(t, s, c, post("Content-Length: 24")+lsRefs)
		fetch(t, s, c, post("Content-Length: 24")+lsRefs)
		fetch(t, s, s.dial(), strings.Replace(post("Content-Length: 24"), "HTTP/1.1", "HTTP/1.0", 1)+lsRefs)
		if !eventually(func() bool { return s.value("packhorse_served_bytes_total") == 3*(size+4) }) {
			t.Errorf("bytes served = %v, want %d", s.value("packhorse_served_bytes_total"), 3*(size+4))
		}
		if n := s.value("packhorse_copy_bytes_total{path=kernel}"); n != 3*size {
			t.Errorf("bytes copied by the kernel = %v, want %d: something wraps the connection", n, 3*size)
		}
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		test := httptest.NewUnstartedServer(nil) // for its certificate
		test.StartTLS()
		certificates := test.TLS.Certificates
		test.Close()
		s := serve(t, session(sendFile(f, size)), options{wrap: func(l net.Listener) net.Listener {
			return tls.NewListener(l, &tls.Config{Certificates: certificates, NextProtos: []string{"http/1.1"}})
		}})
		c := s.dial()
		secure := tls.Client(c.TCPConn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
		c.r.Reset(secure)
		if _, err := io.WriteString(secure, post("Content-Length: 24")+lsRefs); err != nil {
			t.Fatal(err)
		}
		if _, body, err := c.answer(); err != nil || len(body) != size+4 {
			t.Fatalf("bytes = %d, error = %v, want %d", len(body), err, size+4)
		}
		if got := secure.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
			t.Errorf("negotiated protocol = %q, want http/1.1", got)
		}
		if !eventually(func() bool { return s.value("packhorse_copy_bytes_total{path=user}") == size+4 }) ||
			s.value("packhorse_copy_bytes_total{path=kernel}") != 0 {
			t.Errorf("user %v, kernel %v", s.value("packhorse_copy_bytes_total{path=user}"),
				s.value("packhorse_copy_bytes_total{path=kernel}"))
		}
	})
}

func TestTruncatedResponsesAreDetected(t *testing.T) {
	t.Parallel()
	broken := fault.New(fault.Corrupt, "the pack is damaged")
	write := func(reply node.ResponseWriter, text string) { _, _ = reply.Write([]byte(text)); _ = reply.Flush() }
	for name, test := range map[string]struct {
		send  func(ctx context.Context, reply node.ResponseWriter) error
		whole bool
	}{
		"length, told": {func(_ context.Context, r node.ResponseWriter) error {
			r.SetLength(1000)
			write(r, "000dpackfile\n")
			return &node.ReportedError{Err: broken}
		}, false},
		"length, untold": {func(_ context.Context, r node.ResponseWriter) error {
			r.SetLength(1000)
			write(r, "000dpackfile\n")
			return broken
		}, false},
		"length, too little": {func(_ context.Context, r node.ResponseWriter) error {
			r.SetLength(1000)
			write(r, "000dpackfile\n")
			return nil
		}, false},
		"chunked, told": {func(_ context.Context, r node.ResponseWriter) error {
			write(r, "000dpackfile\n")
			write(r, "0009\x03bad\n")
			return &node.ReportedError{Err: broken}
		}, true},
		"chunked, untold": {func(_ context.Context, r node.ResponseWriter) error {
			write(r, "000dpackfile\n")
			return broken
		}, false},
		"panic in the middle": {func(_ context.Context, r node.ResponseWriter) error {
			write(r, "000dpackfile\n")
			panic("a bug")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, session(test.send), options{})
			c := s.dial()
			c.send(post("Content-Length: 24") + lsRefs)
			response, body, err := c.answer()
			if !strings.HasPrefix(body, "000dpackfile") || (err == nil) != test.whole {
				t.Errorf("status = %s, body = %q, error = %v, want a complete pack: %v", response.Status, body, err, test.whole)
			}
			if !test.whole && !c.closed() {
				t.Error("the connection is open, want it closed")
			}
			if !eventually(func() bool { return strings.Contains(s.log.String(), "result=") }) ||
				strings.Contains(s.log.String(), "result=ok") {
				t.Errorf("log = %s, want a result other than ok", s.log)
			}
			c = s.dial() // one that knows no chunks: to it a connection that is only closed is the end
			c.send(strings.Replace(post("Content-Length: 24"), "HTTP/1.1", "HTTP/1.0", 1) + lsRefs)
			if _, body, err := c.answer(); (err == nil) != test.whole {
				t.Errorf("HTTP/1.0: body = %q, error = %v, want a complete pack: %v", body, err, test.whole)
			}
		})
	}
}

func TestPanics(t *testing.T) {
	t.Parallel()
	s := serve(t, session(func(context.Context, node.ResponseWriter) error { panic("a bug") }), options{})
	for range 3 {
		c := s.dial()
		c.send(post("Content-Length: 24") + lsRefs)
		if response, body, err := c.answer(); err != nil || response.StatusCode != 500 ||
			strings.Contains(body, "a bug") {
			t.Errorf("status = %s, body = %q, error = %v, want 500 without the cause", response.Status, body, err)
		}
	}
	if log := s.log.String(); !strings.Contains(log, "a bug") || !strings.Contains(log, "hangup_test.go") {
		t.Errorf("log = %s, want the panic and its place", log)
	}
}
