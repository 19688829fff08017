package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics reads the counters of the groups of one run from the kernel when it is collected.
type Metrics struct {
	refused *prometheus.CounterVec
	tree    atomic.Pointer[Tree]

	active, memory, cache, events, cpu *prometheus.Desc
}

// NewMetrics makes the metrics; the caller registers the Collectors.
func NewMetrics() *Metrics {
	desc := func(name, help, label string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{label}, more...), nil)
	}
	return &Metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_cgroup_refused_total",
			Help: "Git commands that could not be started in their cgroup, and ran outside."}, []string{"group"}),
		active: desc("packhorse_cgroup_active",
			"1 if the server has created cgroups (part groups), and if they have a controller (parts cpu, memory).", "part"),
		memory: desc("packhorse_cgroup_memory_bytes",
			"Memory of a cgroup's processes, the page cache that they have filled included.", "group"),
		cache: desc("packhorse_cgroup_page_cache_bytes", "Page cache that a cgroup's processes have filled.", "group"),
		events: desc("packhorse_cgroup_memory_events_total",
			"Times that a cgroup was throttled at memory_high (high), reached memory_max (max), or "+
				"lost a process there (oom_kill).", "group", "event"),
		cpu: desc("packhorse_cgroup_cpu_seconds_total", "CPU time of a cgroup's processes, those that run included.",
			"group"),
	}
}

// Collectors lists what to register.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.refused, m} }

func (m *Metrics) watch(t *Tree) { m.tree.Store(t) }

// Describe is of prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.active, m.memory, m.cache, m.events, m.cpu} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Values of a missing controller are left out.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	t := m.tree.Load()
	active := func(part string, is bool) {
		n := 0.0
		if is {
			n = 1
		}
		ch <- prometheus.MustNewConstMetric(m.active, prometheus.GaugeValue, n, part)
	}
	active("groups", t != nil)
	has := make(map[string]bool)
	if t != nil {
		passed, _ := os.ReadFile(filepath.Join(t.dir, "cgroup.subtree_control"))
		for name := range strings.FieldsSeq(string(passed)) {
			has[strings.TrimPrefix(name, "+")] = true
		}
	}
	for _, c := range wanted {
		active(c, has[c])
	}
	if t == nil {
		return
	}
	for _, group := range t.names {
		dir := filepath.Join(t.dir, group)
		if n, ok := number(dir, "memory.current", ""); ok {
			ch <- prometheus.MustNewConstMetric(m.memory, prometheus.GaugeValue, n, group)
		}
		if n, ok := number(dir, "memory.stat", "file"); ok {
			ch <- prometheus.MustNewConstMetric(m.cache, prometheus.GaugeValue, n, group)
		}
		for _, event := range []string{"high", "max", "oom_kill"} {
			if n, ok := number(dir, "memory.events", event); ok {
				ch <- prometheus.MustNewConstMetric(m.events, prometheus.CounterValue, n, group, event)
			}
		}
		if n, ok := number(dir, "cpu.stat", "usage_usec"); ok {
			ch <- prometheus.MustNewConstMetric(m.cpu, prometheus.CounterValue, n/1e6, group)
		}
	}
}

// number reads a file that holds a number, or lines of a key and a number.
func number(dir, file, key string) (float64, bool) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		value, ok := line, true
		if key != "" {
			value, ok = strings.CutPrefix(line, key+" ")
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); ok && err == nil {
			return n, true
		}
	}
	return 0, false
}
