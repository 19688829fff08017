package browse

import (
	"path"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/markup"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

const (
	maxReadme = 512 << 10 // bytes
	maxLinks  = 8         // symbolic links that lead to a README
)

// readme returns the README of a directory, or nil.
func (q *request) readme(l *listing) (g.Node, error) {
	found := ""
	for _, e := range l.entries {
		name := string(e.GetPath())
		lower := strings.ToLower(name)
		if e.GetMode() != modeTree && e.GetMode() != modeSubmodule && (lower == "readme" ||
			strings.HasPrefix(lower, "readme.")) && (found == "" || strings.HasSuffix(lower, ".md")) {
			found = join(l.path, name)
		}
	}
	if found == "" {
		return nil, nil
	}
	b, err := q.blob(found, maxReadme)
	for n := 0; n < maxLinks && err == nil && b.mode == modeLink; n++ {
		to, inside := follow(found, string(b.data))
		if !inside {
			break
		}
		found = to
		b, err = q.blob(found, maxReadme)
	}
	if err != nil || b.data == nil || b.mode == modeLink || b.isBinary() {
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) { // a link that leads nowhere, or to a directory
			err = nil
		}
		return nil, err
	}
	dir, name := cutLast(found)
	text := g.Node(h.Pre(h.Class("prose"), page.Block(string(b.data))))
	if ext := strings.ToLower(path.Ext(name)); ext == ".md" || ext == ".markdown" {
		rendered, ok := "", false
		hasRun := q.Painter.Run(q.r.Context(), func() {
			rendered, ok = markup.Markdown(q.r.Context(), b.data, markup.Links{
				File: func(to string) string { return q.link("file", q.here(), inRepository(dir, to)) },
				Raw:  func(to string) string { return q.link("raw", q.at.id.String(), inRepository(dir, to)) },
			})
		})
		if q.busy = q.busy || !hasRun || !ok; ok {
			text = h.Div(h.Class("prose"), g.Raw(rendered))
		}
	}
	return h.Article(h.Class("readme"), h.H2(h.A(page.Href(q.link("file", q.here(), found)), page.Text(name))), text), nil
}

// inRepository returns the path of a link in a file of dir. One that begins with a slash begins at the root.
func inRepository(dir, to string) string {
	if strings.HasPrefix(to, "/") {
		dir = ""
	}
	return path.Join("/", dir, to)[1:]
}
