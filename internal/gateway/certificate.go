package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateCheck is how often the files of a certificate are looked at, at most.
const certificateCheck = time.Second

// Certificate is a TLS certificate that follows its files: a handshake that comes at least certificateCheck after the last look
// compares the files' identity and loads them again if it changed. What cannot be loaded (half written, or a key that does not
// fit) is logged once for each change, and the last good certificate stays. Safe for concurrent use.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	now               func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	seen    [2]fs.FileInfo // what the last attempt to load looked at
	looked  time.Time
}

// LoadCertificate reads a certificate with its chain and its private key, both PEM. The first load has to succeed.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log, now: time.Now}
	if err := c.load(); err != nil {
		return nil, err
	}
	c.looked = c.now()
	return c, nil
}

// Get is a tls.Config's GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.looked) >= certificateCheck {
		c.looked = now
		if c.changed() {
			c.reload()
		}
	}
	return c.current, nil
}

// changed reports whether either file is another one than at the last attempt to load, or cannot be seen.
func (c *Certificate) changed() bool {
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			// Gone for a moment while it is replaced, or for good: report once, then wait for it to come back.
			if c.seen[i] != nil {
				return true
			}
			continue
		}
		old := c.seen[i]
		if old == nil || !os.SameFile(old, info) || old.Size() != info.Size() || !old.ModTime().Equal(info.ModTime()) {
			return true
		}
	}
	return false
}

func (c *Certificate) reload() {
	if err := c.load(); err != nil {
		c.log.Error("cannot load the changed TLS certificate; the last good one stays in use", "error", err)
		return
	}
	c.log.Info("loaded the changed TLS certificate", "not_after", c.current.Leaf.NotAfter)
}

// load remembers what it looked at even if it fails, so that the same bad files are not tried again and again. The files are
// looked at before they are read: a change in between is seen the next time.
func (c *Certificate) load() error {
	for i, name := range []string{c.certFile, c.keyFile} {
		c.seen[i], _ = os.Stat(name) // the error shows in reading
	}
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("load the TLS certificate: %w", err)
	}
	if cert.Leaf == nil {
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return fmt.Errorf("load the TLS certificate: %w", err)
		}
	}
	c.current = &cert
	return nil
}
