package web

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search"
)

const (
	searchPath = "/-/search"
	filePath   = "/-/blob/"
)

// Files reads files of commits. Safe for concurrent use.
type Files interface {
	// File returns a file of a commit that a visible ref reaches, without data if it has more than limit bytes. Errors:
	// NotFound if the repository, commit or file does not exist or is hidden; Invalid if the path is not a file.
	File(ctx context.Context, repository git.RepoPath, commit git.ObjectID, path string, limit int64) (git.File, error)
}

// PageOptions are the options of Pages.
type PageOptions struct {
	Searcher search.Searcher // nil: searches fail as unavailable
	Files    Files           // nil: no file exists

	Registerer prometheus.Registerer // of metrics; may be nil
}

// Pages serves the pages for browsers. Safe for concurrent use. The owner closes it.
type Pages struct {
	PageOptions
	assets     map[string][]byte // by path
	assetPaths map[string]string // by name
	paint      *painter
	sent       *prometheus.CounterVec
}

// NewPages returns Pages.
func NewPages(o PageOptions) (*Pages, error) {
	assets, paths, err := loadAssets()
	sent := promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_pages_total", Help: "Pages sent to browsers, by page (search, file, clone, error) and status.",
	}, []string{"page", "status"})
	return &Pages{PageOptions: o, assets: assets, assetPaths: paths, paint: newPainter(), sent: sent}, err
}

// Close waits until highlighting has ended.
func (p *Pages) Close() { p.paint.wait() }

// Has reports whether a path belongs to a page.
func (p *Pages) Has(path string) bool {
	return path == "/-/" || path == searchPath || strings.HasPrefix(path, filePath) ||
		strings.HasPrefix(path, assetPath) || isRepository(path)
}

// isRepository reports whether a path is "/" or may be that of a repository.
func isRepository(path string) bool {
	return path != "/-" && !strings.HasPrefix(path, "/-/") && !strings.HasPrefix(path, "/.api/")
}

// Visitor is the user of a page. Not safe for concurrent use.
type Visitor interface {
	search.Visitor
	// May fails as a fetch of the repository would: Unauthenticated, Unavailable. It returns the path to read: that of no
	// repository if the visitor may not know of this one, so that the time of the answer does not reveal it.
	May(ctx context.Context, repository git.RepoPath) (git.RepoPath, error)
	// URL returns the requested address, as the user knows it, without the query.
	URL() string
}

// Serve answers a request for a page. If it returns an error, it has sent no response.
func (p *Pages) Serve(w http.ResponseWriter, r *http.Request, v Visitor) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return nil
	}
	secure(w.Header())
	switch path := r.URL.Path; {
	case path == "/", path == "/-/":
		http.Redirect(w, r, searchPath, http.StatusSeeOther)
		return nil
	case path == searchPath:
		return p.search(w, r, v)
	case strings.HasPrefix(path, filePath):
		return p.file(w, r, v)
	case isRepository(path):
		return p.clone(w, r, v)
	default:
		return p.asset(w, r)
	}
}

// clone sends the page for the address of a repository. It does not depend on whether there is one.
func (p *Pages) clone(w http.ResponseWriter, r *http.Request, v Visitor) error {
	url := v.URL()
	if strings.ContainsAny(url, "$&;[") { // all other special characters of a shell are escaped in a URL
		url = "'" + url + "'"
	}
	return p.send(w, r, http.StatusNotFound, "clone", p.layout(page{Kind: "error", Title: "Clone - Packhorse"},
		h.Div(h.Class("card"), h.H2(g.Text("This is a Git server")),
			h.P(g.Text("There is no page at this address. If it is that of a repository, clone it:")),
			h.P(h.Code(g.Text("git clone "+url))),
			h.P(g.Text("If Git asks for a password, use an access token, with any user name.")))))
}

// send sends a page. name is its name in metrics.
func (p *Pages) send(w http.ResponseWriter, r *http.Request, status int, name string, pg g.Node) error {
	var b bytes.Buffer
	if err := pg.Render(&b); err != nil {
		return fault.Wrap(fault.Internal, "cannot render the page", err)
	}
	p.sent.WithLabelValues(name, strconv.Itoa(status)).Inc()
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err := w.Write(b.Bytes())
	return err
}

// showError sends a page for errors that another request or credentials cannot change. It returns others to the caller.
func (p *Pages) showError(w http.ResponseWriter, r *http.Request, v Visitor, err error) error {
	status, heading := 0, ""
	switch fault.KindOf(err) {
	case fault.NotFound:
		status, heading = http.StatusNotFound, "Not found"
	case fault.Invalid:
		status, heading = http.StatusBadRequest, "Invalid request"
	case fault.Corrupt:
		status, heading = http.StatusInternalServerError, "The repository is damaged"
	default:
		return err
	}
	v.Failed(err)
	return p.send(w, r, status, "error",
		p.layout(page{Kind: "error", Title: heading + " - Packhorse"}, card(heading, fault.Message(err))))
}
