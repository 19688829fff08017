package page

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// The paths of pages that all pages link to.
const (
	SearchPath  = "/-/search"
	AccountPath = "/-/tokens"
	SignInPath  = "/-/sign-in"
	SignOutPath = "/-/sign-out"
	StatusPath  = "/-/status"
)

// SignInURL returns the path of the page to sign in, which leads back to another one.
func SignInURL(back string) string { return SignInPath + "?to=" + url.QueryEscape(back) }

// Options are what an administrator can change of all pages.
type Options struct {
	Title string // of the site
	Logo  string // file with an image; "": that of Packhorse
	Text  string // file with Markdown for the start of the list of repositories; "": none
	Style string // file with a further style sheet; "": none
	Build string // version of the program

	Registerer prometheus.Registerer // of metrics; may be nil
}

// Site is what pages of one server share. Safe for concurrent use. The owner closes it.
type Site struct {
	Painter *Painter
	Title   string
	Text    g.Node // above the list of repositories; nil: none
	Build   string // changes with the program, and with what the frame of pages has

	assets     map[string][]byte // by path
	compressed map[string][]byte // those that are text, in gzip
	assetPaths map[string]string // by name
	sent       *prometheus.CounterVec
}

// NewSite returns a Site.
func NewSite(o Options) (*Site, error) {
	s := &Site{Painter: newPainter(), Title: cmp.Or(o.Title, "Packhorse"), assets: map[string][]byte{},
		compressed: map[string][]byte{}, assetPaths: map[string]string{}}
	s.sent = promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "packhorse_pages_total", Help: "Pages sent to browsers, by page and status.",
	}, []string{"page", "status"})
	err := s.loadAssets(o)
	s.Build = fmt.Sprintf("%s %q %v", o.Build, s.Title, s.assetPaths)
	return s, err
}

// Close waits until highlighting has ended.
func (s *Site) Close() { s.Painter.wait() }

// Send sends a page. name is its name in metrics.
func (s *Site) Send(w http.ResponseWriter, r *http.Request, status int, name string, page g.Node) error {
	var b bytes.Buffer
	if err := page.Render(&b); err != nil {
		return fault.Wrap(fault.Internal, "cannot render the page", err)
	}
	return s.SendText(w, r, status, name, "text/html; charset=utf-8", b.Bytes())
}

// SendText sends a response of any type. name is its name in metrics.
func (s *Site) SendText(w http.ResponseWriter, r *http.Request, status int, name, contentType string, texts ...[]byte,
) error {
	s.sent.WithLabelValues(name, strconv.Itoa(status)).Inc()
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	for _, text := range texts {
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// Caller is the caller of a page.
type Caller interface {
	Name() string
	// MaySignIn reports whether a credential could make a difference.
	MaySignIn() bool
	// Administers reports whether the caller administers the whole server.
	Administers() bool
	// Failed records an error that the response, which is complete, reports to the client.
	Failed(err error)
}

// Fail sends a page for errors that concern the visitor, or leads to the page to sign in. It returns others.
func (s *Site) Fail(w http.ResponseWriter, r *http.Request, v Caller, err error) error {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Del("ETag")
	status, heading := 0, ""
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		if !strings.Contains(r.Header.Get("Accept"), "text/html") {
			return err
		}
		http.Redirect(w, r, SignInURL(r.URL.RequestURI()), http.StatusSeeOther)
		return nil
	case fault.NotFound:
		status, heading = http.StatusNotFound, "Not found"
	case fault.Invalid:
		status, heading = http.StatusBadRequest, "Invalid request"
	case fault.Exhausted:
		status, heading = http.StatusTooManyRequests, "Too many requests"
		w.Header().Set("Retry-After", fault.RetryHeader(fault.RetryAfter(err)))
	case fault.Denied:
		status, heading = http.StatusForbidden, "Not permitted"
	case fault.Exists, fault.Precondition:
		status, heading = http.StatusConflict, "Not possible"
	case fault.Deadline:
		status, heading = http.StatusGatewayTimeout, "This takes too long"
	case fault.Corrupt:
		status, heading = http.StatusInternalServerError, "The repository is damaged"
	default:
		return err
	}
	v.Failed(err)
	return s.Send(w, r, status, "error", s.Frame(s.HeadFor(r, v, Head{Kind: "error", Title: heading}),
		h.Div(h.Class("card"), h.H1(g.Text(heading)), h.P(g.Text(Sentence(fault.Message(err)))))))
}

// HeadFor adds the visitor to a Head.
func (s *Site) HeadFor(r *http.Request, v Caller, head Head) Head {
	if head.Visitor = v.Name(); head.Visitor == "" && v.MaySignIn() {
		head.SignIn = SignInURL(r.URL.RequestURI())
	}
	head.Status = head.Visitor != "" && v.Administers()
	return head
}

// Sentence returns a message with a capital letter at its start and a full stop at its end.
func Sentence(message string) string {
	if message == "" {
		return ""
	}
	// the first word is not a part of a query
	if first, _, _ := strings.Cut(message, " "); !strings.ContainsAny(first, ":.()") {
		r, n := utf8.DecodeRuneInString(message)
		message = strings.ToUpper(string(r)) + message[n:]
	}
	if !strings.HasSuffix(message, ".") {
		message += "."
	}
	return message
}

// SearchURL returns the path of the page with the results of a query.
func SearchURL(query string) string { return SearchPath + "?q=" + url.QueryEscape(query) }
