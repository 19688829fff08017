package browse

import (
	"fmt"
	"net/url"
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
	pageRefs    = 500
)

// listRefs returns refs with a prefix, at most limit, and the token of the next page.
func (q *request) listRefs(prefix, token string, limit int) (list []*packhorsev1.Ref, next string, err error) {
	err = all(q, packhorsev1connect.RefServiceListProcedure, &packhorsev1.RefServiceListRequest{Prefix: prefix,
		PageSize: int32(limit), PageToken: token, Peel: true}, func(m *packhorsev1.RefServiceListResponse) error {
		list = append(list, m.GetRefs()...)
		next = m.GetNextPageToken()
		return nil
	})
	return list, next, err
}

// commitOf returns the commit that a ref leads to.
func commitOf(ref *packhorsev1.Ref) string {
	if peeled := ref.GetPeeled(); peeled != "" {
		return peeled
	}
	return ref.GetOid()
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
			names[commitOf(ref)] = append(names[commitOf(ref)], ref.GetName())
		}
	}
	return names, nil
}

// refBadge returns a link to the log of a ref.
func (q *request) refBadge(ref string) g.Node {
	name, isTag := strings.CutPrefix(ref, tags)
	class := "ref tag"
	if !isTag {
		name, class = strings.TrimPrefix(ref, branches), "ref"
	}
	return g.Group{g.Text(" "), h.A(h.Class(class), page.Href(q.link("log", name)), page.Text(name))}
}

// refs lists branches and tags.
func (q *request) refs() (*content, error) {
	main := g.Group{q.crumbs(""), q.places("Branches and tags")}
	for _, part := range []struct{ heading, prefix, name string }{{"Branches", branches, "branch"},
		{"Tags", tags, "tag"}} {
		list, next, err := q.listRefs(part.prefix, q.query.Get(part.name), pageRefs)
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
			g.If(len(list) > 0, h.Table(h.Class("refs"), h.TBody(g.Map(list, func(ref *packhorsev1.Ref) g.Node {
				return q.refRow(ref, part.prefix)
			})))), more))
	}
	return &content{title: "Branches and tags - " + q.repo.String(), kind: "list", main: main,
		brief: q.id == (git.ObjectID{})}, nil
}

func (q *request) refRow(ref *packhorsev1.Ref, prefix string) g.Node {
	name, id := strings.TrimPrefix(ref.GetName(), prefix), commitOf(ref)
	archive := g.Group{}
	for _, format := range []string{"tar.gz", "zip"} {
		archive = append(archive, h.A(page.Href(q.link("archive", name+"."+format)), h.Rel("nofollow"),
			h.Aria("label", fmt.Sprintf("%s as %s", page.Visible(name), format)), g.Text(format)), g.Text(" "))
	}
	return h.Tr(h.Td(h.Class("name"), h.A(page.Href(q.link("tree", name)), page.Text(name))),
		h.Td(h.A(page.Href(q.link("log", name)), g.Text("log"))),
		h.Td(h.Class("id"), h.A(page.Href(q.link("commit", id)), h.Code(g.Text(page.Short(id))))), h.Td(archive))
}
