// Package web serves pages for browsers: one to search code, a list of repositories, and those of each repository.
package web

import (
	"net/http"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/web/account"
	"github.com/packhorse-git/packhorse/internal/gateway/web/browse"
	"github.com/packhorse-git/packhorse/internal/gateway/web/crawl"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/gateway/web/status"
	"github.com/packhorse-git/packhorse/internal/search"
)

// robots is for crawlers, which should list the newest state of repositories.
const (
	robotsPath = "/robots.txt"
	robots     = `User-agent: *
Disallow: /-/
Disallow: /*/-/blame/
Disallow: /*/-/history/
Disallow: /*/-/log/
Disallow: /*/-/commit/
Disallow: /*/-/compare
Disallow: /*/-/raw/
Disallow: /*/-/archive/
Crawl-delay: 5
`
)

// PageOptions are the options of Pages.
type PageOptions struct {
	page.Options
	Searcher search.Searcher // nil: searches fail as unavailable
	SSH      string          // see browse.NewSite
	Key      []byte          // secret, the same for all gateways with one name
	Budget   time.Duration   // of costly pages for each network; see crawl.New
	Issuer   *account.Issuer // see account.Options
	Access   *auth.Service   // see account.Options
	Status   status.Sources
}

// Pages serves the pages for browsers. Safe for concurrent use. The owner closes it.
type Pages struct {
	*page.Site
	searcher search.Searcher
	Account  *account.Accounts
	browse   *browse.Site
	Gate     *crawl.Gate
	Status   *status.Status
}

// ErrNoPage is for addresses without a page, also for callers who may not know of one.
var ErrNoPage = fault.New(fault.NotFound, "nothing here; metrics and health are on the private listener, "+
	"and a repository is cloned by its path")

// NewPages returns Pages.
func NewPages(o PageOptions) (*Pages, error) {
	site, err := page.NewSite(o.Options)
	if err != nil {
		return nil, err
	}
	gate := crawl.New(o.Key, o.Budget, time.Now)
	accounts, err := account.New(account.Options{Site: site, Key: o.Key, Issuer: o.Issuer, Access: o.Access,
		Now: time.Now})
	return &Pages{Site: site, Account: accounts, searcher: o.Searcher, Gate: gate,
		Status: status.New(site, o.Status),
		browse: browse.NewSite(site, gate, o.SSH)}, err
}

// Close ends what the pages do in the background.
func (p *Pages) Close() {
	p.Status.Close()
	p.Site.Close()
}

// Has reports whether a path belongs to a page.
func (p *Pages) Has(path string) bool {
	if strings.HasPrefix(path, "/-/") {
		return path == "/-/" || path == crawl.SeenPath || path == page.SearchPath || path == page.StatusPath ||
			account.Has(path) || page.IsAsset(path)
	}
	_, _, ok := browse.Split(path)
	return ok && path != "/-" && !strings.HasPrefix(path, "/.api/")
}

// Visitor is the user of a page. Not safe for concurrent use.
type Visitor interface {
	search.Visitor
	browse.Visitor
	account.Visitor
}

// Serve answers a request for a page. If it returns an error, it has sent no response.
func (p *Pages) Serve(w http.ResponseWriter, r *http.Request, v Visitor) error {
	if !p.Has(r.URL.Path) || r.URL.Path == page.StatusPath && !v.Administers() {
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			page.Secure(w.Header())
			return p.Fail(w, r, v, fault.New(fault.NotFound, "there is no page at this address"))
		}
		return ErrNoPage
	}
	if account.Has(r.URL.Path) && r.Method == http.MethodPost {
		page.Secure(w.Header())
		return p.Account.Serve(w, r, v)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return nil
	}
	page.Secure(w.Header())
	switch path := r.URL.Path; {
	case path == "/", path == "/-/":
		return p.browse.List(w, r, v)
	case path == page.SearchPath:
		return p.search(w, r, v)
	case path == page.StatusPath:
		return p.Status.Serve(w, r, v)
	case path == robotsPath:
		return p.SendText(w, r, http.StatusOK, "robots", "text/plain; charset=utf-8", []byte(robots))
	case path == crawl.SeenPath:
		return p.Gate.Seen(w, r, v.Secure())
	case account.Has(path):
		return p.Account.Serve(w, r, v)
	case page.IsAsset(path):
		return p.Asset(w, r)
	default:
		return p.browse.Serve(w, r, v)
	}
}
