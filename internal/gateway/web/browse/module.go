package browse

import (
	"net/url"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	maxModules     = 256 << 10 // bytes of .gitmodules
	maxModulePages = 20        // pages of a directory that are searched for a submodule
)

// modules are the URLs of submodules by path, as .gitmodules has them (gitmodules(5)).
type modules map[string]string

// modules reads .gitmodules in commits; earlier ones take precedence. One that is missing or not valid has no URLs.
func (q *request) modules(commits ...string) (modules, error) {
	m := modules{}
	for _, commit := range commits {
		b, err := q.blobAt(&packhorsev1.RevisionPath{Revision: commit, Path: ".gitmodules"}, maxModules)
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if config, err := repo.ParseConfig(string(b.data)); err == nil && b.mode != modeLink {
			m.add(config)
		}
	}
	return m, nil
}

func (m modules) add(config repo.Config) {
	paths := map[string]string{} // by name
	for key, value := range config.All() {
		if name, ok := strings.CutSuffix(key, ".path"); ok && strings.HasPrefix(key, "submodule.") {
			paths[name] = strings.TrimSuffix(value, "/")
		}
	}
	for name, path := range paths {
		if to, ok := config.Get(name + ".url"); ok && m[path] == "" {
			m[path] = to
		}
	}
}

// isModule reports whether a change is one of a submodule.
func isModule(f *packhorsev1.FileDiff) bool {
	return f.GetMode() == modeSubmodule || f.GetOldMode() == modeSubmodule
}

// relative resolves the URL of a submodule as git-submodule(1) does: one that begins with ./ or ../ is relative to that
// of the repository.
func (q *request) relative(to string) string {
	if !strings.HasPrefix(to, "./") && !strings.HasPrefix(to, "../") {
		return to
	}
	path := q.repo.String()
	for rest := to; ; {
		if next, ok := strings.CutPrefix(rest, "./"); ok {
			rest = next
		} else if next, ok := strings.CutPrefix(rest, "../"); ok {
			if rest = next; path == "" { // it leaves this server
				return to
			}
			path, _ = cutLast(path)
		} else {
			return q.v.Address("") + strings.TrimPrefix(page.Path(path)+"/"+rest, "/")
		}
	}
}

// inner returns the path of the repository that a URL leads to if it is on this server.
func (q *request) inner(to string) (path git.RepoPath, ok bool) {
	here := q.v.Address("")
	_, host, _ := strings.Cut(here, "://")
	before := []string{"https://" + host, "http://" + host}
	if over := q.sshAddress(""); over != "" {
		before = append(before, over)
	}
	for _, start := range before {
		if rest, isHere := strings.CutPrefix(to, start); isHere {
			if strings.Contains(start, "://") {
				rest = page.Unescape(rest)
			}
			path, err := git.ParseRepoPath(strings.Trim(rest, "/"))
			return path, err == nil
		}
	}
	return path, false
}

// moduleLink returns text as a link to a submodule at a commit, or to the difference from an earlier one if that is not
// empty. It is a link if the URL is one of this server, or has the scheme https.
func (q *request) moduleLink(to, before, commit, text string) g.Node {
	to = q.relative(to)
	if path, ok := q.inner(to); ok {
		at := request{repo: path}
		link := at.link("tree", commit)
		if before != "" {
			link = at.link("compare", before+".."+commit)
		}
		return h.A(page.Href(link), h.Rel("nofollow"), page.Text(text))
	}
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || strings.ContainsFunc(to, page.Deceives) {
		return page.Text(text)
	}
	return h.A(h.Href(u.String()), h.Rel("nofollow noopener noreferrer"), page.Text(text))
}

// module shows the submodule at the request's path. It fails with cause if there is none.
func (q *request) module(cause error) (*content, error) {
	dir, name := cutLast(q.path)
	id, token := "", ""
	for range maxModulePages {
		tree, err := one[packhorsev1.TreeResponse](q, packhorsev1connect.ObjectServiceTreeProcedure,
			&packhorsev1.TreeRequest{Path: q.in(dir), PageSize: languageMax, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, e := range tree.GetEntries() {
			if string(e.GetPath()) == name && e.GetMode() == modeSubmodule {
				id = e.GetOid()
			}
		}
		if token = tree.GetNextPageToken(); token == "" || id != "" {
			break
		}
	}
	if id == "" {
		return nil, cause
	}
	known, err := q.modules(q.at.id.String())
	if err != nil {
		return nil, err
	}
	about := h.P(g.Text(".gitmodules has no URL for it."))
	if to := known[q.path]; to != "" {
		about = h.P(g.Text("Its repository is "), q.moduleLink(to, "", id, to), g.Text("."))
	}
	return &content{title: q.path + " - " + q.repo.String(), kind: "tree", noStore: true, main: g.Group{
		q.crumbs(""), q.places(""), q.permanent(), page.Card("This is a submodule", "It is the commit "+id+
			" of another repository.", about),
	}}, nil
}

// moduleChange returns the change of a submodule as a link.
func (d *diff) moduleChange(q *request, f *packhorsev1.FileDiff) g.Node {
	old, now, path := f.GetOldOid(), f.GetOid(), string(f.GetPath())
	text := page.Short(old) + ".." + page.Short(now)
	if f.GetMode() != modeSubmodule {
		old, now, path, text = "", old, string(f.GetOldPath()), page.Short(old)
	} else if f.GetOldMode() != modeSubmodule {
		old, text = "", page.Short(now)
	}
	return h.P(h.Class("rest"), g.Text("Submodule "), q.moduleLink(d.modules[path], old, now, text))
}
