package receivepack

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
)

// refusal returns why an update of one of some kinds is refused; "" if it is not. An update of a symbolic ref changes
// its target, or creates it.
func refusal(rules *node.RefRules, before *refs.Snapshot, u Update, kinds node.RefChange) string {
	reason := rules.Refusal(u.Ref, kinds)
	target := before.TargetOf(u.Ref)
	if reason != "" || target == "" {
		return reason
	}
	if kinds == node.RefWrite { // of a tag it is a forced one
		kinds &= node.RefChangesOf(target, u.Old, u.New)
		kinds = cmp.Or(kinds, node.RefForce)
	}
	if reason = rules.Refusal(target, kinds); reason != "" {
		reason += " (of " + string(target) + ")"
	}
	return reason
}

// CheckRules returns an error of kind Denied if rules do not permit all updates, whose kinds are known.
func CheckRules(rules *node.RefRules, before *refs.Snapshot, updates []Update) error {
	if refused := refusedByRules(rules, before, updates); len(refused) > 0 {
		return ruleError(refused)
	}
	return nil
}

// refusedByRules returns the reasons against updates, whose kinds are known, by ref.
func refusedByRules(rules *node.RefRules, before *refs.Snapshot, updates []Update) map[git.RefName]string {
	refused := make(map[git.RefName]string)
	for _, u := range updates {
		kinds := node.RefChangesOf(u.Ref, u.Old, u.New)
		if kinds == node.RefWrite|node.RefForce {
			if kinds = node.RefForce; u.Kind == FastForward {
				kinds = node.RefWrite
			}
		}
		if reason := refusal(rules, before, u, kinds); reason != "" {
			refused[u.Ref] = clean(reason, maxReason)
		}
	}
	return refused
}

// mayRefuse reports whether the rules may refuse a part of the push. They are asked when its objects have arrived.
func (p *pushSession) mayRefuse(before *refs.Snapshot) bool {
	rules := &p.push.Pusher.Rules
	return !rules.IsZero() && slices.ContainsFunc(p.push.Updates, func(u Update) bool {
		return refusal(rules, before, u, node.RefChangesOf(u.Ref, u.Old, u.New)) != ""
	})
}

// checkRules refuses the updates that the rules of the pusher do not permit. An error refuses all. objects is the
// directory with the new ones. Otherwise the update script refuses some.
func (p *pushSession) checkRules(ctx context.Context, objects string, updates []Update) error {
	if !p.hooks.asksRules {
		return nil
	}
	updates, err := p.classifyQuarantined(ctx, objects, updates)
	if err != nil {
		return fault.Wrap(fault.Unavailable, "push not accepted: the server cannot compare it with the rules", err)
	}
	refused := refusedByRules(&p.push.Pusher.Rules, p.before, updates)
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
