package resolve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// selfSigned makes a certificate for 127.0.0.1, and gives its files and a pool with it.
func selfSigned(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	must(err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(err)
	dir := t.TempDir()
	cert, key, pool = filepath.Join(dir, "cert"), filepath.Join(dir, "key"), x509.NewCertPool()
	must(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	parsed, err := x509.ParseCertificate(der)
	must(err)
	pool.AddCert(parsed)
	return cert, key, pool
}

// By TLS gateways share what Redis has if they trust its certificate; with one that they do not trust they talk about
// nothing.
func TestRedisTLS(t *testing.T) {
	t.Parallel()
	cert, key, pool := selfSigned(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	server := startRedis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
		"--tls-auth-clients", "no", "--bind", "127.0.0.1")
	url := "rediss://127.0.0.1:" + port + "/0"
	fake := newFakeNode("a")
	trusting := func(o *RedisOptions) { o.Authorities = pool }
	first := gatewayOver(t, fake, url, trusting)
	want := serialOf(ask(t, first, "a", "main").ID)
	eventually(t, "the answer is in Redis", func() bool { return server.has(t, "a", "main") })

	second := gatewayOver(t, fake, url, trusting)
	ask(t, second, "a", "HEAD") // from the node: the version is not known yet
	wantSerial(t, second, "a", want)
	if n := value(second.o.Metrics.redisHit); n != 1 {
		t.Errorf("%v answers came from Redis", n)
	}
	distrustful := gatewayOver(t, fake, url)
	ask(t, distrustful, "a", "HEAD")
	wantSerial(t, distrustful, "a", want)
	if n := value(distrustful.o.Metrics.redisHit); n != 0 || !distrustful.o.Redis.Bypassed() {
		t.Errorf("%v answers came from a Redis whose certificate nobody trusts", n)
	}
}
