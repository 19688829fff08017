package browse

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	branches = "refs/heads/"
	tags     = "refs/tags/"

	maxRefNames = 2000 // refs whose names are shown beside commits
	maxBadges   = 20   // of one commit
	pageRefs    = 500
)

// listRefs returns refs with a prefix, about limit, and the token of the next page. The branch of the request is the
// first one: on the pages of a repository, that of HEAD.
func (q *request) listRefs(prefix, token string, limit int) (list []*packhorsev1.Ref, next string, err error) {
	err = all(q, packhorsev1connect.RefServiceListProcedure, &packhorsev1.RefServiceListRequest{Prefix: prefix,
		PageSize: int32(limit), PageToken: token, Peel: true}, func(m *packhorsev1.RefServiceListResponse) error {
		list = append(list, m.GetRefs()...)
		next = m.GetNextPageToken()
		return nil
	})
	if prefix == branches && strings.HasPrefix(q.at.ref, branches) {
		list = slices.DeleteFunc(list, func(ref *packhorsev1.Ref) bool { return ref.GetName() == q.at.ref })
		if token == "" {
			list = slices.Insert(list, 0, &packhorsev1.Ref{Name: q.at.ref, Oid: q.at.id.String()})
		}
	}
	return list, next, err
}

// commitOf returns the commit that a ref leads to.
func commitOf(ref *packhorsev1.Ref) string {
	if peeled := ref.GetPeeled(); peeled != "" {
		return peeled
	}
	return ref.GetOid()
}

// tips returns the commits that refs with a name for links lead to, with their subjects only, by their IDs.
func (q *request) tips(list []*packhorsev1.Ref) (map[string]*packhorsev1.Commit, error) {
	m := &packhorsev1.LogRequest{NoWalk: true}
	for _, ref := range list {
		if q.names[ref.GetName()] != "" {
			m.Revisions = append(m.Revisions, commitOf(ref))
		}
	}
	if len(m.Revisions) == 0 {
		return nil, nil
	}
	q.known = append(q.known, m.Revisions...)
	tips := make(map[string]*packhorsev1.Commit, len(list))
	return tips, all(q, packhorsev1connect.ObjectServiceLogProcedure, m, func(m *packhorsev1.LogResponse) error {
		for _, c := range m.GetCommits() {
			decode(c)
			c.Message = []byte(subjectOf(c))
			tips[c.GetOid()] = c
		}
		return nil
	})
}

// refNames returns the names of branches and tags by commit. With very many refs it returns some.
func (q *request) refNames() (map[string][]string, error) {
	names := map[string][]string{}
	for _, prefix := range []string{branches, tags} {
		list, _, err := q.listRefs(prefix, "", maxRefNames)
		if err != nil {
			return nil, err
		}
		for _, ref := range list {
			if at := commitOf(ref); len(names[at]) < maxBadges {
				names[at] = append(names[at], ref.GetName())
			}
		}
	}
	return names, nil
}

// nameRefs finds out how links name refs: by the short name, or by a longer one if the short one means something else.
// Refs that lead to no commit have no name.
func (q *request) nameRefs(refs []string) error {
	if len(refs) == 0 {
		return nil
	}
	revisions := make([]string, len(refs))
	for i, ref := range refs {
		revisions[i] = shortName(ref) + "^{commit}"
	}
	results, err := q.v.Revisions(revisions)
	if err != nil {
		return err
	}
	if q.names == nil {
		q.names = map[string]string{}
	}
	for i, result := range results {
		ref := refs[i]
		switch {
		case result.Err == nil && result.Ref == ref:
			q.names[ref] = shortName(ref)
		case result.Err != nil && strings.HasPrefix(ref, tags):
			q.names[ref] = ""
		default:
			q.names[ref] = strings.TrimPrefix(ref, "refs/")
		}
	}
	return nil
}

// shortName returns a ref without refs/heads/ or refs/tags/.
func shortName(ref string) string {
	return strings.TrimPrefix(strings.TrimPrefix(ref, branches), tags)
}

// refBadge returns a link to the log of a ref.
func (q *request) refBadge(ref string) g.Node {
	class := "ref"
	if strings.HasPrefix(ref, tags) {
		class = "ref tag"
	}
	return g.Group{h.A(h.Class(class), page.Href(q.link("log", q.names[ref])), page.Text(shortName(ref))), g.Text(" ")}
}

// refs lists branches and tags.
func (q *request) refs() (*content, error) {
	main := g.Group{q.crumbs(""), q.places("Branches and tags"), q.compareForm(q.shortRevision(), "")}
	for _, part := range []struct{ heading, prefix, name string }{{"Branches", branches, "branch"},
		{"Tags", tags, "tag"}} {
		list, next, err := q.listRefs(part.prefix, q.query.Get(part.name), pageRefs)
		if err != nil {
			return nil, err
		}
		if err := q.nameRefs(refNamesOf(list)); err != nil {
			return nil, err
		}
		tips, err := q.tips(list)
		if err != nil {
			return nil, err
		}
		more := g.Node(nil)
		if next != "" {
			more = h.P(h.Class("more"), h.A(page.Href("?"+part.name+"="+url.QueryEscape(next)),
				g.Textf("More %s", strings.ToLower(part.heading))))
		}
		main = append(main, h.Section(h.H2(g.Text(part.heading)),
			g.If(len(list) == 0, h.P(h.Class("about"), g.Text("There are none."))),
			g.If(len(list) > 0, h.Table(h.Class("refs"), h.THead(h.Class("hide"), h.Tr(h.Th(g.Text("Name")),
				h.Th(g.Text("Subject")), h.Th(g.Text("Date")), h.Th(g.Text("Pages")), h.Th(g.Text("Archives")))),
				h.TBody(g.Map(list, func(ref *packhorsev1.Ref) g.Node {
					return q.refRow(ref, tips[commitOf(ref)])
				})))), more))
	}
	return &content{title: "Branches and tags - " + q.repo.String(), kind: "list", main: main,
		noStore: q.at.id == (git.ObjectID{})}, nil
}

func refNamesOf(list []*packhorsev1.Ref) []string {
	names := make([]string, len(list))
	for i, ref := range list {
		names[i] = ref.GetName()
	}
	return names
}

// refRow returns the row of a ref. tip is its commit if the server has sent that.
func (q *request) refRow(ref *packhorsev1.Ref, tip *packhorsev1.Commit) g.Node {
	name, label := q.names[ref.GetName()], shortName(ref.GetName())
	if name == "" {
		return h.Tr(h.Td(h.Class("name"), page.Text(label)), h.Td(h.Class("says"), g.Text("no commit")), h.Td(), h.Td(),
			h.Td())
	}
	isDefault := ref.GetName() == q.at.ref
	about := g.Group{h.Td(h.Class("says")), h.Td(h.Class("when"))}
	if tip != nil {
		about = g.Group{h.Td(h.Class("says"), q.commitLink(tip)), h.Td(h.Class("when"), when(tip.GetCommitter()))}
	}
	archive := g.Group{}
	for _, format := range []string{"tar.gz", "zip"} {
		archive = append(archive, h.A(page.Href(q.link("archive", name+"."+format)), h.Rel("nofollow"),
			h.Aria("label", fmt.Sprintf("%s as %s", page.Visible(label), format)), g.Text(format)), g.Text(" "))
	}
	return h.Tr(h.Td(h.Class("name"), h.A(page.Href(q.link("tree", name)), page.Text(label)),
		g.If(isDefault, g.Group{g.Text(" "), h.Span(h.Class("ref"), g.Text("default"))})), about,
		h.Td(h.Class("pages"), h.A(page.Href(q.link("log", name)), h.Aria("label", "log of "+page.Visible(label)),
			g.Text("log")), g.If(!isDefault, g.Group{g.Text(" "), h.A(page.Href(q.link("compare", "HEAD..."+name)),
			h.Rel("nofollow"), h.Aria("label", "compare with "+page.Visible(label)), g.Text("compare"))})), h.Td(archive))
}

// compareVersions compares names with their numbers by value: v1.9 is before v1.10, and v1.0-rc1 before v1.0.
func compareVersions(a, b string) int {
	order := 0
	for order == 0 && (a != "" || b != "") {
		x, y := versionPart(a), versionPart(b)
		a, b = a[len(x):], b[len(y):]
		n, m := strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		order = cmp.Or(versionRank(x)-versionRank(y), len(n)-len(m), strings.Compare(n, m), strings.Compare(x, y))
	}
	return order
}

// versionPart returns the digits at the start of a name, or one other byte.
func versionPart(name string) string {
	n := len(name) - len(strings.TrimLeft(name, "0123456789"))
	return name[:min(max(n, 1), len(name))]
}

// versionRank orders parts: "-", which begins the name of a candidate, then the end of a name, then all others.
func versionRank(part string) int {
	switch part {
	case "-":
		return 0
	case "":
		return 1
	}
	return 2
}
