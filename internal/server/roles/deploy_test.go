package roles

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/operations/observe"
)

// dashboard has the parts of a Grafana dashboard that the tests check.
type dashboard struct {
	UID, Title, Description string
	Panels                  []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Targets                  []struct{ Expr, LegendFormat string }
	}
	Templating struct{ List []struct{ Name string } }
}

const (
	dashboardsDir  = "../../../deploy/grafana"
	prometheusDir  = "../../../deploy/prometheus"
	dashboardQuery = "5m"
)

func dashboards(t *testing.T) []dashboard {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dashboardsDir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("dashboards = %q, error = %v, want some", files, err)
	}
	var all []dashboard
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if d.UID+".json" != filepath.Base(file) || d.Title == "" || d.Description == "" {
			t.Errorf("%s: uid = %q, title = %q, description = %q, want the name of the file and texts", file, d.UID, d.Title,
				d.Description)
		}
		all = append(all, d)
	}
	return all
}

// TestDashboards holds the dashboards to the metrics that there are: names, labels, and the values that are asked for.
func TestDashboards(t *testing.T) {
	t.Parallel()
	known := newVocabulary(t)
	for _, d := range dashboards(t) {
		seen := map[string]bool{}
		taken := map[[2]int]string{}
		for _, p := range d.Panels {
			name := d.Title + ": " + p.Title
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
						t.Fatalf("%s overlaps %q or exceeds 24 columns, want a place of its own", name, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if seen[p.Title] || p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" ||
				len(p.Targets) == 0 {
				t.Errorf("%s: the title occurs twice, or title, description, unit or query is missing", name)
			}
			seen[p.Title] = true
			for _, q := range p.Targets {
				if q.LegendFormat == "" {
					t.Errorf("%s: a query has no legend, want one", name)
				}
				for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(q.LegendFormat, -1) {
					if !regexp.MustCompile(`by \([^)]*\b` + label[1] + `\b`).MatchString(q.Expr) {
						t.Errorf("%s: the legend has %s, want it also in %s", name, label[1], q.Expr)
					}
				}
				for _, complaint := range known.complaints(q.Expr) {
					t.Errorf("%s: %s in %s", name, complaint, q.Expr)
				}
			}
		}
	}
}

// TestAlerts holds the alerts to the metrics and to the runbook, and every alert has tests.
func TestAlerts(t *testing.T) {
	t.Parallel()
	rules := readText(t, filepath.Join(prometheusDir, "packhorse.rules.yml"))
	tests := readText(t, filepath.Join(prometheusDir, "packhorse.test.yml"))
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(readText(t,
		"../../../docs/how-to/runbook.md"), -1) {
		headings[strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")] = true
	}
	known := newVocabulary(t)
	alerts := strings.Split(rules, "- alert: ")[1:]
	if len(alerts) == 0 {
		t.Fatal("alerts = 0, want some")
	}
	for _, alert := range alerts {
		name, rest, _ := strings.Cut(alert, "\n")
		_, expr, _ := strings.Cut(rest, "expr: ")
		expr = regexp.MustCompile(`(?m)^ +(for|labels):`).Split(expr, 2)[0]
		for _, complaint := range known.complaints(expr) {
			t.Errorf("%s: %s in %s", name, complaint, expr)
		}
		for _, want := range []string{"severity: ", "summary: ", "description: ", "runbook: docs/how-to/runbook.md#"} {
			if !strings.Contains(rest, want) {
				t.Errorf("%s has no %s", name, want)
			}
		}
		_, anchor, _ := strings.Cut(rest, "docs/how-to/runbook.md#")
		if anchor, _, _ = strings.Cut(anchor, "\n"); !headings[anchor] {
			t.Errorf("%s: docs/how-to/runbook.md has no heading for #%s", name, anchor)
		}
		if fires, quiet := strings.Count(tests, "alertname: "+name+"\n"), strings.Count(tests, "exp_alerts: []"); fires < 2 ||
			quiet < len(alerts) {
			t.Errorf("%s has %d tests; want one in which it fires, and one in which it does not", name, fires)
		}
	}
}

// TestDocsNameMetricsThatExist checks the names of metrics in pages, examples and the files for a deployment.
func TestDocsNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	known := newVocabulary(t)
	name := regexp.MustCompile(`\bpackhorse_[a-z][a-z0-9_]+`)
	for _, top := range []string{"README.md", "docs", "deploy", "examples"} {
		err := filepath.WalkDir(filepath.Join("../../..", top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			for _, found := range name.FindAllString(readText(t, path), -1) {
				_, isSeries := known.lookUp(found)
				isGroup := false // "packhorse_tree_*"
				for name := range known.metrics {
					isGroup = isGroup || strings.HasPrefix(name, found)
				}
				if !isSeries && !isGroup {
					t.Errorf("%s names %s, want a metric that exists", path, found)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestPromtool has Prometheus read the alerts, run their tests, and read every panel's query.
func TestPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("There is no promtool, and this is CI: install Debian's package prometheus.")
		}
		t.Skip("*** There is no promtool: alerts and queries are NOT tested. Install Debian's package prometheus to have " +
			"that. ***")
	}
	var queries strings.Builder
	queries.WriteString("groups:\n  - name: panels\n    rules:\n")
	for _, d := range dashboards(t) {
		for _, p := range d.Panels {
			for i, q := range p.Targets {
				expr := strings.NewReplacer("$__rate_interval", dashboardQuery, "$__interval", dashboardQuery, "$instance",
					".*").Replace(q.Expr)
				fmt.Fprintf(&queries, "      - record: %s:%d:%d\n        expr: %s\n", strings.ReplaceAll(d.UID, "-", "_"), p.ID, i,
					strconv.Quote(expr))
			}
		}
	}
	file := filepath.Join(t.TempDir(), "panels.yml")
	if err := os.WriteFile(file, []byte(queries.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", filepath.Join(prometheusDir, "packhorse.rules.yml")},
		{"test", "rules", filepath.Join(prometheusDir, "packhorse.test.yml")},
		{"check", "rules", file},
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

// vocabulary is what queries may name.
type vocabulary struct {
	metrics map[string]metric
	source  string // of the program: values of labels stand in it
}

func newVocabulary(t *testing.T) *vocabulary {
	t.Helper()
	v := &vocabulary{metrics: map[string]metric{"up": {name: "up", kind: "gauge"}}} // which Prometheus makes
	for _, m := range registered(t) {
		v.metrics[m.name] = m
	}
	families, err := observe.NewRegistry("test").Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		m := metric{name: f.GetName(), kind: strings.ToLower(f.GetType().String())}
		for _, l := range f.GetMetric()[0].GetLabel() {
			m.labels = append(m.labels, l.GetName())
		}
		v.metrics[m.name] = m
	}
	var source strings.Builder
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			b, err := os.ReadFile(path)
			source.Write(b)
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	v.source = source.String()
	return v
}

var (
	metricInQuery  = regexp.MustCompile(`\b((?:packhorse|go|process)_[a-z0-9_]+|up)\b(?:{([^}]*)})?(\[)?`)
	matcherInQuery = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	groupInQuery   = regexp.MustCompile(`\b(?:by|without)\s*\(([^)]*)\)`)
	targetLabels   = []string{"instance", "job"} // that Prometheus adds
)

// complaints returns the errors in a query.
func (v *vocabulary) complaints(query string) (wrong []string) {
	found := metricInQuery.FindAllStringSubmatch(query, -1)
	if len(found) == 0 {
		return []string{"no metric"}
	}
	labels := slices.Clone(targetLabels)
	for _, m := range found {
		have, ok := v.lookUp(m[1])
		if !ok {
			wrong = append(wrong, "there is no metric "+m[1])
			continue
		}
		if counter := strings.HasSuffix(m[1], "_total") || have.kind == "histogram"; counter != (m[3] == "[") &&
			m[1] != "process_start_time_seconds" {
			wrong = append(wrong, m[1]+" is a "+have.kind+": a counter needs a rate, and nothing else has one")
		}
		labels = append(labels, have.labels...)
		for _, match := range matcherInQuery.FindAllStringSubmatch(m[2], -1) {
			if slices.Contains(targetLabels, match[1]) {
				continue
			}
			if !slices.Contains(have.labels, match[1]) {
				wrong = append(wrong, m[1]+" has no label "+match[1])
			}
			for value := range strings.SplitSeq(match[3], "|") {
				if value != "+Inf" && !strings.Contains(v.source, `"`+value+`"`) && match[1] != "device" {
					wrong = append(wrong, "no line of the program says "+value)
				}
			}
		}
	}
	for _, group := range groupInQuery.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(group[1], ",") {
			if label = strings.TrimSpace(label); !slices.Contains(labels, label) {
				wrong = append(wrong, "none of its metrics has the label "+label)
			}
		}
	}
	return wrong
}

// lookUp finds a metric, a histogram's by the names of its series.
func (v *vocabulary) lookUp(name string) (metric, bool) {
	if m, ok := v.metrics[name]; ok {
		return m, m.kind != "histogram"
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		base, cut := strings.CutSuffix(name, suffix)
		if m, ok := v.metrics[base]; cut && ok && m.kind == "histogram" {
			if suffix == "_bucket" {
				m.labels = append(slices.Clone(m.labels), "le")
			}
			return m, true
		}
	}
	return metric{}, false
}

// TestVocabulary checks that the check above finds errors.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	v := newVocabulary(t)
	for query, want := range map[string]string{
		`sum(rate(packhorse_served_bytes_total[5m]))`:                      "",
		`sum by (lane) (packhorse_lane_running{instance=~"a"})`:            "",
		`rate(go_cpu_classes_gc_total_cpu_seconds_total[5m])`:              "",
		`sum by (le, lane) (rate(packhorse_lane_wait_seconds_bucket[5m]))`: "",
		`1 + 1`:                                   "no metric",
		`packhorse_nothing`:                       "there is no metric packhorse_nothing",
		`rate(packhorse_lane_wait_seconds[5m])`:   "there is no metric",
		`packhorse_served_bytes_total`:            "needs a rate",
		`rate(packhorse_lane_running[5m])`:        "needs a rate",
		`packhorse_lane_running{lan="cold"}`:      "has no label lan",
		`packhorse_lane_running{lane="warm-ish"}`: "no line of the program",
		`sum by (node) (packhorse_lane_running)`:  "none of its metrics has the label node",
	} {
		got := strings.Join(v.complaints(query), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
