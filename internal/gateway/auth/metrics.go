package auth

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics counts credentials, decisions, and questions to the hook, and reports failing identity sources. No label
// value comes from a caller.
type Metrics struct {
	credentials *prometheus.CounterVec
	decisions   *prometheus.CounterVec
	asked       *prometheus.CounterVec
	hookSeconds prometheus.Histogram
	origins     *prometheus.CounterVec
	sources     *prometheus.GaugeVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		credentials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_auth_credentials_total",
			Help: "Credentials from callers, by how (basic, bearer, key, other) and result (ok, or the kind of error).",
		}, []string{"how", "result"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_auth_decisions_total",
			Help: "Decisions about operations, by operation, caller (anonymous, known) and result (ok, or the kind of " +
				"error).",
		}, []string{"operation", "caller", "result"}),
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_auth_hook_questions_total",
			Help: "Questions to the auth hook by result: ok, failed, cached, stale (an expired answer, because the hook " +
				"failed), or skipped (not sent).",
		}, []string{"result"}),
		hookSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "packhorse_auth_hook_seconds", Help: "Time until the auth hook answered or failed.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10},
		}),
		origins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_auth_origin_answers_total",
			Help: "Answers of origins about callers by result: allowed, refused, failed, cached, stale (an earlier " +
				"permission, because the origin gave no answer), or skipped (not asked).",
		}, []string{"result"}),
		sources: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_auth_source_failed",
			Help: "1 while an identity source (tokens, rules, hook, authorized_keys, trusted_user_ca, revoked_keys, or " +
				"oidc and an issuer) fails, else 0.",
		}, []string{"source"}),
	}
}

// Collectors lists the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.credentials, m.decisions, m.asked, m.hookSeconds, m.origins, m.sources}
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.KindOf(err).String()
}

// credential counts a credential of a caller.
func (m *Metrics) credential(how string, err error) {
	switch how {
	case "basic", "bearer", ByKey, ByCertificate:
	default:
		how = "other"
	}
	m.credentials.WithLabelValues(how, result(err)).Inc()
}

func (m *Metrics) decision(op Operation, id Identity, err error) {
	caller := "known"
	if id.Anonymous() {
		caller = anonymous
	}
	m.decisions.WithLabelValues(op.String(), caller, result(err)).Inc()
}

func (m *Metrics) question(result string) { m.asked.WithLabelValues(result).Inc() }

func (m *Metrics) originAnswer(result string) { m.origins.WithLabelValues(result).Inc() }

func (m *Metrics) answered(took time.Duration) { m.hookSeconds.Observe(took.Seconds()) }
