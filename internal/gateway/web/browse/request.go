package browse

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// request is a request for a page of a repository.
type request struct {
	*Site
	w     http.ResponseWriter
	r     *http.Request
	v     Visitor
	kind  *kind
	repo  git.RepoPath
	rest  string     // of the path, after the kind
	query url.Values // the fields of the kind

	at        revision
	from      revision // the left one of a comparison
	mergeBase bool     // it begins at the merge base

	path    string            // of a file or directory, in bytes
	asPatch bool              // the commit as a mail
	version git.Version       // of the refs
	purges  string            // see node.Answer
	held    int               // bytes, see hold
	busy    bool              // the server had no time for colours, Markdown, sizes or a difference
	known   []string          // full IDs that refs led to, or are known to reach
	unknown []string          // those that none did
	names   map[string]string // see nameRefs
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
	query, err := url.ParseQuery(q.r.URL.RawQuery)
	if err != nil {
		return fault.New(fault.Invalid, "the address of this page has an invalid query string")
	}
	q.query = url.Values{}
	for _, name := range q.kind.fields {
		if query.Has(name) {
			q.query.Set(name, query.Get(name))
		}
	}
	if q.query.Has("line") { // all lines of a page lead to the same one
		line, _ := strconv.Atoi(q.query.Get("line"))
		first := (min(max(line, 1), maxShown)-1)/maxLines*maxLines + 1
		q.query.Set("line", strconv.Itoa(first))
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
