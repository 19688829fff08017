package browse

import (
	"slices"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	frontLog   = 5  // commits
	frontRefs  = 10 // branches, and as many tags
	frontFiles = 30 // entries of the root
)

// front shows a repository: what it is, how to clone it, its newest commits, its files and its README.
func (q *request) front() (*content, error) {
	got, err := one[packhorsev1.GetResponse](q, packhorsev1connect.RepositoryServiceGetProcedure,
		&packhorsev1.GetRequest{})
	if err != nil {
		return nil, err
	}
	repo := got.GetRepository()
	c := &content{title: q.repo.String(), kind: "tree"}
	about := g.Node(nil)
	if text := repo.GetSettings().GetDescription(); text != "" {
		about = h.P(h.Class("lead"), page.Text(text))
	}
	refs, err := q.frontRefs()
	if err != nil {
		return nil, err
	}
	if q.at.id == (git.ObjectID{}) {
		c.noStore = true
		places := tabs("Overview", tab{"Overview", q.link("")}, tab{"Branches and tags", q.link("refs")})
		if some, _, err := q.listRefs("refs/", "", 1); err != nil || len(some) > 0 {
			c.main = g.Group{q.crumbs(""), about, places, page.Card("HEAD leads to no commit", "Choose a branch or tag.", refs)}
			return c, err
		}
		c.main = g.Group{q.crumbs(""), about, places, page.Card("This repository is empty", "Push to it:",
			h.Pre(h.TabIndex("0"), g.Text("git remote add origin "+q.v.Address(q.repo.String())+"\ngit push -u origin HEAD")))}
		return c, nil
	}
	l, err := q.listing("")
	if err != nil {
		return nil, err
	}
	log, err := q.commits(&packhorsev1.LogRequest{Limit: frontLog})
	if err != nil {
		return nil, err
	}
	languages, err := q.languages()
	if err != nil {
		return nil, err
	}
	readme, err := q.readme(l)
	if err != nil {
		return nil, err
	}
	more := g.Node(nil)
	if n := len(l.entries); n > frontFiles {
		label := humanize.Comma(int64(n)) + " files and directories"
		if l.next != "" {
			label = "files and directories"
		}
		more = h.P(h.A(page.Href(q.link("tree", q.here())), g.Text("All "+label)))
		l.entries = l.entries[:frontFiles]
	}
	c.noStore = l.failure != nil
	c.main = g.Group{q.crumbs(""), about, h.P(h.Class("about"), q.facts(repo)), q.places("Overview"),
		h.Div(h.Class("front"), q.cloneBox(),
			h.Div(q.logTable(log, nil, nil), l.view(q), more, readme),
			h.Aside(refs, languages))}
	return c, nil
}

// facts returns the branch, size and owner of the repository, and so on.
func (q *request) facts(repo *packhorsev1.Repository) g.Node {
	facts := g.Group{h.Span(page.Text("branch " + q.shortRevision()))}
	if size := repo.GetSize(); size >= 0 { // otherwise it has too many files
		facts = append(facts, h.Span(g.Text(humanize.IBytes(uint64(size)))))
	}
	if c := category(repo); c != nil {
		facts = append(facts, c)
	}
	if owner := repo.GetSettings().GetOwner(); owner != "" {
		facts = append(facts, h.Span(page.Text("owner "+owner)))
	}
	if repo.GetSettings().GetArchived() {
		facts = append(facts, h.Span(g.Text("archived: it takes no changes")))
	}
	return facts
}

// frontRefs returns the first branches and the last tags.
func (q *request) frontRefs() (g.Node, error) {
	heads, more, err := q.listRefs(branches, "", frontRefs)
	if err != nil {
		return nil, err
	}
	all, _, err := q.listRefs(tags, "", maxRefNames)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *packhorsev1.Ref) int { return compareVersions(b.GetName(), a.GetName()) })
	newest := all[:min(len(all), frontRefs)]
	if err := q.nameRefs(refNamesOf(append(slices.Clone(heads), newest...))); err != nil {
		return nil, err
	}
	list := func(refs []*packhorsev1.Ref) g.Node {
		return h.Ul(g.Map(refs, func(ref *packhorsev1.Ref) g.Node {
			label := page.Text(shortName(ref.GetName()))
			if name := q.names[ref.GetName()]; name != "" {
				return h.Li(h.A(page.Href(q.link("tree", name)), label))
			}
			return h.Li(label)
		}))
	}
	return h.Section(h.H2(g.Text("Branches")), list(heads),
		g.If(len(newest) > 0, g.Group{h.H2(g.Text("Tags")), list(newest)}),
		g.If(more != "" || len(all) > frontRefs, h.P(h.A(page.Href(q.link("refs")), g.Text("All branches and tags"))))), nil
}
