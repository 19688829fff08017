package compare

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// printable returns text of a log in a form that is safe for a terminal: only invisible characters are escaped.
func printable(text []byte) string {
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case unicode.IsPrint(r):
			b.Write(text[:n])
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[n:]
	}
	return b.String()
}

// duration formats milliseconds with three digits and a unit.
func duration(ms float64) string {
	switch {
	case math.IsNaN(ms):
		return "-"
	case ms < 0:
		return "-" + duration(-ms)
	case ms == 0:
		return "0 ms"
	case ms < 0.9995:
		return digits(ms*1e3) + " µs"
	case ms < 999.5:
		return digits(ms) + " ms"
	}
	return digits(ms/1e3) + " s"
}

func digits(x float64) string {
	switch {
	case x < 9.995:
		return fmt.Sprintf("%.2f", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// percent formats a ratio as a change: 1.18 is +18 %.
func percent(ratio float64) string {
	if ratio >= 10 {
		return fmt.Sprintf("x%.0f", ratio)
	}
	return signed(100 * (ratio - 1))
}

func signed(x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "-"
	case math.Abs(x) < 0.05:
		return "0 %"
	case math.Abs(x) < 9.95:
		return fmt.Sprintf("%+.1f %%", x)
	}
	return fmt.Sprintf("%+.0f %%", x)
}

// thousands formats a count with commas.
func thousands[N int | uint64](n N) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// clip shortens a text to at most n runes by removing its middle.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	half := (n - 3) / 2
	return string(r[:n-3-half]) + "..." + string(r[len(r)-half:])
}

const textWidth = 96

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	r.writeSides(&b)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	fmt.Fprintf(&b, "\nB against A. Intervals hold %g %% for all %d together (each by itself %.4g %%); no verdict "+
		"where one has zero in it.\n",
		100*r.Confidence, r.Judged, 100*r.Each)
	fmt.Fprintf(&b, "\n%-30s%10s%10s%10s%12s%12s\n", "all requests", "A", "B", "change", "= routes", "+ mix")
	for _, c := range r.All {
		fmt.Fprintf(&b, "  %-28s%10s%10s%10s%12s%12s\n", c.Of, duration(c.A), duration(c.B), part(c.Change, c.A),
			part(c.Within, c.A), part(c.Mix, c.A))
	}
	for _, row := range r.everyRow() {
		row.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func part(change, of float64) string {
	if of <= 0 {
		return "-"
	}
	return signed(100 * change / of)
}

func (r *Report) writeSides(b *strings.Builder) {
	for i, s := range r.Sides {
		fmt.Fprintf(b, "%c  %s: %s requests", 'A'+i, clip(s.Name, textWidth/2), thousands(s.Requests))
		if s.PerSecond > 0 {
			fmt.Fprintf(b, ", %.4g/s, %.3g in flight", s.PerSecond, s.InFlight)
		}
		fmt.Fprintf(b, "\n   answered %s, refused %s, failed %s (%.2f %%), gone %s\n",
			thousands(s.Answered), thousands(s.Refused), thousands(s.Failed), 100*float64(s.Failed)/float64(max(s.Requests,
				1)), thousands(s.Gone))
	}
	for _, in := range r.Inputs {
		fmt.Fprintf(b, "   %s: %s lines of %s", clip(strings.Join(in.Files, " "), textWidth/2), thousands(in.Lines),
			in.Format)
		if !in.First.IsZero() {
			fmt.Fprintf(b, ", %s", period(in.First, in.Last))
		}
		if n := in.malformed(); n > 0 {
			fmt.Fprintf(b, ", %s malformed", thousands(n))
		}
		b.WriteString("\n")
		if len(in.Malformed) > 0 {
			fmt.Fprintf(b, "     malformed: %s\n", in.Reasons())
		}
		for _, e := range in.Examples {
			fmt.Fprintf(b, "     line %d of %s, %s: %s\n", e.Line, clip(e.File, 30), e.Reason, clip(e.Text, 50))
		}
	}
}

// period formats the times of the first and the last line. It repeats the day only if it changes.
func period(first, last time.Time) string {
	end := "15:04:05 Z07:00"
	if first.Format(time.DateOnly) != last.Format(time.DateOnly) {
		end = "2006-01-02 " + end
	}
	return first.Format(time.DateTime) + " to " + last.Format(end)
}

// everyRow returns the rows of the table, beginning with that of the same mix.
func (r *Report) everyRow() []*Row {
	var rows []*Row
	if r.SameMix != nil {
		rows = append(rows, r.SameMix)
	}
	for i := range r.Rows {
		rows = append(rows, &r.Rows[i])
	}
	return rows
}

func (row *Row) write(b *strings.Builder) {
	counts := fmt.Sprintf("%s | %s", thousands(row.A.Compared), thousands(row.B.Compared))
	name := clip(row.Route, textWidth-len(counts)-2)
	fmt.Fprintf(b, "\n%s%s%s\n", name, strings.Repeat(" ", max(textWidth-utf8.RuneCountInString(name)-len(counts), 2)),
		counts)
	if failed := row.A.Failed + row.B.Failed; failed > 0 {
		fmt.Fprintf(b, "  failed %s | %s\n", thousands(row.A.Failed), thousands(row.B.Failed))
	}
	for _, c := range row.Cells {
		fmt.Fprintf(b, "  %-4s%12s%12s", c.Of, duration(float64(c.A)), duration(float64(c.B)))
		switch c.Verdict {
		case Few:
			fmt.Fprintf(b, "%10s  %s", "", c.tooFew())
		case NotAlike:
			fmt.Fprintf(b, "%10s  no verdict: the requests are not comparable", percent(float64(c.Ratio)))
		case OneSided:
			fmt.Fprintf(b, "%10s  only on one side", "")
		case Even:
			fmt.Fprintf(b, "%10s  %s to %s", percent(float64(c.Ratio)), percent(c.RatioInterval[0]), percent(c.RatioInterval[1]))
		default:
			fmt.Fprintf(b, "%10s  %s to %s  %s", percent(float64(c.Ratio)), percent(c.RatioInterval[0]),
				percent(c.RatioInterval[1]), strings.ToUpper(string(c.Verdict)))
		}
		b.WriteString("\n")
	}
}

// tooFew explains why a cell has no interval.
func (c *Cell) tooFew() string {
	return fmt.Sprintf("too few: %s on each side are needed, these are worth %s and %s", thousands(c.Needs),
		thousands(c.WorthA), thousands(c.WorthB))
}
