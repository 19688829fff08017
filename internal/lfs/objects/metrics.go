package objects

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// metrics are the metrics of a Store.
type metrics struct {
	uploads   *prometheus.CounterVec
	poolBytes prometheus.Gauge
	free      *prometheus.GaugeVec // without labels; absent until it was measured
	damaged   prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	m := &metrics{
		uploads: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_lfs_uploads_total",
			Help: "Uploads of LFS objects by result (docs/reference/logs.md), refusals in a batch included: ok, partial " +
				"(another upload continues), wrong_hash, wrong_length, truncated, too_large, quota, disk_full, or the kind of " +
				"error.",
		}, []string{"result"}),
		poolBytes: with.NewGauge(prometheus.GaugeOpts{
			Name: "packhorse_lfs_pool_bytes", Help: "Size of the LFS objects in the pool that repositories share.",
		}),
		free: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_lfs_free_bytes",
			Help: "Space of the file system that uploads of LFS objects may still take, without lfs.min_free. Measured every " +
				"10 minutes, and absent before the first upload.",
		}, nil),
		damaged: with.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_lfs_damaged_objects_total",
			Help: "LFS objects that a verification found to be damaged, and moved aside. In a store, damaged copies of a node.",
		}),
	}
	for _, result := range []string{string(diskFull), fault.Internal.String()} {
		m.uploads.WithLabelValues(result) // alerts need a series before the first failure
	}
	return m
}
