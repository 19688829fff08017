package sidechannel

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts channels and transfers of either end. A Server and several Pools can share one.
type Metrics struct {
	idle, busy           prometheus.Gauge
	sentKernel, sentUser prometheus.Counter
	gotKernel, gotUser   prometheus.Counter

	channels  *prometheus.GaugeVec
	opened    *prometheus.CounterVec
	closed    *prometheus.CounterVec
	refused   *prometheus.CounterVec
	transfers *prometheus.CounterVec
	bytes     *prometheus.CounterVec
}

// NewMetrics creates the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		channels: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_channels", Help: "Side channels by state: idle, busy (with a transfer or its acknowledgement).",
		}, []string{"state"}),
		opened: counter("packhorse_channels_opened_total",
			"Requests for side channels by result: ok, full (the node has too many), refused, "+
				"failed (no connection or response).", "result"),
		closed: counter("packhorse_channels_closed_total",
			"Closed side channels by reason. Idle: idle, surplus, peer, unexpected (bytes). "+
				"In a transfer: protocol (an invalid header), stall, broken, failed (reported by a side), "+
				"unfinished (a cancelled transfer), cancelled, shutdown.", "reason"),
		refused: counter("packhorse_channel_claims_refused_total",
			"Claims of side channels refused, by reason: name, unknown, caller, number, replayed, busy, cancelled.",
			"reason"),
		transfers: counter("packhorse_channel_transfers_total",
			"Transfers on side channels by end: ok, or the reason for which their channel was closed.", "end"),
		bytes: counter("packhorse_channel_bytes_total",
			"Bytes of transfers on side channels, by direction (sent, received) and path (kernel, user).", "direction",
			"path"),
	}
	m.idle, m.busy = m.channels.WithLabelValues("idle"), m.channels.WithLabelValues("busy")
	m.sentKernel, m.sentUser = m.bytes.WithLabelValues("sent", "kernel"), m.bytes.WithLabelValues("sent", "user")
	m.gotKernel, m.gotUser = m.bytes.WithLabelValues("received", "kernel"), m.bytes.WithLabelValues("received", "user")
	return m
}

func (m *Metrics) countSent(kernel, user int64) {
	m.sentKernel.Add(float64(kernel))
	m.sentUser.Add(float64(user))
}

func (m *Metrics) countReceived(kernel, user int64) {
	m.gotKernel.Add(float64(kernel))
	m.gotUser.Add(float64(user))
}
