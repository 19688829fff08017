package bucket

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// slowBody is a body that takes a second to close.
type slowBody struct {
	io.Reader
	closed atomic.Bool
}

func (b *slowBody) Close() error {
	time.Sleep(time.Second) // of the bubble
	b.closed.Store(true)
	return nil
}

// TestBodyOfRedirect has a server redirect a request before it has read the body, which http.Client then closes.
func TestBodyOfRedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				in := bufio.NewReader(far)
				if _, err := http.ReadRequest(in); err != nil {
					t.Errorf("request: %v", err)
				}
				_, _ = io.WriteString(far, "HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\n\r\n")
				_, _ = io.Copy(io.Discard, in)
			}()
			return near, nil
		}
		tr := &transport{Transport: httpguard.NewTransport(&http.Transport{DialContext: dial})}
		body := &slowBody{Reader: strings.NewReader(strings.Repeat("x", 64<<10))} // more than one write
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://a/", body)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusMovedPermanently || !body.closed.Load() {
			t.Errorf("status %d, body closed: %v, want 301 and true", answer.StatusCode, body.closed.Load())
		}
		tr.CloseIdleConnections()
	})
}
