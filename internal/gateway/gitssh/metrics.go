package gitssh

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics counts events on SSH connections. Requests on them count with all other requests.
type metrics struct {
	connections *prometheus.CounterVec
	failures    *prometheus.CounterVec
	sessions    *prometheus.CounterVec
	cut         *prometheus.CounterVec
	running     prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, g *gate) *metrics {
	with := promauto.With(r)
	with.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "packhorse_ssh_logins", Help: "Open SSH connections before their login.",
	}, func() float64 { return float64(g.countLogins()) })
	return &metrics{
		connections: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_connections_total",
			Help: "SSH connections by result: ok, refused by a limit (logins, address_logins, early_drop, rate), " +
				"or failed (banner, proxy_header, auth, timeout, handshake). " +
				"Health checks connect and close: silent.",
		}, []string{"result"}),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_handshake_failures_total",
			Help: "Failed SSH handshakes by reason: no algorithm in common with the client (key_exchange, host_key, cipher, " +
				"mac, compression), closed by the client, or protocol: an invalid message.",
		}, []string{"reason"}),
		sessions: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_sessions_total",
			Help: "Sessions on SSH connections by command: upload_pack, receive_pack, lfs_transfer, lfs_authenticate, " +
				"greeting, refused (another command), none.",
		}, []string{"command"}),
		cut: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_ssh_sessions_cut_total",
			Help: "SSH sessions that the server ended before their command, by reason: no_command, idle (silent between " +
				"requests), read_stall, write_stall, interrupted (the storage node was lost), shutdown.",
		}, []string{"reason"}),
		running: with.NewGauge(prometheus.GaugeOpts{Name: "packhorse_ssh_sessions",
			Help: "Open sessions on SSH connections."}),
	}
}
