package auth

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// decideAtOrigin decides about a repository that an origin covers, as far as the origin is not needed for that.
// Otherwise the answer to the question decides. A credential for the origin is tried there, and rules can only forbid
// more. The origin does not know callers with other credentials. They need a rule or a grant that names the repository;
// otherwise they may do what anonymous callers may. Public reading does not apply.
func (a *Auth) decideAtOrigin(origin *node.Origin, id Identity, repo git.RepoPath, path target,
	op Operation) (decision, originQuestion) {
	rules, origins := *a.rules.Load(), a.o.Origins
	service, known := serviceOf(op)
	own, ruled := decide(rules, id, path, op)
	switch {
	case id.By == ByOrigin:
		if !known || ruled && own == denied {
			return denied, originQuestion{}
		}
		return originDecides, origins.question(origin, id, repo, service)
	case id.Anonymous():
	case ruled && own == allowed && id.Grant.allows(path, op),
		!ruled && id.Grant != nil && len(id.Grant.Repositories) > 0 && id.Grant.allows(path, op):
		return allowed, originQuestion{}
	}
	if op != Read {
		return denied, originQuestion{}
	}
	stranger := id.stranger()
	if d, ok := decide(rules, stranger, path, Read); ok {
		return d, originQuestion{}
	}
	return originDecides, origins.question(origin, stranger, repo, service)
}

// askOrigin asks a question for a caller. The error is Unauthenticated if the origin does not know the credential,
// Exhausted if the caller has to wait after wrong ones, or Unavailable. After other refusals there is none.
func (a *Auth) askOrigin(ctx context.Context, id Identity, q originQuestion) (bool, error) {
	if id.By != ByOrigin {
		err := a.o.Origins.ask(ctx, q)
		switch {
		case err != nil && isRefusal(err):
			return false, nil
		case id.Anonymous() && (fault.Is(err, fault.Unavailable) ||
			fault.Is(err, fault.Exhausted) && !a.o.Origins.wasPublic(q)):
			// git sends a credential only after this, and an earlier permission for it may still hold
			return false, fault.Wrap(fault.Unauthenticated, "the server that this repository comes from cannot be asked at "+
				"present: use a credential with which you have read this repository before, or try again", err)
		}
		return err == nil, err
	}
	c := &id.origin.Credential
	if c.Secret != "" { // otherwise the user name is the credential, or curl's first try
		if err := a.guesses.check(c); err != nil { // before the cache, because its fast refusal would answer a guess
			return false, err
		}
	}
	err := a.o.Origins.ask(ctx, q)
	if fault.Is(err, fault.Unauthenticated) {
		return false, a.wrongForOrigin(c, "the server that this repository comes from does not accept this credential")
	}
	if err != nil && !isRefusal(err) {
		return false, err
	}
	a.o.Metrics.credential(c.Scheme, nil)
	if err == nil && c.Secret != "" {
		a.guesses.right(c, id.Name)
	}
	return err == nil, nil
}

// wrongForOrigin counts a wrong credential, and returns the error for its caller.
func (a *Auth) wrongForOrigin(c *Credential, message string) error {
	err := fault.New(fault.Unauthenticated, "%s", message)
	if c.Secret != "" {
		err = a.guesses.wrong(c, err)
	}
	a.o.Metrics.credential(c.Scheme, err)
	return err
}

const (
	maxOriginReadable = 200 // questions of one caller about many repositories
	originWorkers     = 8
)

// originMany has the questions about some of the repositories of Reader.
type originMany struct {
	questions []originQuestion
	at        []int // indexes of their repositories
}

// askOrigins answers the questions from the cache, and asks a limited number of the others, for at most readableTime.
// The rest is not readable, and complete is false. A credential is for one host, so that no other host gets it.
func (a *Auth) askOrigins(ctx context.Context, id Identity, m originMany, readable []bool) (complete bool) {
	if id.By == ByOrigin {
		a.o.Origins.withhold(m.questions)
	}
	var left []int
	for n, q := range m.questions {
		if answer, ok := a.o.Origins.cached(q.key); ok {
			readable[m.at[n]] = answer == nil
		} else {
			left = append(left, n)
		}
	}
	var failed atomic.Bool
	if len(left) > maxOriginReadable {
		left = left[:maxOriginReadable]
		failed.Store(true)
	}
	ctx, cancel := context.WithTimeout(ctx, readableTime)
	defer cancel()
	next, workers := atomic.Int64{}, sync.WaitGroup{}
	for range min(originWorkers, len(left)) {
		workers.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(left)); n = next.Add(1) - 1 {
				asker, q := id, m.questions[left[n]]
				if q.authorization.IsZero() {
					asker = id.stranger()
				}
				ok, err := a.askOrigin(ctx, asker, q)
				if err != nil { // the others would fail too
					failed.Store(true)
					next.Store(int64(len(left)))
				}
				readable[m.at[left[n]]] = ok
			}
		})
	}
	workers.Wait()
	return !failed.Load()
}
