package bench

import (
	"fmt"
	"io"
)

// fetchReport is what `packhorse-bench fetch --json` prints. What could not be measured is null.
type fetchReport struct {
	MBPerS           float64     `json:"mb_per_s"` // 10^6 bytes
	RequestsPerS     float64     `json:"requests_per_s"`
	Requests         int         `json:"requests"` // without the failed ones
	Errors           int         `json:"errors"`
	TTFB             percentiles `json:"ttfb_ms"`
	Latency          percentiles `json:"latency_ms"`
	CPUPerGB         *float64    `json:"cpu_s_per_gb"`        // user and system, whole process tree
	AnonRSS          *float64    `json:"anon_rss_mb"`         // greatest, whole process tree
	AllocPerGB       *float64    `json:"alloc_mb_per_gb"`     // heap allocated by our server
	DiskWritePerByte *float64    `json:"disk_write_per_byte"` // written to the cache for each byte served
}

func newFetchReport(out *outcome) *fetchReport {
	return &fetchReport{
		MBPerS:       round(rate(float64(out.bytes), 1e6, out.elapsed), 6),
		RequestsPerS: round(rate(float64(out.requests), 1, out.elapsed), 2),
		Requests:     out.requests,
		Errors:       out.failures.count(),
		TTFB:         out.ttfb.summarize(),
		Latency:      out.latency.summarize(),
	}
}

// usage adds what the server's processes used.
func (r *fetchReport) usage(out *outcome, u *treeUsage) {
	if u == nil {
		return
	}
	if out.bytes > 0 {
		r.CPUPerGB = ptr(round(u.cpu.Seconds()/(float64(out.bytes)/1e9), 4))
	}
	r.AnonRSS = ptr(round(float64(u.anon)/1e6, 2))
}

// metrics adds what the server says of itself.
func (r *fetchReport) metrics(out *outcome, before, after *serverCounters) {
	if before == nil || after == nil || out.bytes == 0 {
		return
	}
	served := after.served - before.served
	if served < float64(out.bytes)/2 || after.alloc < before.alloc {
		return // these are another server's metrics, or it was restarted
	}
	r.AllocPerGB = ptr(round((after.alloc-before.alloc)/1e6/(float64(out.bytes)/1e9), 3))
	r.DiskWritePerByte = ptr(round((after.written-before.written)/served, 5))
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

func ptr(v float64) *float64 { return &v }
