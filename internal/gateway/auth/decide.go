package auth

import (
	"context"
	"fmt"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// May returns nil if an identity may perform an operation. Errors:
//   - Unauthenticated if an identified caller might be allowed, whether the repository exists or not
//   - NotFound, as from NoRepository, if the caller may not know of the repository
//   - Denied if the caller may read the repository
//   - Unavailable
func (a *Auth) May(ctx context.Context, id Identity, repo git.RepoPath, op Operation) error {
	if err := a.refresh(ctx); err != nil {
		return err
	}
	path, origin := a.targetOf(repo), a.o.Origins.find(repo)
	if id.By == ByOrigin && origin == nil { // no origin knows the credential
		if id.origin.Secret != "" {
			return a.wrongForOrigin(&id.origin.Credential, fault.Message(errNotAccepted))
		}
		id = id.stranger()
	}
	allowed, err := a.allowed(ctx, origin, id, repo, path, op)
	if err == nil && allowed && op == Write && slices.ContainsFunc(*a.rules.Load(), isAboutRefs) {
		if allowed, err = a.allowed(ctx, origin, id, repo, path, Read); err == nil && !allowed {
			return NoRepository(repo)
		}
	}
	if allowed || err != nil {
		return err
	}
	if id.Anonymous() {
		if origin != nil {
			return fault.New(fault.Unauthenticated,
				"authentication required: use your credential for the server that this repository comes from")
		}
		if id.host != "" && a.openHere() {
			return wrongHost(id.host)
		}
		if op != Read && !a.knowsCallers() {
			return fault.New(fault.Denied,
				"pushes need a token: ask the operator of this server to create one with \"packhorse token create\"")
		}
		return ErrAnonymous
	}
	if op != Read {
		if allowed, err = a.allowed(ctx, origin, id, repo, path, Read); err != nil {
			return err
		}
	}
	if !allowed {
		return NoRepository(repo)
	}
	if origin != nil && id.By == ByOrigin {
		if words := a.o.Origins.denial(origin, id, repo, op); words != "" {
			return fault.New(fault.Denied, "%s", words)
		}
	}
	if !id.Grant.allows(path, op) {
		problem := "credential is for other repositories"
		if id.Grant.Operation < op {
			problem = fmt.Sprintf("scope of the credential is %s, not %s", id.Grant.Operation, op)
		}
		return fault.New(fault.Denied, "%s may read this repository, but the %s", id.Name, problem)
	}
	return fault.New(fault.Denied, "%s may read this repository, but not %s it", id.Name,
		[...]string{Write: "push to", Admin: "administer"}[op])
}

// ErrAnonymous is the error of a request without a credential that may succeed with one.
var ErrAnonymous = fault.New(fault.Unauthenticated,
	"authentication required: use an access token as the password (any user name)")

// NoRepository returns the error for a repository that does not exist, or whose existence the caller may not know.
func NoRepository(repo git.RepoPath) error {
	return fault.New(fault.NotFound, "no repository %s here", repo)
}

// decision is the result of rules and configuration.
type decision int

const (
	denied decision = iota
	allowed
	hookDecides
	originDecides
)

func decisionOf(ok bool) decision {
	if ok {
		return allowed
	}
	return denied
}

// decideIdentified decides for an identified caller, without the permissions of anonymous callers.
func (a *Auth) decideIdentified(id Identity, path target, op Operation) decision {
	if !id.Grant.allows(path, op) || id.By == ByOrigin { // an origin proves nothing about other repositories
		return denied
	}
	rules := *a.rules.Load()
	if d, ok := decide(rules, id, path, op); ok {
		return d
	}
	if a.o.Hook != nil {
		return hookDecides
	}
	return decisionOf(len(rules) == 0) // without rules the credential alone decides
}

// decideAnonymous decides whether anonymous callers may read.
func (a *Auth) decideAnonymous(id Identity, path target) decision {
	d, ok := decide(*a.rules.Load(), id, path, Read)
	switch {
	case ok:
		return d
	case a.open(id):
		return allowed
	case a.o.Hook != nil:
		return hookDecides
	}
	return denied
}

// open reports whether a caller may read repositories that no rule matches, without a credential.
func (a *Auth) open(id Identity) bool { return a.o.OpenRead || a.openHere() && id.host == "" }

// openHere reports whether programs of this machine may read such repositories, and others may not.
func (a *Auth) openHere() bool { return !a.o.OpenRead && a.o.OpenUntilKnown && !a.knowsCallers() }

// wrongHost returns the error for a request by another name than the machine's, which a web page may control (DNS
// rebinding).
func wrongHost(host string) error {
	return fault.New(fault.Denied, "without tokens this server serves only its own machine, and not the host %.100q. Use "+
		"localhost or a loopback address in the URL, or create a token (packhorse token create NAME), or start the "+
		"server with --public-read", host)
}

// allowed decides. Identified callers also have the permissions of anonymous ones, because they can omit the
// credential.
func (a *Auth) allowed(ctx context.Context, origin *node.Origin, id Identity, repo git.RepoPath, path target,
	op Operation) (bool, error) {
	if origin != nil {
		d, q := a.decideAtOrigin(origin, id, repo, path, op)
		if d != originDecides {
			return d == allowed, nil
		}
		return a.askOrigin(ctx, id, q)
	}
	if !id.Anonymous() {
		switch a.decideIdentified(id, path, op) {
		case allowed:
			return true, nil
		case hookDecides:
			if ok, err := a.o.Hook.may(ctx, id, repo, op); ok || err != nil {
				return ok, err
			}
		}
	}
	if op != Read {
		return false, nil
	}
	stranger := id.stranger()
	switch a.decideAnonymous(stranger, path) {
	case allowed:
		return true, nil
	case hookDecides:
		return a.o.Hook.may(ctx, stranger, repo, op)
	}
	return false, nil
}

// Reader returns a function that reports which of many repositories an identity may read. Nil means all. If access to a
// repository cannot be determined, it is reported as unreadable and complete is false. The hook is asked about many
// repositories together or at the same time, and an origin about a limited number. These decisions are not counted.
func (a *Auth) Reader(ctx context.Context, id Identity) func([]git.RepoPath) (readable []bool, complete bool) {
	if a.refresh(ctx) != nil {
		return func(repos []git.RepoPath) ([]bool, bool) { return make([]bool, len(repos)), false }
	}
	if a.o.Origins == nil && len(*a.rules.Load()) == 0 && (a.open(id) || a.o.Hook == nil && !id.Anonymous() &&
		(id.Grant == nil || len(id.Grant.Repositories) == 0)) {
		return nil
	}
	return func(repos []git.RepoPath) ([]bool, bool) { return a.readable(ctx, id, repos) }
}

func (a *Auth) readable(ctx context.Context, id Identity, repos []git.RepoPath) (readable []bool, complete bool) {
	readable = make([]bool, len(repos))
	stranger := id.stranger()
	var own, anonymous []int // repositories that the hook decides about for the caller, and for anonymous callers
	var many originMany
	for i, repo := range repos {
		path := a.targetOf(repo)
		if origin := a.o.Origins.find(repo); origin != nil {
			d, q := a.decideAtOrigin(origin, id, repo, path, Read)
			if readable[i] = d == allowed; d == originDecides {
				many.questions, many.at = append(many.questions, q), append(many.at, i)
			}
			continue
		}
		forOwn, forAnonymous := denied, a.decideAnonymous(stranger, path)
		if !id.Anonymous() {
			forOwn = a.decideIdentified(id, path, Read)
		}
		switch {
		case forOwn == allowed || forAnonymous == allowed:
			readable[i] = true
		case forOwn == hookDecides:
			own = append(own, i)
		case forAnonymous == hookDecides:
			anonymous = append(anonymous, i)
		}
	}
	complete = len(many.at) == 0 || a.askOrigins(ctx, id, many, readable)
	complete = a.askHook(ctx, id, repos, own, readable) && complete
	for _, i := range own {
		if !readable[i] && a.decideAnonymous(stranger, a.targetOf(repos[i])) == hookDecides {
			anonymous = append(anonymous, i)
		}
	}
	return readable, a.askHook(ctx, stranger, repos, anonymous, readable) && complete
}

// askHook asks the hook about the repositories at the given indexes.
func (a *Auth) askHook(ctx context.Context, id Identity, repos []git.RepoPath, indexes []int,
	readable []bool) (complete bool) {
	if len(indexes) == 0 {
		return true
	}
	some := make([]git.RepoPath, len(indexes))
	for n, i := range indexes {
		some[n] = repos[i]
	}
	ok, complete := a.o.Hook.readable(ctx, id, some)
	for n, i := range indexes {
		readable[i] = ok[n]
	}
	return complete
}
