package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

const (
	listedRequests = 20
	listedHeavy    = 10 // by each measure
	listedMirrors  = 100
	listedFailures = 20

	mirrorsTime  = 2 * time.Second // for the list of mirrors
	mirrorsPause = 10              // The list is used again for so many times the time that it took.
)

// mirrorList is a list of mirrors.
type mirrorList struct {
	until    time.Time // it is used again
	list     []Mirror
	complete bool
}

// tables returns the tables of a section.
func (s *Status) tables(ctx context.Context, section string) g.Group {
	switch section {
	case sectionRequests:
		return s.requests()
	case sectionCPU:
		return s.heavy()
	case sectionNodes:
		return s.nodes()
	case sectionMirrors:
		return s.mirrorTable(ctx)
	case sectionSearch:
		return s.index()
	}
	return nil
}

// text returns a name without secrets, as a node. Clients choose the names.
func text(name string) g.Node {
	name, isCut := page.Shorten(auth.Redact(name), 300)
	return g.Group{page.Text(name), g.If(isCut, g.Text("..."))}
}

// age returns the time since t.
func age(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return length(time.Since(t))
}

func length(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// table returns a table with a heading. Without rows there is none. Columns whose names begin with ">" have numbers.
func table(heading string, columns []string, rows [][]g.Node) g.Group {
	if len(rows) == 0 {
		return nil
	}
	isNumber := func(i int) g.Node { return g.If(columns[i][0] == '>', h.Class("num")) }
	var head, body g.Group
	for i, name := range columns {
		head = append(head, h.Th(h.Scope("col"), isNumber(i), g.Text(strings.TrimPrefix(name, ">"))))
	}
	for _, row := range rows {
		var cells g.Group
		for i, n := range row {
			cells = append(cells, h.Td(isNumber(i), n))
		}
		body = append(body, h.Tr(cells))
	}
	return g.Group{h.H3(g.Text(heading)), wide(heading, h.Table(h.Class("refs status"), h.THead(h.Tr(head)),
		h.TBody(body)))}
}

// wide returns a part of the page that scrolls sideways on narrow screens, also by keys.
func wide(name string, n g.Node) g.Node {
	return h.Div(h.Class("wide"), h.Role("region"), h.TabIndex("0"), h.Aria("label", name), n)
}

// requests lists the running requests.
func (s *Status) requests() g.Group {
	all, _ := s.Board.Requests(listedRequests)
	var rows [][]g.Node
	for _, r := range all {
		rows = append(rows, []g.Node{text(r.Kind), g.Text(r.Stage.String()), g.Text(length(r.Age)), text(r.Repository),
			text(r.Caller), g.Text(humanize.IBytes(uint64(max(0, r.Bytes)))), g.Text(r.ID)})
	}
	return table("The oldest running requests", []string{"Operation", "Stage", ">Age", "Repository", "Caller", ">Sent",
		"Request"}, rows)
}

// heavy lists the repositories and callers with the highest cost.
func (s *Status) heavy() g.Group {
	repositories, callers := s.Board.Heaviest(listedHeavy)
	all := g.Group{}
	for _, one := range []struct {
		name string
		list []inflight.Heavy
	}{{"Repository", repositories}, {"Caller", callers}} {
		slices.SortStableFunc(one.list, func(a, b inflight.Heavy) int { return cmp.Compare(b.CPU.Value, a.CPU.Value) })
		var rows [][]g.Node
		for _, heavy := range one.list {
			share := 100 * heavy.CPU.Value / max(1, one.list[0].CPU.Value)
			rows = append(rows, []g.Node{text(heavy.Name), g.Textf("%.2f s", time.Duration(heavy.CPU.Value).Seconds()),
				g.Textf("%d", heavy.Requests.Value), g.Text(humanize.IBytes(uint64(max(0, heavy.Bytes.Value)))),
				g.Rawf(`<svg class="plot" width="100" height="10" aria-hidden="true">`+
					`<path class="l0" d="M0 5H%d"/></svg>`, share)})
		}
		all = append(all, table(fmt.Sprintf("%s: cost of the last %d minutes", one.name, inflight.HeavyMinutes),
			[]string{one.name, ">CPU of Git", ">Requests", ">Sent", "Share"}, rows)...)
	}
	return all
}

// nodes lists storage nodes in other processes.
func (s *Status) nodes() g.Group {
	if s.Nodes == nil {
		return nil
	}
	var rows [][]g.Node
	for _, n := range s.Nodes() {
		rows = append(rows, nodeRow(&n))
	}
	return table("As this gateway sees them", []string{"Node", "State", ">Running", ">Answered", ">Failed",
		"Repositories", "Store", ">Held"}, rows)
}

func nodeRow(n *router.Status) []g.Node {
	state := "up"
	switch {
	case n.Down != nil:
		state = "down: " + n.Down.Error()
	case n.Draining:
		state = "draining"
	case n.Refused != "":
		state = "up; pushes are refused: " + n.Refused
	}
	var prefixes []string
	for _, p := range n.Prefixes {
		prefixes = append(prefixes, cmp.Or(p, "all"))
	}
	return []g.Node{text(n.Name), text(state), page.Number(n.InFlight), g.Textf("%d", n.Served),
		g.Textf("%d", n.Failed), text(strings.Join(prefixes, ", ")), text(cmp.Or(n.Store, "-")), page.Number(n.Held)}
}

// mirrorTable lists mirrors: those that fail first, then the oldest.
func (s *Status) mirrorTable(ctx context.Context) g.Group {
	if s.Mirrors == nil {
		return nil
	}
	all := s.listMirrors(ctx)
	var rows [][]g.Node
	for _, m := range all.list[:min(len(all.list), listedMirrors)] {
		rows = append(rows, []g.Node{text(m.Path), text(m.Origin), g.Text(age(m.Fresh)), g.Text(age(m.Updated)),
			g.Text(m.State), text(cmp.Or(m.Error, "-"))})
	}
	of := g.Group{h.P(h.Class("about"), page.Counted(len(all.list), "mirror", "mirrors"),
		g.If(!all.complete, g.Text(" or more")),
		g.If(len(rows) < len(all.list), g.Textf("; the table has %d: failing ones first, then the oldest", len(rows))))}
	return append(of, table("Mirrors with their age", []string{"Mirror", "Origin", ">Age", ">Last change", "State",
		"Error"}, rows)...)
}

func (s *Status) listMirrors(ctx context.Context) mirrorList {
	s.mirrorsMu.Lock()
	defer s.mirrorsMu.Unlock()
	if began := time.Now(); began.After(s.mirrors.until) {
		ctx, cancel := context.WithTimeout(ctx, mirrorsTime)
		defer cancel()
		list, complete := s.Mirrors(ctx)
		slices.SortStableFunc(list, func(a, b Mirror) int {
			if (a.Error == "") != (b.Error == "") {
				return cmp.Compare(b.Error, "") - cmp.Compare(a.Error, "")
			}
			return a.Fresh.Compare(b.Fresh)
		})
		s.mirrors = mirrorList{time.Now().Add(mirrorsPause * time.Since(began)), list, complete}
	}
	return s.mirrors
}

// index shows the state of the search index.
func (s *Status) index() g.Group {
	if s.Search == nil {
		return nil
	}
	status := s.Search(nil)
	all := g.Group{}
	if status.Error != "" {
		all = append(all, h.P(h.Class("note bad"), text(status.Error)))
	}
	columns := []string{">All", ">Current", ">Behind", ">Without an index yet", ">Too large", ">Empty", ">Failed",
		">Index files", ">Crashes"}
	var counts []g.Node
	for _, n := range []int{status.Repositories, status.Fresh, status.Behind, status.Waiting, status.TooLarge,
		status.Empty, status.Failed, status.Shards, status.Deaths} {
		counts = append(counts, page.Number(n))
	}
	all = append(all, table("Repositories", columns, [][]g.Node{counts})...)
	var jobs, failures [][]g.Node
	for _, j := range status.Jobs[:min(len(status.Jobs), listedRequests)] {
		jobs = append(jobs, []g.Node{text(j.Repository), text(j.Kind), g.Textf("%.1f s", j.Seconds),
			g.Textf("%d", j.Files)})
	}
	for _, f := range status.Failures[:min(len(status.Failures), listedFailures)] {
		failures = append(failures, []g.Node{text(f.Repository), text(f.Error)})
	}
	all = append(all, table("Running jobs", []string{"Repository", "Kind", ">Age", ">Files"}, jobs)...)
	return append(all, table("Failures", []string{"Repository", "Error"}, failures)...)
}
