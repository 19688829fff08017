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

// filePage is the content of a file's page.
type filePage struct {
	page
	Repo, RepoURL, Name string
	Dirs                []crumb
	Commit, Short       string
	Size, Language      string
	Remark              string
	Lines               int
	Code                string // numbered lines, as HTML
	Why, Advice         string // instead of the code
}

type crumb struct{ Name, URL string }

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
	err = v.May(r.Context(), repository)
	if fault.Is(err, fault.NotFound) { // equal work, so that time does not reveal hidden repositories
		repository, err = absent(repository), nil
	}
	var file git.File
	if err == nil {
		file, err = p.Files.File(r.Context(), repository, named.commit, named.path, maxShown)
	}
	if fault.Is(err, fault.NotFound) {
		return p.showError(w, r, v, errNoFile())
	}
	if err != nil {
		return p.showError(w, r, v, err)
	}
	f := p.newFilePage(named, file, v.Name())
	return p.send(w, r, http.StatusOK, "file", p.layout(f.page, f.view()))
}

// absent returns the path of a repository that does not exist, about as long as another path. Nodes never serve paths
// with this prefix.
func absent(repository git.RepoPath) git.RepoPath {
	name := repository.String()
	path, err := git.ParseRepoPath(".packhorse/absent/" + name[:min(len(name), git.MaxRepoPath/2)])
	if err != nil {
		path, _ = git.ParseRepoPath(".packhorse/absent/repository")
	}
	return path
}

func (p *Pages) newFilePage(named namedFile, file git.File, visitor string) filePage {
	dirs := strings.Split(named.path, "/")
	name := dirs[len(dirs)-1]
	f := filePage{
		page: page{Kind: "file", Title: name + " - " + schema.Name(named.repository), Query: inRepository(named.repository) +
			" ", Visitor: visitor},
		Repo: schema.Name(named.repository), RepoURL: searchURL(inRepository(named.repository) + " select:file"), Name: name,
		Commit: named.commit.String(),
		Short:  short(named.commit.String()), Size: humanize.IBytes(uint64(file.Size)),
	}
	for i, dir := range dirs[:len(dirs)-1] {
		below := inRepository(named.repository) + " file:^" + pattern(strings.Join(dirs[:i+1], "/")+"/") + " select:file"
		f.Dirs = append(f.Dirs, crumb{dir, searchURL(below)})
	}
	switch file.Mode {
	case modeLink:
		f.Remark = "symbolic link"
	case modeProg:
		f.Remark = "executable"
	}
	switch {
	case file.Data == nil && file.Size > 0:
		f.Why, f.Advice = "This file is too large to show", "It has "+f.Size+"; at most "+humanize.IBytes(maxShown)+
			" are shown. Clone the repository to read it."
	case file.Size == 0:
		f.Why, f.Advice = "This file is empty", "It has 0 bytes."
	case bytes.IndexByte(file.Data[:min(len(file.Data), binarySign)], 0) >= 0:
		f.Why, f.Advice = "This file is binary", "Clone the repository to read it."
	default:
		var b strings.Builder
		b.Grow(len(file.Data) + len(file.Data)/2)
		spans, language, result := p.paint.spans(named.path, string(file.Data))
		f.Lines, f.Language = writeCode(&b, spans), language
		switch result {
		case paintLarge, paintLate:
			f.Remark = strings.TrimPrefix(f.Remark+", too much to highlight", ", ")
		case paintBusy:
			f.Remark = strings.TrimPrefix(f.Remark+", not highlighted: the server is busy", ", ")
		}
		f.Code = b.String()
	}
	return f
}

// view returns the main part of the page.
func (f filePage) view() g.Node {
	path := g.Group{h.A(href(f.RepoURL), g.Text(f.Repo))}
	for _, dir := range f.Dirs {
		path = append(path, h.I(g.Text("/")), h.A(href(dir.URL), g.Text(dir.Name)))
	}
	path = append(path, h.I(g.Text("/")), h.B(g.Text(f.Name)))
	about := g.Group{h.Span(g.Text("at "), h.Code(h.Title(f.Commit), g.Text(f.Short)))}
	lines := ""
	if f.Lines > 0 {
		lines = strconv.Itoa(f.Lines) + " " + plural(f.Lines, "line", "lines")
	}
	for _, text := range []string{f.Size, lines, f.Language, f.Remark} {
		if text != "" {
			about = append(about, h.Span(g.Text(text)))
		}
	}
	content := card(f.Why, f.Advice)
	if f.Why == "" {
		content = h.Div(h.Class("code"), h.Div(g.Raw(f.Code)))
	}
	return g.Group{h.H1(h.Class("crumbs"), path), h.P(h.Class("about"), about), content}
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
