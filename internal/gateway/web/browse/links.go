package browse

import (
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/legacy"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
)

// link returns the path of a page of the repository.
func (q *request) link(kind string, parts ...string) string {
	return page.Address(page.Path(q.repo.String()), kind, parts...)
}

// here returns the revision of the address for links: the one that the visitor chose.
func (q *request) here() string {
	if q.at.text == "" {
		return "HEAD"
	}
	return q.at.text
}

// crumbs returns links to the repository and to the directories of the path, and a title. Without one, the last
// component of the path is not a link.
func (q *request) crumbs(title string) g.Node {
	name := q.repo.String()
	nodes := g.Group{h.A(page.Href(q.link("")), page.Text(name))}
	at := q.path
	if at != "" || q.kind.name == "tree" || q.kind.name == "log" {
		nodes = append(nodes, separator, h.A(page.Href(q.link("tree", q.here())), page.Text(q.shortRevision())))
	}
	for rest, done := at, ""; rest != ""; {
		part, next, _ := strings.Cut(rest, "/")
		done += part
		if nodes = append(nodes, separator); next == "" && title == "" {
			nodes = append(nodes, h.B(page.Text(part)))
		} else {
			nodes = append(nodes, h.A(page.Href(q.link("tree", q.here(), done)), page.Text(part)))
		}
		done, rest = done+"/", next
	}
	if title != "" {
		nodes = append(nodes, h.Span(h.Class("what"), g.Text(title)))
	}
	return h.H1(h.Class("crumbs"), nodes)
}

var separator = h.I(g.Text("/"))

// shortRevision returns the revision of the address for people.
func (q *request) shortRevision() string {
	if q.at.isFixed() {
		return page.Short(q.at.text)
	}
	if branch, ok := strings.CutPrefix(q.at.ref, branches); ok && q.here() == "HEAD" {
		return branch
	}
	return q.here()
}

// tab is a link to another view of the same object.
type tab struct{ name, path string }

// tabs returns links to other views.
func tabs(current string, list ...tab) g.Node {
	return h.Nav(h.Class("tabs"), h.Aria("label", "Views"), g.Map(list, func(t tab) g.Node {
		return h.A(page.Href(t.path), g.If(t.name == current, h.Aria("current", "page")), g.Text(t.name))
	}))
}

// places returns the tabs of the whole repository, and one of the directory if the address has one.
func (q *request) places(current string) g.Node {
	at := q.here()
	list := []tab{{"Overview", q.link("")}, {"Files", q.link("tree", at)}, {"Log", q.link("log", at)},
		{"Branches and tags", q.link("refs")}}
	if q.path != "" {
		list = append(list, tab{"History", q.link("history", at, q.path)})
	}
	return tabs(current, list...)
}

// permanent returns a note with a link to the newest state if the page is that of a commit, or nil.
func (q *request) permanent() g.Node {
	if q.at.isFixed() {
		return h.P(h.Class("note"), g.Text("This is the state of one commit. "),
			h.A(page.Href(q.link(q.kind.name, "HEAD", q.path)), g.Text("Go to the newest.")))
	}
	return nil
}

// otherKind returns the address of the page of another kind if the request has the kind from; otherwise "".
func (q *request) otherKind(from, to string) string {
	if q.kind.name != from {
		return ""
	}
	return q.link(to, q.here(), q.path)
}

// oldAddress returns the path of the page for an address of cgit, gitweb or Gitiles. cause is the error of the address
// as one of this server. ok is false if there is no page, or if the visitor may not know of it.
func (q *request) oldAddress(cause error) (to string, ok bool) {
	to, ok = legacy.Find(q.r.URL)
	needsName := fault.Is(cause, fault.Unauthenticated)
	if !ok || !needsName && !fault.Is(cause, fault.NotFound) && !fault.Is(cause, fault.Invalid) {
		return "", false
	}
	repo, rest, _ := strings.Cut(to, mark)
	name, isArchive := strings.CutPrefix(rest, "archive/")
	if !needsName && !isArchive || to == "/" {
		return to, true
	}
	path, err := git.ParseRepoPath(page.Unescape(strings.Trim(repo, "/")))
	if err == nil {
		err = q.v.Open(path)
	}
	if isArchive && err == nil {
		name = q.archiveOfTag(name)
		to = repo + mark + "archive/" + name
	}
	return to, !needsName || err == nil
}

// archiveOfTag completes the name of an archive: cgit leaves out the v of tags such as v1.0.
func (q *request) archiveOfTag(name string) string {
	if name == "" || name[0] < '0' || name[0] > '9' {
		return name
	}
	base := page.Unescape(name)
	for _, format := range []string{".tar.gz", ".tar.zst", ".tar", ".zip"} {
		base = strings.TrimSuffix(base, format)
	}
	results, err := q.v.Revisions([]string{base, "v" + base})
	if err == nil && results[0].Err != nil && results[1].Err == nil {
		return "v" + name
	}
	return name
}
