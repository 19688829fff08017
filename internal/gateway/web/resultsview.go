package web

import (
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

// startView returns the main part of the search page without a query: examples and filters.
func startView() g.Node {
	return h.Div(h.Class("start"),
		h.H1(g.Text("Search the code of all repositories")),
		h.P(g.Text("Words, regular expressions and filters, in any order. Results link to the file in the indexed commit.")),
		h.H2(g.Text("Examples")),
		h.Ul(h.Class("examples"), g.Map(examples, func(e example) g.Node {
			return h.Li(h.A(h.Data("search", ""), page.Href(page.SearchURL(e.Query)), h.Code(g.Text(e.Query)), g.Text(e.Says)))
		})),
		h.H2(g.Text("Filters")),
		h.Dl(h.Class("language"), g.Map(filters, func(e example) g.Node {
			return g.Group{h.Dt(g.Text(e.Query)), h.Dd(g.Text(e.Says))}
		})),
	)
}

// view returns the main part of the search page with results.
func (f *found) view() g.Node {
	return h.Div(h.Class("found"), h.H1(h.Class("hide"), g.Text("Results")),
		h.Div(h.Class("top"), f.summary(), g.Map(f.Notes, func(note string) g.Node {
			return h.P(h.Class("note"), g.Text(note))
		})),
		h.Div(h.Class("list"),
			g.Map(f.Repos, (*repoResults).view),
			g.If(len(f.Names) > 0, h.Ul(h.Class("plain"), g.Map(f.Names, nameResult.view))),
			g.If(f.Nothing, h.Div(h.Class("none-found"), h.H2(g.Text("Nothing found")),
				h.P(g.Text("Try fewer words or filters. Searches ignore case unless they contain an uppercase letter or "),
					h.Code(g.Text("case:yes")), g.Text(".")))),
			g.If(f.Remark != "", h.P(h.Class("about"), g.Text(f.Remark))),
		),
		g.If(len(f.Fresh) > 0 && len(f.Repos) > 0, h.Aside(h.Class("side"), h.Details(h.Open(),
			h.Summary(g.Text("Freshness")), h.Ul(g.Map(f.Fresh, (*freshness).view))))),
	)
}

// summary returns the numbers of a search, or its error.
func (f *found) summary() g.Node {
	if f.Error != "" {
		return h.Div(h.Class("note bad"), h.Role("alert"), g.Text(f.Error), g.Iff(f.Pointed, func() g.Node {
			return h.Pre(h.Aria("hidden", "true"), g.Text(f.Before), h.Span(h.Class("at"), g.Text(f.At)),
				g.Text(f.After+"\n"+f.Indent), h.Span(h.Class("at"), g.Text("^")))
		}))
	}
	return h.P(h.Class("sum"), h.Role("status"),
		h.Span(page.Counted(f.Matches, "match", "matches"), g.Text(" in "), page.Counted(f.Results, f.Thing, f.Things)),
		g.Text("\n"),
		h.Span(g.Textf("%d %s searched in %s", f.Searched, page.Plural(f.Searched, "repository", "repositories"), f.Elapsed)),
		g.Text("\n"),
		g.If(f.MoreURL != "", h.A(h.Data("search", ""), page.Href(f.MoreURL), g.Textf("Show up to %d", f.MoreCount))),
	)
}

func (r *repoResults) view() g.Node {
	header := g.Group{h.H2(g.Text(r.Name))}
	if r.Fresh != nil {
		if r.Fresh.Branch != "" {
			header = append(header, h.Span(h.Class("branch"), g.Text(r.Fresh.Branch+" at "),
				h.Code(g.Text(r.Fresh.Short))))
		}
		header = append(header, r.Fresh.badge())
	}
	return h.Section(h.Class("repo"), h.ID(r.Anchor), h.Header(header), g.Map(r.Files, fileResult.view))
}

func (r fileResult) view() g.Node {
	return h.Article(h.Class("file"),
		h.H3(h.A(page.Href(r.URL), page.Render(r.Dir), h.B(page.Render(r.Base))), h.Span(g.Text(r.About))),
		g.If(len(r.Lines) > 0, h.Div(h.Class("hits"), h.Div(g.Map(r.Lines, lineResult.view)))),
		g.If(r.Rest > 0, h.A(h.Class("rest"), page.Href(r.URL),
			g.Textf("%d more %s in this file", r.Rest, page.Plural(r.Rest, "line", "lines")))),
	)
}

func (l lineResult) view() g.Node {
	return g.Group{
		g.If(l.Gap, h.Hr()),
		h.A(page.Href(l.URL), g.If(l.Context, h.TabIndex("-1")), h.I(page.Number(l.Number)), h.Span(page.Render(l.Pieces)),
			g.If(l.Kind != "", h.Span(h.Class("sym"), g.Text(l.Kind)))),
	}
}

func (n nameResult) view() g.Node {
	return h.Li(h.A(h.Data("search", ""), page.Href(n.URL), g.Text(n.Name)), g.Iff(n.Fresh != nil, func() g.Node {
		return g.Group{n.Fresh.badge(), h.Span(h.Class("branch"), g.Text(n.Fresh.Says))}
	}))
}

func (f *freshness) view() g.Node {
	name := h.Span(g.Text(f.Repository))
	if f.Anchor != "" {
		name = h.A(page.Href("#"+f.Anchor), g.Text(f.Repository))
	}
	return h.Li(name, f.badge(), h.Small(g.Text(f.Says)))
}

func (f *freshness) badge() g.Node {
	return h.Span(h.Class("fresh "+f.Class), g.Text(f.Label))
}
