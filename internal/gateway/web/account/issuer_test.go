package account

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestSilentIssuer: an issuer that does not answer does not keep visitors waiting, also those who wait for its keys.
func TestSilentIssuer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			return near, nil
		}}
		issuer := &Issuer{URL: "http://issuer.example", Client: &http.Client{Transport: transport}}
		if _, err := New(Options{Issuer: issuer, Now: time.Now}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := issuer.ask(t.Context()); !fault.Is(err, fault.Unavailable) || time.Since(begin) != askTime {
			t.Errorf("after %v: %v, want Unavailable after %v", time.Since(begin), err, askTime)
		}
	})
}
