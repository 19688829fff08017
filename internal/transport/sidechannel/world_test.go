package sidechannel

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a node's port and a gateway's pool.
type world struct {
	t       testing.TB
	server  *Server
	pool    *Pool
	dialRaw func(ctx context.Context) (net.Conn, error) // without TLS
	node    *Metrics
	gateway *Metrics
}

var kinds = []string{"tcp", "unix", "tls"}

// newWorld starts a node's port of a kind. dialed may change what the pool gets; nil: nothing.
func newWorld(t testing.TB, kind string, o Options, p PoolOptions) *world {
	t.Helper()
	w := &world{t: t, node: NewMetrics(nil), gateway: NewMetrics(nil)}
	log := slog.New(slog.DiscardHandler)
	pump := bulk.NewPump(bulk.PumpOptions{})
	o.Pump, o.Metrics, o.Log = pump, w.node, log
	w.server = NewServer(o)

	network, address := "tcp", "127.0.0.1:0"
	if kind == "unix" {
		network, address = "unix", filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc(Path, func(rw http.ResponseWriter, r *http.Request) {
		w.server.Upgrade(rw, r,
			r.Header.Get("Caller"))
	})
	node := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ReadTimeout: time.Minute,
		WriteTimeout: time.Minute}
	node.Protocols = new(http.Protocols)
	node.Protocols.SetHTTP1(true)
	node.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	certificate, roots := newCertificate(t)
	if kind == "tls" {
		node.Protocols.SetHTTP2(true)
		node.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}}
		go func() { served <- node.ServeTLS(bulk.Listen(l, pump, time.Minute), "", "") }()
	} else {
		go func() { served <- node.Serve(bulk.Listen(l, pump, time.Minute)) }()
	}
	w.dialRaw = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	}
	if p.Dial == nil {
		p.Dial = func(ctx context.Context) (net.Conn, error) { return w.dialRaw(ctx) }
	}
	if dial := p.Dial; kind == "tls" {
		p.Dial = func(ctx context.Context) (net.Conn, error) {
			c, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			return tls.Client(c, &tls.Config{RootCAs: roots, ServerName: "node", NextProtos: []string{"http/1.1"}}), nil
		}
	}
	if p.Header == nil {
		p.Header = func() http.Header { return http.Header{"Caller": {"gateway"}} }
	}
	p.Pump, p.Metrics, p.Log = pump, w.gateway, log
	w.pool = NewPool(p)
	t.Cleanup(func() {
		w.pool.Close()
		w.server.Close()
		node.Close()
		<-served
		for _, m := range []*Metrics{w.node, w.gateway} {
			if idle, busy := value(m.idle), value(m.busy); idle != 0 || busy != 0 {
				t.Errorf("%v idle and %v busy channels after the end, want 0, 0", idle, busy)
			}
		}
	})
	return w
}

// transfer gets a channel, and the node claims it.
func (w *world) transfer() (gateway, node *Channel) {
	w.t.Helper()
	gateway, err := w.pool.Get(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	node, err = w.server.Claim(context.Background(), gateway.Name(), gateway.Transfer(), "gateway")
	if err != nil {
		w.t.Fatal(err)
	}
	return gateway, node
}

// value is a metric's value.
func value(m prometheus.Metric) float64 {
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		panic(err)
	}
	if d.Gauge != nil {
		return d.Gauge.GetValue()
	}
	return d.Counter.GetValue()
}

// until waits for a condition.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, condition)
}

func newCertificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, DNSNames: []string{"node"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}
