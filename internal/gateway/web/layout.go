package web

import (
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// page is the common part of all pages.
type page struct {
	Kind  string // search, file or error
	Title string
	Query string // in the search box
	Focus bool   // whether the search box has the focus

	Visitor string // the user's name, if known
	SignIn  string // the path that asks for credentials; empty if signing in would make no difference
}

// layout returns a whole page around its main part.
func (p *Pages) layout(pg page, main ...g.Node) g.Node {
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			h.Meta(h.Name("robots"), h.Content("noindex, nofollow")),
			h.TitleEl(g.Text(pg.Title)),
			h.Link(h.Rel("icon"), h.Type("image/svg+xml"), href(p.assetPaths["icon.svg"])),
			h.Link(h.Rel("stylesheet"), href(p.assetPaths["style.css"])),
			h.Script(h.Defer(), h.Src(p.assetPaths["page.js"])),
		),
		h.Body(h.Data("page", pg.Kind),
			p.bar(pg),
			h.Main(main...),
			footer(pg.Kind),
		),
	))
}

// bar returns the top of a page with the search box.
func (p *Pages) bar(pg page) g.Node {
	var who g.Node
	if pg.Visitor != "" {
		who = h.Span(h.Class("who"), h.Title("signed in as "+pg.Visitor), g.Text(pg.Visitor))
	} else if pg.SignIn != "" {
		who = h.A(h.Class("who"), href(pg.SignIn), g.Text("Sign in"))
	}
	return h.Div(h.Class("bar"), h.Form(h.Action(searchPath), h.Role("search"),
		h.A(h.Class("home"), href(searchPath), h.Title("Packhorse: search code"),
			h.Img(h.Src(p.assetPaths["icon.svg"]), h.Alt(""), h.Width("28"), h.Height("28")),
			h.Span(g.Text("Packhorse"))),
		h.Div(h.Class("box"),
			h.Label(h.Class("hide"), h.For("q"), g.Text("Search code")),
			h.Input(h.ID("q"), h.Name("q"), h.Type("search"), h.Value(pg.Query), h.Placeholder("Search code"),
				h.AutoComplete("off"), g.Attr("autocapitalize", "off"), g.Attr("autocorrect", "off"), h.SpellCheck("false"),
				g.Attr("enterkeyhint", "search"), g.If(pg.Focus, h.AutoFocus())),
			h.Kbd(h.Aria("hidden", "true"), g.Text("/"))),
		h.Button(g.Text("Search")),
		who,
	))
}

// footer returns the list of keys that a kind of page has.
func footer(kind string) g.Node {
	keys := func(text string, names ...string) g.Node {
		var nodes g.Group
		for _, name := range names {
			nodes = append(nodes, h.Kbd(g.Text(name)), g.Text(" "))
		}
		return h.Span(h.Class("keys"), nodes, g.Text(text))
	}
	switch kind {
	case "search":
		return h.Footer(keys("search", "/"), keys("next and previous line", "j", "k"),
			keys("next and previous file", "n", "p"), keys("open", "Enter"))
	case "file":
		return h.Footer(keys("search", "/"), keys("and a line's number: mark up to there", "Shift"))
	}
	return h.Footer()
}

// card returns a message in place of the content of a page.
func card(heading, message string) g.Node {
	return h.Div(h.Class("card"), h.H2(g.Text(heading)), h.P(g.Text(message)))
}

// href returns the attribute that makes an element a link. A path that is not one of our pages leads nowhere: parts of
// paths come from repositories.
func href(path string) g.Node {
	if !strings.HasPrefix(path, "/-/") && !strings.HasPrefix(path, "#") {
		path = "#"
	}
	return h.Href(path)
}

// number returns an integer as text.
func number(n int) g.Node { return g.Text(strconv.Itoa(n)) }

// counted returns a number in bold and the noun that fits it.
func counted(n int, one, many string) g.Node {
	return g.Group{h.Strong(number(n)), g.Text(" " + plural(n, one, many))}
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// render returns pieces of text as nodes.
func render(pieces []piece) g.Node {
	return g.Map(pieces, func(p piece) g.Node {
		switch {
		case p.Hit:
			return h.Mark(g.Text(p.Text))
		case p.Control:
			return h.B(h.Class("ctl"), h.Title("an invisible character that changes how text is shown"), g.Text(p.Text))
		}
		return g.Text(p.Text)
	})
}
