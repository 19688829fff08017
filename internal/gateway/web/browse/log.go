package browse

import (
	"bytes"
	"cmp"
	"net/url"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	logCommits = 50
	maxSkip    = 100_000  // commits before a page of a log
	maxMessage = 16 << 10 // bytes of a message in a list
)

// commits returns commits in the order of git log.
func (q *request) commits(m *packhorsev1.LogRequest) (list []*packhorsev1.Commit, err error) {
	if len(m.Revisions) == 0 {
		m.Revisions = []string{q.at.id.String()}
	}
	err = all(q, packhorsev1connect.ObjectServiceLogProcedure, m, func(m *packhorsev1.LogResponse) error {
		for _, c := range m.GetCommits() {
			decode(c)
			c.Message = bytes.Clone(c.GetMessage()[:min(len(c.GetMessage()), maxMessage)])
			list = append(list, c)
		}
		return nil
	})
	return list, err
}

// log shows the commits that a revision reaches.
func (q *request) log() (*content, error) {
	if q.path != "" {
		return q.history()
	}
	return q.commitList("Log of "+page.Visible(q.here()), "")
}

// history shows the commits that change a file or directory.
func (q *request) history() (*content, error) {
	return q.commitList("History of "+page.Visible(q.path), q.path)
}

// commitList shows a page of commits.
func (q *request) commitList(title, path string) (*content, error) {
	skip, _ := strconv.Atoi(q.query.Get("skip"))
	skip = min(max(skip, 0), maxSkip)
	filter := q.filter()
	name, raw := pathFields(cmp.Or(path, filter.path))
	list, err := q.commits(&packhorsev1.LogRequest{Path: name, RawPath: raw, Limit: logCommits + 1,
		Skip: int32(skip), Author: filter.author, Message: filter.text})
	if err != nil {
		return nil, err
	}
	hasMore := len(list) > logCommits
	list = list[:min(len(list), logCommits)]
	names, err := q.refNames()
	if err != nil {
		return nil, err
	}
	var shown []string
	for _, c := range list {
		shown = append(shown, names[c.GetOid()]...)
	}
	if err := q.nameRefs(shown); err != nil {
		return nil, err
	}
	var graph *graph
	if path == "" && filter == (logFilter{}) && skip == 0 {
		graph = newGraph(list)
	}
	head := g.Group{q.places("Log"), filter.form(), q.compareLink()}
	if path != "" {
		head = g.Group{q.fileTabs("History")}
		if _, err := one[packhorsev1.TreeResponse](q, packhorsev1connect.ObjectServiceTreeProcedure,
			&packhorsev1.TreeRequest{Path: q.in(path), PageSize: 1}); err == nil { // a directory
			head = g.Group{q.places("History")}
		}
	}
	return &content{title: title + " - " + q.repo.String(), kind: "log", main: g.Group{
		q.crumbs(""), head,
		q.logTable(list, names, graph), q.pager(skip, hasMore, list),
	}}, nil
}

// compareLink returns a link to the comparison of a branch with that of HEAD, or nil.
func (q *request) compareLink() g.Node {
	head, err := q.v.Revisions([]string{"HEAD"})
	if err != nil || head[0].Err != nil || head[0].Ref == q.at.ref || !strings.HasPrefix(q.at.ref, branches) {
		return nil
	}
	return h.P(h.Class("about"), h.A(page.Href(q.link("compare", "HEAD..."+q.here())),
		g.Text("Compare with "), page.Text(shortName(head[0].Ref))))
}

// logFilter selects commits.
type logFilter struct{ author, text, path string }

func (q *request) filter() logFilter {
	text := func(name string) string { return strings.ToValidUTF8(q.query.Get(name), "\ufffd") }
	return logFilter{author: text("author"), text: text("text"), path: q.query.Get("path")}
}

// form returns the form to filter a log.
func (f logFilter) form() g.Node {
	field := func(name, label, value string) g.Node {
		return h.Label(g.Text(label), h.Input(h.Name(name), h.Value(value), h.AutoComplete("off"), h.SpellCheck("false")))
	}
	return h.Form(h.Class("filter"), field("author", "Author", f.author),
		field("text", "Message", f.text), field("path", "Path", f.path), h.Button(g.Text("Filter")))
}

// pager returns links to the pages before and after the one with list.
func (q *request) pager(skip int, hasMore bool, list []*packhorsev1.Commit) g.Node {
	to := func(skip int) string {
		query := url.Values{}
		for _, name := range []string{"author", "text", "path"} {
			if value := q.query.Get(name); value != "" {
				query.Set(name, value)
			}
		}
		if skip > 0 {
			query.Set("skip", strconv.Itoa(skip))
		}
		return "?" + query.Encode()
	}
	note, older := g.Node(nil), to(skip+logCommits)
	if hasMore && skip+logCommits > maxSkip {
		last := list[len(list)-1].GetOid()
		older = q.link(q.kind.name, last, q.path) + to(0)
		note = h.P(h.Class("note"), g.Textf("Pages of a log end after %s commits. Older ones are those that %s reaches.",
			humanize.Comma(maxSkip), page.Short(last)))
	}
	return g.Group{note, h.Nav(h.Class("pager"), h.Aria("label", "Pages"),
		g.If(skip > 0, h.A(page.Href(to(max(0, skip-logCommits))), h.Rel("prev"), g.Text("Newer"))),
		g.If(hasMore, h.A(page.Href(older), h.Rel("next"), g.Text("Older"))))}
}

// logTable returns the rows of commits. names are those of refs by commit; graph may be nil.
func (q *request) logTable(list []*packhorsev1.Commit, names map[string][]string, graph *graph) g.Node {
	if len(list) == 0 {
		return page.Card("There are no commits", "No commit matches.")
	}
	rows := make(g.Group, 0, len(list))
	for i, c := range list {
		author, _ := page.Shorten(string(c.GetAuthor().GetName()), 40)
		rows = append(rows, h.Tr(
			g.Iff(graph != nil, func() g.Node { return h.Td(h.Class("graph"), graph.row(i)) }),
			h.Td(h.Class("says"), g.Map(names[c.GetOid()], q.refBadge), q.commitLink(c)),
			h.Td(h.Class("who"), page.Text(author)),
			h.Td(h.Class("when"), when(c.GetAuthor())),
			h.Td(h.Class("id"), h.A(page.Href(q.link("commit", c.GetOid())), h.TabIndex("-1"),
				h.Code(g.Text(page.Short(c.GetOid()))))),
		))
	}
	return h.Table(h.Class("commits"), h.THead(h.Class("hide"), h.Tr(
		g.If(graph != nil, h.Th(g.Text("Graph"))), h.Th(g.Text("Subject")), h.Th(g.Text("Author")), h.Th(g.Text("Date")),
		h.Th(g.Text("Commit")))), h.TBody(rows))
}
