// Package markup renders text of repositories as HTML that is safe on a page. Nothing of the text runs, frames or loads
// anything, except images of the repository itself.
package markup

import (
	"bytes"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Links makes the paths of links in a text, which are relative to its directory.
type Links struct {
	File func(path string) string // the page of a file
	Raw  func(path string) string // an image
}

var policy = sync.OnceValue(func() *bluemonday.Policy {
	p := bluemonday.NewPolicy()
	p.AllowElements("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code",
		"em", "strong", "del", "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "kbd", "sub", "sup", "details",
		"summary")
	p.AllowAttrs("id").Matching(bluemonday.SpaceSeparatedTokens).OnElements("h1", "h2", "h3", "h4", "h5", "h6")
	p.AllowAttrs("align").Matching(bluemonday.CellAlign).OnElements("td", "th")
	p.AllowAttrs("href").OnElements("a")
	p.AllowAttrs("src", "alt", "title").OnElements("img")
	p.AllowAttrs("start").Matching(bluemonday.Integer).OnElements("ol")
	p.AllowURLSchemes("http", "https", "mailto")
	p.AllowRelativeURLs(true)
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnFullyQualifiedLinks(true)
	return p
})

// Markdown renders Markdown with tables, as code hosts do. ok is false if the text takes too long, or the parser fails.
func Markdown(source []byte, links Links) (text string, ok bool) {
	defer func() {
		if recover() != nil {
			text, ok = "", false
		}
	}()
	l := limit{time.Now().Add(maxTime)}
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(
		parser.WithAutoHeadingID(), parser.WithASTTransformers(util.Prioritized(&relink{links}, 100)),
		parser.WithBlockParsers(util.Prioritized(l, 0)), parser.WithInlineParsers(util.Prioritized(inlineLimit{l}, 0)),
		parser.WithParagraphTransformers(util.Prioritized(l, 0))))
	var b bytes.Buffer
	err := md.Convert(source, &b, parser.WithContext(limitedContext{parser.NewContext(), l}))
	// blocks that scroll have to be reachable without a mouse
	return strings.ReplaceAll(policy().Sanitize(b.String()), "<pre>", `<pre tabindex="0">`), err == nil
}

// relink changes the addresses of links and images.
type relink struct{ links Links }

// Transform implements parser.ASTTransformer.
func (r *relink) Transform(doc *ast.Document, _ text.Reader, _ parser.Context) {
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // it returns no errors
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Link:
			n.Destination = []byte(r.link(string(n.Destination)))
		case *ast.Image:
			n.Destination = []byte(r.image(string(n.Destination)))
		case *ast.Heading: // IDs of the text must not be those of the page
			if id, ok := n.AttributeString("id"); ok {
				if text, ok := id.([]byte); ok {
					n.SetAttributeString("id", append([]byte("readme-"), text...))
				}
			}
		}
		return ast.WalkContinue, nil
	})
}

// link returns the address of a link. Those with a host stay.
func (r *relink) link(to string) string {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return "#"
	case u.Scheme != "" || u.Host != "":
		return to
	case r.links.File == nil || strings.HasPrefix(u.Path, "/"): // of this server
		return to
	case u.Path == "" && u.Fragment != "":
		return "#readme-" + u.Fragment
	}
	at := r.links.File(u.Path)
	if u.Fragment != "" {
		at += "#" + u.EscapedFragment()
	}
	return at
}

// image returns the address of an image of the repository; those of other hosts are not loaded.
func (r *relink) image(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || strings.HasPrefix(to, "//") {
		return ""
	}
	if r.links.Raw == nil {
		return to
	}
	return r.links.Raw(u.Path)
}
