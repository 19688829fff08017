package page

import (
	"cmp"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// Head is what the frame of a page depends on.
type Head struct {
	Kind  string // of its keys and its script: search, file (with lines), tree, log, diff, list or error
	Title string // followed by that of the site
	Query string // in the search box
	Focus bool   // the search box has the focus
	Index bool   // search engines may list the page, and follow its links

	Visitor string // the user's name, if known
	SignIn  string // the path of the page to sign in; "": signing in would make no difference
	Status  bool   // there is a link to the page with the status of the server
	Feed    string // the path of its Atom feed; "": there is none
	GoGet   string // the content of a go-import element; "": there is none
}

// Frame returns a whole page around its main part.
func (s *Site) Frame(pg Head, main ...g.Node) g.Node {
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			g.If(!pg.Index, h.Meta(h.Name("robots"), h.Content("noindex, nofollow"))),
			g.If(pg.Feed != "", h.Link(h.Rel("alternate"), h.Type("application/atom+xml"), Href(pg.Feed))),
			g.If(pg.GoGet != "", h.Meta(h.Name("go-import"), h.Content(pg.GoGet))),
			h.TitleEl(g.Text(pg.Title+" - "+s.Title)),
			h.Link(h.Rel("icon"), h.Type("image/svg+xml"), Href(s.assetPaths["icon.svg"])),
			h.Link(h.Rel("stylesheet"), Href(s.assetPaths["style.css"])),
			g.If(s.assetPaths["own"] != "", h.Link(h.Rel("stylesheet"), Href(s.assetPaths["own"]))),
			h.Script(h.Defer(), h.Src(s.assetPaths["page.js"])),
		),
		h.Body(h.Data("page", pg.Kind),
			h.A(h.Class("skip"), Href("#main"), g.Text("Skip to the content")),
			s.bar(pg),
			h.Main(h.ID("main"), h.TabIndex("-1"), g.Group(main)),
			footer(pg),
		),
	))
}

// bar returns the top of a page with the search box.
func (s *Site) bar(pg Head) g.Node {
	var who g.Node
	if pg.Visitor != "" {
		who = h.Details(h.Class("who"), h.Summary(h.Title("signed in as "+pg.Visitor), g.Text(pg.Visitor)),
			h.Div(h.A(Href(AccountPath), g.Text("Access tokens")),
				h.Form(h.Method("post"), h.Action(SignOutPath), h.Button(g.Text("Sign out")))))
	} else if pg.SignIn != "" {
		who = h.A(h.Class("who"), Href(pg.SignIn), g.Text("Sign in"))
	}
	return h.Header(h.Class("bar"), h.Div(h.Class("inner"), h.Form(h.Action(SearchPath), h.Role("search"),
		h.A(h.Class("home"), Href("/"), h.Title("all repositories"),
			h.Img(h.Src(cmp.Or(s.assetPaths["logo"], s.assetPaths["icon.svg"])), h.Alt(""), h.Width("28"), h.Height("28")),
			h.Span(g.Text(s.Title))),
		h.Div(h.Class("box"),
			h.Label(h.Class("hide"), h.For("q"), g.Text("Search code")),
			h.Input(h.ID("q"), h.Name("q"), h.Type("search"), h.Value(pg.Query), h.Placeholder("Search code"),
				h.AutoComplete("off"), g.Attr("autocapitalize", "off"), g.Attr("autocorrect", "off"), h.SpellCheck("false"),
				g.Attr("enterkeyhint", "search"), g.If(pg.Focus, h.AutoFocus())),
			h.Kbd(h.Aria("hidden", "true"), g.Text("/"))),
		h.Button(g.Text("Search")),
	), who))
}

// footer returns the list of keys that a kind of page has, and the link for administrators.
func footer(pg Head) g.Node {
	status := g.If(pg.Status, h.A(Href(StatusPath), g.Text("Status of the server")))
	keys := func(text string, names ...string) g.Node {
		var nodes g.Group
		for _, name := range names {
			nodes = append(nodes, h.Kbd(g.Text(name)), g.Text(" "))
		}
		return h.Span(h.Class("keys"), nodes, g.Text(text))
	}
	switch pg.Kind {
	case "search":
		return h.Footer(keys("search", "/"), keys("next and previous line", "j", "k"),
			keys("next and previous file", "n", "p"), keys("open", "Enter"), status)
	case "file":
		return h.Footer(keys("search", "/"), keys("next and previous line number", "↓", "↑"),
			keys("mark the line", "Enter"), keys("mark up to there", "Shift", "Enter"), status)
	}
	return h.Footer(status)
}

// Card returns a message in place of the content of a page.
func Card(heading, message string, more ...g.Node) g.Node {
	return h.Div(h.Class("card"), h.H2(g.Text(heading)), h.P(g.Text(message)), g.Group(more))
}

// Href returns the attribute that makes an element a link. A path that is not on this server leads nowhere: parts of
// paths come from repositories.
func Href(path string) g.Node {
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "#") && !strings.HasPrefix(path, "?") ||
		strings.HasPrefix(path, "//") || strings.HasPrefix(path, "/\\") {
		path = "#"
	}
	return h.Href(path)
}

// Number returns an integer as text.
func Number(n int) g.Node { return g.Text(strconv.Itoa(n)) }

// Counted returns a number in bold and the noun that fits it.
func Counted(n int, one, many string) g.Node {
	return g.Group{h.Strong(Number(n)), g.Text(" " + Plural(n, one, many))}
}

func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Render returns pieces of text as nodes.
func Render(pieces []Piece) g.Node {
	return g.Map(pieces, func(p Piece) g.Node {
		switch {
		case p.Hit:
			return h.Mark(g.Text(p.Text))
		case p.Control:
			return h.B(h.Class("ctl"), h.Title("an invisible character that changes how text is shown"), g.Text(p.Text))
		}
		return g.Text(p.Text)
	})
}
