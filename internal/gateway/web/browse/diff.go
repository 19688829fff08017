package browse

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/lfs"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	diffFiles     = 300       // of a page
	diffFileBytes = 256 << 10 // of one file
	diffBytes     = 2 << 20   // of a page
	diffRows      = 20_000    // lines of a page
	diffRow       = 400       // bytes of HTML for which a file counts as a further line
	listedFiles   = 5000      // files whose names are listed

	diffTime = 5 * time.Second // to make a difference
)

// diff is the difference between two commits.
type diff struct {
	files   []*packhorsev1.FileDiff
	summary *packhorsev1.PatchSummary
	modules modules // if it has changes of submodules
	rows    int     // lines that the page may still show
	isLate  bool    // it is not whole: it took too long

	pointers map[*packhorsev1.FileDiff][2]*lfs.Object // files in Git LFS, before and after
	objects  map[lfs.Object]lfs.State
}

// diff compares two commits. An empty first one is the first parent of the second one.
func (q *request) diff(from, to string, mergeBase bool) (*diff, error) {
	d := &diff{rows: diffRows}
	err := q.v.Read(gateway.Read{Procedure: packhorsev1connect.DiffServicePatchProcedure, Known: q.known, Limit: diffTime,
		Request: &packhorsev1.PatchRequest{From: from, To: to, MergeBase: mergeBase, MaxFiles: listedFiles,
			MaxFileBytes: diffFileBytes, MaxBytes: diffBytes},
		Response: &packhorsev1.PatchResponse{}, Receive: func(message proto.Message) error {
			switch m := message.(*packhorsev1.PatchResponse); {
			case m.GetFile() != nil:
				d.files = append(d.files, m.GetFile())
			case m.GetPatch() != nil && len(d.files) > 0:
				last := d.files[len(d.files)-1]
				last.Patch = append(last.Patch, m.GetPatch()...)
				return q.hold(len(m.GetPatch()))
			case m.GetSummary() != nil:
				d.summary = m.GetSummary()
			}
			return nil
		}})
	if fault.Is(err, fault.Deadline) {
		d.endLate()
		q.busy, err = true, nil
	}
	if err == nil && d.summary == nil {
		return nil, fault.New(fault.Internal, "the storage node sent a difference without its end")
	}
	if err == nil && slices.ContainsFunc(d.files, isModule) {
		d.modules, err = q.modules(to, cmp.Or(from, to+"^"))
	}
	if err == nil {
		d.findObjects(q)
	}
	return d, err
}

// endLate completes a difference whose rest was not made in time.
func (d *diff) endLate() {
	d.isLate, d.summary = true, &packhorsev1.PatchSummary{Files: int32(len(d.files))}
	for _, f := range d.files {
		d.summary.Additions += int64(f.GetAdditions())
		d.summary.Deletions += int64(f.GetDeletions())
	}
	if len(d.files) > 0 {
		d.files[len(d.files)-1].Truncated = true
	}
}

// shown returns the files whose changes are shown.
func (d *diff) shown() []*packhorsev1.FileDiff { return d.files[:min(len(d.files), diffFiles)] }

// view returns the list of files and their changes. before and after are the commits for links.
func (d *diff) view(q *request, before, after string) g.Node {
	s := d.summary
	notes := g.Group{}
	if d.isLate {
		notes = append(notes, h.P(h.Class("note"), g.Textf("This is not the whole difference: it takes more than %d seconds "+
			"to make.", int(diffTime.Seconds()))))
	}
	if s.GetTruncated() {
		notes = append(notes, h.P(h.Class("note"), g.Text("This is not the whole difference: it has too many or too large "+
			"files for a page.")))
	}
	if s.GetRenameLimitReached() {
		notes = append(notes, h.P(h.Class("note"), g.Text("There are too many files to find renames.")))
	}
	list := g.Map(d.files, func(f *packhorsev1.FileDiff) g.Node {
		return h.Tr(h.Td(h.Class("status"), h.Title(statusNames[f.GetStatus()]), g.Text(f.GetStatus())),
			h.Td(h.Class("name"), h.A(page.Href("#"+anchor(f)), page.Text(string(f.GetPath())))),
			h.Td(h.Class("plus"), g.If(f.GetAdditions() > 0, g.Textf("+%d", f.GetAdditions()))),
			h.Td(h.Class("minus"), g.If(f.GetDeletions() > 0, g.Textf("−%d", f.GetDeletions()))))
	})
	shown := d.shown()
	return g.Group{
		notes,
		g.If(len(d.files) > 0 || !d.isLate, h.Details(h.Class("changed"), g.If(len(d.files) <= 50, h.Open()),
			h.Summary(page.Counted(int(s.GetFiles()), "file", "files"), g.Text(" changed, "),
				h.Span(h.Class("plus"), g.Textf("+%d", s.GetAdditions())), g.Text(" "),
				h.Span(h.Class("minus"), g.Textf("−%d", s.GetDeletions()))),
			h.Table(h.TBody(list)))),
		g.Map(shown, func(f *packhorsev1.FileDiff) g.Node { return d.file(q, f, before, after) }),
		g.If(len(shown) < len(d.files), h.P(h.Class("note"), g.Textf("The changes of %d more files are not shown.",
			len(d.files)-len(shown)))),
	}
}

var statusNames = map[string]string{"A": "added", "M": "modified", "D": "deleted", "R": "renamed", "C": "copied",
	"T": "another type"}

// anchor returns the fragment of a file on the page of a difference.
func anchor(f *packhorsev1.FileDiff) string {
	return "f-" + strings.ToLower(fmt.Sprintf("%x", f.GetPath()))
}

// file returns the changes of a file.
func (d *diff) file(q *request, f *packhorsev1.FileDiff, before, after string) g.Node {
	path, old := string(f.GetPath()), string(f.GetOldPath())
	heading := g.Group{h.A(page.Href(q.link("file", after, path)), page.Text(path))}
	if f.GetStatus() == "D" {
		heading = g.Group{h.A(page.Href(q.link("file", before, path)), page.Text(path))}
	}
	about := statusNames[f.GetStatus()]
	if f.GetStatus() == "R" || f.GetStatus() == "C" {
		about = fmt.Sprintf("%s from %s, %d %% equal", about, page.Visible(old), f.GetSimilarity())
	}
	if f.GetOldMode() != f.GetMode() && f.GetOldMode() != 0 && f.GetMode() != 0 {
		about += fmt.Sprintf(", mode %o to %o", f.GetOldMode(), f.GetMode())
	}
	return h.Article(h.Class("file"), h.ID(anchor(f)), h.H3(heading, h.Span(g.Text(about))),
		g.Iff(isModule(f), func() g.Node { return d.moduleChange(q, f) }), d.pointerChange(q, f, before, after),
		d.changes(q, f, before, after))
}

// changes returns the hunks of a file, its images, or the reason for neither.
func (d *diff) changes(q *request, f *packhorsev1.FileDiff, before, after string) g.Node {
	path := string(f.GetPath())
	if f.GetBinary() && isImage(path) && before != "" {
		image := func(commit, path, label string) g.Node {
			return h.Figure(h.Img(h.Src(q.link("raw", commit, path)), h.Alt(label)), h.FigCaption(g.Text(label)))
		}
		return h.Div(h.Class("images"), g.If(f.GetStatus() != "A", image(before, string(f.GetOldPath()), "before")),
			g.If(f.GetStatus() != "D", image(after, path, "after")))
	}
	hunks := hunksOf(f.GetPatch())
	isCut := f.GetTruncated() || len(hunks) > d.rows
	hunks = hunks[:min(len(hunks), d.rows)]
	d.rows -= len(hunks)
	switch {
	case f.GetBinary():
		return h.P(h.Class("rest"), g.Text("This file is binary."))
	case len(hunks) == 0 && isCut:
		return h.P(h.Class("rest"), g.Text("The changes of this file are too large to show."))
	case len(hunks) == 0:
		return nil
	default:
		var b strings.Builder
		writeHunks(&b, hunks)
		d.rows = max(0, d.rows-b.Len()/diffRow)
		return g.Group{h.Div(h.Class("diff"), h.TabIndex("0"), h.Role("region"), h.Aria("label", "Changes of "+
			page.Visible(path)), h.Table(h.TBody(g.Raw(b.String())))),
			g.If(isCut, h.P(h.Class("rest"), g.Text("The rest of the changes is not shown.")))}
	}
}

// hunksOf returns the lines of a patch from its first hunk on.
func hunksOf(patch []byte) [][]byte {
	i := bytes.Index(patch, []byte("\n@@ "))
	if i < 0 {
		return nil
	}
	return bytes.Split(bytes.TrimSuffix(patch[i+1:], []byte("\n")), []byte("\n"))
}

// writeHunks writes rows with the lines of hunks and their numbers in both files.
func writeHunks(b *strings.Builder, lines [][]byte) {
	old, now := 0, 0
	for _, line := range lines {
		if len(line) == 0 {
			continue
		}
		sign, text := line[0], string(line[1:])
		class, left, right := "", "", ""
		switch sign {
		case '@':
			old, now = hunkStart(string(line))
			class, text = "hunk", string(line)
		case '+':
			class, right = "add", strconv.Itoa(now)
			now++
		case '-':
			class, left = "del", strconv.Itoa(old)
			old++
		case '\\':
			class = "hunk"
		default:
			left, right = strconv.Itoa(old), strconv.Itoa(now)
			old, now = old+1, now+1
		}
		text, cut := page.Shorten(strings.TrimSuffix(text, "\r"), page.MaxLine)
		b.WriteString(`<tr class="` + class + `"><td data-n="` + left + `"></td><td data-n="` + right + `"></td><td>`)
		if class == "add" || class == "del" { // for copies of the text, and for those who see no colours
			b.WriteString(`<span class="sign">` + string(sign) + `</span>`)
		}
		b.WriteString("<code>")
		page.WriteText(b, text)
		b.WriteString("</code>")
		if cut {
			b.WriteString(`<b class="ctl">the rest of this line is not shown</b>`)
		}
		b.WriteString("</td></tr>\n")
	}
}

// hunkStart returns the numbers of the first lines of a hunk.
func hunkStart(header string) (old, now int) {
	_, _ = fmt.Sscanf(strings.ReplaceAll(header, ",", " ,"), "@@ -%d", &old)
	if _, after, ok := strings.Cut(header, " +"); ok {
		_, _ = fmt.Sscanf(after, "%d", &now)
	}
	return old, now
}
