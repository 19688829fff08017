package browse

import (
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// blame shows the commits that the lines of a file come from.
func (q *request) blame() (*content, error) {
	b, err := q.blob(q.path, maxShown)
	if err != nil {
		return nil, err
	}
	title := "Blame of " + q.path + " - " + q.repo.String()
	frame := func(kind string, main ...g.Node) *content {
		return &content{title: title, kind: kind, main: g.Group{q.crumbs(""), q.fileTabs("Blame"), q.permanent(),
			g.Group(main)}}
	}
	if b.data == nil || b.isBinary() || b.mode == modeLink {
		message := "It is empty, binary, a link, or too large."
		return frame("tree", page.Card("There is no blame of this file", message)), nil
	}
	part, first, total := q.excerpt(string(b.data))
	lines, _, result := q.Painter.Lines(q.r.Context(), q.path, part)
	q.busy = page.IsUnfinished(result)
	commits := map[string]*packhorsev1.BlameCommit{}
	var hunks []*packhorsev1.BlameHunk
	name, raw := pathFields(q.path)
	err = all(q, packhorsev1connect.HistoryServiceBlameProcedure, &packhorsev1.BlameRequest{Revision: q.at.id.String(),
		Path: name, RawPath: raw}, func(m *packhorsev1.BlameResponse) error {
		for _, c := range m.GetCommits() {
			commits[c.GetOid()] = c
		}
		hunks = append(hunks, m.GetHunks()...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	byLine := make([]*packhorsev1.BlameHunk, len(lines))
	for _, hunk := range hunks {
		for n := range hunk.GetLines() {
			if at := int(hunk.GetFirstLine()-1) + int(n) - first; at >= 0 && at < len(lines) {
				byLine[at] = hunk
			}
		}
	}
	var text strings.Builder
	var last *packhorsev1.BlameHunk
	for i, line := range lines {
		number := strconv.Itoa(first + i + 1)
		text.WriteString(`<p id="L` + number + `">`)
		hunk := byLine[i]
		if hunk != nil && hunk != last {
			q.writeBlame(&text, hunk, commits[hunk.GetCommit()])
		} else {
			text.WriteString(`<span class="by"></span>`)
		}
		last = hunk
		text.WriteString(`<a href="#L` + number + `" data-n="` + number + `" aria-label="line ` + number + `"></a><code>` +
			line + "</code></p>\n")
	}
	return frame("file", q.otherLines(first, len(lines), total), h.Div(h.Class("code blame"), h.TabIndex("0"),
		h.Role("region"), h.Aria("label", "Lines and their commits"), h.Div(g.Raw(text.String())))), nil
}

// writeBlame writes the commit of a group of lines, and a link to the file before it.
func (q *request) writeBlame(to *strings.Builder, hunk *packhorsev1.BlameHunk, c *packhorsev1.BlameCommit) {
	before := h.B()
	if previous := hunk.GetPreviousCommit(); previous != "" {
		before = h.B(h.A(page.Href(q.link("blame", previous, string(hunk.GetPreviousPath()))),
			h.Title("blame before this commit"), h.Rel("nofollow"),
			h.Aria("label", "blame before "+page.Short(hunk.GetCommit())), g.Text("↰")))
	}
	subject, _ := page.Shorten(string(c.GetSummary()), 80)
	author, _ := page.Shorten(string(c.GetAuthor().GetName()), 20)
	_ = h.Span(h.Class("by"), h.A(page.Href(q.link("commit", hunk.GetCommit())), h.Title(page.Visible(subject)),
		g.Text(page.Short(hunk.GetCommit()))), h.Span(page.Text(author)), when(c.GetAuthor()), before).Render(to)
}
