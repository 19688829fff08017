package observe

import (
	"github.com/prometheus/client_golang/prometheus"
)

// descriptions are those of the metrics.
type descriptions struct {
	processes, cpu, memory, disk, cache, cgroup, pressure *prometheus.Desc
}

func newDescriptions() descriptions {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("packhorse_tree_"+name, help, labels, nil)
	}
	return descriptions{
		processes: desc("processes",
			"Processes that run now: the server's own, git's with hooks and what they started, and those of searches; see "+
				"docs/explanation/observability.md.", "part"),
		cpu: desc("cpu_seconds_total", "CPU time of processes that run and of those that have ended.", "part", "mode"),
		memory: desc("memory_bytes",
			"Memory of the processes that run now: anonymous, and file (mapped or shared; what several map counts once for "+
				"each).",
			"part", "kind"),
		disk: desc("disk_bytes_total",
			"Bytes read from disks, and bytes written to the page cache.", "part", "direction"),
		cache: desc("page_cache_bytes",
			"Page cache of the server's cgroup: all, dirty, and being written to a disk.", "state"),
		cgroup: desc("cgroup_memory_bytes",
			"Memory of the server's cgroup with page cache: used, and the limit if there is one.", "kind"),
		pressure: desc("pressure_seconds_total",
			"Time in which some or all (full) tasks waited for cpu, memory or io, on the machine and in the server's cgroup.",
			"resource", "kind", "of"),
	}
}

// Describe implements prometheus.Collector.
func (t *ProcessTree) Describe(ch chan<- *prometheus.Desc) {
	m := &t.metrics
	for _, d := range []*prometheus.Desc{m.processes, m.cpu, m.memory, m.disk, m.cache, m.cgroup, m.pressure} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It scans the processes.
func (t *ProcessTree) Collect(ch chan<- prometheus.Metric) {
	m := &t.metrics
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	s := t.look()
	for part, r := range s.now {
		gauge(m.processes, float64(r.processes), part)
		gauge(m.memory, float64(r.anonymous), part, "anonymous")
		gauge(m.memory, float64(r.file), part, "file")
	}
	for part, u := range s.total {
		counter(m.cpu, u.user.Seconds(), part, "user")
		counter(m.cpu, u.system.Seconds(), part, "system")
		counter(m.disk, float64(u.read), part, "read")
		counter(m.disk, float64(u.written), part, "written")
	}
	for state, n := range t.cgroup.pageCache() {
		gauge(m.cache, float64(n), state)
	}
	for kind, n := range t.cgroup.memory() {
		gauge(m.cgroup, float64(n), kind)
	}
	for _, p := range t.cgroup.pressures() {
		counter(m.pressure, p.seconds, p.resource, p.kind, p.of)
	}
}
