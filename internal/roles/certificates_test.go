package roles

import (
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/config"
)

func TestCertificateMetric(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultConfig()
	cfg.HTTP.TLSCert, cfg.HTTP.TLSKey = writeCertificate(t)
	leaf, err := config.ReadLeaf(cfg.HTTP.TLSCert)
	if err != nil {
		t.Fatal(err)
	}
	got := gathered(t, newCertificateMetric(&cfg, config.RoleServe), "packhorse_certificate_expiry_timestamp_seconds")
	if got != float64(leaf.NotAfter.Unix()) {
		t.Errorf("%v, want %v", got, leaf.NotAfter)
	}
	failed := func() float64 {
		return gathered(t, newCertificateMetric(&cfg, config.RoleServe), "packhorse_certificate_failed")
	}
	if failed() != 0 {
		t.Error("a good certificate is said to fail")
	}
	_, cfg.HTTP.TLSKey = writeCertificate(t)
	if failed() != 1 {
		t.Error("a certificate with another one's key is said to be good")
	}
	cfg.HTTP.TLSCert = filepath.Join(t.TempDir(), "gone")
	if failed() != 1 {
		t.Error("a certificate that is gone is said to be good")
	}
}

// gathered is the value of a metric with one series.
func gathered(t *testing.T, c prometheus.Collector, name string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && len(f.GetMetric()) == 1 {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
