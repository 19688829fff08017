package receivepack

import (
	"context"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// ruleCheck compares updates with the rules of the pusher (node.Pusher.Rules).
type ruleCheck struct {
	rules  *node.RefRules
	lookup func(git.RefName) (refs.Ref, bool, error)
}

// refusal returns why an update of one of some kinds is refused; "" if it is not. A symbolic ref changes its target.
func (c ruleCheck) refusal(u Update, kinds node.RefChange) (string, error) {
	if reason := c.rules.Refusal(u.Ref, kinds); reason != "" {
		return reason, nil
	}
	if ref, ok, err := c.lookup(u.Ref); err != nil || !ok || ref.Target == "" {
		return "", err
	} else if reason := c.rules.Refusal(ref.Target, kinds); reason != "" {
		return reason + " (of " + string(ref.Target) + ")", nil
	}
	return "", nil
}

// freshObjects reads an object that the repository does not have yet; NotFound for others. Only commits need content.
type freshObjects func(git.ObjectID) (git.ObjectType, []byte, error)

// CheckRules returns an error of kind Denied if rules do not permit all updates.
func CheckRules(ctx context.Context, r *repo.Repo, rules *node.RefRules, before *refs.Snapshot, updates []Update,
	fresh freshObjects) error {
	refused, err := refusedByRules(ctx, r, rules, before, updates, fresh)
	if err == nil && len(refused) > 0 {
		err = ruleError(refused)
	}
	return err
}

// refusedByRules returns the reasons against updates, by ref.
func refusedByRules(ctx context.Context, r *repo.Repo, rules *node.RefRules, before *refs.Snapshot, updates []Update,
	fresh freshObjects) (refused map[git.RefName]string, err error) {
	if rules.IsZero() {
		return nil, nil
	}
	refused = make(map[git.RefName]string)
	c := ruleCheck{rules, before.Lookup}
	for _, u := range updates {
		kinds := node.RefChangesOf(u.Ref, u.Old, u.New)
		reason, err := c.refusal(u, kinds)
		if err == nil && reason != "" && kinds == node.RefWrite|node.RefForce {
			kinds = node.RefForce
			isForward, walkErr := fastForward(ctx, r, fresh, u.Old, u.New)
			if isForward {
				kinds = node.RefWrite
			}
			if err = walkErr; err == nil {
				reason, err = c.refusal(u, kinds)
			}
		}
		if err != nil {
			return nil, err
		}
		if reason != "" {
			refused[u.Ref] = clean(reason, maxReason)
		}
	}
	return refused, nil
}

// fastForward reports whether the history of a commit has another one. Other objects have no history.
func fastForward(ctx context.Context, r *repo.Repo, fresh freshObjects, before, after git.ObjectID) (bool, error) {
	seen := map[git.ObjectID]bool{after: true}
	var tips []git.ObjectID // in the repository
	for queue := []git.ObjectID{after}; len(queue) > 0; queue = queue[1:] {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		typ, data, err := fresh(queue[0])
		switch {
		case queue[0] == before && queue[0] != after:
			return true, nil
		case fault.Is(err, fault.NotFound):
			tips = append(tips, queue[0])
			continue
		case err != nil:
			return false, err
		case typ != git.Commit:
			continue
		}
		commit, err := pack.ParseCommit(data, r.Format)
		if err != nil {
			return false, err
		}
		for _, parent := range commit.Parents {
			if !seen[parent] {
				seen[parent] = true
				queue = append(queue, parent)
			}
		}
	}
	if len(tips) == 0 {
		return false, nil
	}
	if typ, _, err := r.Objects.Header(before); err != nil || typ != git.Commit {
		if fault.Is(err, fault.NotFound) {
			err = nil
		}
		return false, err
	}
	shallow, err := r.ShallowSet()
	if err != nil {
		return false, err
	}
	_, isUnreachable, err := r.Graph.FirstUnreachable(ctx, tips, []git.ObjectID{before}, shallow)
	return !isUnreachable && err == nil, err
}

// mayRefuse reports whether the rules may refuse a part of the push. They are asked when its objects have arrived.
func (p *pushSession) mayRefuse(before *refs.Snapshot) bool {
	if p.push.Pusher.Rules.IsZero() {
		return false
	}
	c := ruleCheck{&p.push.Pusher.Rules, before.Lookup}
	for _, u := range p.push.Updates {
		reason, err := c.refusal(u, node.RefChangesOf(u.Ref, u.Old, u.New))
		if reason != "" || err != nil {
			return true
		}
	}
	return false
}

// checkRules refuses the updates that the rules of the pusher do not permit. An error refuses all. objects is the
// directory with the new ones. Otherwise the update script refuses some.
func (p *pushSession) checkRules(ctx context.Context, objects string, updates []Update) error {
	if !p.hooks.asksRules {
		return nil
	}
	fresh := func(id git.ObjectID) (git.ObjectType, []byte, error) {
		return 0, nil, fault.New(fault.NotFound, "no %s", id)
	}
	if objects != "" { // otherwise the push only deletes
		pushed, err := pack.Open(objects, pack.Options{Format: p.target.Format, Alone: true})
		if err != nil {
			return fault.Wrap(fault.Unavailable, "push not accepted: its objects cannot be read", err)
		}
		defer pushed.Close()
		fresh = func(id git.ObjectID) (git.ObjectType, []byte, error) { return pushed.Read(id, 0) }
	}
	refused, err := refusedByRules(ctx, p.target.Repo, &p.push.Pusher.Rules, p.before, updates, fresh)
	if err != nil {
		return fault.Wrap(fault.Unavailable, "push not accepted: the server cannot compare it with the rules", err)
	}
	if len(refused) == 0 {
		return nil
	}
	p.hooks.ruled = refused
	if !p.request.atomic && len(refused) < len(updates) {
		return nil
	}
	err = ruleError(refused)
	for _, u := range updates {
		if refused[u.Ref] == "" {
			refused[u.Ref] = "atomic push failed: another ref is" + node.RefusedBy + "a rule"
		}
	}
	return err
}

// ruleError is the error of a push or a change that rules refuse.
func ruleError(refused map[git.RefName]string) error {
	var first git.RefName
	for ref := range refused {
		if first == "" || ref < first {
			first = ref
		}
	}
	return fault.New(fault.Denied, "%s: %s", fault.Short(first), refused[first])
}

// reportRules sets the reasons of the refs that rules have refused, in a report of Git.
func (p *pushSession) reportRules(report []byte) []byte {
	return editReport(report, func(line string) string {
		name, isRefused := strings.CutSuffix(line, "hook declined")
		name, isNamed := strings.CutPrefix(strings.TrimSuffix(strings.TrimSpace(name), " pre-receive"), "ng ")
		if reason := p.hooks.ruled[git.RefName(name)]; isRefused && isNamed && reason != "" {
			return "ng " + name + " " + reason
		}
		return line
	})
}
