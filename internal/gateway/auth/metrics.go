package auth

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts credentials and questions to the hook and to origins, and reports failing identity sources. No label
// value comes from a caller.
type Metrics struct {
	credentials *prometheus.CounterVec
	questions   *prometheus.CounterVec
	sources     *prometheus.GaugeVec
}

// NewMetrics makes the metrics, which an Auth shares with its Hook, Origins and Sources.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	return &Metrics{
		credentials: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_auth_credentials_total",
			Help: "Credentials from callers, by method (basic, bearer, key, other) and result (ok, or the kind of error).",
		}, []string{"method", "result"}),
		questions: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_auth_questions_total",
			Help: "Questions about callers, by server (hook, origin) and result: ok, refused, failed, cached, stale (an " +
				"earlier answer, because the server failed), or skipped (not sent).",
		}, []string{"server", "result"}),
		sources: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_auth_source_failed",
			Help: "1 while an identity source (tokens, rules, hook, authorized_keys, trusted_user_ca, revoked_keys, or " +
				"oidc and an issuer) fails, else 0.",
		}, []string{"source"}),
	}
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.KindOf(err).String()
}

// credential counts a credential of a caller.
func (m *Metrics) credential(method string, err error) {
	switch method {
	case "basic", "bearer", ByKey, ByCertificate:
	default:
		method = "other"
	}
	m.credentials.WithLabelValues(method, result(err)).Inc()
}

// question counts a question to the hook or to an origin.
func (m *Metrics) question(server, result string) { m.questions.WithLabelValues(server, result).Inc() }
