package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Names of groups of callers in a rule.
const (
	anonymous   = "anonymous"
	identified  = "*"
	groupPrefix = "group:"
)

// ownName in a pattern stands for the name of the caller, which has no slash and no character with a meaning.
const ownName = "{name}"

// RuleSpec is a rule as it is written.
type RuleSpec struct {
	Name         string   `json:"name,omitempty" toml:"name,omitempty"`
	Who          []string `json:"who" toml:"who"`
	Repositories []string `json:"repositories" toml:"repositories"`
	Refs         []string `json:"refs,omitempty" toml:"refs,omitempty"`
	May          string   `json:"may" toml:"may"` // words, separated by commas
}

// GroupSpec is a group of callers as it is written. Members are as in rules, without other groups.
type GroupSpec struct {
	Name    string   `json:"name" toml:"name"`
	Members []string `json:"members" toml:"members"`
}

// Rule permits operations of some callers on some repositories, or changes of some of their refs. The first matching
// rule decides. Rules with refs only decide about changes of these refs.
type Rule struct {
	name         string // for refusals
	callers      map[callerPattern]bool
	repositories []Pattern
	refs         []node.RefPattern // nil: the rule is not about single refs
	permits      int               // the number of permitted operations, from Read on
	changes      node.RefChange    // that Write permits
}

// callerPattern matches one identity or all callers of a kind.
type callerPattern struct {
	by   string // kind of credential; empty means any
	name string // of an identity, anonymous or identified
}

// Limits of rules.
const (
	maxRuleName = 100
	maxInRule   = 1000    // callers, repositories or refs
	maxMembers  = 100_000 // of all groups
)

// ParseRules parses rules and their groups. label names the rule with an index in errors and refusals. Errors of kind
// Invalid begin with the label.
func ParseRules(groups []GroupSpec, rules []RuleSpec, label func(i int) string) ([]Rule, error) {
	byName, err := parseGroups(groups)
	if err != nil {
		return nil, err
	}
	var all []Rule
	for i, r := range rules {
		rule, err := parseRule(r, byName)
		if err != nil {
			return nil, fault.New(fault.Invalid, "%s: %s", label(i), fault.Message(err))
		}
		if rule.name = fmt.Sprintf("%s %q", strings.TrimRight(label(i), " 0123456789"), r.Name); r.Name == "" {
			text := strings.Join(r.Who, ", ") + " on " + strings.Join(r.Repositories, ", ")
			rule.name = fmt.Sprintf("%s (%s)", label(i), fault.Cut(text, maxRuleName))
		}
		all = append(all, rule)
	}
	return all, nil
}

func parseGroups(groups []GroupSpec) (map[string][]callerPattern, error) {
	byName, members := make(map[string][]callerPattern, len(groups)), 0
	for _, g := range groups {
		if err := CheckName(g.Name); err != nil {
			return nil, fault.New(fault.Invalid, "group: %s", fault.Message(err))
		}
		if _, ok := byName[g.Name]; ok {
			return nil, fault.New(fault.Invalid, "group %s: it is defined twice", g.Name)
		}
		if members += len(g.Members); members > maxMembers {
			return nil, fault.New(fault.Invalid, "groups have more than %d members", maxMembers)
		}
		list := []callerPattern{} // not nil: the group exists
		for _, text := range g.Members {
			c, err := parseCaller(text)
			if err == nil && (c.name == anonymous || c.name == identified) {
				err = fault.New(fault.Invalid, "a member is a name, and not %q", text)
			}
			if err != nil {
				return nil, fault.New(fault.Invalid, "group %s: %s", g.Name, fault.Message(err))
			}
			list = append(list, c)
		}
		byName[g.Name] = list
	}
	return byName, nil
}

// parseCaller parses "anonymous", "*" for all identified callers, a name, or a name with the kind of credential, like
// "token:ci" or "key:alice".
func parseCaller(text string) (callerPattern, error) {
	c := callerPattern{name: text}
	if by, name, ok := strings.Cut(text, ":"); ok {
		if !slices.Contains([]string{ByToken, ByKey, ByCertificate, ByHook, ByOIDC}, by) {
			return c, fault.New(fault.Invalid, "who = %.80q: use token, key, certificate, hook or oidc before the colon, or "+
				"group in a rule", text)
		}
		c = callerPattern{by, name}
	}
	if c.name != identified && text != anonymous {
		return c, CheckName(c.name)
	}
	return c, nil
}

// parseRule parses one rule. Anonymous callers can get permission to read only.
func parseRule(spec RuleSpec, groups map[string][]callerPattern) (r Rule, err error) {
	if r.permits, r.changes, err = parseMay(spec.May, len(spec.Refs) > 0); err != nil {
		return r, err
	}
	switch {
	case len(spec.Who) == 0 || len(spec.Repositories) == 0:
		return r, fault.New(fault.Invalid, "a rule needs who and repositories")
	case max(len(spec.Who), len(spec.Repositories), len(spec.Refs)) > maxInRule:
		return r, fault.New(fault.Invalid, "a rule has at most %d callers, repositories and refs: use groups and patterns",
			maxInRule)
	case len(spec.Name) > maxRuleName || hasControls(spec.Name):
		return r, fault.New(fault.Invalid, "the name of a rule has at most %d bytes and no control characters", maxRuleName)
	}
	r.callers = make(map[callerPattern]bool, len(spec.Who))
	for _, text := range spec.Who {
		if name, ok := strings.CutPrefix(text, groupPrefix); ok {
			members, ok := groups[name]
			if !ok {
				return r, fault.New(fault.Invalid, "who = %.80q: there is no such group: add it as [[auth.group]] with this name",
					text)
			}
			for _, c := range members {
				r.callers[c] = true
			}
			continue
		}
		c, err := parseCaller(text)
		if err != nil {
			return r, err
		}
		if text == anonymous && (r.permits > int(Read)+1 || r.changes != 0) {
			return r, fault.New(fault.Invalid, "a rule permits anonymous callers to %s: they may only read", spec.May)
		}
		r.callers[c] = true
	}
	if r.repositories, err = ParsePatterns(spec.Repositories); err == nil {
		r.refs, err = node.ParseRefPatterns(spec.Refs)
	}
	return r, err
}

// parseMay parses what a rule permits. docs/how-to/auth.md has the table.
func parseMay(text string, hasRefs bool) (permits int, changes node.RefChange, err error) {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	for _, word := range words {
		kind := node.RefChangeOf(word)
		op, opErr := ParseOperation(word)
		switch {
		case word == "none" && len(words) == 1:
		case hasRefs && kind == 0:
			return 0, 0, fault.New(fault.Invalid, "may = %.40q: refs applies to changes: use create, write, force and delete "+
				"with it, or none", text)
		case kind == 0 && opErr != nil:
			return 0, 0, fault.New(fault.Invalid, "may = %.40q: use none, read, write, create, force, delete or admin, or "+
				"several of them with commas", text)
		case kind == 0:
			permits = max(permits, int(op)+1)
			if op == Admin {
				changes = node.AllRefChanges
			}
		default:
			if !hasRefs {
				permits = max(permits, int(Write)+1)
				if kind == node.RefWrite {
					kind = node.AllRefChanges
				}
			}
			if kind == node.RefForce {
				kind |= node.RefWrite
			}
			changes |= kind
		}
	}
	if len(words) == 0 {
		err = fault.New(fault.Invalid, "may = %.40q: use none, read, write, create, force, delete or admin", text)
	}
	return permits, changes, err
}

// Kinds of credentials that prove an identity.
const (
	ByToken       = "token"
	ByKey         = "key"
	ByCertificate = "certificate"
	ByHook        = "hook"
	ByOIDC        = "oidc"
	ByOrigin      = "origin" // not in rules: the names change with each start
)

// match reports whether the rule is for a caller and a repository. A rule that permits nothing ignores the case of the
// path: the origin may ignore it, and then all spellings lead to the same repository.
func (r *Rule) match(id Identity, path target) bool {
	isFor := false
	if id.Anonymous() {
		isFor = r.callers[callerPattern{name: anonymous}]
	} else {
		for _, name := range []string{id.Name, identified} {
			isFor = isFor || r.callers[callerPattern{name: name}] || r.callers[callerPattern{id.By, name}]
		}
	}
	if !isFor {
		return false
	}
	anyCase := path.anyCase || r.permits == 0 && r.changes == 0
	return slices.ContainsFunc(r.repositories, func(p Pattern) bool { return p.matchFor(id.Name, path, anyCase) })
}

func isAboutRefs(r Rule) bool { return r.refs != nil }

// firstRule returns the first rule for a caller and a repository that decides; nil: none does.
func firstRule(rules []Rule, id Identity, path target, decides func(*Rule) bool) *Rule {
	for i := range rules {
		if r := &rules[i]; decides(r) && r.match(id, path) {
			return r
		}
	}
	return nil
}

// decide returns the decision of the first matching rule. Any permitted change of a ref permits Write. ok is false if
// no rule matches.
func decide(rules []Rule, id Identity, path target, op Operation) (d decision, ok bool) {
	r := firstRule(rules, id, path, func(r *Rule) bool { return r.refs == nil || op == Write && r.changes != 0 })
	return decisionOf(r != nil && (r.refs != nil || int(op) < r.permits)), r != nil
}

// RefRules returns the rules for the changes of an identity that may write to a repository. The error is Unavailable or
// Exhausted if the hook cannot be asked.
func (a *Auth) RefRules(ctx context.Context, id Identity, repo git.RepoPath) (list node.RefRules, err error) {
	if id.Grant != nil && len(id.Grant.Refs) > 0 {
		list.Only, list.Credential = id.Grant.Refs, "the "+id.By+" "+id.Credential
	}
	rules, path := *a.rules.Load(), a.targetOf(repo)
	rest := node.RefRule{Refs: []node.RefPattern{{"refs", "**"}}, May: node.AllRefChanges}
	for i := range rules {
		r := &rules[i]
		if !r.match(id, path) {
			continue
		}
		if r.refs == nil {
			rest.Name, rest.May = r.name, r.changes
			return withRest(list, rest), nil
		}
		one := node.RefRule{Name: r.name, May: r.changes}
		for _, p := range r.refs {
			one.Refs = append(one.Refs, placeName(p, id.Name))
		}
		list.Rules = append(list.Rules, one)
	}
	origin := a.o.Origins.find(repo)
	isFor := id.Grant != nil && len(id.Grant.Repositories) > 0
	switch {
	case origin != nil && (id.By == ByOrigin || isFor), origin == nil && a.o.Hook == nil && len(rules) == 0:
		rest.Name = "the credential"
	case origin == nil && a.o.Hook != nil:
		rest.Name = "the auth hook"
		ok, err := a.o.Hook.may(ctx, id, repo, Write)
		if err != nil {
			return list, err
		}
		if !ok {
			rest.May = 0
		}
	default:
		rest.Name, rest.May = "the rules: no rule is for this ref", 0
	}
	return withRest(list, rest), nil
}

// withRest adds the rule for all other refs, unless everything is permitted.
func withRest(list node.RefRules, rest node.RefRule) node.RefRules {
	if len(list.Rules) > 0 || rest.May != node.AllRefChanges {
		list.Rules = append(list.Rules, rest)
	}
	return list
}

// placeName replaces ownName in the components of a pattern.
func placeName(components []string, name string) []string {
	if !slices.ContainsFunc(components, func(c string) bool { return strings.Contains(c, ownName) }) {
		return components
	}
	placed := make([]string, len(components))
	for i, c := range components {
		placed[i] = strings.ReplaceAll(c, ownName, name)
	}
	return placed
}
