package browse

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	lru "github.com/hashicorp/golang-lru/v2"
	"google.golang.org/protobuf/proto"
	g "maragu.dev/gomponents"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/web/crawl"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
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

// Options are the options of a Site.
type Options struct {
	*page.Site
	Gate *crawl.Gate // for costly pages
	SSH  string      // HOST, HOST:PORT or, with the host of the page, :PORT of the SSH listener; "": SSH is off
}

// Site serves the pages of repositories. Safe for concurrent use.
type Site struct {
	Options
	cache   *cache
	visible *lru.Cache[string, struct{}] // commits that refs reach, see check
}

// NewSite returns a Site.
func NewSite(o Options) *Site {
	visible, _ := lru.New[string, struct{}](maxVisible) // the size is valid
	return &Site{Options: o, cache: newCache(), visible: visible}
}

// kind is one kind of page.
type kind struct {
	name string
	show func(*request) (*content, error)
	// hasPath: REVISION/PATH follows the kind; otherwise REVISION does. hasRevision: one of both follows.
	hasRevision, hasPath bool
	hasTwo               bool // A...B follows
	costly               bool // see package crawl
	byRefs               bool // it shows other refs than that of the revision
	bySettings           bool // it shows settings
	index                bool // search engines may list the page of a branch or tag
}

// kinds has all kinds of pages by the name in their addresses; "" is the page of the repository.
var kinds = map[string]*kind{
	"":        {name: "", byRefs: true, bySettings: true, show: (*request).front, index: true},
	"tree":    {name: "tree", show: (*request).tree, hasRevision: true, hasPath: true, index: true},
	"file":    {name: "file", show: (*request).file, hasRevision: true, hasPath: true, index: true},
	"raw":     {name: "raw", show: (*request).raw, hasRevision: true, hasPath: true},
	"blame":   {name: "blame", show: (*request).blame, hasRevision: true, hasPath: true, costly: true},
	"history": {name: "history", byRefs: true, show: (*request).history, hasRevision: true, hasPath: true, costly: true},
	"log":     {name: "log", byRefs: true, show: (*request).log, hasRevision: true, hasPath: true},
	"commit":  {name: "commit", show: (*request).commit, hasRevision: true},
	"compare": {name: "compare", show: (*request).compare, hasTwo: true, costly: true},
	"refs":    {name: "refs", byRefs: true, show: (*request).refs},
	"feed":    {name: "feed", show: (*request).feed, hasRevision: true},
}

// content is the main part of a page.
type content struct {
	title string
	kind  string // see page.Head
	main  g.Node
	raw   *rawContent // in place of a page; nil: it is a page
	brief bool        // it is not kept: it lacks something that comes later, or has no version
}

// rawContent is a response that is not a page.
type rawContent struct {
	contentType string
	header      http.Header
	text        []byte
	object      *lfs.Object // in place of the text; nil: there is none
}

// request is a request for a page of a repository.
type request struct {
	*Site
	w     http.ResponseWriter
	r     *http.Request
	v     Visitor
	kind  *kind
	repo  git.RepoPath
	rest  string     // of the path, after the kind
	query url.Values // of the address

	revision string // as in the address; "" means HEAD
	id       git.ObjectID
	ref      string            // the ref that names id; "": none
	path     string            // of a file or directory, in bytes
	asPatch  bool              // the commit as a mail
	version  git.Version       // of the refs
	purges   string            // see node.Answer
	held     int               // bytes, see hold
	busy     bool              // the server had no time for colours, Markdown or sizes
	known    []string          // full IDs that refs led to, or are known to reach
	unknown  []string          // those that none did
	names    map[string]string // see nameRefs

	// of a comparison; id is that of the right one
	left, right string
	from        git.ObjectID
	mergeBase   bool
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
	if err != nil && q.query.Get("go-get") == "1" && q.kind.name == "" {
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

// parse reads the address.
func (q *request) parse() (err error) {
	escaped, rest, _ := Split(q.r.URL.EscapedPath())
	name, err := url.PathUnescape(strings.Trim(escaped, "/"))
	if err == nil {
		q.repo, err = git.ParseRepoPath(name)
	}
	if err != nil {
		return fault.New(fault.NotFound, "there is no page at this address")
	}
	first, rest, _ := strings.Cut(rest, "/")
	q.kind, q.rest = kinds[first], strings.TrimSuffix(rest, "/")
	if !q.kind.hasRevision && !q.kind.hasTwo && q.rest != "" {
		return fault.New(fault.NotFound, "there is no page at this address")
	}
	if q.query, err = url.ParseQuery(q.r.URL.RawQuery); err != nil {
		return fault.New(fault.Invalid, "the address of this page has an invalid query string")
	}
	return nil
}

// open authorizes the visitor and resolves the revision of the address.
func (q *request) open() error {
	if err := q.v.Open(q.repo); err != nil {
		return err
	}
	switch {
	case q.kind.hasTwo:
		return q.resolveTwo()
	case !q.kind.hasRevision:
		return q.resolve(false, "")
	}
	rest := q.rest
	if q.kind.name == "commit" {
		rest, q.asPatch = strings.CutSuffix(rest, ".patch")
	}
	return q.resolve(true, rest)
}

// maxParts is the maximum number of components of a revision.
const maxParts = 16

// resolve resolves the revision at the start of text. Empty text means HEAD.
func (q *request) resolve(must bool, text string) error {
	texts, paths := []string{"HEAD"}, []string{""}
	if text != "" {
		parts := strings.Split(text, "/")
		texts, paths = nil, nil
		for n := min(len(parts), maxParts); n > 0; n-- { // the longest one first
			if !q.kind.hasPath && n < len(parts) {
				break
			}
			revision, err := url.PathUnescape(strings.Join(parts[:n], "/"))
			path, err2 := url.PathUnescape(strings.Join(parts[n:], "/"))
			if err != nil || err2 != nil {
				return fault.New(fault.Invalid, "the address of this page has an invalid escape")
			}
			if utf8.ValidString(revision) { // calls take no others
				texts, paths = append(texts, revision), append(paths, path)
			}
		}
	}
	if len(texts) == 0 {
		return fault.New(fault.NotFound, "no such revision")
	}
	commits := make([]string, len(texts))
	for i, text := range texts {
		commits[i] = text + "^{commit}"
	}
	results, err := q.v.Revisions(commits)
	if err != nil {
		return err
	}
	for i, result := range results {
		switch {
		case result.Err == nil:
			q.revision, q.path = texts[i], paths[i]
			q.found(&result)
			if strings.ContainsAny(q.revision, "~^") { // the ref names a later commit, most often
				q.ref = ""
			}
			return nil
		case !fault.Is(result.Err, fault.NotFound) && !fault.Is(result.Err, fault.Invalid):
			return result.Err
		}
	}
	if !must { // the repository may be empty
		_, err := one[packhorsev1.GetResponse](q, packhorsev1connect.RepositoryServiceGetProcedure, &packhorsev1.GetRequest{})
		return err
	}
	return results[len(results)-1].Err
}

// found notes the commit of a revision.
func (q *request) found(result *node.Result) {
	q.id, q.ref, q.version, q.purges = result.ID, result.Ref, result.Version, result.Purges
	if q.ref == "" {
		q.unknown = append(q.unknown, q.id.String())
	} else {
		q.known = append(q.known, q.id.String())
	}
}

// resolveTwo resolves the revisions of A...B, or of A..B.
func (q *request) resolveTwo() error {
	left, right, ok := strings.Cut(q.rest, "..")
	right, q.mergeBase = strings.CutPrefix(right, ".")
	q.left, q.right = page.Unescape(left), page.Unescape(right)
	if q.rest == "" { // from the form
		q.left, q.right = strings.TrimSpace(q.query.Get("from")), strings.TrimSpace(q.query.Get("to"))
		q.mergeBase, ok = true, true
	}
	if !ok || q.left == "" || q.right == "" || !utf8.ValidString(q.left+q.right) {
		return fault.New(fault.Invalid, "a comparison is /-/compare/A...B, with two branches, tags or commits")
	}
	results, err := q.v.Revisions([]string{q.left + "^{commit}", q.right + "^{commit}"})
	for i := range results {
		if err == nil {
			err = results[i].Err
		}
		q.from = q.id
		q.found(&results[i])
	}
	return err
}

// The fields of query strings that change pages. Those of costlyFields make pages costly.
var (
	costlyFields = []string{"author", "text", "path", "skip", "wait"}
	otherFields  = []string{"from", "to", "branch", "tag", "line"}
)

// key returns all that the main part of a page depends on. All readers of a repository see the same refs.
func (q *request) key() string {
	parts := []string{q.kind.name, q.repo.String(), q.from.String(), q.id.String(), q.ref, q.rest, q.path, q.purges,
		q.v.Address("")} // of clones, feeds and submodules
	for _, name := range slices.Concat(costlyFields, otherFields) {
		if values := q.query[name]; len(values) > 0 {
			parts = append(parts, name, values[0])
		}
	}
	if q.kind.byRefs {
		parts = append(parts, fmt.Sprint(q.version))
	}
	// settings have no version, so that changes of them show a little later
	if q.kind.bySettings || q.kind.byRefs && q.version == (git.Version{}) {
		parts = append(parts, strconv.FormatInt(time.Now().Unix()/settingsSeconds, 10))
	}
	return fmt.Sprintf("%q", parts)
}

// answer sends the page.
func (q *request) answer() error {
	if err := q.check(); err != nil {
		return err
	}
	q.known = append(q.known, q.unknown...) // so that each call of the page need not check them
	key, head := q.key(), q.head()
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %#v", key, q.Build, head))
	etag := `W/"` + hex.EncodeToString(sum[:12]) + `"`
	if isCurrent(q.r, etag) {
		q.setCaching(etag, true)
		q.w.Header().Add("Vary", "Accept-Encoding")
		q.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	f, err := q.fragment(key)
	if f == nil || err != nil {
		return err
	}
	if f.brief {
		etag = ""
	}
	return q.send(f, head, etag)
}

// fragment returns the fragment of the page. It is nil without an error if the visitor has a response.
func (q *request) fragment(key string) (f *fragment, err error) {
	f, made, err := q.cache.share(q.r.Context(), key)
	if made == nil {
		return f, err
	}
	defer func() { made(f) }()
	leave, done, err := q.enter()
	if done || err != nil {
		return nil, err
	}
	defer leave()
	shown, err := q.kind.show(q)
	if err != nil {
		return nil, err
	}
	shown.brief = shown.brief || q.busy
	if f, err = newFragment(shown); err != nil {
		return nil, err
	}
	if !f.brief {
		q.cache.add(key, f)
	}
	if f.raw == nil { // the objects are not needed any more
		err, q.held = q.v.Hold(-q.held), 0
	}
	return f, err
}

// makingSize is the memory to make a page, as a multiple of the objects that it shows, about.
const makingSize = 20

// hold counts n bytes of an object until the page is made.
func (q *request) hold(n int) error {
	if q.kind.name != "raw" && !q.asPatch {
		n *= makingSize
	}
	q.held += n
	return q.v.Hold(n)
}

// enter admits a request for a page that has to be made. If done, it has a response.
func (q *request) enter() (leave func(), done bool, err error) {
	// single files of commits cost little
	isHistoric := q.ref == "" && q.id != (git.ObjectID{}) && q.kind.name != "raw" && q.kind.name != "file"
	isFiltered := slices.ContainsFunc(costlyFields, q.query.Has) || q.kind.name == "log" && q.path != ""
	if q.v.Name() != "" || !q.kind.costly && !isHistoric && !isFiltered {
		return func() {}, false, nil
	}
	if done, err = q.Gate.Needs(q.w, q.r); done || err != nil {
		return nil, done, err
	}
	leave, err = q.Gate.Enter(q.r.Context(), q.r.RemoteAddr)
	return leave, false, err
}

// check fails unless a visible ref reaches the commits. Successful calls are kept until the refs change.
func (q *request) check() error {
	for _, id := range q.unknown {
		key := fmt.Sprintf("%q %s %q %v %d", q.repo, id, q.purges, q.version, time.Now().Unix()/settingsSeconds)
		if q.visible.Contains(key) {
			continue
		}
		_, err := one[packhorsev1.CommitResponse](q, packhorsev1connect.ObjectServiceCommitProcedure,
			&packhorsev1.CommitRequest{Revision: id})
		if err != nil {
			return err
		}
		if q.version != (git.Version{}) {
			q.visible.Add(key, struct{}{})
		}
	}
	return nil
}

// all passes each message of the response to a call to receive.
func all[R any, P interface {
	*R
	proto.Message
}](q *request, procedure string, m proto.Message, receive func(P) error) error {
	return q.v.Read(gateway.Read{Procedure: procedure, Known: q.known, Request: m, Response: P(new(R)),
		Receive: func(m proto.Message) error { return receive(m.(P)) }})
}

// one returns the only message of the response to a call.
func one[R any, P interface {
	*R
	proto.Message
}](q *request, procedure string, m proto.Message) (P, error) {
	var only P
	err := all(q, procedure, m, func(m P) error {
		only = m
		return nil
	})
	return only, err
}
