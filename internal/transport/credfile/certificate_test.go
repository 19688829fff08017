package credfile

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificatePair makes a self-signed certificate for name.
func certificatePair(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func TestCertificateFollowsItsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	put := func(file string, content []byte) { // as certificate tools do: a new file in place of the old one
		t.Helper()
		if err := os.WriteFile(file+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	cert1, key1 := certificatePair(t, "one")
	cert2, key2 := certificatePair(t, "two")
	put(certFile, cert1)

	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	if _, err := LoadCertificate(certFile, keyFile, log); err == nil {
		t.Fatal("error without a key = nil, want one")
	}
	put(keyFile, key1)
	c, err := LoadCertificate(certFile, keyFile, log)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Now()
	c.now = func() time.Time { return clock }

	serves := func(step, want string, errors int) {
		t.Helper()
		got, err := c.Get(nil)
		if err != nil || got.Leaf.Subject.CommonName != want {
			t.Errorf("%s: serves %v (%v), want %s", step, got.Leaf.Subject, err, want)
		}
		if n := strings.Count(logged.String(), "level=ERROR"); n != errors {
			t.Errorf("%s: %d errors logged, want %d\n%s", step, n, errors, &logged)
		}
	}
	serves("at first", "one", 0)
	put(certFile, cert2)
	serves("within a second of the last look", "one", 0)
	clock = clock.Add(checkInterval)
	serves("with a key that does not fit", "one", 1)
	clock = clock.Add(checkInterval)
	serves("with the same files again", "one", 1)
	put(keyFile, key2)
	clock = clock.Add(checkInterval)
	serves("with both changed", "two", 1)
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(checkInterval)
	serves("with a file gone", "two", 2)
	clock = clock.Add(checkInterval)
	serves("with a file still gone", "two", 2)
	put(certFile, cert1)
	put(keyFile, key1)
	clock = clock.Add(checkInterval)
	serves("with both back", "one", 2)
}
