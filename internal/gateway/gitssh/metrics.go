package gitssh

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts events on SSH connections. Requests on them count with all other requests.
type Metrics struct {
	connections *prometheus.CounterVec
	failures    *prometheus.CounterVec
	auth        *prometheus.CounterVec
	sessions    *prometheus.CounterVec
	cut         *prometheus.CounterVec
	exchanges   prometheus.Counter
	throttled   prometheus.Counter
	open        prometheus.GaugeFunc
	logins      prometheus.GaugeFunc
	running     prometheus.Gauge

	gate *gate
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_connections_total",
			Help: "SSH connections by result: ok, refused by a limit (logins, address_logins, early_drop, rate), " +
				"or failed (banner, proxy_header, auth, timeout, handshake). " +
				"Health checks connect and close: silent.",
		}, []string{"result"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_handshake_failures_total",
			Help: "Failed SSH handshakes by reason: no algorithm in common with the client (key_exchange, host_key, cipher, " +
				"mac, compression), closed by the client, or protocol: an invalid message.",
		}, []string{"reason"}),
		auth: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_auth_total",
			Help: "SSH authentications by method and result (ok, refused).",
		}, []string{"method", "result"}),
		sessions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_sessions_total",
			Help: "Sessions on SSH connections by command: upload_pack, receive_pack, lfs_transfer, lfs_authenticate, " +
				"greeting, refused (another command), none.",
		}, []string{"command"}),
		cut: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_sessions_cut_total",
			Help: "SSH sessions that the server ended before their command, by reason: no_command, idle (silent between " +
				"requests), read_stall, write_stall, interrupted (the storage node was lost), shutdown.",
		}, []string{"reason"}),
		exchanges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_ssh_key_exchanges_total",
			Help: "SSH key exchanges, including the first one of each connection.",
		}),
		throttled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_ssh_key_exchanges_delayed_total",
			Help: "SSH key exchanges that were delayed because the client starts too many.",
		}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_ssh_sessions",
			Help: "Open sessions on SSH connections."}),
	}
	count := func(of func(open, logins int) int) func() float64 {
		return func() float64 {
			if m.gate == nil {
				return 0
			}
			return float64(of(m.gate.counts()))
		}
	}
	m.open = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "packhorse_ssh_connections", Help: "Open SSH connections.",
	}, count(func(open, _ int) int { return open }))
	m.logins = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "packhorse_ssh_logins", Help: "Open SSH connections before their login.",
	}, count(func(_, logins int) int { return logins }))
	return m
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.connections, m.failures, m.auth, m.sessions, m.cut, m.exchanges, m.throttled,
		m.open, m.logins, m.running}
}
