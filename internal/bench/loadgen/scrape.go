package loadgen

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metrics are the samples of a Packhorse server. Keys are names with labels, as in its text.
type Metrics map[string]float64

// Sum adds the samples of a metric that have all labels, given as name="value".
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for key, v := range m {
		rest, ok := strings.CutPrefix(key, name)
		if ok && (rest == "" || rest[0] == '{') && !slices.ContainsFunc(labels, func(l string) bool {
			return !strings.Contains(rest, l)
		}) {
			sum += v
		}
	}
	return sum
}

// Has reports whether there is a sample of the metric with any labels.
func (m Metrics) Has(name string) bool {
	for key := range m {
		if key == name || strings.HasPrefix(key, name+"{") {
			return true
		}
	}
	return false
}

// Since returns the increase of all samples.
func (m Metrics) Since(before Metrics) Metrics {
	d := Metrics{}
	for key, v := range m {
		d[key] = v - before[key]
	}
	return d
}

// The metrics of several commands.
const (
	Allocated = "go_memstats_alloc_bytes_total"
	Written   = "packhorse_cache_written_bytes_total"
	Served    = "packhorse_served_bytes_total"
	Requests  = "packhorse_cache_requests_total" // with Hit, Follow or Miss
	Hit       = `result="hit"`
	Follow    = `result="follow"`
	Miss      = `result="miss"`
	Commands  = "packhorse_git_commands_total"
	GitCPU    = "packhorse_git_cpu_seconds_total"
	PackGit   = `subcommand="pack-objects"` // label of Commands and GitCPU
	Select    = `packhorse_pack_seconds_sum{stage="select"}`
	Write     = `packhorse_pack_seconds_sum{stage="write"}`
)

// Native is the number of packs that the server made itself.
func (m Metrics) Native() float64 { return m.Sum("packhorse_packs_made_total", `source="native"`) }

// IsFor reports whether the metrics are those of the server that sent these bytes, and that it did not restart.
func (m Metrics) IsFor(bytes float64, before Metrics) bool {
	return m != nil && before != nil && m.Sum(Served)-before.Sum(Served) >= bytes/2 &&
		m.Sum(Allocated) >= before.Sum(Allocated)
}

// Scrape reads the metrics of a server that a flag names. Without an address it returns nil.
func Scrape(ctx context.Context, ops string) (Metrics, error) {
	if ops == "" {
		return nil, nil
	}
	if !strings.Contains(ops, "://") {
		ops = "http://" + ops
	}
	return ReadMetrics(ctx, strings.TrimSuffix(strings.TrimSuffix(ops, "/metrics"), "/"))
}

// ReadMetrics reads the metrics of a Packhorse server. ops is the URL of its private listener.
func ReadMetrics(ctx context.Context, ops string) (Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := GetOps(ctx, ops+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("reading the server's metrics: %w", err)
	}
	defer resp.Body.Close()
	m, err := parseMetrics(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the server's metrics: %w", err)
	}
	return m, nil
}

// parseMetrics reads the Prometheus text format.
func parseMetrics(r io.Reader) (Metrics, error) {
	m, ours := Metrics{}, false
	lines := bufio.NewScanner(io.LimitReader(r, 64<<20))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.LastIndexByte(line, '}') + 1
		if end == 0 {
			end = max(strings.IndexByte(line, ' '), 0)
		}
		value, _, _ := strings.Cut(strings.TrimSpace(line[end:]), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("bad metric %s", line[:end])
		}
		m[line[:end]] += v
		ours = ours || strings.HasPrefix(line, "packhorse_")
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if !ours {
		return nil, fmt.Errorf("these are not the metrics of a Packhorse server")
	}
	return m, nil
}

// GetOps sends a GET request to a private listener, on a separate connection.
func GetOps(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	return transport.RoundTrip(req)
}

// CollectGarbage makes a server collect garbage.
func CollectGarbage(ctx context.Context, ops string) error {
	resp, err := GetOps(ctx, ops+"/debug/pprof/heap?gc=1")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &HTTPError{Status: resp.StatusCode}
	}
	return err
}
