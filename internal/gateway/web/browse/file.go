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
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	maxShown   = 2 << 20  // bytes of a file on a page
	maxRaw     = 32 << 20 // bytes of a file as it is
	binarySign = 8000     // a NUL among this number of first bytes makes a file binary, as in Git
)

// blob is a file.
type blob struct {
	id   string
	size int64
	mode uint32
	data []byte // nil: the file is larger than the limit
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
	if err != nil {
		return nil, err
	}
	main, remarks := q.fileContent(b)
	return &content{title: q.path + " - " + q.repo.String(), kind: "file", main: g.Group{
		q.crumbs(""), q.fileTabs("File"), q.permanent(), h.P(h.Class("about"), g.Map(remarks, func(text string) g.Node {
			return h.Span(g.Text(text))
		})), main,
	}}, nil
}

// fileTabs returns the tabs of a file.
func (q *request) fileTabs(current string) g.Node {
	return tabs(current, tab{"File", q.link("file", q.here(), q.path)}, tab{"Blame", q.link("blame", q.here(), q.path)},
		tab{"History", q.link("history", q.here(), q.path)}, tab{"Raw", q.link("raw", q.here(), q.path)},
		tab{"Permanent link", q.link("file", q.id.String(), q.path)})
}

// fileContent returns the main part of a file's page, and remarks about the file.
func (q *request) fileContent(b *blob) (main g.Node, remarks []string) {
	remarks = []string{humanize.IBytes(uint64(b.size))}
	raw := h.P(h.A(page.Href(q.link("raw", q.here(), q.path)), g.Text("Download it.")))
	switch b.mode {
	case modeLink:
		return q.linkTarget(string(b.data)), []string{"symbolic link"}
	case modeProgram:
		remarks = append(remarks, "executable")
	}
	switch {
	case isImage(q.path) && b.size <= maxRaw:
		return h.P(h.Class("image"), h.Img(h.Src(q.link("raw", q.id.String(), q.path)), h.Alt(page.Visible(q.path)))), remarks
	case b.data == nil && b.size > 0:
		return page.Card("This file is too large to show", "At most "+humanize.IBytes(maxShown)+" are shown.", raw), remarks
	case b.size == 0:
		return page.Card("This file is empty", "It has 0 bytes."), nil
	case b.isBinary():
		return page.Card("This file is binary", "Browsers cannot show it.", raw), remarks
	}
	lines, language, result := q.Painter.Lines(q.path, string(b.data))
	remarks = append(remarks, strconv.Itoa(len(lines))+" "+page.Plural(len(lines), "line", "lines"))
	if language != "" {
		remarks = append(remarks, language)
	}
	if remark := page.PaintRemark(result); remark != "" {
		remarks = append(remarks, remark)
	}
	var text strings.Builder
	text.Grow(len(b.data) * 2)
	for i, line := range lines {
		number := strconv.Itoa(i + 1)
		text.WriteString(`<p id="L` + number + `"><a href="#L` + number + `" data-n="` + number + `" aria-label="line ` +
			number + `"></a><code>` + line + "</code></p>\n")
	}
	return h.Div(h.Class("code"), h.TabIndex("0"), h.Role("region"), h.Aria("label", "Content"),
		h.Div(g.Raw(text.String()))), remarks
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
	if b.data == nil && b.size > 0 {
		return nil, fault.New(fault.Invalid, "this file has more than %s: clone the repository to read it",
			humanize.IBytes(maxRaw))
	}
	_, name := cutLast(q.path)
	contentType, disposition := "text/plain; charset=utf-8", "inline"
	switch known := imageTypes[strings.ToLower(path.Ext(name))]; {
	case known != "":
		contentType = known
	case b.isBinary():
		contentType, disposition = "application/octet-stream", "attachment"
	}
	header := http.Header{"Content-Security-Policy": {"default-src 'none'; style-src 'unsafe-inline'; sandbox"},
		"X-Content-Type-Options": {"nosniff"}, "X-Robots-Tag": {"noindex"}}
	name = strings.ToValidUTF8(name, "_")
	if value := mime.FormatMediaType(disposition, map[string]string{"filename": name}); value != "" {
		header.Set("Content-Disposition", value)
	}
	return &content{kind: "raw", raw: &rawContent{contentType: contentType, header: header, text: b.data}}, nil
}

// cutLast splits a path into its directory, "" for the root, and its last component.
func cutLast(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}
