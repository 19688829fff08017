package browse

import (
	"cmp"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/web/markup"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search/query"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	maxReadme   = 512 << 10 // bytes
	frontLog    = 5         // commits
	frontRefs   = 10        // branches, and as many tags
	frontFiles  = 30        // entries of the root
	languageMax = 10_000    // files whose language counts
	maxLinks    = 8         // symbolic links that lead to a README

	sizesTime = time.Second // to find the sizes of files
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
	if q.id == (git.ObjectID{}) {
		c.brief = true
		if some, _, err := q.listRefs("refs/", "", 1); err != nil || len(some) > 0 {
			c.main = g.Group{q.crumbs(""), about, page.Card("HEAD leads to no commit", "Choose a branch or tag.", refs)}
			return c, err
		}
		c.main = g.Group{q.crumbs(""), about, page.Card("This repository is empty", "Push to it:",
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
	more := g.Node(nil)
	if n := len(l.entries); n > frontFiles {
		label := humanize.Comma(int64(n)) + " files and directories"
		if l.next != "" {
			label = "files and directories"
		}
		more = h.P(h.A(page.Href(q.link("tree", q.here())), g.Text("All "+label)))
		l.entries = l.entries[:frontFiles]
	}
	c.brief = l.failure != nil
	c.main = g.Group{q.crumbs(""), about, h.P(h.Class("about"), facts), q.places("Overview"),
		h.Div(h.Class("front"), q.cloneBox(),
			h.Div(q.logTable(log, nil, nil), l.view(q), more, readme),
			h.Aside(refs, languages))}
	return c, nil
}

// cloneBox returns the commands to clone.
func (q *request) cloneBox() g.Node {
	address := q.v.Address(q.repo.String())
	line := func(id, label, text string) g.Node {
		return h.Div(h.Label(h.For(id), g.Text(label)), h.Input(h.ID(id), h.ReadOnly(), h.Value(text), h.Data("copy", "")))
	}
	ssh := g.Node(nil)
	if over := q.sshAddress(q.repo.String()); over != "" {
		ssh = line("clone-ssh", "SSH", "git clone "+quote(over))
	}
	return h.Section(h.Class("clone"), h.H2(g.Text("Clone")), line("clone-http", "HTTP", "git clone "+quote(address)), ssh,
		line("clone-mirror", "Mirror", "git clone --mirror "+quote(address)))
}

// sshAddress returns the address of a repository over SSH; "" without SSH.
func (q *request) sshAddress(repo string) string {
	host, port := q.SSH, ""
	if i := strings.LastIndexByte(q.SSH, ':'); i >= 0 && !strings.HasSuffix(q.SSH, "]") {
		host, port = q.SSH[:i], q.SSH[i:]
	}
	if here, err := url.Parse(q.v.Address("")); err == nil && host == "" {
		host = strings.TrimSuffix(here.Host, ":"+here.Port())
	}
	switch {
	case q.SSH == "":
		return ""
	case port != "" && port != ":22" || strings.HasPrefix(host, "["):
		return "ssh://git@" + host + port + "/" + page.Path(repo)
	}
	return "git@" + host + ":" + repo
}

// quote quotes an argument for a shell, if that is necessary.
func quote(text string) string {
	if strings.ContainsAny(text, " $&;[]()'\"\\*?<>|`!#~") {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
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

// versionRank orders parts: what is before a release, the end, and all others.
func versionRank(part string) int {
	switch part {
	case "-":
		return 0
	case "":
		return 1
	}
	return 2
}

// foreign matches paths of code that other projects have written.
var foreign = regexp.MustCompile(`(^|/)(vendor|node_modules|third_party|testdata)/`)

// languages returns the share of languages.
func (q *request) languages() (g.Node, error) {
	key := strings.Join([]string{"languages", q.repo.String(), q.id.String(), q.purges}, "\x00")
	f, ok := q.cache.get(key)
	if !ok {
		main, isLate, err := q.countLanguages()
		if err != nil {
			return nil, err
		}
		if f, err = newFragment(&content{main: g.Group{main}}); err != nil {
			return nil, err
		}
		if !isLate {
			q.cache.add(key, f)
		}
	}
	text, err := f.main.Text()
	return g.Raw(string(text)), err
}

// countLanguages counts the bytes of files by the language of their names. If that takes long, it counts files.
func (q *request) countLanguages() (main g.Node, isLate bool, err error) {
	tree := &packhorsev1.TreeResponse{}
	read := gateway.Read{Procedure: packhorsev1connect.ObjectServiceTreeProcedure, Known: q.known, Limit: sizesTime,
		Request:  &packhorsev1.TreeRequest{Path: q.in(""), Recursive: true, PageSize: languageMax, Sizes: true},
		Response: &packhorsev1.TreeResponse{}, Receive: func(m proto.Message) error {
			tree = m.(*packhorsev1.TreeResponse)
			return nil
		}}
	err = q.v.Read(read)
	isLate = fault.Is(err, fault.Deadline)
	byFile := isLate || fault.Is(err, fault.NotFound)
	if byFile {
		read.Limit = 0
		read.Request.(*packhorsev1.TreeRequest).Sizes = false
		err = q.v.Read(read)
	}
	if err != nil {
		return nil, isLate, err
	}
	all, count := int64(0), map[string]int64{}
	byExtension := map[string]string{}
	for _, e := range tree.GetEntries() {
		name := string(e.GetPath())
		extension := path.Ext(name)
		language, ok := byExtension[extension]
		if !ok {
			language = page.Language("x" + extension)
			byExtension[extension] = language
		}
		if language == "" || foreign.MatchString(name) {
			continue
		}
		size := e.GetSize()
		if byFile {
			size = 1
		}
		count[language] += size
		all += size
	}
	if all == 0 {
		return nil, isLate, nil
	}
	names := make([]string, 0, len(count))
	for name := range count {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), strings.Compare(a, b)) })
	names = slices.DeleteFunc(names, func(name string) bool { return count[name]*100 < all }) // less than 1 %
	rows := g.Map(names[:min(len(names), 6)], func(name string) g.Node {
		percent := g.Textf("%.1f %%", 100*float64(count[name])/float64(all))
		return h.Li(h.A(page.Href(page.SearchURL(query.InRepository(q.repo.String())+" lang:"+strings.ToLower(name)+" ")),
			g.Text(name)), h.Span(percent))
	})
	return h.Section(h.Class("languages"), h.H2(g.Text("Languages")), h.Ul(rows), g.If(tree.GetNextPageToken() != "",
		h.P(h.Class("note"), g.Text("Of the first "+humanize.Comma(languageMax)+" files.")))), isLate, nil
}

// readme returns the README of a directory, or nil.
func (q *request) readme(l *listing) (g.Node, error) {
	found := ""
	for _, e := range l.entries {
		name := string(e.GetPath())
		lower := strings.ToLower(name)
		if e.GetMode() != modeTree && e.GetMode() != modeSubmodule && (lower == "readme" ||
			strings.HasPrefix(lower, "readme.")) && (found == "" || strings.HasSuffix(lower, ".md")) {
			found = join(l.path, name)
		}
	}
	if found == "" {
		return nil, nil
	}
	b, err := q.blob(found, maxReadme)
	for n := 0; n < maxLinks && err == nil && b.mode == modeLink; n++ {
		to, inside := follow(found, string(b.data))
		if !inside {
			break
		}
		found = to
		b, err = q.blob(found, maxReadme)
	}
	if err != nil || b.data == nil || b.mode == modeLink || b.isBinary() {
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) { // a link that leads nowhere, or to a directory
			err = nil
		}
		return nil, err
	}
	dir, name := cutLast(found)
	text := g.Node(h.Pre(h.Class("prose"), page.Block(string(b.data))))
	if ext := strings.ToLower(path.Ext(name)); ext == ".md" || ext == ".markdown" {
		rendered, ok := "", false
		hasRun := q.Painter.Run(q.r.Context(), func() {
			rendered, ok = markup.Markdown(b.data, markup.Links{
				File: func(to string) string { return q.link("file", q.here(), inRepository(dir, to)) },
				Raw:  func(to string) string { return q.link("raw", q.id.String(), inRepository(dir, to)) },
			})
		})
		if q.busy = q.busy || !hasRun || !ok; ok {
			text = h.Div(h.Class("prose"), g.Raw(rendered))
		}
	}
	return h.Article(h.Class("readme"), h.H2(h.A(page.Href(q.link("file", q.here(), found)), page.Text(name))), text), nil
}

// inRepository returns the path of a link in a file of dir. One that begins with a slash begins at the root.
func inRepository(dir, to string) string {
	if strings.HasPrefix(to, "/") {
		dir = ""
	}
	return path.Join("/", dir, to)[1:]
}

// goGet opens the repository of a package of Go: the one with the longest path that is a prefix of the request's. err
// is the reason that there is none at the whole path.
func (q *request) goGet(err error) error {
	for dir, _ := cutLast(q.repo.String()); dir != "" && (fault.Is(err, fault.NotFound) ||
		fault.Is(err, fault.Unauthenticated)); dir, _ = cutLast(dir) {
		if path, bad := git.ParseRepoPath(dir); bad == nil {
			if q.repo = path; q.open() == nil {
				return nil
			}
		}
	}
	return err
}
