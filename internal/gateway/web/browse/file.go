package browse

import (
	"bytes"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/lfs"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	maxShown   = 2 << 20  // bytes of a file on a page
	maxLines   = 20_000   // lines of a file on a page
	maxRaw     = 32 << 20 // bytes of a file as it is
	binarySign = 8000     // a NUL among this number of first bytes makes a file binary, as in Git
)

// blob is a file.
type blob struct {
	id   string
	size int64
	mode uint32
	data []byte // nil: the file is larger than the limit, or an image in Git LFS

	object  *lfs.Object // that the file is a pointer to; nil: it is not one. size and data are the object's
	missing bool        // the repository does not have the object
}

// isBinary reports whether Git treats the file as binary.
func (b *blob) isBinary() bool { return bytes.IndexByte(b.data[:min(len(b.data), binarySign)], 0) >= 0 }

// blob reads a file, without its data if it has more than limit bytes.
func (q *request) blob(path string, limit int64) (*blob, error) { return q.blobAt(q.in(path), limit) }

func (q *request) blobAt(in *packhorsev1.RevisionPath, limit int64) (*blob, error) {
	b := &blob{}
	err := all(q, packhorsev1connect.ObjectServiceBlobProcedure, &packhorsev1.BlobRequest{
		Blob: &packhorsev1.BlobRequest_Path{Path: in}, Length: limit,
	}, func(m *packhorsev1.BlobResponse) error {
		if header := m.GetHeader(); header != nil {
			b.id, b.size, b.mode = header.GetOid(), header.GetSize(), header.GetMode()
			if b.size > 0 && b.size <= limit {
				if err := q.hold(int(b.size)); err != nil {
					return err
				}
				b.data = make([]byte, 0, b.size)
			}
		}
		if b.size <= limit {
			b.data = append(b.data, m.GetData()...)
		}
		return nil
	})
	if err == nil && b.size <= limit && int64(len(b.data)) != b.size {
		return nil, fault.New(fault.Internal, "the storage node sent %d of %d bytes of a file", len(b.data), b.size)
	}
	return b, err
}

// file shows a file.
func (q *request) file() (*content, error) {
	b, err := q.blob(q.path, maxShown)
	if fault.Is(err, fault.Invalid) { // a directory, most often
		if q.kind.name == "file" {
			return q.tree()
		}
		return q.module(err)
	}
	if err == nil {
		err = q.resolvePointer(b)
	}
	if err != nil {
		return nil, err
	}
	if b.size > maxShown {
		b.data = nil
	}
	main, remarks, hasLines := q.fileContent(b)
	kind := "tree"
	if hasLines {
		kind = "file"
	}
	return &content{title: q.path + " - " + q.repo.String(), kind: kind, noStore: b.object != nil, main: g.Group{
		q.crumbs(""), q.fileTabs("File"), q.permanent(), h.P(h.Class("about"), g.Map(remarks, func(text string) g.Node {
			return h.Span(g.Text(text))
		})), main,
	}}, nil
}

// fileTabs returns the tabs of a file.
func (q *request) fileTabs(current string) g.Node {
	return tabs(current, tab{"File", q.link("file", q.here(), q.path)}, tab{"Blame", q.link("blame", q.here(), q.path)},
		tab{"History", q.link("history", q.here(), q.path)}, tab{"Raw", q.link("raw", q.here(), q.path)},
		tab{"Permanent link", q.link("file", q.at.id.String(), q.path)})
}

// fileContent returns the main part of a file's page, remarks about the file, and whether it has lines.
func (q *request) fileContent(b *blob) (main g.Node, remarks []string, hasLines bool) {
	remarks = []string{humanize.IBytes(uint64(b.size))}
	raw := h.P(h.A(page.Href(q.link("raw", q.here(), q.path)), g.Text("Download it.")))
	switch b.mode {
	case modeLink:
		return q.linkTarget(string(b.data)), []string{"symbolic link"}, false
	case modeProgram:
		remarks = append(remarks, "executable")
	}
	if b.object != nil {
		remarks = append(remarks, "Git LFS")
	}
	switch {
	case b.missing:
		return page.Card("This file is in Git LFS", "Its content has "+humanize.IBytes(uint64(b.size))+
			", and this server does not have it."), remarks, false
	case isImage(q.path) && b.size <= maxRaw:
		image := h.Img(h.Src(q.link("raw", q.at.id.String(), q.path)), h.Alt(page.Visible(q.path)))
		return h.P(h.Class("image"), image), remarks, false
	case b.data == nil && b.size > 0:
		most := "At most " + humanize.IBytes(maxShown) + " are shown."
		return page.Card("This file is too large to show", most, raw), remarks, false
	case b.size == 0:
		return page.Card("This file is empty", "It has 0 bytes."), nil, false
	case b.isBinary():
		return page.Card("This file is binary", "Browsers cannot show it.", raw), remarks, false
	}
	part, first, total := q.excerpt(string(b.data))
	lines, language, result := q.Painter.Lines(q.r.Context(), q.path, part)
	q.busy = page.IsUnfinished(result)
	remarks = append(remarks, strconv.Itoa(total)+" "+page.Plural(total, "line", "lines"))
	if language != "" {
		remarks = append(remarks, language)
	}
	if remark := page.PaintRemark(result); remark != "" {
		remarks = append(remarks, remark)
	}
	var text strings.Builder
	text.Grow(len(part) * 2)
	for i, line := range lines {
		number := strconv.Itoa(first + i + 1)
		text.WriteString(`<p id="L` + number + `"><a href="#L` + number + `" data-n="` + number + `" aria-label="line ` +
			number + `"></a><code>` + line + "</code></p>\n")
	}
	return g.Group{q.otherLines(first, len(lines), total), h.Div(h.Class("code"), h.TabIndex("0"), h.Role("region"),
		h.Aria("label", "Content"), h.Div(g.Raw(text.String())))}, remarks, true
}

// excerpt returns the lines of a text that the page shows, the number of lines before them, and that of all lines. The
// address may name one of them (?line=).
func (q *request) excerpt(text string) (part string, before, total int) {
	total = strings.Count(text, "\n")
	if text != "" && !strings.HasSuffix(text, "\n") {
		total++
	}
	if total <= maxLines {
		return text, 0, total
	}
	line, _ := strconv.Atoi(q.query.Get("line"))
	before = (min(max(line, 1), total) - 1) / maxLines * maxLines
	text = text[lineAt(text, before):]
	return text[:lineAt(text, maxLines)], before, total
}

// lineAt returns where line n of a text begins, or the end of the text. The first line is 0.
func lineAt(text string, n int) (at int) {
	for ; n > 0; n-- {
		i := strings.IndexByte(text[at:], '\n')
		if i < 0 {
			return len(text)
		}
		at += i + 1
	}
	return at
}

// otherLines returns a note with a way to the lines that the page does not show, or nil.
func (q *request) otherLines(before, shown, total int) g.Node {
	if shown >= total {
		return nil
	}
	at := q.otherKind("tree", "file")
	to := func(line int, label string) g.Node {
		return h.A(page.Href(at+"?line="+strconv.Itoa(line)+"#L"+strconv.Itoa(line)), g.Text(label))
	}
	return h.Form(h.Class("filter"), g.If(at != "", h.Action(at)),
		h.P(h.Class("note"), g.Textf("Lines %d to %d of %d. ", before+1, before+shown, total),
			g.If(before > 0, to(max(1, before+1-maxLines), "Lines before")), g.Text(" "),
			g.If(before+shown < total, to(before+shown+1, "Lines after"))),
		h.Label(g.Text("Line"), h.Input(h.Name("line"), h.Type("number"), h.Min("1"), h.Max(strconv.Itoa(total)))),
		h.Button(g.Text("Show")))
}

// linkTarget returns the target of a symbolic link, as a link if it is in the repository.
func (q *request) linkTarget(target string) g.Node {
	to, inside := follow(q.path, target)
	if !inside {
		return page.Card("This is a symbolic link", "It leads out of the repository, to "+page.Visible(target)+".")
	}
	return page.Card("This is a symbolic link", "It leads to:",
		h.P(h.A(page.Href(q.link("file", q.here(), to)), page.Text(target))))
}

// follow returns the path that a symbolic link leads to, and whether it is in the repository.
func follow(link, target string) (to string, inside bool) {
	dir, _ := cutLast(link)
	to = path.Join(dir, target)
	return to, !strings.HasPrefix(target, "/") && to != ".." && !strings.HasPrefix(to, "../")
}

// imageTypes are the types of images that pages show, by the extensions of files. SVG images have no scripts in img
// elements, and raw has a policy that prevents them.
var imageTypes = map[string]string{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg",
	".gif": "image/gif", ".webp": "image/webp", ".avif": "image/avif", ".svg": "image/svg+xml", ".ico": "image/x-icon",
	".bmp": "image/bmp"}

func isImage(name string) bool { return imageTypes[strings.ToLower(path.Ext(name))] != "" }

// raw sends a file as it is: images as what they are, other text as plain text, and the rest as attachments. The policy
// turns scripts off if a browser opens it.
func (q *request) raw() (*content, error) {
	b, err := q.blob(q.path, maxRaw)
	if fault.Is(err, fault.Invalid) { // a directory, most often
		return q.tree()
	}
	if err != nil {
		return nil, err
	}
	if err := q.resolvePointer(b); err != nil {
		return nil, err
	}
	if b.missing {
		return nil, fault.New(fault.NotFound, "this file is in Git LFS: its content has %s, and this server does not have it",
			humanize.IBytes(uint64(b.size)))
	}
	if b.data == nil && b.size > 0 && b.object == nil {
		return nil, fault.New(fault.Invalid, "this file has more than %s: clone the repository to read it",
			humanize.IBytes(maxRaw))
	}
	_, name := cutLast(q.path)
	contentType, disposition := "text/plain; charset=utf-8", "inline"
	switch known := imageTypes[strings.ToLower(path.Ext(name))]; {
	case known != "":
		contentType = known
	case b.isBinary(), b.object != nil && b.data == nil && b.size > 0:
		contentType, disposition = "application/octet-stream", "attachment"
	}
	header := http.Header{"Content-Security-Policy": {"default-src 'none'; style-src 'unsafe-inline'; sandbox"},
		"X-Content-Type-Options": {"nosniff"}, "X-Robots-Tag": {"noindex"}}
	name = strings.ToValidUTF8(name, "_")
	if value := mime.FormatMediaType(disposition, map[string]string{"filename": name}); value != "" {
		header.Set("Content-Disposition", value)
	}
	raw := &rawContent{contentType: contentType, header: header, text: b.data, object: b.object}
	return &content{kind: "raw", raw: raw, noStore: b.object != nil}, nil
}

// cutLast splits a path into its directory, "" for the root, and its last component.
func cutLast(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}
