package accesslog

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/dustin/go-humanize"
)

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	t := &r.Total
	fmt.Fprintf(&b, "%s lines", humanize.Comma(r.Lines))
	if !r.From.IsZero() {
		fmt.Fprintf(&b, " from %s to %s", r.From.Format("2006-01-02 15:04"), r.To.Format("2006-01-02 15:04"))
	}
	if r.Unreadable > 0 {
		fmt.Fprintf(&b, ", %s unreadable", humanize.Comma(r.Unreadable))
	}
	b.WriteString("\n\n")
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\tnow\twith a cache\tsaved\t\n")
	fmt.Fprintf(table, "fetches\t%s\t%s\t%s\t\n", humanize.Comma(t.Fetches), humanize.Comma(t.Distinct),
		share(float64(t.Fetches-t.Distinct), float64(t.Fetches)))
	fmt.Fprintf(table, "bytes\t%s\t%s\t%s\t\n", size(t.Bytes), size(t.DistinctBytes),
		share(float64(t.SavedBytes()), float64(t.Bytes)))
	if r.Assumptions.CPUPerGB > 0 {
		fmt.Fprintf(table, "CPU hours\t%s\t%s\t%s\t\n", hours(t.CPU), hours(t.CPU-t.SavedCPU), share(t.SavedCPU, t.CPU))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	a := r.Assumptions
	fmt.Fprintf(&b, `
Assumptions: within %v the fetches of a repository need one pack, the largest. %s
`, a.Window, a.cpuText(t.Unsized))
	if len(r.Repositories) > 0 {
		b.WriteString("\n")
		table = tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
		head, cpu := "", ""
		if a.CPUPerGB > 0 {
			head = "saved CPU hours\t"
		}
		fmt.Fprintf(table, "fetches\tdistinct\tbytes\tsaved bytes\t%s  repository\n", head)
		for _, one := range r.Repositories {
			if a.CPUPerGB > 0 {
				cpu = hours(one.SavedCPU) + "\t"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s  %s\n", humanize.Comma(one.Fetches), humanize.Comma(one.Distinct),
				size(one.Bytes), size(one.SavedBytes()), cpu, printable(one.Path))
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cpuText describes the CPU time that the origin needs.
func (a Assumptions) cpuText(unsized int64) string {
	if a.CPUPerGB == 0 {
		return "CPU time depends on the origin:\n" +
			"6.7 s for each GB of full clones with a bitmap, 99 of shallow ones, and 179 was measured at a Gitea. Measure\n" +
			"yours, and use --cpu-per-gb."
	}
	return fmt.Sprintf("The origin needs %v s of CPU time for\n"+
		"each GB, and %v s for each of %s responses without a logged size.",
		a.CPUPerGB, a.CPUPerFetch, humanize.Comma(unsized))
}

func size(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }

func hours(seconds float64) string { return strconv.FormatFloat(seconds/3600, 'f', 2, 64) }

func share(part, of float64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*part/of)
}

// printable quotes paths that could change the terminal or the table.
func printable(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(path)
	}
	return path
}
