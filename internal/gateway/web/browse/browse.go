package browse

import (
	"net/http"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	g "maragu.dev/gomponents"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/web/crawl"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Visitor is the caller of a page. Not safe for concurrent use.
type Visitor interface {
	page.Caller
	// Open makes the repository that of the calls, if the visitor may read it. It fails as a fetch would, but not for one
	// that the visitor may not know of: calls answer as for one that does not exist.
	Open(repository git.RepoPath) error
	// Revisions resolves revisions of the repository, in their order. Each has its own error.
	Revisions(revisions []string) ([]node.Result, error)
	// Read has a storage node answer a call about the repository.
	Read(c gateway.Read) error
	// Hold counts n more bytes that the request holds in memory until it ends, or fewer. It fails if all requests hold
	// too much.
	Hold(n int) error
	// List returns a page of the repositories that the visitor may read and whose path or description has a text.
	List(m *packhorsev1.ListRequest, contains string) (*packhorsev1.ListResponse, error)
	// LFSContent returns an LFS object of the repository. NotFound: the repository does not have it.
	LFSContent(o lfs.Object) ([]byte, error)
	// LFSStates returns what the repository knows about LFS objects, in their order. It reads none.
	LFSStates(list []lfs.Object) ([]lfs.Status, error)
	// SendLFS sends an LFS object of the repository, or the part that the visitor requests, as the whole response.
	SendLFS(o lfs.Object, header http.Header)
	// Address returns the address of a path on this server, as the visitor knows it.
	Address(path string) string
}

// Site serves the pages of repositories. Safe for concurrent use.
type Site struct {
	*page.Site
	gate    *crawl.Gate // for costly pages
	ssh     string
	cache   *cache
	visible *lru.Cache[string, struct{}] // commits that refs reach, see check
}

// NewSite returns a Site. ssh is HOST, HOST:PORT or, with the host of the page, :PORT of the SSH listener; "": none.
func NewSite(site *page.Site, gate *crawl.Gate, ssh string) *Site {
	visible, _ := lru.New[string, struct{}](maxVisible) // the size is valid
	return &Site{Site: site, gate: gate, ssh: ssh, cache: newCache(), visible: visible}
}

// kind is one kind of page.
type kind struct {
	name string
	show func(*request) (*content, error)
	// hasPath: REVISION/PATH follows the kind; otherwise REVISION does. hasRevision: one of both follows.
	hasRevision, hasPath bool
	hasTwo               bool     // A...B follows
	costly               bool     // see package crawl
	byRefs               bool     // it shows other refs than that of the revision
	bySettings           bool     // it shows settings
	hasHost              bool     // it shows addresses of this server
	index                bool     // search engines may list the page of a branch or tag
	fields               []string // of query strings that change the page
}

// kinds has all kinds of pages by the name in their addresses; "" is the page of the repository.
var kinds = map[string]*kind{
	"": {name: "", byRefs: true, bySettings: true, hasHost: true, show: (*request).front, index: true},
	"tree": {name: "tree", show: (*request).tree, hasRevision: true, hasPath: true, hasHost: true, index: true,
		fields: []string{"from", "wait"}},
	"file": {name: "file", show: (*request).file, hasRevision: true, hasPath: true, index: true,
		fields: []string{"line"}},
	"raw": {name: "raw", show: (*request).raw, hasRevision: true, hasPath: true},
	"blame": {name: "blame", show: (*request).blame, hasRevision: true, hasPath: true, costly: true,
		fields: []string{"line"}},
	"history": {name: "history", byRefs: true, show: (*request).history, hasRevision: true, hasPath: true, costly: true,
		fields: logFields},
	"log":    {name: "log", byRefs: true, show: (*request).log, hasRevision: true, hasPath: true, fields: logFields},
	"commit": {name: "commit", show: (*request).commit, hasRevision: true, hasHost: true},
	"compare": {name: "compare", show: (*request).compare, hasTwo: true, hasHost: true, costly: true,
		fields: []string{"from", "to"}},
	"refs": {name: "refs", byRefs: true, show: (*request).refs, fields: []string{"branch", "tag"}},
	"feed": {name: "feed", show: (*request).feed, hasRevision: true, hasHost: true},
}

// content is the main part of a page.
type content struct {
	title   string
	kind    string // see page.Head
	main    g.Node
	raw     *rawContent // in place of a page; nil: it is a page
	noStore bool        // it is not kept: it lacks something that comes later, or has no version
}

// rawContent is a response that is not a page.
type rawContent struct {
	contentType string
	header      http.Header
	text        []byte
	object      *lfs.Object // in place of the text; nil: there is none
}

const (
	mark = "/-/"

	maxVisible      = 10_000
	settingsSeconds = 10 // that a page may show former settings
)

// Split splits the path of a URL into those of a repository and of one of its pages. ok is false if it is not that of a
// page.
func Split(path string) (repository, rest string, ok bool) {
	repository, rest, ok = strings.Cut(path, mark)
	if !ok {
		return strings.TrimSuffix(path, "/"), "", true
	}
	name, _, _ := strings.Cut(rest, "/")
	return repository, rest, repository != "" && kinds[name] != nil
}

// Serve answers a request for a page of a repository. If it returns an error, it has sent no response.
func (s *Site) Serve(w http.ResponseWriter, r *http.Request, v Visitor) error {
	q := &request{Site: s, w: w, r: r, v: v}
	err := q.parse()
	if err == nil {
		err = q.open()
	}
	if err != nil && r.URL.Query().Get("go-get") == "1" && q.kind.name == "" {
		err = q.goGet(err)
	}
	if err == nil {
		err = q.answer()
	}
	if err == nil {
		return nil
	}
	// the path itself is that of no repository, as far as the visitor may know, or has a query with semicolons
	if to, ok := q.oldAddress(err); ok {
		http.Redirect(w, r, to, http.StatusMovedPermanently)
		return nil
	}
	return s.Fail(w, r, v, err)
}
