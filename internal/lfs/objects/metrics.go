package objects

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Metrics are the metrics of a Store.
type Metrics struct {
	uploads   *prometheus.CounterVec
	written   prometheus.Counter
	pool      prometheus.Gauge
	poolBytes prometheus.Gauge
	parts     prometheus.Gauge
	partBytes prometheus.Gauge
	free      *prometheus.GaugeVec // without labels; absent until it was measured
	collected prometheus.Counter
	verified  prometheus.Counter
	damaged   prometheus.Counter
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		uploads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_lfs_uploads_total",
			Help: "Uploads of LFS objects by result: ok, partial (another upload continues), wrong_hash, wrong_length, " +
				"truncated, too_large, quota, disk_full, or the kind of error. Refusals in a batch before the upload count, too. " +
				"docs/reference/logs.md explains the results.",
		}, []string{"result"}),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lfs_written_bytes_total", Help: "Bytes of LFS objects that were written to disk.",
		}),
		pool: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_lfs_pool_objects",
			Help: "LFS objects in the pool that repositories share. After a start they are counted again.",
		}),
		poolBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_lfs_pool_bytes", Help: "Size of the LFS objects in the pool that repositories share.",
		}),
		parts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_lfs_parts",
			Help: "Parts of LFS objects: running uploads, and interrupted ones that can continue. Counted every 10 minutes.",
		}),
		partBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_lfs_part_bytes", Help: "Size of the parts of LFS objects. Measured every 10 minutes.",
		}),
		free: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_lfs_free_bytes",
			Help: "Space of the file system that uploads of LFS objects may still take, without lfs.min_free. At 0 and below " +
				"they are refused. Measured every 10 minutes, and absent before the first upload.",
		}, nil),
		collected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lfs_collected_objects_total",
			Help: "LFS objects that were removed from repositories because no commit needs them.",
		}),
		verified: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lfs_verified_bytes_total",
			Help: "Bytes of LFS objects that were read to verify them.",
		}),
		damaged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lfs_damaged_objects_total",
			Help: "LFS objects that a verification found to be damaged, and moved aside. In a store, damaged copies of a node.",
		}),
	}
	for _, result := range []string{string(diskFull), fault.Internal.String()} {
		m.uploads.WithLabelValues(result) // alerts need a series before the first failure
	}
	return m
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.uploads, m.written, m.pool, m.poolBytes, m.parts, m.partBytes, m.free,
		m.collected, m.verified, m.damaged}
}
