package gitload

import (
	"fmt"
	"io"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// loadReport is the output of `packhorse-bench refs --json`.
type loadReport struct {
	MBPerS       float64             `json:"mb_per_s"` // 10^6 bytes
	RequestsPerS float64             `json:"requests_per_s"`
	Requests     int                 `json:"requests"` // without the failed ones
	Errors       int                 `json:"errors"`
	Latency      loadgen.Percentiles `json:"latency_ms"`
}

func newLoadReport(out *loadgen.Outcome) loadReport {
	n := len(out.Answers)
	return loadReport{
		MBPerS:       loadgen.Round(loadgen.Rate(float64(out.Bytes), 1e6, out.Elapsed), 6),
		RequestsPerS: loadgen.Round(loadgen.Rate(float64(n), 1, out.Elapsed), 2),
		Requests:     n,
		Errors:       out.Failures.Count(),
		Latency:      out.Latency().Summarize(),
	}
}

// fetchReport is the output of `packhorse-bench fetch --json`. Values that were not measured are null.
type fetchReport struct {
	loadReport
	TTFB             loadgen.Percentiles `json:"ttfb_ms"`
	CPUPerGB         *float64            `json:"cpu_s_per_gb"`        // user and system, whole process tree
	AnonRSS          *float64            `json:"anon_rss_mb"`         // maximum of the whole process tree
	AllocPerGB       *float64            `json:"alloc_mb_per_gb"`     // heap allocated by our server
	DiskWritePerByte *float64            `json:"disk_write_per_byte"` // written to the cache for each byte served
}

func newFetchReport(out *loadgen.Outcome, u *loadgen.TreeUsage, before, after loadgen.Metrics) *fetchReport {
	r := &fetchReport{loadReport: newLoadReport(out), TTFB: out.TTFB().Summarize()}
	gb := float64(out.Bytes) / 1e9
	if u != nil {
		r.CPUPerGB, r.AnonRSS = loadgen.Ratio(u.Cpu.Seconds(), gb, 4), new(loadgen.Round(float64(u.Anon)/1e6, 2))
	}
	if out.Bytes > 0 && after.IsFor(float64(out.Bytes), before) {
		d := after.Since(before)
		r.AllocPerGB = loadgen.Ratio(d.Sum(loadgen.Allocated)/1e6, gb, 3)
		r.DiskWritePerByte = loadgen.Ratio(d.Sum(loadgen.Written), d.Sum(loadgen.Served), 5)
	}
	return r
}

func (r *fetchReport) print(w io.Writer) {
	fmt.Fprintf(w, "  %-12s %.1f MB/s\n", "throughput", r.MBPerS)
	fmt.Fprintf(w, "  %-12s %d (%.2f/s), %d errors\n", "requests", r.Requests, r.RequestsPerS, r.Errors)
	fmt.Fprintf(w, "  %-12s %v\n", "first byte", r.TTFB)
	fmt.Fprintf(w, "  %-12s %v\n", "latency", r.Latency)
	line := func(name, format string, v *float64) {
		if v != nil {
			fmt.Fprintf(w, "  %-12s "+format+"\n", name, *v)
		}
	}
	line("server CPU", "%.3f s/GB", r.CPUPerGB)
	line("server RSS", "%.1f MB anonymous", r.AnonRSS)
	line("allocated", "%.2f MB/GB", r.AllocPerGB)
	line("disk writes", "%.4f of the bytes served", r.DiskWritePerByte)
}
