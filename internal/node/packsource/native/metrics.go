// Package native makes packs in process. It selects the objects of a packsource.Spec, and takes each one from the
// cheapest sound source. The sources are earlier packs in the cache, packs on disk, and the object itself, compressed
// again. There is no search for deltas. A pack that git makes for less, or that needs something this package cannot
// read, is left to git pack-objects before the first byte is sent. docs/explanation/packs.md describes how packs are
// made.
package native

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// Metrics counts the packs that were made. It is safe for concurrent use.
type Metrics struct {
	packs, fallbacks, objects, bytes *prometheus.CounterVec

	selection, writing prometheus.Histogram
}

// NewMetrics creates the metrics.
func NewMetrics() *Metrics {
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.00025, 4, 11)})
	}
	const representations = "reused_disk (copied from a pack of the repository), reused_cache (copied from an earlier " +
		"pack of the cache), encoded (compressed again)."
	m := &Metrics{
		packs: vec("packhorse_packs_made_total",
			"Complete packs by source: native (made in process), git (made by git pack-objects after a fallback).",
			"source"),
		fallbacks: vec("packhorse_pack_fallbacks_total",
			"Packs that were not made in process, by reason (docs/explanation/packs.md).", "reason"),
		objects: vec("packhorse_pack_objects_total",
			"Objects of packs made in process, by representation: "+representations, "representation"),
		bytes: vec("packhorse_pack_bytes_total",
			"Bytes of the entries of packs made in process, by representation: "+representations, "representation"),
		selection: seconds("packhorse_pack_select_seconds", "Time to select the objects of a pack made in process."),
		writing: seconds("packhorse_pack_write_seconds",
			"Time to copy and encode the objects of a pack made in process, and to hand them over."),
	}
	for _, source := range []string{packsource.SourceNative, packsource.SourceGit} {
		m.packs.WithLabelValues(source)
	}
	m.represent(packsource.Made{})
	return m
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.packs, m.fallbacks, m.objects, m.bytes, m.selection, m.writing}
}

// made counts a complete pack.
func (m *Metrics) made(how packsource.Made) {
	m.packs.WithLabelValues(how.Source).Inc()
	if how.Source != packsource.SourceNative {
		return
	}
	m.selection.Observe(how.Select.Seconds())
	m.writing.Observe(how.Write.Seconds())
	m.represent(how)
}

// represent counts the objects of a pack.
func (m *Metrics) represent(how packsource.Made) {
	for representation, count := range map[string]packsource.Count{
		"reused_disk": how.ReusedDisk, "reused_cache": how.ReusedCache, "encoded": how.Encoded,
	} {
		m.objects.WithLabelValues(representation).Add(float64(count.Objects))
		m.bytes.WithLabelValues(representation).Add(float64(count.Bytes))
	}
}

// fallback counts a pack that is not made in process. The reason is one word.
func (m *Metrics) fallback(reason string) { m.fallbacks.WithLabelValues(reason).Inc() }
