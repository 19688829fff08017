package browse

import (
	"cmp"
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
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/search/query"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	languageMax = 10_000      // files whose language counts
	sizesTime   = time.Second // to find the sizes of files
)

// foreign matches paths of code that other projects have written.
var foreign = regexp.MustCompile(`(^|/)(vendor|node_modules|third_party|testdata)/`)

// languages returns the share of languages.
func (q *request) languages() (g.Node, error) {
	key := strings.Join([]string{"languages", q.repo.String(), q.at.id.String(), q.purges}, "\x00")
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
		if language == "" || foreign.MatchString(name) || path.Base(name) == "go.mod" {
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
