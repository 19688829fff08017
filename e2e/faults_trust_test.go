package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-240 * time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// sign gives a certificate for 127.0.0.1 that holds from some time on for a day, and its key.
func (a *authority) sign(from time.Duration) (cert, key string) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"},
		DNSNames:  []string{"node.test"},
		NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(from + 24*time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
			x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// TestCertificateFaults replaces the certificates of running processes by invalid ones, and then by valid ones again.
// To them a wrong clock is the same as a certificate that is not valid yet or has expired.
func TestCertificateFaults(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t), newAuthority(t)
	p := &pair{T: t, dir: t.TempDir(), base: map[*serverProcess]int{}}
	origin := blobs(t)
	for _, name := range []string{"one", "two"} {
		if err := os.CopyFS(filepath.Join(p.dir, "repos", name+".git"), os.DirFS(origin.Dir)); err != nil {
			t.Fatal(err)
		}
	}
	p.write("git", stuckGit, 0o755)
	p.write("ca.pem", string(ours.pem), 0o600)
	put := func(who string, a *authority, from time.Duration) {
		cert, key := a.sign(from)
		for name, text := range map[string]string{who + ".key": key, who + ".pem": cert} {
			if err := os.Rename(p.write(name+".new", text, 0o600), filepath.Join(p.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("node", ours, -time.Hour)
	put("gate", ours, -time.Hour)
	quoted := func(name string) string { return fmt.Sprintf("%q", filepath.Join(p.dir, name)) }
	p.nodeConfig = p.write("node.toml",
		"[storage]\ntls_cert = "+quoted("node.pem")+"\ntls_key = "+quoted("node.key")+"\nclient_ca = "+quoted("ca.pem")+"\n",
		0o600)
	p.startNode("127.0.0.1:0")
	p.proxy = newFaultProxy(t, p.node.listen)
	p.gatewayConfig = p.write("gateway.toml", fmt.Sprintf("[[node]]\nname = \"one\"\naddress = %q\nserver_name = "+
		"\"node.test\"\ntls_ca = %s\ntls_cert = %s\ntls_key = %s\n",
		p.proxy.at(), quoted("ca.pem"), quoted("gate.pem"), quoted("gate.key")), 0o600)
	p.startGateway()
	p.found()
	p.clone("one")

	const day = 24 * time.Hour
	for _, who := range []string{"node", "gate"} {
		for name, bad := range map[string]func(){
			"expired":       func() { put(who, ours, -2*day) },
			"not yet valid": func() { put(who, ours, day) },
			"of others":     func() { put(who, others, -time.Hour) },
		} {
			bad()
			eventually(t, who+"'s certificate is refused: "+name, func() bool {
				p.proxy.strike(cut) // open connections were made with the valid one
				out, err := gittest.At(t, "").Try("ls-remote", p.gateway.http+"/one")
				return err != nil && strings.Contains(out+err.Error(), "503")
			})
			put(who, ours, -time.Hour)
			p.found()
		}
	}
	p.clone("one")
	p.clone("two")
	p.idle(p.node)
	p.idle(p.gateway)
	for _, secret := range []string{"PRIVATE KEY"} {
		if strings.Contains(p.node.logged()+p.gateway.logged(), secret) {
			t.Errorf("a log has %q", secret)
		}
	}
}

// TestClockSkew sets back the times that a node has stored. A static binary cannot be given another clock. Therefore
// the test changes the traces of a wrong clock: the stored epoch lies in the future, and files have times in the future
// and long ago. Deadlines of calls are durations (grpc-timeout), and TestCertificateFaults is about certificates.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	p := newPair(t, false)
	p.signal(p.node, syscall.SIGTERM)
	if err := p.node.wait(); err != nil {
		t.Fatal(err)
	}
	epoch := filepath.Join(p.dir, "node", "epoch")
	const future = uint64(1) << 62
	p.write(filepath.Join("node", "epoch"), fmt.Sprintln(future), 0o600)
	p.startNode(p.node.listen)
	text, err := os.ReadFile(epoch)
	var now uint64
	if _, err2 := fmt.Sscan(string(text), &now); err != nil || err2 != nil || now <= future {
		t.Errorf("after the epoch %d comes %q (%v, %v)", future, text, err, err2)
	}
	p.found()

	// The next response shows the content of the files, whatever their times.
	one := gittest.At(t, filepath.Join(p.dir, "repos", "one.git"))
	tip := one.ID("refs/heads/main")
	for i, at := range []time.Time{time.Now().Add(1000 * time.Hour), time.Unix(1, 0), time.Now().Add(-time.Hour),
		time.Now().Add(time.Hour)} {
		tip = one.Commit(fmt.Sprint("skewed ", i), tip)
		one.Git("update-ref", "refs/heads/main", tip.String())
		if i%2 == 0 {
			one.Git("pack-refs", "--all")
		}
		for _, name := range []string{"packed-refs", "refs/heads/main", "refs/heads", "refs"} {
			if err := os.Chtimes(filepath.Join(one.Dir, name), at, at); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		if out := gittest.At(t, "").Git("ls-remote", p.gateway.http+"/one", "refs/heads/main"); !strings.HasPrefix(out,
			tip.String()) {
			t.Errorf("with files of %s the ref is %q, want %s", at, out, tip)
		}
	}
	p.clone("two")
}
