package githttp

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// administration authorizes a request about a repository as a whole for the other paths that it names. Its message
// names no revisions, which a node would have to check.
func (a *apiRequest) administration() error {
	a.reachable = ""
	if what := needsServer(a.message); what != "" {
		if err := a.administersAll(what); err != nil {
			return err
		}
	}
	created, read := a.Others(a.message)
	if a.ForAll && a.IsChange() { // the new repository is that of the request
		var err error
		if a.Repo, err = gateway.ParseRepo(created); err == nil {
			err = a.AuthorizeNew()
		}
		if err != nil {
			return fault.InField("repository", err)
		}
		created = ""
	}
	for i, name := range []string{created, read} {
		if name == "" {
			continue
		}
		path, err := gateway.ParseRepo(name)
		if err == nil {
			err = a.AuthorizeOther(path, i == 0)
		}
		if err != nil {
			return err
		}
		if i == 0 {
			a.created = path
		}
	}
	return nil
}

// needsServer returns why only callers who administer the whole server may make a request; "": others may, too. Forks
// of other owners share the objects that a purge or a collection removes, and quotas protect the server from owners.
func needsServer(m proto.Message) string {
	switch m := m.(type) {
	case *packhorsev1.PurgeRequest, *packhorsev1.CollectRequest:
		return "forks can share the objects"
	case interface{ GetSettings() *packhorsev1.Settings }:
		s, remove := m.GetSettings(), []string(nil)
		if c, ok := m.(*packhorsev1.ConfigureRequest); ok {
			remove = c.GetRemove()
		}
		if s != nil && (s.QuotaBytes != nil || s.LfsQuotaBytes != nil || s.MaxPushBytes != nil) ||
			slices.ContainsFunc(remove, func(name string) bool { return strings.HasSuffix(name, "_bytes") }) {
			return "quota_bytes, lfs_quota_bytes and max_push_bytes protect the server"
		}
	}
	return ""
}

// administersAll returns an error that begins with a text unless the caller administers the whole server.
func (a *apiRequest) administersAll(why string) error {
	err := fault.New(fault.Denied, "%s: only callers who administer the whole server may do this", why)
	if a.handler.Access == nil {
		return err
	}
	if _, refused := a.handler.Access.For(a.Ctx, a.ID); !fault.Is(refused, fault.Denied) {
		return refused
	}
	return err
}

// complete removes from the description of a repository what only its administrators may see, and adds to a response
// what the gateway knows.
func (a *apiRequest) complete(m proto.Message) {
	var all []*packhorsev1.Repository
	switch m := m.(type) {
	case *packhorsev1.GetResponse:
		if !a.MayAdminister() {
			all = []*packhorsev1.Repository{m.GetRepository()}
		}
	case *packhorsev1.ListResponse:
		all = m.GetDetails()
	case *packhorsev1.RenameResponse:
		if a.Mentions == nil {
			break
		}
		for _, text := range a.Mentions(a.Repo, a.created) { // the node is perhaps another process
			if !slices.Contains(m.Mentions, text) {
				m.Mentions = append(m.Mentions, text)
			}
		}
		if n := len(m.Mentions); n > 0 && a.administersAll("") != nil { // they may name others
			m.Mentions = []string{fmt.Sprintf("%d rules, tokens and webhooks: ask an administrator of the server", n)}
		}
	}
	for _, r := range all {
		r.Config, r.Hooks, r.RepositoryHooks = nil, nil, ""
		if r.Settings != nil {
			r.Settings.HiddenRefs = nil
		}
	}
}

// defaultPage is the default number of repositories in a page.
const defaultPage = 100

// list answers a request for a list of repositories. The cursor is the last path of the page, so that it names none
// that the caller may not read.
func (a *apiRequest) list(asked *packhorsev1.ListRequest) (*packhorsev1.ListResponse, error) {
	after, err := base64.RawURLEncoding.DecodeString(asked.PageToken)
	switch {
	case err != nil || len(after) > 0 && asked.After != "":
		return nil, fault.InField("cursor", fault.New(fault.Invalid,
			"it is not the cursor of a page, or set together with after"))
	case asked.PageSize < 0 || asked.PageSize > gateway.MaxListed:
		return nil, fault.InField("limit", fault.New(fault.Invalid, "want 1 to %d", gateway.MaxListed))
	case len(asked.Only) > 0:
		return nil, fault.InField("only", fault.New(fault.Invalid, "only nodes support it"))
	}
	asked.PageToken, asked.After = "", cmp.Or(string(after), asked.After)
	asked.PageSize = cmp.Or(asked.PageSize, defaultPage)
	page, err := a.List(asked, "")
	if err == nil {
		page.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(page.NextPageToken))
		a.complete(page)
	}
	return page, err
}
