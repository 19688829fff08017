package account

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

// The paths of the pages.
const (
	issuerPath = page.SignInPath + "/issuer"
	backPath   = page.SignInPath + "/back"
)

// Options are the options of Accounts.
type Options struct {
	*page.Site
	Key    []byte        // secret, the same for all gateways with one name
	Issuer *Issuer       // nil: visitors sign in with access tokens alone
	Access *auth.Service // has the visitors' tokens; nil: the page of tokens is off
	Now    func() time.Time
}

// Accounts serves the pages to sign in and out, and those of tokens. Safe for concurrent use.
type Accounts struct {
	Options
	sessions, flows *sealer
}

// New returns Accounts.
func New(o Options) (*Accounts, error) {
	sessions, err := newSealer(o.Key, sessionName, o.Now)
	if err != nil {
		return nil, err
	}
	if o.Issuer != nil {
		o.Issuer.Client.Timeout = askTime // also for keys, which all visitors wait for
	}
	flows, err := newSealer(o.Key, flowName, o.Now)
	return &Accounts{o, sessions, flows}, err
}

// Visitor is the caller of a page. Not safe for concurrent use.
type Visitor interface {
	page.Caller
	// Identify returns the identity that a credential proves, as the password of a Git client would. If only an origin can
	// check it, the error is that of reading the repository whose page has a path.
	Identify(ctx context.Context, credential, path string) (auth.Identity, error)
	Identity() auth.Identity // of the request
	Secure() bool            // the connection of the browser has TLS
	Address(path string) string
}

// Credential returns the credential of a session; "" if the request has none. secure is Visitor.Secure.
func (a *Accounts) Credential(r *http.Request, secure bool) string {
	var s session
	if !a.sessions.open(r, sessionName, secure, &s) || !a.Now().Before(s.Until) {
		return ""
	}
	return s.Credential
}

// End removes the cookie of a session whose credential is not valid any more.
func (a *Accounts) End(w http.ResponseWriter, secure bool) {
	setCookie(w, sessionName, "", 0, secure)
}

// Has reports whether a path is that of a page of this package.
func Has(path string) bool {
	return slices.Contains([]string{page.SignInPath, page.SignOutPath, page.AccountPath, issuerPath, backPath}, path)
}

// Serve answers a request for a page. If it returns an error, it has sent no response.
func (a *Accounts) Serve(w http.ResponseWriter, r *http.Request, v Visitor) error {
	w.Header().Set("Cache-Control", "private, no-store")
	if new(http.CrossOriginProtection).Check(r) != nil {
		return a.Fail(w, r, v, fault.New(fault.Invalid, "this form was sent by a page of another server"))
	}
	if r.Method == http.MethodPost {
		if err := r.ParseForm(); err != nil {
			return a.Fail(w, r, v, fault.New(fault.Invalid, "the form cannot be read"))
		}
	}
	var err error
	switch isPost := r.Method == http.MethodPost; {
	case r.URL.Path == page.SignInPath && isPost:
		err = a.signIn(w, r, v)
	case r.URL.Path == page.SignInPath:
		err = a.form(w, r, v, "")
	case r.URL.Path == page.SignOutPath && isPost:
		a.End(w, v.Secure())
		http.Redirect(w, r, "/", http.StatusSeeOther)
	case r.URL.Path == issuerPath && a.Issuer != nil:
		err = a.toIssuer(w, r, v)
	case r.URL.Path == backPath && a.Issuer != nil:
		err = a.fromIssuer(w, r, v)
	case r.URL.Path == page.AccountPath && a.Access != nil:
		err = a.tokens(w, r, v)
	default:
		err = fault.New(fault.NotFound, "there is no page at this address")
	}
	if err != nil {
		return a.Fail(w, r, v, err)
	}
	return nil
}

// target returns the path that a visitor came from.
func target(text string) string {
	if !strings.HasPrefix(text, "/") || strings.HasPrefix(text, "//") || strings.ContainsAny(text, "\\\r\n\t") {
		return "/"
	}
	return text
}

// form shows the page to sign in.
func (a *Accounts) form(w http.ResponseWriter, r *http.Request, v Visitor, problem string) error {
	to := target(r.FormValue("to"))
	status := http.StatusOK
	var note g.Node
	if problem != "" {
		status, note = http.StatusForbidden, h.P(h.Class("note bad"), h.Role("alert"), g.Text(problem))
	}
	return a.Send(w, r, status, "sign-in", a.Frame(page.Head{Kind: "form", Title: "Sign in"},
		h.Div(h.Class("narrow"), h.H1(g.Text("Sign in")), note,
			g.Iff(a.Issuer != nil, func() g.Node {
				return h.P(h.A(h.Class("button"), page.Href(issuerPath+"?to="+url.QueryEscape(to)),
					g.Text("Sign in with "+a.Issuer.Name())))
			}),
			h.Form(h.Method("post"), h.Action(page.SignInPath),
				h.Input(h.Type("hidden"), h.Name("to"), h.Value(to)),
				h.Label(g.Attr("hidden"), g.Text("User name (not necessary)"), // for password managers
					h.Input(h.Name("user"), h.AutoComplete("username"))),
				h.Label(h.For("token"), g.Text("Access token")),
				h.Input(h.ID("token"), h.Name("token"), h.Type("password"), h.Required(),
					h.AutoComplete("current-password")),
				h.Button(g.Text("Sign in"))),
			h.P(h.Class("about"), g.Text("Use the access token that you push with. If you have none, ask "+
				"the administrators of this server.")))))
}

// signIn begins a session with an access token.
func (a *Accounts) signIn(w http.ResponseWriter, r *http.Request, v Visitor) error {
	token := strings.TrimSpace(r.PostForm.Get("token"))
	if token == "" {
		return a.form(w, r, v, "Enter an access token.")
	}
	to, err := url.Parse(target(r.PostForm.Get("to")))
	if err != nil {
		return fault.Wrap(fault.Invalid, "the address to return to is not valid", err)
	}
	id, err := v.Identify(r.Context(), token, to.Path)
	switch {
	case fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Denied), fault.Is(err, fault.NotFound),
		err == nil && (id.Anonymous() || id.By == auth.ByOIDC): // those are for visitors from the issuer (fromIssuer)
		return a.form(w, r, v, "This access token is not valid.")
	}
	if err != nil {
		return err
	}
	return a.begin(w, r, v, session{token, a.Now().Add(sessionLife)}, r.PostForm.Get("to"))
}

// begin sets the cookie of a session, and leads back.
func (a *Accounts) begin(w http.ResponseWriter, r *http.Request, v Visitor, s session, to string) error {
	sealed, err := a.sessions.seal(s)
	if err != nil {
		return err
	}
	setCookie(w, sessionName, sealed, s.Until.Sub(a.Now()), v.Secure())
	http.Redirect(w, r, target(to), http.StatusSeeOther)
	return nil
}
