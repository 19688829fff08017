// Package markup renders text of repositories as HTML that is safe on a page. Nothing of the text runs, frames or loads
// anything, except images of the repository itself.
package markup

import (
	"context"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	render "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/util"
	"golang.org/x/net/html"
)

// Links makes the paths of links in a text. They are relative to its directory, or begin with a slash at the root.
type Links struct {
	File func(path string) string // the page of a file
	Raw  func(path string) string // an image
}

var policy = sync.OnceValue(func() *bluemonday.Policy {
	p := bluemonday.NewPolicy()
	p.AllowElements("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code",
		"em", "strong", "del", "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "kbd", "sub", "sup", "details",
		"summary", "b", "i")
	p.AllowAttrs("id").Matching(bluemonday.SpaceSeparatedTokens).OnElements("a", "h1", "h2", "h3", "h4", "h5", "h6")
	p.AllowAttrs("align").Matching(bluemonday.CellAlign).OnElements("td", "th", "p", "h1", "h2", "h3", "img")
	p.AllowAttrs("width", "height").Matching(bluemonday.NumberOrPercent).OnElements("img")
	p.AllowAttrs("open").OnElements("details")
	p.AllowAttrs("href").OnElements("a")
	p.AllowAttrs("src", "alt", "title").OnElements("img")
	p.AllowAttrs("start").Matching(bluemonday.Integer).OnElements("ol")
	p.AllowURLSchemes("http", "https", "mailto")
	p.AllowRelativeURLs(true)
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnFullyQualifiedLinks(true)
	return p
})

// Markdown renders Markdown with tables, as code hosts do. ok is false if the text takes too long or has too much HTML,
// ctx ends, or the parser fails.
func Markdown(ctx context.Context, source []byte, links Links) (text string, ok bool) {
	defer func() {
		if recover() != nil {
			text, ok = "", false
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	l := limit{ctx}
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(
		parser.WithAutoHeadingID(), parser.WithBlockParsers(util.Prioritized(l, 0)),
		parser.WithInlineParsers(util.Prioritized(&inlineLimit{limit: l}, 0)),
		parser.WithParagraphTransformers(util.Prioritized(l, 0))), goldmark.WithRendererOptions(render.WithUnsafe()))
	b := limitedHTML{limit: l}
	err := md.Convert(source, &b, parser.WithContext(limitedContext{parser.NewContext(), l}))
	f := fragment{links: links, limit: l, ids: make(map[string]bool)}
	f.add(policy().SanitizeReader(&b))
	// blocks that scroll have to be reachable without a mouse
	return strings.ReplaceAll(f.out.String(), "<pre>", `<pre tabindex="0">`), err == nil
}

// fragment is HTML in the making.
type fragment struct {
	links Links
	limit limit
	out   strings.Builder
	open  []string        // elements
	ids   map[string]bool // so far
}

// maxDepth is the maximum number of elements within each other.
const maxDepth = 200

// add adds HTML of the policy's elements, and changes the addresses of links and images. It closes all elements, so
// that the rest of the page is not in one of them. The policy has no elements that contain the text on pages: a text
// cannot close those.
func (f *fragment) add(source io.Reader) {
	z := html.NewTokenizer(source)
	for kind := z.Next(); kind != html.ErrorToken; kind = z.Next() {
		f.limit.check()
		switch token := z.Token(); kind {
		case html.StartTagToken, html.SelfClosingTagToken:
			f.start(&token)
		case html.EndTagToken:
			for slices.Contains(f.open, token.Data) && f.end() != token.Data {
			}
		default:
			f.out.WriteString(token.String())
		}
	}
	for len(f.open) > 0 {
		f.end()
	}
}

// end closes the last element, and returns its name.
func (f *fragment) end() (name string) {
	last := len(f.open) - 1
	name, f.open = f.open[last], f.open[:last]
	f.out.WriteString("</" + name + ">")
	return name
}

// start adds the start of an element. An image that is not of the repository becomes its text.
func (f *fragment) start(t *html.Token) {
	alt, isForeign := "", false
	var kept []html.Attribute
	for _, a := range t.Attr {
		switch a.Key {
		case "href":
			a.Val = f.links.link(a.Val)
		case "src":
			a.Val = f.links.image(a.Val)
			isForeign = a.Val == ""
		case "alt":
			alt = a.Val
		case "id": // those of the text must not be those of the page
			if a.Val = "readme-" + a.Val; f.ids[a.Val] {
				continue
			}
			f.ids[a.Val] = true
		}
		kept = append(kept, a)
	}
	if isForeign {
		f.out.WriteString(html.EscapeString(alt))
		return
	}
	t.Type, t.Attr = html.StartTagToken, kept
	f.out.WriteString(t.String())
	if t.Data == "br" || t.Data == "hr" || t.Data == "img" {
		return
	}
	if f.open = append(f.open, t.Data); len(f.open) > maxDepth {
		panic(errTooMuch{})
	}
}

// link returns the address of a link. Those with a host stay.
func (l Links) link(to string) string {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return "#"
	case u.Scheme != "" || u.Host != "":
		return to
	case u.Path == "" && u.Fragment != "":
		return "#readme-" + u.EscapedFragment()
	case l.File == nil: // of this server
		return to
	}
	at := l.File(u.Path)
	if u.Fragment != "" {
		at += "#" + u.EscapedFragment()
	}
	return at
}

// image returns the address of an image of the repository; those of other hosts are not loaded.
func (l Links) image(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || strings.HasPrefix(to, "//") {
		return ""
	}
	if l.Raw == nil {
		return to
	}
	return l.Raw(u.Path)
}
