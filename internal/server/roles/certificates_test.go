package roles

import (
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/server/config"
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
		t.Error("failed = 1 with a valid certificate, want 0")
	}
	_, cfg.HTTP.TLSKey = writeCertificate(t)
	if failed() != 1 {
		t.Error("failed = 0 with the key of another certificate, want 1")
	}
	cfg.HTTP.TLSCert = filepath.Join(t.TempDir(), "gone")
	if failed() != 1 {
		t.Error("failed = 0 without the certificate, want 1")
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
	t.Fatalf("metric %s is missing, want one value", name)
	return 0
}
