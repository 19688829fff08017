package roles

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/search/ipc"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// recorder keeps what is registered.
type recorder struct {
	prometheus.Registerer
	collectors []prometheus.Collector
}

func (r *recorder) MustRegister(all ...prometheus.Collector) {
	r.collectors = append(r.collectors, all...)
	r.Registerer.MustRegister(all...)
}

func (r *recorder) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return r.Registerer.Register(c)
}

var descriptor = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*?)", (?:unit: "[^"]*", )?constLabels: \{(.*?)\}, variableLabels: \{(.*?)\}`)

// TestDocsMetrics holds docs/reference/metrics.md to the metrics that serve registers.
func TestDocsMetrics(t *testing.T) {
	const page = "../../../docs/reference/metrics.md"
	want := metricsPage(t)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("docs/reference/metrics.md differs from the registered metrics (%v): run \"make docs\"", err)
	}
}

// Dashboards and alerts of users rely on these.
func TestPromisedMetricsExist(t *testing.T) {
	have := map[string]metric{}
	for _, m := range registered(t) {
		have[m.name] = m
	}
	for name, label := range map[string]string{
		"packhorse_cache_requests_total": "result",
		"packhorse_git_commands_total":   "subcommand",
		"packhorse_served_bytes_total":   "",
		"packhorse_copy_bytes_total":     "path",
	} {
		if m, ok := have[name]; !ok || label != "" && !slices.Contains(m.labels, label) {
			t.Errorf("metric %s = %+v, want it with the label %q", name, m, label)
		}
	}
	for name, m := range have {
		if !strings.HasPrefix(name, "packhorse_") {
			t.Errorf("name = %s, want the prefix packhorse_", name)
		}
		for _, label := range m.labels {
			if slices.Contains([]string{"repository", "repo", "user", "client", "address", "ref", "path_name"}, label) {
				t.Errorf("%s has the label %q, want bounded labels only", name, label)
			}
		}
		if !strings.HasSuffix(m.help, ".") {
			t.Errorf("help of %s = %q, want a sentence", name, m.help)
		}
	}
}

type metric struct {
	name, kind, help string
	labels           []string
}

// registered lists the metrics that the roles register with everything turned on, by name.
func registered(t *testing.T) []metric {
	t.Helper()
	var collectors []prometheus.Collector
	hostKeys := t.TempDir() // of all: to make an RSA key takes time
	programs := t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, ipc.Program), []byte("#!/bin/false\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, role := range []config.Role{config.RoleServe, config.RoleStorage, config.RoleGateway, config.RoleSearch} {
		cfg := config.DefaultConfig()
		cfg.Root = t.TempDir()
		cfg.State = t.TempDir()
		cfg.Storage.Listen = "127.0.0.1:0"
		cfg.SSH.Address, cfg.SSH.Anonymous, cfg.SSH.HostKeys = "127.0.0.1:0", true, hostKeys
		cfg.Node = []config.NodeConfig{{Name: "a", Address: "127.0.0.1:1", Weight: 1, Transport: "channel"}}
		cfg.Mirror = []config.MirrorConfig{{From: "https://git.example/", Fresh: config.MirrorAlways,
			Auth: config.MirrorByOrigin}}
		cfg.Tracing.Endpoint = "http://127.0.0.1:1"
		cfg.Webhook = []config.WebhookConfig{{Name: "w", URL: "http://127.0.0.1:1/", Events: []string{"post-receive"}}}
		cfg.Complete(role, getenv())
		reg := &recorder{Registerer: prometheus.NewRegistry()}
		log, parts := slog.New(slog.DiscardHandler), new(lifecycle)
		t.Cleanup(func() {
			if err := parts.close(); err != nil {
				t.Errorf("close error = %v, want none", err)
			}
		})
		cfg.Watchdog.Enabled = false
		w := newWatching(prometheus.NewRegistry(), log)
		parts.push("readiness", infallible(w.closeReadiness))
		parts.push("private listener", func() error { return w.close(context.Background()) })
		srv, err := build(role, cfg, log, reg, Process{Version: "test", Program: filepath.Join(programs, "packhorse"),
			Getenv: func(string) string { return "" }}, parts)
		if err != nil {
			t.Fatal(err)
		}
		w.start(srv, listeners{})
		collectors = append(collectors, reg.collectors...)
	}
	reg := &recorder{Registerer: prometheus.NewRegistry()} // no store can be opened
	bucket.NewMetrics(reg)
	hydrate.NewMetrics(reg)
	store.NewMetrics(reg)
	collectors = append(collectors, reg.collectors...)
	byName := map[string]metric{}
	for _, c := range collectors {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			found := descriptor.FindStringSubmatch(d.String())
			if found == nil {
				t.Fatalf("description %s is not readable, want its name and labels", d)
			}
			m := metric{name: found[1], kind: kindOf(c, found[1]), help: strings.ReplaceAll(found[2], `\"`, `"`)}
			for label := range strings.SplitSeq(found[4], ",") {
				if label != "" {
					m.labels = append(m.labels, label)
				}
			}
			for label := range strings.SplitSeq(found[3], ",") {
				if name, _, ok := strings.Cut(label, "="); ok {
					m.labels = append(m.labels, name)
				}
			}
			byName[m.name] = m
		}
	}
	list := make([]metric, 0, len(byName))
	for _, m := range byName {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return list
}

func kindOf(c prometheus.Collector, name string) string {
	switch c.(type) {
	case prometheus.Histogram, *prometheus.HistogramVec:
		return "histogram"
	case *prometheus.CounterVec:
		return "counter"
	}
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

func metricsPage(t *testing.T) string {
	t.Helper()
	rows := map[string]string{} // by heading
	for _, m := range registered(t) {
		labels := ""
		if len(m.labels) > 0 {
			labels = "{" + strings.Join(m.labels, ", ") + "}"
		}
		rows[headingOf(t, m.name)] += fmt.Sprintf("| `%s%s` | %s | %s |\n", m.name, labels, m.kind,
			strings.ReplaceAll(m.help, "|", `\|`))
	}
	var out strings.Builder
	out.WriteString(metricsIntroduction)
	for _, g := range metricGroups {
		fmt.Fprintf(&out, "\n## %s\n\n| metric | kind | meaning |\n|---|---|---|\n%s", g.heading, rows[g.heading])
	}
	return out.String()
}

// metricGroups are the sections of the page, with the beginnings of names after packhorse_, separated by spaces.
var metricGroups = []struct{ heading, names string }{
	{"Do requests succeed, and how long do they take?", "http request served sli stage requests_ relay"},
	{"Are requests refused, or do they wait?", "lane pressure accept connections auth ssh"},
	{"Does the cache save work?", "cache copy warmup channel pack"},
	{"What do Git processes cost?", "git reaper tree"},
	{"Do pushes and maintenance work?", "push maintenance trash webhook events"},
	{"Does Git LFS work?", "lfs mirror_lfs origin_refused"},
	{"How are refs, revisions and objects read?", "ref resolve revisions lookup graph repositories watch"},
	{"Are storage nodes healthy?", "node route control"},
	{"Do search and pages work?", "search pages"},
	{"Does the application work?", "app"},
	{"Are mirrors up to date?", "mirror origin"},
	{"Does the object storage work?", "store"},
	{"Is the process itself healthy?", "ready ops watchdog trace certificate build"},
}

// headingOf returns the section of a metric: that with the longest beginning of its name.
func headingOf(t *testing.T, name string) (heading string) {
	t.Helper()
	longest := 0
	for _, g := range metricGroups {
		for start := range strings.FieldsSeq(g.names) {
			if strings.HasPrefix(name, "packhorse_"+start) && len(start) > longest {
				heading, longest = g.heading, len(start)
			}
		}
	}
	if heading == "" {
		t.Errorf("%s is in no section, want the beginning of its name in metricGroups", name)
	}
	return heading
}

const metricsIntroduction = `# Metrics

<!-- Written by "make docs" from the help texts of the metrics. -->

The private listener (` + "`--ops`" + `, 127.0.0.1:9090 by default) serves these metrics at ` + "`/metrics`" + ` for Prometheus.
It also serves those of Go (` + "`go_*`" + `) and of the process (` + "`process_*`" + `). Labels have few values, never
names of repositories, users or addresses. The log has those. ` + "`packhorse_build_info{version}`" + ` is the version.

Questions to begin with:

| question | query |
|---|---|
| How much work does the cache save? | ` + "`sum by (result) (rate(packhorse_cache_requests_total[5m]))`" + ` |
| Does the kernel copy the bytes? "user" is right for TLS and small responses. | ` + "`sum by (path) (rate(packhorse_copy_bytes_total[5m]))`" + ` |
| How much CPU time do Git processes use? | ` + "`sum by (subcommand) (rate(packhorse_git_cpu_seconds_total[5m]))`" + ` |
| Are requests refused, or do they wait? | ` + "`sum by (lane, outcome) (rate(packhorse_lane_requests_total[5m]))`" + ` |
`
