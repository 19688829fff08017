package gitssh_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
)

// TestSSHAlgorithms: clients come in with what is configured, and with nothing else.
func TestSSHAlgorithms(t *testing.T) {
	t.Parallel()
	const ctr, plain, etm = ssh.CipherAES256CTR, ssh.HMACSHA256, ssh.HMACSHA256ETM
	counter := func(macs ...string) gitssh.Algorithms {
		return gitssh.Algorithms{Ciphers: []string{ssh.CipherAES128GCM, ctr}, MACs: macs}
	}
	client := func(cipher string, macs ...string) ssh.Config {
		return ssh.Config{Ciphers: []string{cipher}, MACs: macs}
	}
	group14 := gitssh.Algorithms{KeyExchanges: []string{ssh.KeyExchangeDH14SHA256}}
	for name, c := range map[string]struct {
		server  gitssh.Algorithms
		client  ssh.Config
		refused string
	}{
		"default":               {},
		"default, counter mode": {client: client(ctr), refused: "client to server cipher"},
		"default, SHA-1": {
			client: ssh.Config{KeyExchanges: []string{ssh.InsecureKeyExchangeDH14SHA1}}, refused: "key exchange",
		},
		"counter mode":            {server: counter(), client: client(ctr, etm)},
		"counter mode, plain MAC": {server: counter(), client: client(ctr, plain)},
		"counter mode, MAC of SHA-1": {server: counter(), client: client(ctr, ssh.HMACSHA1),
			refused: "client to server MAC"},
		"counter mode, not this MAC": {server: counter(etm), client: client(ctr, plain),
			refused: "client to server MAC"},
		"counter mode, MAC is no matter": {server: counter(etm), client: client(ssh.CipherAES128GCM, plain)},
		"key exchange":                   {server: group14, client: ssh.Config{KeyExchanges: group14.KeyExchanges}},
		"not this key exchange": {
			server: group14, client: ssh.Config{KeyExchanges: []string{ssh.KeyExchangeECDHP256}},
			refused: "key exchange",
		},
	} {
		s := serveSSH(t, func(o *gitssh.Options) { o.Algorithms = c.server }, brackets(""))
		_, err := s.dial(func(config *ssh.ClientConfig) { config.Config = c.client })
		refusal, _ := errors.AsType[*ssh.AlgorithmNegotiationError](err)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: error = %v, want none", name, err)
		case c.refused != "" && (refusal == nil || refusal.What != c.refused):
			t.Errorf("%s: %v; want no common %s", name, err, c.refused)
		}
	}
}

// TestSSHFailedHandshakeIsLogged: an administrator sees what the client offered, and counts it; of many failures the
// log has some.
func TestSSHFailedHandshakeIsLogged(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets(""))
	const times = 30
	for range times {
		if _, err := s.dial(func(c *ssh.ClientConfig) {
			c.ClientVersion, c.Ciphers = "SSH-2.0-Old_1.0", []string{ssh.CipherAES128CTR, ssh.CipherAES256CTR}
		}); err == nil {
			t.Fatal("dial with a refused cipher: error = nil, want one")
		}
	}
	if !eventually(func() bool { return s.value("packhorse_ssh_handshake_failures_total{reason=cipher}") == times }) {
		t.Errorf("counted failures = %v, want %v", s.value("packhorse_ssh_handshake_failures_total{reason=cipher}"), times)
	}
	text := s.log.String()
	for _, want := range []string{
		"level=INFO", "SSH-2.0-Old_1.0", "offered=aes128-ctr,aes256-ctr",
		`error="no common algorithm for client to server cipher"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no %s: %.1000s", want, text)
		}
	}
	if n := strings.Count(text, "no common algorithm"); n < 1 || n > times/2 {
		t.Errorf("logged failures = %d of %d, want at most half", n, times)
	}
}

// TestSSHMACs: the plain ones are not offered where no cipher needs them.
func TestSSHMACs(t *testing.T) {
	t.Parallel()
	etm := []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM}
	for _, c := range []struct{ ciphers, want []string }{
		{nil, etm}, {[]string{ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305}, etm},
		{[]string{ssh.CipherAES128CTR}, slices.Concat(etm, []string{ssh.HMACSHA256, ssh.HMACSHA512})},
	} {
		if got := (gitssh.Algorithms{Ciphers: c.ciphers}).WithDefaults().MACs; !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.ciphers, got, c.want)
		}
	}
}
