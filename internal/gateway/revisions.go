package gateway

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/resolve"
)

var _ resolve.Node = (*Router)(nil)

// homeCheck is how often a watch looks whether its nodes are still those that are asked.
const homeCheck = time.Second

// Home names the node that is asked for a repository's revisions, and watched: of its route the first that is up, so that versions can be compared.
// Empty: there is none.
func (r *Router) Home(repo git.RepoPath) string {
	if m := r.home(r.table.Load().find(repo)); m != nil {
		return m.Name
	}
	return ""
}

// home is the first member of a route that takes requests, or the first one; nil: there is no route.
func (r *Router) home(found *route) *member {
	if found == nil {
		return nil
	}
	for i, worker := range found.workers {
		if s := r.workers.State(worker); !s.Draining && s.Down == nil {
			return found.members[i]
		}
	}
	return found.members[0]
}

// steady is assign for requests that all go to the same node, as long as it is up: the first of the route that can be had and was not tried.
func (r *Router) steady(repo git.RepoPath, tried []string) (m *visit, err error) {
	found := r.table.Load().find(repo)
	if found == nil {
		return r.assign(repo, tried)
	}
	for most := 1; most <= len(found.members); most++ {
		if m, err = r.assignFrom(repo, tried, most); err == nil {
			return m, nil
		}
	}
	return nil, err
}

// Resolve asks the nodes of the repositories, each once, and another one for what it cannot answer. Only the end of ctx is an error of the whole.
func (r *Router) Resolve(ctx context.Context, questions []resolve.Question) ([]resolve.Result, error) {
	t := r.table.Load()
	byRoute := make(map[*route][]int, 1)
	for i, q := range questions {
		found := t.find(q.Repository)
		byRoute[found] = append(byRoute[found], i)
	}
	results := make([]resolve.Result, len(questions))
	var calls sync.WaitGroup
	for _, indexes := range byRoute {
		if len(byRoute) == 1 {
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

// resolveAt answers those questions that one route is for.
func (r *Router) resolveAt(ctx context.Context, questions []resolve.Question, results []resolve.Result, indexes []int) {
	asked := make([]resolve.Question, len(indexes))
	for i, at := range indexes {
		asked[i] = questions[at]
	}
	var told error // of the failures, the first
	var tried []string
	for len(tried) < maxTries && ctx.Err() == nil {
		m, err := r.steady(asked[0].Repository, tried)
		if err != nil {
			if told == nil {
				told = err
			}
			break
		}
		answers, err := r.ask(ctx, m, asked)
		if err == nil {
			for i, at := range indexes {
				results[at] = answers[i]
			}
			return
		}
		if told == nil {
			told = err
		}
		if judge(err) == (verdict{}) {
			break
		}
		tried = append(tried, m.Name)
	}
	for _, at := range indexes {
		results[at].Err = told
	}
}

// ask asks one node. The caller got it from the Router, and is done with it afterwards.
func (r *Router) ask(ctx context.Context, m *visit, asked []resolve.Question) (answers []resolve.Result, err error) {
	v := verdict{failed: true, rests: true} // of a panic
	defer func() { r.done(m, v) }()
	if m.Revisions == nil {
		err = fault.New(fault.Unavailable, "the storage node %s resolves no revisions", m.Name)
	} else {
		answers, err = m.Revisions.Resolve(ctx, asked)
	}
	if err == nil && len(answers) != len(asked) {
		err = fault.New(fault.Internal, "the storage node %s gave %d answers to %d questions", m.Name, len(answers), len(asked))
	}
	if v = (verdict{}); err != nil && ctx.Err() == nil {
		v = judge(err)
	}
	return answers, err
}

// Watch watches repositories at their homes. It fails, to begin anew, when one of them has another home, or as soon as one node's watch fails. A
// repository that no node has is gone.
func (r *Router) Watch(ctx context.Context, from []resolve.Known, send func(resolve.Event) error) error {
	t := r.table.Load()
	byHome := make(map[*member][]resolve.Known, 1)
	homes := make(map[*route]*member, 1)
	for _, k := range from {
		found := t.find(k.Repository)
		if found == nil {
			if err := send(resolve.Event{Repository: k.Repository, Gone: true}); err != nil {
				return err
			}
			continue
		}
		if homes[found] == nil {
			homes[found] = r.home(found)
		}
		byHome[homes[found]] = append(byHome[homes[found]], k)
	}
	watches, ctx := errgroup.WithContext(ctx)
	sending := make(chan struct{}, 1) // send is for one event at a time
	for m, known := range byHome {
		watches.Go(func() error {
			if m.Revisions == nil || !m.hold() {
				return moved()
			}
			defer m.release()
			return m.Revisions.Watch(ctx, known, func(e resolve.Event) error {
				sending <- struct{}{}
				defer func() { <-sending }()
				return send(e)
			})
		})
	}
	watches.Go(func() error {
		tick := time.NewTicker(homeCheck)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			if r.table.Load() != t {
				return moved()
			}
			for found, m := range homes {
				if r.home(found) != m {
					return moved()
				}
			}
		}
	})
	return watches.Wait()
}

func moved() error {
	return fault.New(fault.Unavailable, "another storage node is asked for some of these repositories now")
}
