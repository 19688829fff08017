package browse

import (
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// commit shows a commit and its difference from its first parent.
func (q *request) commit() (*content, error) {
	if q.asPatch {
		return q.patch()
	}
	answer, err := one[packhorsev1.CommitResponse](q, packhorsev1connect.ObjectServiceCommitProcedure,
		&packhorsev1.CommitRequest{Revision: q.at.id.String()})
	if err != nil {
		return nil, err
	}
	c := answer.GetCommit()
	decode(c)
	before := ""
	if len(c.GetParents()) > 0 {
		before = c.GetParents()[0]
	}
	d, err := q.diff("", c.GetOid(), false)
	if err != nil {
		return nil, err
	}
	subject := subjectOf(c)
	short, _ := page.Shorten(subject, 60)
	main := g.Group{q.crumbs("commit " + page.Short(c.GetOid())), q.places(""), q.about(c, subject),
		d.view(q, before, c.GetOid())}
	return &content{title: short + " - " + q.repo.String(), kind: "diff", main: main, noStore: len(d.pointers) > 0}, nil
}

// about returns the header of a commit.
func (q *request) about(c *packhorsev1.Commit, subject string) g.Node {
	_, body, _ := strings.Cut(strings.TrimLeft(string(c.GetMessage()), "\n"), "\n")
	body = strings.Trim(body, "\n")
	row := func(name string, value g.Node) g.Node { return h.Div(h.Dt(g.Text(name)), h.Dd(value)) }
	person := func(s *packhorsev1.Signature) g.Node {
		t := timeOf(s)
		return g.Group{page.Text(string(s.GetName())), g.Text(" <"), page.Text(string(s.GetEmail())), g.Text("> "),
			h.Time(h.DateTime(t.Format(time.RFC3339)), g.Text(t.Format(fullTime)))}
	}
	committer := g.Node(nil)
	a, b := c.GetAuthor(), c.GetCommitter()
	if string(a.GetName()) != string(b.GetName()) || a.GetSeconds() != b.GetSeconds() {
		committer = row("Committer", person(b))
	}
	parents := make(g.Group, 0, len(c.GetParents()))
	for _, parent := range c.GetParents() {
		parents = append(parents, h.A(page.Href(q.link("commit", parent)), h.Code(g.Text(page.Short(parent)))), g.Text(" "))
	}
	return h.Section(h.Class("commit"), h.H2(page.Text(subject)),
		g.If(body != "", h.Pre(h.Class("message"), page.Block(body))),
		g.If(c.GetTruncated(), h.P(h.Class("note"), g.Text("The message is longer."))),
		h.Dl(row("Author", person(c.GetAuthor())), committer,
			row("Commit", g.Group{h.Code(g.Text(c.GetOid())), g.Text(" "), h.A(page.Href(q.link("tree", c.GetOid())),
				g.Text("files")), g.Text(" "), h.A(page.Href(q.link("commit", c.GetOid()+".patch")), h.Rel("nofollow"),
				g.Text("patch"))}),
			g.If(len(parents) > 0, row(page.Plural(len(c.GetParents()), "Parent", "Parents"), parents))))
}

// patch sends a commit as a mail, as git format-patch writes it.
func (q *request) patch() (*content, error) {
	var text []byte
	err := all(q, packhorsev1connect.DiffServiceFormatPatchProcedure, &packhorsev1.FormatPatchRequest{
		To: q.at.id.String(), MaxCommits: 1}, func(m *packhorsev1.FormatPatchResponse) error {
		if text = append(text, m.GetData()...); len(text) > maxRaw {
			return fault.New(fault.Invalid, "this patch has more than %s: clone the repository to make it",
				humanize.IBytes(maxRaw))
		}
		return q.hold(len(m.GetData()))
	})
	return &content{raw: &rawContent{contentType: "text/plain; charset=utf-8", text: text}}, err
}

// compare shows what two revisions differ in: /-/compare/A...B, or A..B for the direct difference.
func (q *request) compare() (*content, error) {
	from, to := q.from.id.String(), q.at.id.String()
	list, err := q.commits(&packhorsev1.LogRequest{Revisions: []string{to}, Exclude: []string{from},
		Limit: logCommits + 1})
	if err != nil {
		return nil, err
	}
	d, err := q.diff(from, to, q.mergeBase)
	if err != nil {
		return nil, err
	}
	before := from
	if q.mergeBase {
		bases, err := one[packhorsev1.MergeBaseResponse](q, packhorsev1connect.HistoryServiceMergeBaseProcedure,
			&packhorsev1.MergeBaseRequest{Revisions: []string{from, to}})
		if err != nil {
			return nil, err
		}
		if len(bases.GetOids()) > 0 {
			before = bases.GetOids()[0]
		}
	}
	names := q.from.text + " ... " + q.at.text
	heading := page.Plural(len(list), "Commit", "Commits")
	if len(list) > logCommits {
		heading = "The newest commits"
	}
	main := g.Group{q.crumbs(page.Visible(names)), q.places(""), q.compareForm(q.from.text, q.at.text),
		h.Section(h.H2(g.Text(heading)), q.logTable(list[:min(len(list), logCommits)], nil, nil)), d.view(q, before, to)}
	return &content{title: names + " - " + q.repo.String(), kind: "diff", main: main, noStore: len(d.pointers) > 0}, nil
}

// compareForm returns the form for a comparison.
func (q *request) compareForm(from, to string) g.Node {
	field := func(name, label, value string) g.Node {
		return h.Label(g.Text(label), h.Input(h.Name(name), h.Value(page.Visible(value)), h.Required(), h.AutoComplete("off"),
			h.SpellCheck("false")))
	}
	return h.Form(h.Class("filter"), h.Action(q.link("compare")), field("from", "From", from),
		field("to", "To", to), h.Button(g.Text("Compare")))
}
