package remote

import (
	"crypto/tls"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
)

// TestCredentialStaysPrivate checks over which connections the credential of a client goes to a node.
func TestCredentialStaysPrivate(t *testing.T) {
	t.Parallel()
	withTLS := func() *tls.Config { return &tls.Config{} }
	for _, test := range []struct {
		address string
		tls     func() *tls.Config
		sent    bool
	}{
		{"unix:/run/node", nil, true},
		{"127.0.0.1:9100", nil, true},
		{"[::1]:9100", nil, true},
		{"localhost:9100", nil, true},
		{"192.0.2.1:9100", nil, false},
		{"node.example:9100", nil, false},
		{"node.example:9100", withTLS, true},
	} {
		n, err := newNode(Options{Name: "a", Address: test.address, TLS: test.tls})
		if err != nil {
			t.Fatal(err)
		}
		session := node.Session{Authorization: node.NewSecret("Basic YTpi"), Length: 7}
		if err := n.checkCredential(session); test.sent != (err == nil) || err != nil && !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s, TLS %v: checkCredential = %v, want sent = %v", test.address, test.tls != nil, err, test.sent)
		}
		if err := n.checkCredential(node.Session{}); err != nil {
			t.Errorf("%s: checkCredential without a credential = %v, want none", test.address, err)
		}
		if m := sessionMessage(session); m.GetAuthorization() != "Basic YTpi" || m.GetRequestBytes() != 7 {
			t.Errorf("sessionMessage = %q and %d bytes, want Basic YTpi and 7", m.GetAuthorization(), m.GetRequestBytes())
		}
	}
}
