package gitssh

import "github.com/prometheus/client_golang/prometheus"

// SSHMetrics counts what happens on SSH connections; what is asked on them counts with all other requests.
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

// NewSSHMetrics makes them.
func NewMetrics() *Metrics {
	m := &Metrics{
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_connections_total",
			Help: "SSH connections by how they began: ok, what kept them out (logins, address_logins, early_drop, rate), " +
				"what went wrong before the login was over (banner, proxy_header, auth, timeout, handshake), or silent: hung up without a word, as who looks whether " +
				"the server is there, the watchdog too.",
		}, []string{"result"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_handshake_failures_total",
			Help: "SSH handshakes that failed, by reason: no algorithm in common with the client (key_exchange, host_key, cipher, mac, compression), " +
				"closed by the client, or protocol: an invalid message.",
		}, []string{"reason"}),
		auth: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_auth_total",
			Help: "Proofs of who an SSH client is, by method and result (ok, refused).",
		}, []string{"method", "result"}),
		sessions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_sessions_total",
			Help: "Sessions on SSH connections, by what was asked for: upload_pack, receive_pack, greeting, refused (another command), none.",
		}, []string{"command"}),
		cut: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_sessions_cut_total",
			Help: "SSH sessions that the server ended before their command, by reason: no_command, idle (silent between requests), read_stall, write_stall, " +
				"interrupted (the storage node was lost), shutdown.",
		}, []string{"reason"}),
		exchanges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_ssh_key_exchanges_total",
			Help: "SSH key exchanges, the first ones of connections included.",
		}),
		throttled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_ssh_key_exchanges_delayed_total",
			Help: "SSH key exchanges that had to wait because the client asks for too many.",
		}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "packhorse_ssh_sessions",
			Help: "Sessions on SSH connections now."}),
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
		Name: "packhorse_ssh_connections", Help: "SSH connections now.",
	}, count(func(open, _ int) int { return open }))
	m.logins = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "packhorse_ssh_logins", Help: "SSH connections now that have not logged in yet.",
	}, count(func(_, logins int) int { return logins }))
	return m
}

// Collectors lists the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.connections, m.failures, m.auth, m.sessions, m.cut, m.exchanges, m.throttled,
		m.open, m.logins, m.running}
}
