package browse

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	g "maragu.dev/gomponents"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/web/crawl"
	"github.com/packhorse-git/packhorse/internal/gateway/web/legacy"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
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
	// List returns a page of the repositories that the visitor may read.
	List(m *packhorsev1.ListRequest) (*packhorsev1.ListResponse, error)
	// Address returns the address of a path on this server, as the visitor knows it.
	Address(path string) string
}

// Options are the options of a Site.
type Options struct {
	*page.Site
	Gate *crawl.Gate // for costly pages
	SSH  string      // address of the SSH listener for clone boxes, HOST or HOST:PORT; "": SSH is off
	Now  func() time.Time
}

// Site serves the pages of repositories. Safe for concurrent use.
type Site struct {
	Options
	cache *cache
}

// NewSite returns a Site.
func NewSite(o Options) *Site {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Site{Options: o, cache: newCache()}
}

// kind is one kind of page.
type kind struct {
	name string
	show func(*request) (*content, error)
	// hasPath: REVISION/PATH follows the kind; otherwise REVISION does. hasRevision: one of both follows.
	hasRevision, hasPath bool
	costly               bool // see package crawl
	byRefs               bool // it shows other refs than that of the revision, or settings
	index                bool // search engines may list the page of a branch or tag
}

// kinds has all kinds of pages by the name in their addresses; "" is the page of the repository.
var kinds = map[string]*kind{
	"":        {name: "", byRefs: true, show: (*request).front, index: true},
	"tree":    {name: "tree", show: (*request).tree, hasRevision: true, hasPath: true, index: true},
	"file":    {name: "file", show: (*request).file, hasRevision: true, hasPath: true, index: true},
	"raw":     {name: "raw", show: (*request).raw, hasRevision: true, hasPath: true},
	"blame":   {name: "blame", show: (*request).blame, hasRevision: true, hasPath: true, costly: true},
	"history": {name: "history", byRefs: true, show: (*request).history, hasRevision: true, hasPath: true, costly: true},
	"log":     {name: "log", byRefs: true, show: (*request).log, hasRevision: true, hasPath: true},
	"commit":  {name: "commit", show: (*request).commit, hasRevision: true},
	"compare": {name: "compare", show: (*request).compare, costly: true},
	"refs":    {name: "refs", byRefs: true, show: (*request).refs},
	"feed":    {name: "feed", show: (*request).feed, hasRevision: true},
}

// content is the main part of a page.
type content struct {
	title string
	kind  string // see page.Head
	main  g.Node
	raw   *rawContent // in place of a page; nil: it is a page
	brief bool        // it is not kept: it lacks something that will be there later
}

// rawContent is a response that is not a page.
type rawContent struct {
	contentType string
	header      http.Header
	text        []byte
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
	ref      string      // the ref that led to id; "": none
	path     string      // of a file or directory, in bytes
	asPatch  bool        // the commit as a mail
	version  git.Version // of the refs
	purges   string      // see node.Answer
}

const (
	mark = "/-/"

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
	if err == nil {
		err = q.answer()
	}
	if to, ok := legacy.Find(r.URL); ok && fault.Is(err, fault.NotFound) {
		http.Redirect(w, r, q.release(to), http.StatusMovedPermanently)
		return nil
	}
	if err != nil {
		return s.Fail(w, r, v, err)
	}
	return nil
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
	if !q.kind.hasRevision || q.rest == "" && !q.kind.hasPath {
		return q.resolve(q.kind.name != "", "")
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
			q.id, q.ref, q.version, q.purges = result.ID, string(result.Ref), result.Version, result.Purges
			return nil
		case !fault.Is(result.Err, fault.NotFound) && !fault.Is(result.Err, fault.Invalid):
			return result.Err
		}
	}
	if err = results[len(results)-1].Err; !must && q.repositoryExists() {
		return nil // it is empty
	}
	return err
}

// repositoryExists reports whether there is the repository, which may be empty.
func (q *request) repositoryExists() bool {
	_, err := one[packhorsev1.GetResponse](q, packhorsev1connect.RepositoryServiceGetProcedure, &packhorsev1.GetRequest{})
	return err == nil
}

// answer sends the page.
func (q *request) answer() error {
	key := strings.Join([]string{q.kind.name, q.repo.String(), q.id.String(), q.rest, q.path, q.r.URL.RawQuery,
		q.purges}, "\x00")
	if q.kind.byRefs { // settings have no version, so that changes of them show a little later
		key += fmt.Sprintf("\x00%v %d", q.version, q.Now().Unix()/settingsSeconds)
	}
	if q.kind.name == "" || q.kind.name == "feed" { // they have addresses with the host that the client names
		key += "\x00" + q.v.Address("")
	}
	sum := sha256.Sum256([]byte(key + "\x00" + q.v.Name()))
	etag := `W/"` + hex.EncodeToString(sum[:12]) + `"`
	c, ok := q.cache.get(key)
	if ok && q.ref == "" && q.id != (git.ObjectID{}) {
		if err := q.check(); err != nil {
			return err
		}
	}
	if !ok {
		leave, done, err := q.enter()
		if done || err != nil {
			return err
		}
		shown, err := q.kind.show(q)
		leave()
		if err != nil {
			return err
		}
		if c, err = newFragment(shown); err != nil {
			return err
		}
		if !shown.brief {
			q.cache.add(key, c)
		}
	}
	return q.send(c, etag)
}

// enter admits a request for a page that has to be made. If done, it has a response.
func (q *request) enter() (leave func(), done bool, err error) {
	// single files of commits cost little
	isHistoric := q.ref == "" && q.id != (git.ObjectID{}) && q.kind.name != "raw" && q.kind.name != "file"
	if q.v.Name() != "" || !q.kind.costly && !isHistoric {
		return func() {}, false, nil
	}
	if done, err = q.Gate.Needs(q.w, q.r); done || err != nil {
		return nil, done, err
	}
	leave, err = q.Gate.Enter(q.r.Context(), q.r.RemoteAddr)
	return leave, false, err
}

// check fails unless a visible ref reaches the commit.
func (q *request) check() error {
	_, err := one[packhorsev1.CommitResponse](q, packhorsev1connect.ObjectServiceCommitProcedure,
		&packhorsev1.CommitRequest{Revision: q.id.String()})
	return err
}

// known returns the ID of the request's commit if a ref has led to it.
func (q *request) known() []string {
	if q.ref == "" {
		return nil
	}
	return []string{q.id.String()}
}

// all passes each message of the response to a call to receive.
func all[R any, P interface {
	*R
	proto.Message
}](q *request, procedure string, m proto.Message, receive func(P) error) error {
	return q.v.Read(gateway.Read{Procedure: procedure, Known: q.known(), Request: m, Response: P(new(R)),
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
