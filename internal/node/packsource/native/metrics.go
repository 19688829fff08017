// Package native makes packs in process. It selects the objects of a packsource.Spec, and takes each one from the
// cheapest sound source. The sources are earlier packs in the cache, packs on disk, and the object itself, compressed
// again. There is no search for deltas. A pack that git makes for less, or that needs something this package cannot
// read, is left to git pack-objects before the first byte is sent. docs/explanation/packs.md describes how packs are
// made.
package native

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// metrics counts the packs that were made. It is safe for concurrent use.
type metrics struct {
	packs, fallbacks, bytes *prometheus.CounterVec
	selection, writing      prometheus.Observer
}

func newMetrics(r prometheus.Registerer) *metrics {
	with := promauto.With(r)
	vec := func(name, help, label string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	seconds := with.NewHistogramVec(prometheus.HistogramOpts{Name: "packhorse_pack_seconds",
		Help:    "Time to make a pack in process, by stage: select its objects, write (copy and encode) them.",
		Buckets: prometheus.ExponentialBuckets(0.00025, 4, 11)}, []string{"stage"})
	m := &metrics{
		packs: vec("packhorse_packs_made_total",
			"Complete packs by source: native (made in process), git (made by git pack-objects after a fallback).",
			"source"),
		fallbacks: vec("packhorse_pack_fallbacks_total",
			"Packs that were not made in process, by reason (docs/explanation/packs.md).", "reason"),
		bytes: vec("packhorse_pack_bytes_total",
			"Bytes of the entries of packs made in process: copied from a pack of the repository (reused_disk) or of the cache "+
				"(reused_cache), or compressed again (encoded).",
			"representation"),
		selection: seconds.WithLabelValues("select"), writing: seconds.WithLabelValues("write"),
	}
	for _, source := range []string{packsource.SourceNative, packsource.SourceGit} {
		m.packs.WithLabelValues(source)
	}
	m.represent(packsource.Made{})
	return m
}

// made counts a complete pack.
func (m *metrics) made(how packsource.Made) {
	m.packs.WithLabelValues(how.Source).Inc()
	if how.Source != packsource.SourceNative {
		return
	}
	m.selection.Observe(how.Select.Seconds())
	m.writing.Observe(how.Write.Seconds())
	m.represent(how)
}

// represent counts the bytes of a pack.
func (m *metrics) represent(how packsource.Made) {
	for representation, count := range map[string]packsource.Count{
		"reused_disk": how.ReusedDisk, "reused_cache": how.ReusedCache, "encoded": how.Encoded,
	} {
		m.bytes.WithLabelValues(representation).Add(float64(count.Bytes))
	}
}

// fallback counts a pack that is not made in process. The reason is one word.
func (m *metrics) fallback(reason string) { m.fallbacks.WithLabelValues(reason).Inc() }
