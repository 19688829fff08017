package router

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

var _ node.Resolver = (*Router)(nil)

// homeCheckInterval is how often a watch checks whether its repositories still have the same home.
const homeCheckInterval = time.Second

// Home returns the name of the node that resolves a repository's revisions and is watched: the first node of its route
// that is up, so that versions can be compared. With one object store, it is the first of the repository's order. Home
// returns "" if the repository has no route.
func (r *Router) Home(repo git.RepoPath) string {
	found := r.routing.Load().find(repo)
	if found == nil {
		return ""
	}
	return homeAmong(r.homes(found), repo).Name
}

// groupKey is what questions have in common that one node answers.
type groupKey struct {
	route *route
	home  *member
}

// Resolve asks the homes of the repositories, each once, and another node if one fails. It fails as a whole only when
// ctx ends.
func (r *Router) Resolve(ctx context.Context, questions []node.Question) ([]node.Result, error) {
	t := r.routing.Load()
	groups, homes := make(map[groupKey][]int, 1), make(map[*route][]*member, 1)
	for i, q := range questions {
		key := groupKey{route: t.find(q.Repository)}
		if found := key.route; found != nil {
			if homes[found] == nil {
				homes[found] = r.homes(found)
			}
			key.home = homeAmong(homes[found], q.Repository)
		}
		groups[key] = append(groups[key], i)
	}
	results := make([]node.Result, len(questions))
	var calls sync.WaitGroup
	for _, indexes := range groups {
		if len(groups) == 1 {
			r.resolveAt(ctx, questions, results, indexes)
			break
		}
		calls.Go(func() { r.resolveAt(ctx, questions, results, indexes) })
	}
	calls.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return results, nil
}

// resolveAt answers the questions at the given indexes, all of which have the same route and home.
func (r *Router) resolveAt(ctx context.Context, questions []node.Question, results []node.Result, indexes []int) {
	asked := make([]node.Question, len(indexes))
	for i, at := range indexes {
		asked[i] = questions[at]
	}
	var answers []node.Result
	assign := func(tried []string) (*Assignment, error) { return r.assign(asked[0].Repository, tried, toAskHome) }
	err := try(ctx, assign, func(n *Replica) (err error) {
		answers, err = n.Revisions.Resolve(ctx, asked)
		return err
	})
	for i, at := range indexes {
		if err != nil {
			results[at].Err = err
		} else {
			results[at] = answers[i]
		}
	}
}

// Watch watches repositories at their homes. It fails when a repository gets another home or one node's watch fails;
// the caller begins again. A repository without a route is reported as gone.
func (r *Router) Watch(ctx context.Context, from []node.Known, send func(node.Event) error) error {
	t := r.routing.Load()
	byHome := make(map[*member][]node.Known, 1)
	homes := make(map[*route][]*member, 1)
	for _, k := range from {
		found := t.find(k.Repository)
		if found == nil {
			if err := send(node.Event{Repository: k.Repository, Gone: true}); err != nil {
				return err
			}
			continue
		}
		if homes[found] == nil {
			homes[found] = r.homes(found)
		}
		home := homeAmong(homes[found], k.Repository)
		byHome[home] = append(byHome[home], k)
	}
	watches, ctx := errgroup.WithContext(ctx)
	sending := make(chan struct{}, 1) // held by the one caller of send
	for m, known := range byHome {
		watches.Go(func() error {
			if !m.acquire() {
				return errHomeMoved()
			}
			defer m.release()
			return m.Revisions.Watch(ctx, known, func(e node.Event) error {
				sending <- struct{}{}
				defer func() { <-sending }()
				return send(e)
			})
		})
	}
	watches.Go(func() error {
		tick := time.NewTicker(homeCheckInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			if r.routing.Load() != t {
				return errHomeMoved()
			}
			for found, known := range homes {
				if !slices.Equal(r.homes(found), known) {
					return errHomeMoved()
				}
			}
		}
	})
	return watches.Wait()
}

func errHomeMoved() error {
	return fault.New(fault.Unavailable, "another storage node now serves some of these repositories")
}
