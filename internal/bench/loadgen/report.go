package loadgen

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes a report as one indented JSON object.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// WriteTable writes rows below their heads, in columns.
func WriteTable(w io.Writer, head []string, rows [][]string) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(tab, strings.Join(row, "\t")+"\t")
	}
	return tab.Flush()
}

// OrDash formats a value, or returns a dash for nil.
func OrDash(format string, v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

// Ratio returns part divided by whole, or nil if whole is not positive.
func Ratio(part, whole float64, decimals int) *float64 {
	if whole <= 0 {
		return nil
	}
	return new(Round(part/whole, decimals))
}

// Line is one line of a report for people.
type Line struct{ Name, Value string }

// WriteLines writes lines with their values in one column.
func WriteLines(w io.Writer, lines []Line) {
	width := 12
	for _, l := range lines {
		width = max(width, len(l.Name))
	}
	for _, l := range lines {
		fmt.Fprintf(w, "  %-*s %s\n", width, l.Name, l.Value)
	}
}
