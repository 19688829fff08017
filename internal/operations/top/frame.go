package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"github.com/packhorse-git/packhorse/internal/mirror/origin"
)

// Page is a table below the first lines of a frame.
type Page int

// The pages, in the order of the tab key.
const (
	RequestsPage Page = iota
	CommandsPage
	RepositoriesPage
	CallersPage
	pages
)

var pageNames = [...]string{"Requests", "Git", "Repositories", "Callers"}

// View configures the display of a State.
type View struct {
	Width, Height int // Height 0 means all lines of all pages
	Page          Page
	Sort          Sort // of requests
	Reversed      bool
	Offset        int // rows above the first visible one
	Paused, Help  bool
	Bold          bool   // the terminal can show bold and inverse text
	From          string // source of the State
	Error         string // the last failure; empty if the State is current
}

const (
	leastWidth = 80
	mostWidth  = 300
	wide       = 120 // minimum width for more columns
	mostIdle   = 10  // origins; of more, those without requests and failures are not shown
)

// Frame returns the lines of a State, cut to the view. Rates cover the time since before, or since the start if it is
// nil. Control characters in names are replaced.
func Frame(now, before *State, v View) string {
	f := &frame{View: v, now: now, before: before}
	f.Width = min(max(v.Width, leastWidth), mostWidth)
	f.head()
	switch {
	case v.Height == 0:
		for f.Page = 0; f.Page < pages; f.Page++ {
			f.line("")
			f.line("%s", pageNames[f.Page])
			f.table(f.rows())
		}
	case v.Help:
		f.help()
	default:
		f.tabs()
		f.table(f.rows())
	}
	if v.Height > 0 {
		f.lines = f.lines[:min(len(f.lines), max(v.Height-1, 0))]
		for len(f.lines) < v.Height-1 {
			f.line("")
		}
		f.line(" q quit  space pause  s sort  r reverse  tab page  up/down scroll  ? help")
	}
	return strings.Join(f.lines, "\n")
}

// frame is a frame under construction.
type frame struct {
	View
	now, before *State
	lines       []string
}

// line adds a line, cut to the width.
func (f *frame) line(format string, args ...any) {
	f.lines = append(f.lines, ansi.Truncate(strings.TrimRight(fmt.Sprintf(format, args...), " "), f.Width, "…"))
}

// strong emphasizes a line.
func (f *frame) strong(code, text string) string {
	if !f.Bold {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// head adds the lines above all pages.
func (f *frame) head() {
	s := f.now
	f.line("packhorse %s %s at %s   up %s   %s", clean(s.Role), clean(s.Version), clean(f.From), age(s.UptimeMS),
		s.Time.Format(time.TimeOnly+" MST"))
	note := ""
	switch {
	case f.Error != "":
		note = "NO ANSWER: " + clean(f.Error)
	case f.Paused:
		note = "PAUSED"
	}
	if note != "" || f.Height > 0 {
		f.lines = append(f.lines, f.strong("1", ansi.Truncate(note, f.Width, "…")))
	}
	var stages []string
	for _, stage := range []string{"reading", "queued", "working", "packing", "sending", "remote"} {
		if n := s.Requests.Stages[stage]; n > 0 {
			stages = append(stages, fmt.Sprintf("%d %s", n, stage))
		}
	}
	f.line("Requests  %d  %s", s.Requests.Running, strings.Join(stages, "  "))
	var parts []string
	for _, l := range s.Lanes {
		parts = append(parts, occupied(l.Name, l.Running, l.Limit, l.Queued, f.refused(l)))
	}
	f.wrap("Lanes     ", parts)
	parts = nil
	for _, c := range s.Git.Slots {
		parts = append(parts, occupied(c.Class, int64(c.Used), int64(c.Size), int64(c.Queued), 0))
	}
	f.wrap("Git       ", parts)
	if c := s.Cache; c != nil {
		f.line("Cache     %s of %s  %d packs, %d being made  %s", cmp.Or(size(c.Bytes), "0"), cmp.Or(size(c.MaxBytes), "0"),
			c.Entries, c.Fills, f.hits())
	}
	parts = nil
	for _, o := range s.Origins {
		if len(s.Origins) > mostIdle && o == (origin.Status{Host: o.Host}) {
			continue
		}
		text := fmt.Sprintf("%s %d", clean(o.Host), o.Running)
		if o.Pause > 0 {
			text += " paused for " + age(o.Pause)
		}
		if o.Error != "" {
			text += " " + clean(o.Error)
		}
		parts = append(parts, text)
	}
	f.wrap("Origins   ", parts)
}

// refused returns the number of requests that a lane refused since the previous State.
func (f *frame) refused(l Lane) int64 {
	if f.before == nil {
		return 0
	}
	i := slices.IndexFunc(f.before.Lanes, func(b Lane) bool { return b.Name == l.Name })
	if i < 0 {
		return 0
	}
	return max(0, l.RefusedTotal-f.before.Lanes[i].RefusedTotal)
}

// hits returns the share of requests whose pack was in the cache or being filled, since the previous State.
func (f *frame) hits() string {
	c, since := *f.now.Cache, "since the start"
	if f.before != nil && f.before.Cache != nil && c.MissesTotal >= f.before.Cache.MissesTotal {
		b := f.before.Cache
		recent := Cache{HitsTotal: c.HitsTotal - b.HitsTotal, MissesTotal: c.MissesTotal - b.MissesTotal,
			FollowsTotal: c.FollowsTotal - b.FollowsTotal}
		if recent.HitsTotal+recent.MissesTotal+recent.FollowsTotal > 0 {
			c, since = recent, "now"
		}
	}
	all := c.HitsTotal + c.FollowsTotal + c.MissesTotal
	if all == 0 {
		return "no pack was requested"
	}
	return fmt.Sprintf("%.1f %% shared %s", 100*float64(c.HitsTotal+c.FollowsTotal)/float64(all), since)
}

func occupied(name string, used, limit, queued, refused int64) string {
	text := fmt.Sprintf("%s %d/%d", clean(name), used, limit)
	if queued > 0 {
		text += fmt.Sprintf(" +%d wait", queued)
	}
	if refused > 0 {
		text += fmt.Sprintf(" %d refused", refused)
	}
	return text
}

// wrap writes parts on as many lines as necessary.
func (f *frame) wrap(title string, parts []string) {
	line := title
	for _, part := range parts {
		if ansi.StringWidth(line)+len(part) > f.Width && line != title {
			f.line("%s", line)
			line = strings.Repeat(" ", len(title))
		}
		line += part + "  "
	}
	if len(parts) > 0 {
		f.line("%s", line)
	}
}

// tabs adds the line with the names of the pages.
func (f *frame) tabs() {
	f.line("")
	var names []string
	for p, name := range pageNames {
		if Page(p) == f.Page {
			name = "[" + name + "]"
		} else {
			name = " " + name + " "
		}
		names = append(names, name)
	}
	text := strings.Join(names, " ")
	if f.Page == RequestsPage {
		text += "      by " + string(f.Sort)
		if f.Reversed {
			text += ", reversed"
		}
	}
	f.line("%s", text)
}

// column is a column of a table. The column with width 0 takes the remaining width.
type column struct {
	name  string
	width int
	left  bool
}

// rows returns the columns and rows of the page's table.
func (f *frame) rows() (columns []column, rows [][]string) {
	switch f.Page {
	case CommandsPage:
		return f.commands()
	case RepositoriesPage:
		return hitters("REPOSITORY", f.now.Heavy.Repositories)
	case CallersPage:
		return hitters("CALLER", f.now.Heavy.Callers)
	}
	return f.requests()
}

func (f *frame) requests() (columns []column, rows [][]string) {
	list := slices.Clone(f.now.Requests.List)
	Order(list, f.Sort, f.Reversed)
	columns = []column{{"AGE", 6, false}, {"STAGE", 7, true}, {"OPERATION", 11, true}, {"REPOSITORY", 0, true},
		{"CALLER", 15, true}, {"SENT", 7, false}, {"GIT CPU", 7, false}}
	if f.Width >= wide {
		columns = append(columns, column{"IN STAGE", 8, false}, column{"MEMORY", 7, false}, column{"REQUEST", 14, true})
	}
	for _, r := range list {
		row := []string{age(r.AgeMS), r.Stage, r.Operation, r.Repository, r.Caller, size(r.Bytes), cpu(r.GitCPUMS)}
		if f.Width >= wide {
			row = append(row, age(r.StageMS), size(r.GitRSS), r.ID)
		}
		rows = append(rows, row)
	}
	return columns, rows
}

func (f *frame) commands() (columns []column, rows [][]string) {
	columns = []column{{"PID", 7, false}, {"AGE", 6, false}, {"CPU", 7, false}, {"MEMORY", 7, false}, {"OUT", 7, false},
		{"CLASS", 8, true}, {"COMMAND", 13, true}, {"REPOSITORY", 0, true}}
	if f.Width >= wide {
		columns = append(columns, column{"CALLER", 15, true}, column{"REQUEST", 14, true})
	}
	for _, c := range f.now.Git.List {
		row := []string{strconv.Itoa(c.PID), age(c.AgeMS), cpu(c.CPUMS), size(c.RSS), size(c.Out), c.Class, c.Subcommand,
			c.Repository}
		if f.Width >= wide {
			row = append(row, c.Caller, c.Request)
		}
		rows = append(rows, row)
	}
	return columns, rows
}

func hitters(title string, list []Hitter) (columns []column, rows [][]string) {
	columns = []column{{title, 0, true}, {"REQUESTS", 9, false}, {"SENT", 9, false}, {"GIT CPU", 9, false}}
	for _, h := range list {
		rows = append(rows, []string{h.Name, strconv.FormatInt(h.Requests, 10), size(h.Bytes), cpu(h.GitCPUMS)})
	}
	return columns, rows
}

// table writes the column names and as many rows as fit.
func (f *frame) table(columns []column, rows [][]string) {
	rest := f.Width - len(columns) + 1
	for _, c := range columns {
		rest -= c.width
	}
	for i := range columns {
		if columns[i].width == 0 {
			columns[i].width = rest
		}
	}
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	f.lines = append(f.lines, f.strong("7", fmt.Sprintf("%-*s", f.Width, row(columns, names))))
	if !f.Bold {
		f.lines[len(f.lines)-1] = strings.TrimRight(f.lines[len(f.lines)-1], " ")
	}
	first := min(f.Offset, max(0, len(rows)-1))
	if f.Height == 0 {
		first = 0
	}
	for i, cells := range rows[min(first, len(rows)):] {
		if f.Height > 0 && len(f.lines) >= f.Height-2 && first+i < len(rows)-1 {
			f.line("... %d more", len(rows)-first-i)
			break
		}
		f.line("%s", row(columns, cells))
	}
	if len(rows) == 0 {
		f.line("%s", "nothing now")
	}
	if left := f.now.Requests.Running - len(f.now.Requests.List); f.Page == RequestsPage && left > 0 && f.Height == 0 {
		f.line("... %d younger ones are not listed", left)
	}
}

func row(columns []column, cells []string) string {
	var b strings.Builder
	for i, c := range columns {
		text := clean(cells[i])
		if n := ansi.StringWidth(text); n > c.width && c.left { // the end of a path says most about it
			head := c.width / 4
			text = ansi.Truncate(text, head, "") + ansi.TruncateLeft(text, n-(c.width-head-1), "…")
		}
		text = ansi.Truncate(text, c.width, "…")
		space := strings.Repeat(" ", max(0, c.width-ansi.StringWidth(text)))
		if i > 0 {
			b.WriteByte(' ')
		}
		if c.left {
			b.WriteString(text + space)
		} else {
			b.WriteString(space + text)
		}
	}
	return b.String()
}

func (f *frame) help() {
	for line := range strings.Lines(helpText) {
		f.line("%s", strings.TrimSuffix(line, "\n"))
	}
}

const helpText = `
A request is reading (its client sends), queued (for a lane or a slot), working
(refs, objects), packing (it waits for git), sending, or remote (another process
works on it). GIT CPU is the CPU time of its git commands so far. Repositories
and callers are the heaviest of the last five minutes. Their numbers may be too
high; the JSON output states by how much.

  s, S      sort requests by the next or previous field: age, bytes, cpu,
            repository, caller, stage
  r         reverse the order
  tab, 1-4  show the next page, or page 1 to 4
  space, p  pause, or continue
  up, down, page up, page down, home   scroll
  q, esc, ctrl+c   quit
`

// clean replaces control characters and characters that look like others.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// age formats a time in three or four characters.
func age(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", ms)
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02d", int(d.Minutes()), int(d.Seconds())%60)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh%02d", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// cpu formats a CPU time; it returns an empty text for zero.
func cpu(ms float64) string {
	if ms == 0 {
		return ""
	}
	return age(int64(ms))
}

// size formats a number of bytes; it returns an empty text for zero.
func size(n int64) string {
	if n == 0 {
		return ""
	}
	value, unit := float64(n), 0
	for value >= 999.5 && unit < 5 {
		value /= 1024
		unit++
	}
	if unit == 0 {
		return strconv.FormatInt(n, 10)
	}
	digits := 1
	if value >= 99.95 {
		digits = 0
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + " KMGTP"[unit:unit+1]
}
