package gateway

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// MaxListed is the maximum number of repositories in a page.
const MaxListed = 1000

// List returns a page of the repositories that the caller may read: those of each route, in the order of the prefixes.
// NextPageToken is the last path of the page, for ListRequest.After; empty after the last page. contains selects those
// whose path or description has it, without regard to case. With it, repositories of the last minute can be absent.
func (r *Request) List(asked *packhorsev1.ListRequest, contains string) (*packhorsev1.ListResponse, error) {
	contains = strings.ToLower(contains)
	page := &packhorsev1.ListResponse{}
	from := ""
	if path, err := git.ParseRepoPath(asked.After); err == nil {
		from = r.Router.PrefixOf(path)
	}
	for _, prefix := range r.Router.Prefixes() {
		below := asked.Prefix
		if strings.HasPrefix(prefix, below) {
			below = prefix
		}
		if prefix < from || !strings.HasPrefix(below, prefix) || page.NextPageToken != "" {
			continue
		}
		want := &packhorsev1.ListRequest{Prefix: below, PageSize: MaxListed, Labels: asked.Labels}
		if prefix == from {
			want.After = asked.After
		}
		for isLast := false; !isLast && page.NextPageToken == ""; {
			part, err := r.listRoute(prefix, want, contains)
			if err != nil {
				return nil, err
			}
			paths, err := r.listable(prefix, part.Repositories)
			if err != nil {
				return nil, err
			}
			page.Repositories = append(page.Repositories, paths...)
			if n := int(asked.PageSize); len(page.Repositories) >= n {
				page.Repositories, page.NextPageToken = page.Repositories[:n], page.Repositories[n-1]
			}
			isLast = part.NextPageToken == ""
			want.After, want.PageToken = "", part.NextPageToken
		}
	}
	if len(page.Repositories) == 0 && r.ID.Anonymous() && r.Auth != nil && r.Auth.Configured() {
		return nil, auth.ErrAnonymous
	}
	if !asked.Details {
		return page, nil
	}
	return page, r.describe(page)
}

// describe adds the details to a page. Repositories that are gone meanwhile are removed from it.
func (r *Request) describe(page *packhorsev1.ListResponse) error {
	byRoute, known := map[string][]string{}, map[string]*packhorsev1.Repository{}
	for _, name := range page.Repositories {
		if path, err := git.ParseRepoPath(name); err == nil {
			prefix := r.Router.PrefixOf(path)
			byRoute[prefix] = append(byRoute[prefix], name)
		}
	}
	for prefix, only := range byRoute {
		part, err := r.listRoute(prefix, &packhorsev1.ListRequest{Only: only, Details: true}, "")
		if err != nil {
			return err
		}
		for _, d := range part.Details {
			known[d.GetPath()] = d
		}
	}
	names := page.Repositories
	page.Repositories = nil
	for _, name := range names {
		if d := known[name]; d != nil {
			page.Repositories, page.Details = append(page.Repositories, name), append(page.Details, d)
		}
	}
	return nil
}

// listRoute has a node of a route list its repositories, or finds all with a text.
func (r *Request) listRoute(prefix string, want *packhorsev1.ListRequest, contains string) (*packhorsev1.ListResponse,
	error) {
	part := &packhorsev1.ListResponse{}
	if contains != "" {
		all, err := r.described(prefix)
		for _, d := range after(all, want.After) {
			if strings.HasPrefix(d.path, want.Prefix) && strings.Contains(d.text, contains) {
				part.Repositories = append(part.Repositories, d.path)
			}
		}
		return part, err
	}
	return part, r.callRoute(prefix, packhorsev1connect.RepositoryServiceListProcedure, want, part)
}

// after returns what follows a path. A node orders paths by their components. The path may have been removed meanwhile.
func after(all []describedPath, path string) []describedPath {
	if i := slices.IndexFunc(all, func(d describedPath) bool { return d.path == path }); i >= 0 {
		return all[i+1:]
	}
	components := strings.Split(path, "/")
	i := slices.IndexFunc(all, func(d describedPath) bool {
		return slices.Compare(strings.Split(d.path, "/"), components) > 0
	})
	if i < 0 {
		return nil
	}
	return all[i:]
}

// descriptions has the descriptions of repositories by route, for lists of those with a text. The zero value is empty.
type descriptions struct {
	mu      sync.Mutex
	byRoute map[string]describedRoute
	making  chan struct{} // closed when the request that asks a node has an answer; nil: none asks
}

type describedRoute struct {
	list []describedPath // in the order of the node; nil: there is none yet
	at   time.Time
}

// describedPath is a repository; text is its path and description in lower case.
type describedPath struct{ path, text string }

const (
	describedFor   = time.Minute
	maxDescribed   = 100_000 // repositories of a route
	maxDescription = 1000    // bytes of a description
)

// described returns the repositories of a route. One request at a time asks a node for them. Others get the former
// ones, or wait if there are none.
func (r *Request) described(prefix string) (list []describedPath, err error) {
	d := &r.descriptions
	for {
		d.mu.Lock()
		known, making := d.byRoute[prefix], d.making
		if time.Since(known.at) < describedFor || known.list != nil && making != nil {
			d.mu.Unlock()
			return known.list, nil
		}
		if making == nil {
			d.making = make(chan struct{})
		}
		d.mu.Unlock()
		if making == nil {
			break
		}
		select {
		case <-making:
		case <-r.Ctx.Done():
			return nil, fault.Wrap(fault.Cancelled, "the client has gone", r.Ctx.Err())
		}
	}
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		close(d.making)
		d.making = nil
		if list == nil {
			return
		}
		if d.byRoute == nil {
			d.byRoute = make(map[string]describedRoute)
		}
		d.byRoute[prefix] = describedRoute{list, time.Now()}
	}()
	return r.describeAll(prefix)
}

// describeAll asks a node for all repositories of a route. The list is not nil without an error.
func (r *Request) describeAll(prefix string) ([]describedPath, error) {
	list := []describedPath{}
	for want := (&packhorsev1.ListRequest{Prefix: prefix, PageSize: MaxListed, Details: true}); ; {
		part, err := r.listRoute(prefix, want, "")
		if err != nil {
			return nil, err
		}
		for _, repo := range part.Details {
			text := repo.GetSettings().GetDescription()
			text = strings.ToLower(repo.GetPath() + "\n" + text[:min(len(text), maxDescription)])
			list = append(list, describedPath{repo.GetPath(), text})
		}
		if want.PageToken = part.NextPageToken; want.PageToken == "" {
			break
		}
		if len(list) >= maxDescribed {
			return nil, fault.New(fault.Invalid, "a filter is for at most %d repositories: use /?prefix= with "+
				"the start of the path", maxDescribed)
		}
	}
	return list, nil
}

// listable returns the paths that belong to a route and that the caller may read.
func (r *Request) listable(prefix string, names []string) (list []string, err error) {
	var paths []git.RepoPath
	for _, name := range names {
		if path, err := git.ParseRepoPath(name); err == nil && r.Router.PrefixOf(path) == prefix {
			paths, list = append(paths, path), append(list, name)
		}
	}
	if r.Auth == nil || len(list) == 0 {
		return list, nil
	}
	reader := r.Auth.Reader(r.Ctx, r.ID)
	if reader == nil {
		return list, nil
	}
	may, isComplete := reader(paths)
	if !isComplete {
		return nil, fault.Retry(fault.Unavailable, fault.RetrySoon, "it is not known what you may read; try again")
	}
	kept := list[:0]
	for i, name := range list {
		if may[i] {
			kept = append(kept, name)
		}
	}
	return kept, nil
}
