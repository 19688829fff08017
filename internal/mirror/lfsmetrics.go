package mirror

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
)

// lfsMetrics are the metrics of the LFS objects of mirrors.
type lfsMetrics struct {
	requests     *prometheus.CounterVec
	downloads    *prometheus.CounterVec
	evictedBytes prometheus.Counter
}

func newLFSMetrics(with promauto.Factory, mirrors *Mirrors) lfsMetrics {
	with.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "packhorse_mirror_lfs_cache_bytes",
		Help: "Size of the LFS objects of mirrors, including running downloads. lfs.cache limits it. After a start it " +
			"is 0 until it is measured.",
	}, func() float64 {
		if mirrors.lfs == nil {
			return 0
		}
		return float64(mirrors.lfs.budget.bytes())
	})
	m := lfsMetrics{
		requests: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_mirror_lfs_requests_total",
			Help: "Downloads of LFS objects by clients of mirrors: hit (the object was here), miss (the request began its " +
				"download from the origin), follow (the download was running).",
		}, []string{"cache"}),
		downloads: with.NewCounterVec(prometheus.CounterOpts{
			Name: "packhorse_mirror_lfs_downloads_total",
			Help: "Downloads of LFS objects from origins, with all of their requests, by result: ok, wrong (another object " +
				"arrived), full (the disk), or another kind of error.",
		}, []string{"result"}),
		evictedBytes: with.NewCounter(prometheus.CounterOpts{
			Name: "packhorse_mirror_lfs_evicted_bytes_total",
			Help: "Size of the LFS objects of mirrors that were removed to make room.",
		}),
	}
	for _, result := range []string{wrongDownload, fault.Full.String(), fault.Internal.String()} {
		m.downloads.WithLabelValues(result) // alerts need a series before the first failure
	}
	return m
}

// wrongDownload is the label of downloads of another object than the one that was asked for.
const wrongDownload = "wrong"

// sent counts a download of a client: hit, miss or follow. A request that failed before has "".
func (m *lfsMetrics) sent(cache string) {
	if cache != "" {
		m.requests.WithLabelValues(cache).Inc()
	}
}

// downloaded counts a download from an origin.
func (m *lfsMetrics) downloaded(err error) {
	label := result(err)
	if errors.Is(err, origin.ErrWrongObject) {
		label = wrongDownload
	}
	m.downloads.WithLabelValues(label).Inc()
}
