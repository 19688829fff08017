package status

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/html"
	g "maragu.dev/gomponents"
)

func render(t *testing.T, n g.Node) string {
	t.Helper()
	var b strings.Builder
	if err := n.Render(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The samples of a day take bounded memory, and become lines with the right rates.
func TestHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_requests_total"},
			[]string{"operation", "result"})
		memory := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "packhorse_tree_memory_bytes"}, []string{"part", "kind"})
		reg.MustRegister(requests, memory)
		memory.WithLabelValues("git", "file").Set(1)
		s := New(nil, Sources{})
		s.Start(reg)
		defer s.Close()
		for i := range 8640 + 100 { // a day and more
			requests.WithLabelValues("fetch", "ok").Add(20)
			memory.WithLabelValues("server", "anonymous").Set(1 << 20)
			if i == 8700 { // a peak between two points, and the first requests of their kind
				memory.WithLabelValues("server", "anonymous").Set(1 << 30)
				requests.WithLabelValues("push", "unavailable").Add(100)
			}
			time.Sleep(sampleEvery)
			synctest.Wait()
		}
		if len(s.history.fine) != kept || len(s.history.coarse) != kept {
			t.Fatalf("%d and %d samples, want %d", len(s.history.fine), len(s.history.coarse), kept)
		}
		time.Sleep(5 * time.Second)
		for _, isDay := range []bool{false, true} {
			all := s.history.drawings(s.history.until(s.history.take(reg), isDay))
			shown := map[string]*drawing{}
			for _, d := range all {
				shown[d.title] = d
			}
			if len(shown) != 3 {
				t.Fatalf("%d plots, want those of requests, failed requests and memory", len(shown))
			}
			d := shown["Requests"]
			if len(d.lines) != 2 || d.lines[0].name != "fetch" || d.lines[0].total != 20*8740 || len(d.times) > maxPoints ||
				len(d.times) < maxPoints/2 {
				t.Fatalf("lines of requests: %+v at %d times", d.lines, len(d.times))
			}
			hours := d.times[len(d.times)-1].Sub(d.times[0]).Hours()
			if want := map[bool]float64{false: 2, true: 24}[isDay]; math.Abs(hours-want) > 0.25 {
				t.Errorf("a plot of %v hours, want %v", hours, want)
			}
			pushes := 0.0
			for k, v := range d.lines[0].values {
				if k > 0 && k < len(d.times)-1 && math.Abs(v-2) > 0.1 {
					t.Errorf("rate %v at %d, want 2", v, k)
				}
				if k > 0 {
					pushes += d.lines[1].values[k] * d.times[k].Sub(d.times[k-1]).Seconds()
				}
			}
			if math.Round(pushes) != 100 {
				t.Errorf("the line of pushes has %v of them, want 100", pushes)
			}
			if d := shown["Memory"]; len(d.lines) != 1 || !isDay && d.top() < 1<<30 {
				t.Errorf("memory: %+v, want one line with its peak", d.lines)
			}
		}
	})
}

var coordinates = regexp.MustCompile(`-?[0-9]+(\.[0-9]+)?`)

// A plot stays in its bounds and is valid, whatever its values and names are.
func TestPlot(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	hostile := `"><script>alert(1)</script>` + "\u202e\x00\xff"
	for _, value := range []float64{0, 1e-9, 0.003, 1, 999, 1024, 1 << 33, 1e15, math.NaN()} {
		for _, u := range []unit{plain, bytes, seconds} {
			for _, points := range []int{1, 2, 3, maxPoints} {
				d := &drawing{plot: &plot{title: "A & b", what: "x/s", unit: u, isRate: true}, number: 7}
				one := line{name: hostile}
				for i := range points {
					d.times = append(d.times, at.Add(time.Duration(i)*time.Minute))
					one.values = append(one.values, value*float64(i%3))
				}
				for i := range maxLines + 2 {
					one.total = float64(i)
					d.lines = append(d.lines, line{fmt.Sprint(one.name, i), append([]float64(nil), one.values...), one.total})
				}
				d.sort()
				text := render(t, d.figure())
				if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || strings.Contains(text, "<script") ||
					strings.Contains(text, "style=") || strings.ContainsAny(text, "\u202e\x00") || !utf8.ValidString(text) {
					t.Fatalf("value %v: %s", value, text)
				}
				doc, err := html.Parse(strings.NewReader(text))
				if err != nil {
					t.Fatal(err)
				}
				for n := range doc.Descendants() {
					for _, a := range n.Attr {
						if a.Key != "d" {
							continue
						}
						for i, number := range coordinates.FindAllString(a.Val, -1) {
							var f float64
							fmt.Sscan(number, &f)
							if f < 0 || i%2 == 0 && f > width || i%2 == 1 && f > width {
								t.Fatalf("value %v: a line leaves the plot: %s", value, a.Val)
							}
						}
					}
				}
			}
		}
	}
}

// The metrics of plots exist, with their labels.
func TestPlotsHaveMetrics(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plots {
		_, row, ok := strings.Cut(string(text), "| `"+p.metric)
		labels, _, _ := strings.Cut(row, "`")
		kind, _, _ := strings.Cut(strings.TrimPrefix(row[len(labels):], "` | "), " ")
		if !ok || !strings.Contains(labels, p.by) || !strings.Contains(labels, p.label) || (kind == "gauge") == p.isRate ||
			!slices.Contains(sections, p.section) {
			t.Errorf("%s: the metric is %s%s, want labels %q %q, rate %v", p.metric, kind, labels, p.by, p.label, p.isRate)
		}
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unit      unit
		most      float64
		top, text string
	}{
		{plain, 0, "1", "0"}, {plain, 0.03, "0.05", "0.03"}, {plain, 7, "10", "7"}, {plain, 1234, "2 k", "1.2 k"},
		{bytes, 3 << 20, "5.0 MiB", "3.0 MiB"}, {bytes, 600, "1.0 KiB", "600 B"}, {seconds, 90, "2m0s", "1m30s"},
	} {
		d := &drawing{plot: &plot{unit: c.unit}, lines: []line{{values: []float64{c.most}}}}
		if top, text := d.text(d.top()), d.text(c.most); top != c.top || text != c.text {
			t.Errorf("%v: %s and an axis to %s, want %s and %s", c.most, text, top, c.text, c.top)
		}
	}
}
