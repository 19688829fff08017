package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/search"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Node is a storage node of a Route.
type Node struct {
	Name   string
	Client *client.Client
}

// Route maps a prefix of repository paths to the nodes that have them, as in the gateway.
type Route struct {
	Prefix string
	Nodes  []Node // at least one
}

// Source is a search.Source over storage nodes. Safe for concurrent use.
type Source struct{ now atomic.Pointer[routeTable] }

var _ search.Source = (*Source)(nil)

// routeTable is the routes at one time.
type routeTable struct {
	routes []Route
	byName map[string]*Route // by prefix
	over   chan struct{}     // closed when another table replaces it
}

// NewSource returns a Source. It does not connect.
func NewSource(routes []Route) *Source {
	s := &Source{}
	s.Set(routes)
	return s
}

// Set replaces the routes. Watches continue with the new ones, and other calls with the old ones.
func (s *Source) Set(routes []Route) {
	t := &routeTable{routes: slices.Clone(routes), byName: make(map[string]*Route, len(routes)), over: make(chan struct{})}
	for i := range t.routes {
		t.byName[trimPrefix(t.routes[i].Prefix)] = &t.routes[i]
	}
	if old := s.now.Swap(t); old != nil {
		close(old.over)
	}
}

// trimPrefix returns the canonical form of a path or a prefix of paths.
func trimPrefix(path string) string {
	path = strings.Trim(path, "/")
	if short, ok := strings.CutSuffix(path, ".git"); ok && short != "" && !strings.HasSuffix(short, "/") {
		return short
	}
	return path
}

// find returns the route of a repository, or nil.
func (t *routeTable) find(repository string) *Route {
	for path := trimPrefix(repository); path != ""; {
		if r := t.byName[path]; r != nil {
			return r
		}
		path = path[:max(0, strings.LastIndexByte(path, '/'))]
	}
	return t.byName[""]
}

func (s *Source) routeOf(repository git.RepoPath) (*Route, error) {
	if r := s.now.Load().find(repository.String()); r != nil {
		return r, nil
	}
	return nil, fault.New(fault.NotFound, "no repository %s here", repository)
}

// errBegun marks an error after some output, so that no other node may be called.
type errBegun struct{ error }

func (e errBegun) Unwrap() error { return e.error }

// ask calls the nodes of a route until one responds.
func (r *Route) ask(ctx context.Context, call func(*client.Client) error) (err error) {
	for _, n := range r.Nodes {
		err = call(n.Client)
		if begun, ok := errors.AsType[errBegun](err); ok {
			return begun.error
		}
		if err = faultrpc.From(err); !fault.Is(err, fault.Unavailable) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// listLimit is the time limit of listing the repositories of one route.
const listLimit = 5 * time.Minute

// Repositories implements search.Source. A failing route does not affect the others.
func (s *Source) Repositories(ctx context.Context, each func(git.RepoPath) error) error {
	t := s.now.Load()
	found, errs := make([][]git.RepoPath, len(t.routes)), make([]error, len(t.routes))
	var lists sync.WaitGroup
	for i := range t.routes {
		lists.Go(func() { found[i], errs[i] = t.list(ctx, &t.routes[i]) })
	}
	lists.Wait()
	for _, paths := range found {
		for _, path := range paths {
			if err := each(path); err != nil {
				return err
			}
		}
	}
	return errors.Join(errs...)
}

func (t *routeTable) list(ctx context.Context, r *Route) (found []git.RepoPath, err error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	err = r.ask(ctx, func(c *client.Client) error {
		found = found[:0]
		for name, err := range c.AllRepositories(ctx, &packhorsev1.ListRequest{Prefix: trimPrefix(r.Prefix),
			PageSize: 1000}) {
			if err != nil {
				return err
			}
			if path, err := git.ParseRepoPath(name); err == nil && t.find(name) == r {
				found = append(found, path)
			}
		}
		return nil
	})
	return found, err
}

func (s *Source) Heads(ctx context.Context, repository git.RepoPath,
	branches []string) (heads []search.Head, version git.Version, err error) {
	r, err := s.routeOf(repository)
	if err != nil {
		return nil, version, err
	}
	request := new(packhorsev1.ResolveManyRequest)
	for _, name := range branches {
		request.Requests = append(request.Requests, &packhorsev1.ResolveRequest{Repository: repository.String(), Name: name})
	}
	err = r.ask(ctx, func(c *client.Client) error {
		heads, version = make([]search.Head, len(branches)), git.Version{}
		answer, err := c.Refs().ResolveMany(ctx, connect.NewRequest(request))
		if err != nil {
			return err
		}
		if len(answer.Msg.GetResults()) != len(branches) {
			return errAnswer("got %d heads, want %d", len(answer.Msg.GetResults()), len(branches))
		}
		for i, result := range answer.Msg.GetResults() {
			heads[i] = search.Head{Name: branches[i]}
			if found := result.GetFound(); found == nil {
				heads[i].Err = faultrpc.Fault(result.GetFault())
			} else if heads[i], err = headOf(found.GetRef()); err != nil {
				return err
			} else {
				version = versionOf(found.GetVersion())
				version.Incarnation += result.GetPurges() // shards from before are removed
			}
		}
		if version == (git.Version{}) { // no branch exists, or no repository
			exists, err := c.Refs().Exists(ctx,
				connect.NewRequest(&packhorsev1.ExistsRequest{Repository: repository.String(), Name: "refs/heads/main"}))
			if err != nil {
				return err
			}
			version = versionOf(exists.Msg.GetVersion())
		}
		return nil
	})
	return heads, version, err
}

func errAnswer(format string, args ...any) error {
	return errBegun{fault.Wrap(fault.Internal, "the storage node sent an invalid response",
		fmt.Errorf(format, args...))}
}

// headOf converts a ref: the name is the target of a symbolic ref, and the commit that of a peeled tag.
func headOf(ref *packhorsev1.Ref) (h search.Head, err error) {
	h.Name = ref.GetName()
	if target := ref.GetTarget(); target != "" {
		h.Name = target
	}
	id := ref.GetOid()
	if peeled := ref.GetPeeled(); peeled != "" {
		id = peeled
	}
	if h.Commit, err = git.ParseObjectID(id); err != nil {
		err = errAnswer("%s has the object ID %.80q", h.Name, id)
	}
	return h, err
}

func versionOf(v *packhorsev1.Version) git.Version {
	return git.Version{Incarnation: v.GetIncarnation(), Epoch: v.GetEpoch(), Generation: v.GetGeneration()}
}

// maxWatched is the maximum number of repositories of one call, which is that of a node.
const maxWatched = 10_000

// substitute is the time for which events of another node than a route's first one are used before the first one is
// tried again. roundPause is the pause after all nodes of a route were unreachable.
const (
	substitute = 20 * time.Second
	roundPause = time.Second
)

// group has repositories of the same nodes.
type group struct {
	nodes []Node
	from  []*packhorsev1.WatchedRepository
}

// Watch implements search.Source. While all nodes of a route are unreachable it reports nothing about its repositories,
// and later the changes in that time. Exhausted means that a node refuses further watches; a call with fewer
// repositories may succeed.
func (s *Source) Watch(ctx context.Context, repositories []git.RepoPath,
	send func(path git.RepoPath, version git.Version, gone bool) error) error {
	for {
		t := s.now.Load()
		err := t.watch(ctx, repositories, send)
		begun, ok := errors.AsType[errBegun](err)
		switch {
		case ok:
			return begun.error
		case ctx.Err() != nil:
			return ctx.Err()
		}
		select {
		case <-t.over:
		default:
			return err
		}
	}
}

// watch watches until ctx or the table's time ends. An error of send is marked as begun.
func (t *routeTable) watch(ctx context.Context, repositories []git.RepoPath,
	send func(path git.RepoPath, version git.Version, gone bool) error) error {
	var groups []*group
	paths := make(map[string]git.RepoPath, len(repositories))
	for _, path := range repositories {
		r := t.find(path.String())
		if r == nil {
			if err := send(path, git.Version{}, true); err != nil {
				return errBegun{err}
			}
			continue
		}
		i := slices.IndexFunc(groups, func(g *group) bool { return slices.Equal(g.nodes, r.Nodes) })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{nodes: r.Nodes})
		}
		groups[i].from = append(groups[i].from, &packhorsev1.WatchedRepository{Repository: path.String(), LowPriority: true})
		paths[path.String()] = path
	}
	var one sync.Mutex
	take := func(event *packhorsev1.WatchResponse) error {
		path, ours := paths[event.GetRepository()]
		if !ours || event.GetContinued() {
			return nil
		}
		one.Lock()
		defer one.Unlock()
		if err := send(path, versionOf(event.GetVersion()), event.GetMissing()); err != nil {
			return errBegun{err}
		}
		return nil
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.over:
			return fault.New(fault.Unavailable, "the routes to the storage nodes have changed")
		}
	})
	for _, g := range groups {
		for part := range slices.Chunk(g.from, maxWatched) {
			all.Go(func() error { return follow(ctx, g.nodes, part, take) })
		}
	}
	return all.Wait()
}

// follow watches repositories at the first reachable node, until ctx ends or an error is permanent.
func follow(ctx context.Context, nodes []Node, from []*packhorsev1.WatchedRepository,
	take func(*packhorsev1.WatchResponse) error) error {
	for i := 0; ; i = (i + 1) % len(nodes) {
		limit, cancel := ctx, context.CancelFunc(func() {})
		if i > 0 {
			limit, cancel = context.WithTimeout(ctx, substitute)
		}
		err := followOne(limit, nodes[i].Client, len(nodes) == 1, from, take)
		over := limit.Err() != nil
		cancel()
		switch _, begun := errors.AsType[errBegun](err); {
		case begun:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case over:
			i = -1
		case len(nodes) == 1 || !fault.Is(err, fault.Unavailable):
			return err
		case i == len(nodes)-1:
			if err := retry.Sleep(ctx, roundPause); err != nil {
				return err
			}
		}
	}
}

// followOne watches repositories at a node. If it is the only one, the client reconnects after it was unreachable.
func followOne(ctx context.Context, c *client.Client, only bool, from []*packhorsev1.WatchedRepository,
	take func(*packhorsev1.WatchResponse) error) error {
	for event, err := range c.Watch(ctx, &packhorsev1.WatchRequest{Repositories: from}) {
		if err == nil {
			if err := take(event); err != nil {
				return err
			}
			continue
		}
		switch err = faultrpc.From(err); {
		case ctx.Err() != nil:
			return ctx.Err()
		case fault.Is(err, fault.Invalid), fault.Is(err, fault.Exhausted), fault.Is(err, fault.Unavailable) && !only:
			return err
		}
	}
	return fault.New(fault.Unavailable, "the storage node ended the watch")
}
