package browse

import (
	"bytes"
	"net/url"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	pageEntries    = 1000
	maxSubject     = 1000        // bytes
	lastCommitTime = time.Second // to wait for the last commits of entries
)

// Modes of entries in trees.
const (
	modeTree      = 0o40000
	modeLink      = 0o120000
	modeSubmodule = 0o160000
	modeProgram   = 0o100755
)

// tree shows a directory.
func (q *request) tree() (*content, error) {
	listing, err := q.listing(q.path)
	if fault.Is(err, fault.Invalid) && q.kind.name == "tree" { // a file, most often
		return q.file()
	} else if fault.Is(err, fault.Invalid) && q.kind.name == "file" && q.path != "" {
		return q.module(err)
	}
	if err != nil {
		return nil, err
	}
	title := q.repo.String()
	if q.path != "" {
		title = q.path + " - " + title
	}
	more := g.Node(nil)
	if token := listing.next; token != "" {
		more = h.P(h.Class("more"), h.A(page.Href(q.otherKind("file", "tree")+"?from="+url.QueryEscape(token)),
			h.Rel("next"), g.Text("More entries")))
	}
	readme, err := q.readme(listing)
	if err != nil {
		return nil, err
	}
	return &content{title: title, kind: "tree", noStore: listing.failure != nil || q.kind.name == "file", main: g.Group{
		q.crumbs(""), q.places("Files"), q.permanent(),
		listing.view(q), more, readme,
	}}, nil
}

// listing is a page of the entries of a directory.
type listing struct {
	path    string // of the directory
	entries []*packhorsev1.TreeEntry
	next    string // of the next page
	last    map[string]*packhorsev1.Commit
	failure error // of finding the last commits; Deadline: they did not come in time
	modules modules
}

// listing reads a page of a directory, and the last commits of its entries if they come in time.
func (q *request) listing(path string) (*listing, error) {
	tree, err := one[packhorsev1.TreeResponse](q, packhorsev1connect.ObjectServiceTreeProcedure, &packhorsev1.TreeRequest{
		Path: q.in(path), PageSize: pageEntries,
		PageToken: q.query.Get("from"),
	})
	if err != nil {
		return nil, err
	}
	l := &listing{path: path, entries: tree.GetEntries(), next: tree.GetNextPageToken(),
		last: map[string]*packhorsev1.Commit{}}
	if slices.ContainsFunc(l.entries, func(e *packhorsev1.TreeEntry) bool { return e.GetMode() == modeSubmodule }) {
		if l.modules, err = q.modules(q.at.id.String()); err != nil {
			return nil, err
		}
	}
	limit := lastCommitTime
	if q.query.Has("wait") {
		limit = time.Minute
	}
	text, raw := pathFields(path)
	commits := map[string]*packhorsev1.Commit{}
	err = q.v.Read(gateway.Read{Procedure: packhorsev1connect.HistoryServiceLastCommitsProcedure, Known: q.known,
		Limit:    limit,
		Request:  &packhorsev1.LastCommitsRequest{Revision: q.at.id.String(), Path: text, RawPath: raw},
		Response: &packhorsev1.LastCommitsResponse{}, Receive: func(message proto.Message) error {
			m := message.(*packhorsev1.LastCommitsResponse)
			for _, c := range m.GetCommits() {
				decode(c)
				kept := &packhorsev1.Commit{Oid: c.GetOid(), Message: []byte(subjectOf(c)), Committer: &packhorsev1.Signature{
					Seconds: c.GetCommitter().GetSeconds(), OffsetMinutes: c.GetCommitter().GetOffsetMinutes()}}
				if err := q.v.Hold(len(kept.Message) + fixedCost); err != nil { // they are those of all pages
					return err
				}
				commits[c.GetOid()] = kept
			}
			for _, e := range m.GetEntries() {
				l.last[string(e.GetName())] = commits[e.GetCommit()]
			}
			return nil
		}})
	if !fault.Is(err, fault.NotFound) {
		l.failure, err = err, nil
	}
	return l, err
}

// view returns the table of the entries.
func (l *listing) view(q *request) g.Node {
	up := g.Node(nil)
	if l.path != "" {
		parent, _ := cutLast(l.path)
		up = h.Tr(h.Td(h.Class("name"), h.ColSpan("3"), h.A(page.Href(q.link("tree", q.here(), parent)),
			h.Class("dir"), g.Text("..")), h.Span(h.Class("hide"), g.Text(" parent directory"))))
	}
	late := g.Node(nil)
	if fault.Is(l.failure, fault.Deadline) {
		late = h.P(h.Class("about"), g.Text("The last commits were not found within a second. "),
			h.A(page.Href(q.link("tree", q.here(), l.path)+"?wait=1"), h.Rel("nofollow"), g.Text("Wait for them.")))
	} else if l.failure != nil {
		late = h.P(h.Class("about"), g.Text("The last commits are not shown: "+fault.Message(l.failure)+"."))
	}
	return g.Group{late, h.Table(h.Class("entries"),
		h.THead(h.Class("hide"), h.Tr(h.Th(g.Text("Name")), h.Th(g.Text("Last commit")), h.Th(g.Text("Date")))),
		h.TBody(up, g.Map(l.entries, func(e *packhorsev1.TreeEntry) g.Node { return l.row(q, e) })))}
}

// join joins a directory, "" for the root, and a name in it.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// row returns the row of an entry.
func (l *listing) row(q *request, e *packhorsev1.TreeEntry) g.Node {
	name := string(e.GetPath())
	path := join(l.path, name)
	class, label, to, at := "plain", name, "file", g.Node(nil)
	switch e.GetMode() {
	case modeTree:
		class, label, to = "dir", name+"/", "tree"
	case modeLink:
		class = "link"
	case modeSubmodule:
		class = "module"
		at = g.Group{g.Text(" @ "), q.moduleLink(l.modules[path], "", e.GetOid(), page.Short(e.GetOid()))}
	case modeProgram:
		class = "prog"
	}
	about := g.Group{h.Td(), h.Td()}
	if c := l.last[name]; c != nil {
		about = g.Group{h.Td(h.Class("says"), q.commitLink(c)), h.Td(h.Class("when"), when(c.GetCommitter()))}
	}
	return h.Tr(h.Td(h.Class("name"), h.A(h.Class(class), page.Href(q.link(to, q.here(), path)), page.Text(label)), at),
		about)
}

// commitLink returns a link to a commit with its subject.
func (q *request) commitLink(c *packhorsev1.Commit) g.Node {
	subject, _ := page.Shorten(subjectOf(c), 120)
	return h.A(page.Href(q.link("commit", c.GetOid())), page.Text(subject))
}

// subjectOf returns the first line of a commit's message.
func subjectOf(c *packhorsev1.Commit) string {
	line, _, _ := bytes.Cut(bytes.TrimLeft(c.GetMessage(), "\n"), []byte("\n"))
	if len(line) == 0 {
		return "(no message)"
	}
	return string(line[:min(len(line), maxSubject)])
}

// timeOf returns the time of a signature in its time zone.
func timeOf(s *packhorsev1.Signature) time.Time {
	return time.Unix(s.GetSeconds(), 0).In(time.FixedZone("", int(s.GetOffsetMinutes())*60))
}

const fullTime = "2006-01-02 15:04:05 -0700"

// when returns a time as a day, and in full for those who point at it.
func when(s *packhorsev1.Signature) g.Node {
	t := timeOf(s)
	return h.Time(h.DateTime(t.Format(time.RFC3339)), h.Title(t.Format(fullTime)), g.Text(t.Format(time.DateOnly)))
}
