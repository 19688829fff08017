package matrix

import (
	"fmt"
	"io"
	"runtime"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// matrixReport is the output of `packhorse-bench matrix --json`. Values that were not measured are null.
type matrixReport struct {
	Clients   int         `json:"clients"`
	DurationS float64     `json:"duration_s"`
	CPUs      int         `json:"cpus"`
	Socket    string      `json:"socket"` // between gateway and node: "tcp" or "unix"
	Files     bool        `json:"files"`  // the node hands over the files of packs
	TLS       bool        `json:"tls"`
	SSH       bool        `json:"ssh,omitempty"` // clients clone over SSH
	Rows      []matrixRow `json:"rows"`
	// References are the peers. Their transports are "serve" (one process), "sshd" and "sshd-default".
	References []matrixRow    `json:"references"`
	Ratios     []matrixRatios `json:"ratios"`
}

// matrixRow is one cell.
type matrixRow struct {
	Repo       string   `json:"repo"`
	Transport  string   `json:"transport"`
	Cache      string   `json:"cache"`    // "on" or "off"
	MBPerS     float64  `json:"mb_per_s"` // 10^6 bytes
	Load       float64  `json:"load"`     // runnable threads of the processes for each CPU
	CPUPercent float64  `json:"cpu_percent"`
	CPUPerGB   *float64 `json:"cpu_s_per_gb"`
	AllocPerGB *float64 `json:"alloc_mb_per_gb"`
	GCPercent  *float64 `json:"gc_cpu_percent"`

	Requests         int                 `json:"requests"` // without the failed ones
	Errors           int                 `json:"errors"`
	ElapsedS         float64             `json:"elapsed_s"`
	Latency          loadgen.Percentiles `json:"latency_ms"`
	ClientCPUPercent float64             `json:"client_cpu_percent"` // of the clients
	Processes        []processRow        `json:"processes"`
}

// processRow is one process of a cell.
type processRow struct {
	Name        string   `json:"name"`
	CPUPerGB    *float64 `json:"cpu_s_per_gb"` // with its children
	ChildPerGB  *float64 `json:"child_cpu_s_per_gb"`
	AllocPerGB  *float64 `json:"alloc_mb_per_gb"`
	GCPercent   *float64 `json:"gc_cpu_percent"`
	KernelShare *float64 `json:"kernel_share"` // of the sent bytes
	AnonRSS     float64  `json:"anon_rss_mb"`  // maximum, with its children
}

// matrixRatios compare the cells of one repository, with the cache on.
type matrixRatios struct {
	Repo       string   `json:"repo"`
	ToInBand   *float64 `json:"channel_to_inband"`  // MB/s of the channel to those in band
	CPUToServe *float64 `json:"channel_cpu_to_one"` // CPU s/GB of the channel's processes to those of one process

	// With --ssh: one process to sshd with git upload-pack, the faster of both ciphers.
	ToSSHD    *float64 `json:"one_to_sshd,omitempty"`
	CPUToSSHD *float64 `json:"one_cpu_to_sshd,omitempty"`
}

func (o *matrixOptions) report(results []*cellResult) *matrixReport {
	r := &matrixReport{Clients: o.Clients, DurationS: o.Duration.Seconds(), CPUs: runtime.NumCPU(), Socket: "unix",
		Files: !o.tcp && !o.tls, TLS: o.tls, SSH: o.ssh,
		Rows: []matrixRow{}, References: []matrixRow{}, Ratios: []matrixRatios{}}
	if o.tcp {
		r.Socket = "tcp"
	}
	for _, c := range results {
		row := newMatrixRow(c)
		if c.transport == oneServe || c.isOpenSSH() {
			r.References = append(r.References, row)
		} else {
			r.Rows = append(r.Rows, row)
		}
		if n := len(r.Ratios); n == 0 || r.Ratios[n-1].Repo != row.Repo {
			r.Ratios = append(r.Ratios, matrixRatios{Repo: row.Repo})
		}
	}
	for i := range r.Ratios {
		r.compare(&r.Ratios[i])
	}
	return r
}

func newMatrixRow(c *cellResult) matrixRow {
	cpus, seconds, gb := float64(runtime.NumCPU()), c.out.Elapsed.Seconds(), float64(c.out.Bytes)/1e9
	row := matrixRow{
		Repo: c.subject.name, Transport: c.transport, Cache: onOff(c.cache),
		MBPerS:   loadgen.Round(loadgen.Rate(float64(c.out.Bytes), 1e6, c.out.Elapsed), 6),
		Requests: len(c.out.Answers), Errors: c.out.Failures.Count(), ElapsedS: loadgen.Round(seconds, 3),
		Latency:          c.out.Latency().Summarize(),
		ClientCPUPercent: loadgen.Round(100*c.clientCPU.Seconds()/seconds/cpus, 2),
	}
	var cpu, own, run, alloc, gc float64
	measured := true
	for _, s := range c.stations {
		p := processRow{Name: s.label, AnonRSS: loadgen.Round(float64(s.usage.Anon)/1e6, 2)}
		cpu += s.usage.Cpu.Seconds()
		own += s.usage.Own.Seconds()
		run += s.usage.Load
		p.CPUPerGB = loadgen.Ratio(s.usage.Cpu.Seconds(), gb, 4)
		p.ChildPerGB = loadgen.Ratio((s.usage.Cpu - s.usage.Own).Seconds(), gb, 4)
		if s.before == nil || s.after == nil {
			measured = false
		} else {
			d := s.after.Since(s.before)
			a, g := d.Sum(loadgen.Allocated), d.Sum("go_cpu_classes_gc_total_cpu_seconds_total")
			alloc += a
			gc += g
			p.AllocPerGB, p.GCPercent = loadgen.Ratio(a/1e6, gb, 3), loadgen.Ratio(100*g, s.usage.Own.Seconds(), 2)
			p.KernelShare = loadgen.Ratio(d.Sum("packhorse_copy_bytes_total", `path="kernel"`),
				d.Sum("packhorse_copy_bytes_total"), 5)
		}
		row.Processes = append(row.Processes, p)
	}
	row.Load = loadgen.Round(run/cpus, 3)
	row.CPUPercent, row.CPUPerGB = loadgen.Round(100*cpu/seconds/cpus, 2), loadgen.Ratio(cpu, gb, 4)
	if measured {
		row.AllocPerGB, row.GCPercent = loadgen.Ratio(alloc/1e6, gb, 3), loadgen.Ratio(100*gc, own, 2)
	}
	return row
}

// find returns a row with the cache on, or nil.
func find(rows []matrixRow, repo, transport string) *matrixRow {
	for i, r := range rows {
		if r.Repo == repo && r.Transport == transport && r.Cache == "on" {
			return &rows[i]
		}
	}
	return nil
}

func (r *matrixReport) compare(to *matrixRatios) {
	ours := find(r.Rows, to.Repo, channel)
	if ours == nil {
		return
	}
	cpu := func(other *matrixRow) *float64 {
		if ours.CPUPerGB == nil || other.CPUPerGB == nil {
			return nil
		}
		return loadgen.Ratio(*ours.CPUPerGB, *other.CPUPerGB, 3)
	}
	if other := find(r.Rows, to.Repo, inband); other != nil {
		to.ToInBand = loadgen.Ratio(ours.MBPerS, other.MBPerS, 3)
	}
	if other := find(r.References, to.Repo, oneServe); other != nil {
		to.CPUToServe = cpu(other)
		r.compareSSHD(to, other)
	}
}

// compareSSHD compares one process with the faster of sshd's cells.
func (r *matrixReport) compareSSHD(to *matrixRatios, one *matrixRow) {
	var best *matrixRow
	for i, row := range r.References {
		if row.Repo == to.Repo && (row.Transport == openSSH || row.Transport == openSSHDefault) &&
			(best == nil || row.MBPerS > best.MBPerS) {
			best = &r.References[i]
		}
	}
	if best == nil || one.CPUPerGB == nil || best.CPUPerGB == nil {
		return
	}
	to.ToSSHD, to.CPUToSSHD = loadgen.Ratio(one.MBPerS, best.MBPerS, 3), loadgen.Ratio(*one.CPUPerGB, *best.CPUPerGB, 4)
}

// matrixColumns are the columns of the table of cells, processColumns those of the table of processes.
var (
	matrixColumns = []string{"repository", "transport", "cache", "MB/s", "load", "CPU %", "s/GB", "MB/GB", "GC %",
		"clones", "errors"}
	processColumns = []string{"repository", "transport", "cache", "process", "s/GB", "of it children", "MB/GB", "GC %",
		"kernel %", "RSS MB"}
)

// columns returns the row's values for the table of cells.
func (r *matrixRow) columns() []string {
	return []string{r.Repo, r.name(), r.Cache, fmt.Sprintf("%.*f", decimals(r.MBPerS), r.MBPerS),
		fmt.Sprintf("%.2f", r.Load),
		fmt.Sprintf("%.0f", r.CPUPercent), loadgen.OrDash("%.3f", r.CPUPerGB), loadgen.OrDash("%.2f", r.AllocPerGB),
		loadgen.OrDash("%.1f", r.GCPercent),
		fmt.Sprint(r.Requests), fmt.Sprint(r.Errors)}
}

// processes returns the row's lines for the table of processes.
func (r *matrixRow) processes() [][]string {
	var lines [][]string
	for _, p := range r.Processes {
		kernel := "-"
		if p.KernelShare != nil {
			kernel = fmt.Sprintf("%.2f", *p.KernelShare*100)
		}
		lines = append(lines, []string{r.Repo, r.name(), r.Cache, p.Name, loadgen.OrDash("%.3f", p.CPUPerGB),
			loadgen.OrDash("%.3f", p.ChildPerGB),
			loadgen.OrDash("%.2f", p.AllocPerGB), loadgen.OrDash("%.1f", p.GCPercent), kernel, fmt.Sprintf("%.0f", p.AnonRSS)})
	}
	return lines
}

// tables returns the rows of both tables without their heads.
func (r *matrixReport) tables() (cells, processes [][]string) {
	for _, rows := range [][]matrixRow{r.Rows, r.References} {
		for i := range rows {
			cells = append(cells, rows[i].columns())
			processes = append(processes, rows[i].processes()...)
		}
	}
	return cells, processes
}

// decimals returns the number of decimals of a throughput.
func decimals(mbPerS float64) int {
	if mbPerS < 10 {
		return 2
	}
	return 0
}

func (r *matrixRow) name() string {
	switch r.Transport {
	case oneServe:
		return "(one process)"
	case openSSH:
		return "(sshd, AES-GCM)"
	case openSSHDefault:
		return "(sshd, chacha20)"
	}
	return r.Transport
}

// about describes the run.
func (r *matrixReport) about() string {
	way := map[string]string{"tcp": "TCP on the loopback", "unix": "a Unix socket"}[r.Socket]
	if r.TLS {
		way = "TLS over " + way
	}
	if r.SSH {
		way += ", clients over SSH"
	}
	return fmt.Sprintf("%d clients, %.4g s each, %d CPUs, gateway and node over %s", r.Clients, r.DurationS, r.CPUs, way)
}

// lines returns the ratios as lines of the report.
func (r *matrixRatios) lines() []loadgen.Line {
	rows := []loadgen.Line{
		{Name: "channel to inband, MB/s", Value: loadgen.OrDash("%.2f", r.ToInBand)},
		{Name: "channel to one process, CPU s/GB", Value: loadgen.OrDash("%.2f", r.CPUToServe)},
	}
	if r.ToSSHD != nil {
		rows = append(rows, loadgen.Line{Name: "one process to sshd, MB/s", Value: loadgen.OrDash("%.2f", r.ToSSHD)},
			loadgen.Line{Name: "one process to sshd, CPU s/GB", Value: loadgen.OrDash("%.3f", r.CPUToSSHD)})
	}
	return rows
}

func (r *matrixReport) print(w io.Writer) error {
	fmt.Fprintln(w, r.about())
	cells, processes := r.tables()
	fmt.Fprintln(w)
	if err := loadgen.WriteTable(w, matrixColumns, cells); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := loadgen.WriteTable(w, processColumns, processes); err != nil {
		return err
	}
	for i := range r.Ratios {
		fmt.Fprintf(w, "\n%s, with the cache on\n", r.Ratios[i].Repo)
		loadgen.WriteLines(w, r.Ratios[i].lines())
	}
	return nil
}
