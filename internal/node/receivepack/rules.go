package receivepack

import (
	"context"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
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

// CheckRules returns an error of kind Denied if rules do not permit all updates, whose kinds are known.
func CheckRules(rules *node.RefRules, before *refs.Snapshot, updates []Update) error {
	refused, err := refusedByRules(rules, before, updates)
	if err == nil && len(refused) > 0 {
		err = ruleError(refused)
	}
	return err
}

// refusedByRules returns the reasons against updates, whose kinds are known, by ref.
func refusedByRules(rules *node.RefRules, before *refs.Snapshot, updates []Update) (refused map[git.RefName]string,
	err error) {
	refused = make(map[git.RefName]string)
	c := ruleCheck{rules, before.Lookup}
	for _, u := range updates {
		kinds := node.RefChangesOf(u.Ref, u.Old, u.New)
		if kinds == node.RefWrite|node.RefForce {
			if kinds = node.RefForce; u.Kind == FastForward {
				kinds = node.RefWrite
			}
		}
		reason, err := c.refusal(u, kinds)
		if err != nil {
			return nil, err
		}
		if reason != "" {
			refused[u.Ref] = clean(reason, maxReason)
		}
	}
	return refused, nil
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
	updates, err := p.classifyQuarantined(ctx, objects, updates)
	var refused map[git.RefName]string
	if err == nil {
		refused, err = refusedByRules(&p.push.Pusher.Rules, p.before, updates)
	}
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
