package account

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

// tokens shows a visitor's tokens, and creates and revokes them.
func (a *Accounts) tokens(w http.ResponseWriter, r *http.Request, v Visitor) error {
	if v.Identity().Anonymous() {
		http.Redirect(w, r, page.SignInURL(page.AccountPath), http.StatusSeeOther)
		return nil
	}
	if _, credential, _ := r.BasicAuth(); v.Identity().By == auth.ByOIDC &&
		(credential == "" || credential != a.Credential(r, v.Secure())) { // it may be that of a CI job
		return fault.New(fault.Denied, "an identity token creates and revokes no access tokens: sign in at the issuer")
	}
	own, err := a.Access.Own(v.Identity())
	if err != nil {
		return err
	}
	var secret string
	if r.Method == http.MethodPost {
		if id := r.PostForm.Get("revoke"); id != "" {
			if err := own.Revoke(r.Context(), id); err != nil {
				return err
			}
			http.Redirect(w, r, page.AccountPath, http.StatusSeeOther)
			return nil
		}
		scope, err := auth.ParseOperation(r.PostForm.Get("scope"))
		if err != nil {
			return err
		}
		days, err := strconv.Atoi(r.PostForm.Get("days"))
		if err != nil || days < 1 {
			return fault.New(fault.Invalid, "the lifetime of a token is a number of days")
		}
		if secret, _, err = own.Mint(r.Context(), scope, time.Duration(min(days, 10_000))*24*time.Hour); err != nil {
			return err
		}
	}
	list, err := own.List(r.Context())
	if err != nil {
		return err
	}
	scopes := g.Group{}
	for scope := auth.Read; scope <= own.MostScope(); scope++ {
		scopes = append(scopes, h.Option(h.Value(scope.String()), g.Text(scope.String())))
	}
	session := ""
	if v.Identity().By == auth.ByToken {
		session = v.Identity().Credential
	}
	return a.Send(w, r, http.StatusOK, "tokens", a.Frame(a.HeadFor(r, v, page.Head{Kind: "form", Title: "Access tokens"}),
		h.H1(g.Text("Access tokens of "+v.Name())),
		g.Iff(secret != "", func() g.Node {
			return h.Div(h.Class("note clone"), h.Role("status"), h.Div(h.Label(h.For("new"), g.Text("New")),
				h.Input(h.ID("new"), h.ReadOnly(), h.Value(secret), h.Data("copy", ""))),
				h.P(g.Text("This is the only time that it is shown.")))
		}),
		h.Form(h.Method("post"), h.Action(page.AccountPath), h.Class("filter"),
			h.Label(g.Text("Permits"), h.Select(h.Name("scope"), scopes)),
			h.Label(g.Text("Days"), h.Input(h.Name("days"), h.Type("number"), h.Min("1"), h.Max("366"), h.Value("90"))),
			h.Button(g.Text("Create"))),
		tokenTable(list, session)))
}

// tokenTable lists tokens with buttons to revoke them. session is the ID of the one of this session, if there is one.
func tokenTable(list []auth.Token, session string) g.Node {
	if len(list) == 0 {
		return page.Card("You have no access tokens", "Create one to use Git with it as the password.")
	}
	day := func(t time.Time, none string) string {
		if t.IsZero() {
			return none
		}
		return t.Format(time.DateOnly)
	}
	columns := []string{"ID", "Permits", "Repositories", "Created", "Expires", "Used"}
	return h.Table(h.Class("refs tokens"), h.THead(h.Tr(g.Map(columns, func(name string) g.Node {
		return h.Th(g.Text(name))
	}), h.Th(h.Span(h.Class("hide"), g.Text("Revoke"))))),
		h.TBody(g.Map(list, func(t auth.Token) g.Node {
			repositories := "all"
			if len(t.Repositories) > 0 {
				repositories = strings.Join(t.Repositories, ", ")
			}
			id := g.Group{h.Code(g.Text(t.ID)), g.If(t.ID == session, g.Group{g.Text(" "),
				h.Span(h.Class("ref"), g.Text("this session"))})}
			cells := g.Group{}
			for i, value := range []g.Node{id, g.Text(t.Scope), page.Text(repositories), g.Text(day(t.Created, "")),
				g.Text(day(t.Expires, "never")), g.Text(day(t.Used, "never"))} {
				cells = append(cells, h.Td(h.Data("column", columns[i]), value))
			}
			return h.Tr(cells, h.Td(h.Details(h.Summary(h.Aria("label", "Revoke "+t.ID), g.Text("Revoke")),
				h.Form(h.Method("post"), h.Action(page.AccountPath), h.Input(h.Type("hidden"), h.Name("revoke"), h.Value(t.ID)),
					h.Button(h.Class("copy"), g.Text("Yes, revoke "+t.ID))))))
		})))
}
