package web

import (
	"bytes"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

const (
	maxShown   = 2 << 20 // bytes of a file
	binarySign = 8000    // a NUL among this number of first bytes makes a file binary, as in Git
	modeLink   = 0o120000
	modeProg   = 0o100755
)

// namedFile is the file that a URL names.
type namedFile struct {
	repository, path string
	commit           git.ObjectID
}

// parseFile parses the path of a file's page: repository, commit, path of the file. The first component that is a full
// object ID is the commit.
func parseFile(path string) (f namedFile, err error) {
	rest := strings.TrimPrefix(path, filePath)
	for at := 0; at < len(rest); {
		end := strings.IndexByte(rest[at:], '/')
		if end < 0 {
			break
		}
		if id, err := git.ParseObjectID(rest[at : at+end]); err == nil && at > 0 && at+end+1 < len(rest) {
			return namedFile{strings.Trim(rest[:at], "/"), rest[at+end+1:], id}, nil
		}
		at += end + 1
	}
	return f, fault.New(fault.NotFound,
		"The address of a file is %sREPOSITORY/COMMIT/PATH, with the full ID of the commit.", filePath)
}

// errNoFile is the error for files that do not exist and for those that the visitor may not read.
func errNoFile() error {
	return fault.New(fault.NotFound, "This commit does not have this file, or is no longer on a branch.")
}

func (p *Pages) file(w http.ResponseWriter, r *http.Request, v Visitor) error {
	named, err := parseFile(r.URL.Path)
	if err != nil {
		return p.showError(w, r, v, err)
	}
	repository, err := git.ParseRepoPath(named.repository)
	if err != nil || p.Files == nil {
		return p.showError(w, r, v, errNoFile())
	}
	var file git.File
	if repository, err = v.May(r.Context(), repository); err == nil {
		file, err = p.Files.File(r.Context(), repository, named.commit, named.path, maxShown)
	}
	if fault.Is(err, fault.NotFound) {
		return p.showError(w, r, v, errNoFile())
	}
	if err != nil {
		return p.showError(w, r, v, err)
	}
	return p.send(w, r, http.StatusOK, "file", p.filePage(named, file, v.Name()))
}

// filePage returns the page of a file.
func (p *Pages) filePage(named namedFile, file git.File, visitor string) g.Node {
	within := inRepository(named.repository)
	dirs := strings.Split(named.path, "/")
	name := dirs[len(dirs)-1]
	path := g.Group{h.A(href(searchURL(within+" select:file")), g.Text(schema.Name(named.repository)))}
	for i, dir := range dirs[:len(dirs)-1] {
		below := within + " file:^" + pattern(strings.Join(dirs[:i+1], "/")+"/") + " select:file"
		path = append(path, h.I(g.Text("/")), h.A(href(searchURL(below)), g.Text(dir)))
	}
	path = append(path, h.I(g.Text("/")), h.B(g.Text(name)))
	content, remarks := p.fileContent(named.path, file)
	switch file.Mode {
	case modeLink:
		remarks = append(remarks, "symbolic link")
	case modeProg:
		remarks = append(remarks, "executable")
	}
	commit := named.commit.String()
	about := g.Group{h.Span(g.Text("at "), h.Code(h.Title(commit), g.Text(short(commit))))}
	for _, text := range append([]string{humanize.IBytes(uint64(file.Size))}, remarks...) {
		about = append(about, h.Span(g.Text(text)))
	}
	return p.layout(page{Kind: "file", Title: name + " - " + schema.Name(named.repository), Query: within + " ",
		Visitor: visitor}, h.H1(h.Class("crumbs"), path), h.P(h.Class("about"), about), content)
}

// fileContent returns the text of a file or why it is not shown, and remarks about it.
func (p *Pages) fileContent(path string, file git.File) (content g.Node, remarks []string) {
	switch {
	case file.Data == nil && file.Size > 0:
		return card("This file is too large to show", "It has "+humanize.IBytes(uint64(file.Size))+"; at most "+
			humanize.IBytes(maxShown)+" are shown. Clone the repository to read it."), nil
	case file.Size == 0:
		return card("This file is empty", "It has 0 bytes."), nil
	case bytes.IndexByte(file.Data[:min(len(file.Data), binarySign)], 0) >= 0:
		return card("This file is binary", "Clone the repository to read it."), nil
	}
	var b strings.Builder
	b.Grow(len(file.Data) + len(file.Data)/2)
	spans, language, result := p.paint.spans(path, string(file.Data))
	lines := writeCode(&b, spans)
	remarks = append(remarks, strconv.Itoa(lines)+" "+plural(lines, "line", "lines"))
	if language != "" {
		remarks = append(remarks, language)
	}
	switch result {
	case paintLarge, paintLate:
		remarks = append(remarks, "too much to highlight")
	case paintBusy:
		remarks = append(remarks, "not highlighted: the server is busy")
	}
	return h.Div(h.Class("code"), h.Div(g.Raw(b.String()))), remarks
}

func writeLineStart(b *strings.Builder, n int) {
	number := strconv.Itoa(n)
	b.WriteString(`<p id="L` + number + `"><a href="#L` + number + `" data-n="` + number + `" aria-label="line ` + number +
		`"></a><code>`)
}

// short returns the start of an object ID.
func short(id string) string {
	if len(id) > 10 {
		return id[:10]
	}
	return id
}

// inRepository returns a query for one repository.
func inRepository(repository string) string { return "repo:^" + pattern(schema.Name(repository)) + "$" }

// pattern returns a regular expression that matches text and is one word of a query.
func pattern(text string) string {
	return strings.NewReplacer(" ", `\x20`, `"`, `\x22`, "'", `\x27`, "\t", `\x09`).Replace(regexp.QuoteMeta(text))
}
