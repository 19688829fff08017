package browse

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/legacy"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const listed = 500 // repositories of a page

// List answers a request for the list of repositories.
func (s *Site) List(w http.ResponseWriter, r *http.Request, v Visitor) error {
	if to, ok := legacy.Find(r.URL); ok {
		http.Redirect(w, r, to, http.StatusMovedPermanently)
		return nil
	}
	query := r.URL.Query()
	found, err := v.List(&packhorsev1.ListRequest{Prefix: query.Get("prefix"), After: query.Get("after"), PageSize: listed,
		Details: true}, query.Get("filter"))
	// a search without a result does not lead to sign-in
	if fault.Is(err, fault.Unauthenticated) && r.URL.RawQuery != "" {
		found, err = &packhorsev1.ListResponse{}, nil
	}
	if err != nil {
		return s.Fail(w, r, v, err)
	}
	// in the order of paths, the repositories of a directory are not all beside each other
	slices.SortStableFunc(found.GetDetails(), func(a, b *packhorsev1.Repository) int {
		x, _ := cutLast(a.GetPath())
		y, _ := cutLast(b.GetPath())
		return strings.Compare(x, y)
	})
	dir := ""
	rows := g.Group{}
	for _, repo := range found.GetDetails() {
		if repo.GetSettings().GetUnlisted() {
			continue
		}
		parent, name := cutLast(repo.GetPath())
		if parent != dir {
			dir = parent
			rows = append(rows, h.Tr(h.Class("group"), h.Th(h.ColSpan("4"), h.Scope("rowgroup"),
				h.A(page.Href("/?prefix="+url.QueryEscape(dir+"/")), page.Text(dir+"/")))))
		}
		rows = append(rows, repositoryRow(repo, name))
	}
	more := g.Node(nil)
	if next := found.GetNextPageToken(); next != "" {
		more = h.P(h.Class("more"), h.A(page.Href("/?prefix="+url.QueryEscape(query.Get("prefix"))+"&filter="+
			url.QueryEscape(query.Get("filter"))+"&after="+url.QueryEscape(next)), h.Rel("next"), g.Text("More repositories")))
	}
	main := g.Group{g.If(s.Text != nil, h.Div(h.Class("prose"), s.Text)), h.H1(h.Class("crumbs"), g.Text("Repositories")),
		h.Form(h.Class("filter"), h.Action("/"), g.If(query.Get("prefix") != "", h.Input(h.Type("hidden"),
			h.Name("prefix"), h.Value(query.Get("prefix")))), h.Label(g.Text("Path or description"), h.Input(h.Name("filter"),
			h.Value(query.Get("filter")), h.AutoComplete("off"), h.SpellCheck("false"))), h.Button(g.Text("Filter"))),
		g.If(len(rows) == 0 && more == nil, page.Card("There are no repositories here",
			"Nothing that you may read matches.")),
		g.If(len(rows) > 0, h.Table(h.Class("repositories"), h.THead(h.Class("hide"), h.Tr(h.Th(g.Text("Name")),
			h.Th(g.Text("Description")), h.Th(g.Text("Owner")), h.Th(g.Text("Last change")))), h.TBody(rows))), more}
	packed, err := page.Pack(main)
	if err != nil {
		return err
	}
	return s.SendPacked(w, r, "list", s.HeadFor(r, v, page.Head{Kind: "list", Title: "Repositories",
		Index: r.URL.RawQuery == ""}), &packed)
}

// category returns the category of a repository for its description.
func category(repo *packhorsev1.Repository) g.Node {
	text, _ := page.Shorten(repo.GetSettings().GetCategory(), 80)
	return g.If(text != "", g.Group{h.Span(h.Class("ref tag"), page.Text(text)), g.Text(" ")})
}

func repositoryRow(repo *packhorsev1.Repository, name string) g.Node {
	pushed := g.Node(nil)
	if t := cmp.Or(repo.GetPushedAt(), repo.GetCommittedAt()); t != nil {
		at := t.AsTime()
		pushed = h.Time(h.DateTime(at.Format("2006-01-02T15:04:05Z")), h.Title(at.Format("2006-01-02 15:04:05 UTC")),
			g.Text(humanize.Time(at)))
	}
	description, _ := page.Shorten(repo.GetSettings().GetDescription(), 160)
	link := page.Address(page.Path(repo.GetPath()), "")
	return h.Tr(h.Td(h.Class("name"), h.A(page.Href(link), page.Text(strings.TrimSuffix(name, ".git")))),
		h.Td(h.Class("says"), category(repo), page.Text(description)),
		h.Td(h.Class("who"), page.Text(repo.GetSettings().GetOwner())), h.Td(h.Class("when"), pushed))
}
