package compare

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// printable returns text of a log in a form that is safe for a terminal: only invisible characters are escaped.
func printable(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case unicode.IsPrint(r):
			b.WriteString(text[:n])
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[n:]
	}
	return b.String()
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	for i, s := range r.Sides {
		fmt.Fprintf(w, "%c  %.60s: %d requests, answered %d, refused %d, failed %d, gone %d\n", 'A'+i, s.Name, s.Requests,
			s.Answered, s.Refused, s.Failed, s.Gone)
	}
	for _, in := range r.Inputs {
		fmt.Fprintf(w, "   %.60s: %d lines", printable(strings.Join(in.Files, " ")), in.Lines)
		if !in.First.IsZero() {
			fmt.Fprintf(w, " from %s to %s", in.First.Format("2006-01-02 15:04:05"), in.Last.Format("2006-01-02 15:04:05"))
		}
		for reason, n := range in.Malformed {
			fmt.Fprintf(w, ", %d malformed (%s)", n, reason)
		}
		fmt.Fprintln(w)
		if in.Example != "" {
			fmt.Fprintf(w, "   %.100s\n", in.Example)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "- %s\n", n)
	}
	fmt.Fprintf(w, "\nB against A by %s, with an interval of %g %% for each change.\n\n", r.By, 100*r.Confidence)
	var rows [][]string
	for _, row := range r.Rows {
		for i, c := range row.Cells {
			name, a, b := "", "", ""
			if i == 0 {
				name, a, b = shorten(row.Route), strconv.Itoa(row.A.Compared), strconv.Itoa(row.B.Compared)
			}
			rows = append(rows, []string{name, a, b, c.Of, milliseconds(c.A), milliseconds(c.B), c.change(),
				c.between(&row)})
		}
	}
	return loadgen.WriteTable(w, []string{"route", "n A", "n B", "", "A ms", "B ms", "change", "interval"}, rows)
}

func shorten(route string) string {
	if r := []rune(route); len(r) > 48 {
		return string(r[:22]) + "..." + string(r[len(r)-23:])
	}
	return route
}

// milliseconds formats three digits.
func milliseconds(ms *float64) string {
	if ms == nil {
		return "-"
	}
	decimals := 2 - int(math.Floor(math.Log10(max(*ms, 1e-3))))
	return strconv.FormatFloat(*ms, 'f', min(max(decimals, 0), 4), 64)
}

// percent formats a ratio as a change: 1.18 is +18 %.
func percent(ratio float64) string { return fmt.Sprintf("%+.1f %%", 100*(ratio-1)) }

func (c *Cell) change() string {
	if c.Ratio == nil {
		return "-"
	}
	return percent(*c.Ratio)
}

// between formats the interval, or the reason for which there is none.
func (c *Cell) between(r *Row) string {
	switch {
	case c.RatioInterval != nil:
		return percent(c.RatioInterval[0]) + " to " + percent(c.RatioInterval[1])
	case min(r.A.Compared, r.B.Compared) == 0:
		return "only on one side"
	case min(r.A.Compared, r.B.Compared) < c.Needs:
		return fmt.Sprintf("%d requests on each side are needed", c.Needs)
	}
	return "not comparable"
}
