package auth

import (
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Names of groups of callers in a rule.
const (
	anonymous  = "anonymous"
	identified = "*"
)

// Rule permits operations of some callers on some repositories. The first matching rule decides.
type Rule struct {
	callers      []callerPattern
	repositories []Pattern
	permits      int // the number of permitted operations, from Read on; zero means that no operation is permitted
}

// callerPattern matches one identity or a group of callers.
type callerPattern struct {
	by   string // kind of credential; empty means any
	name string // of an identity, or a group
}

// ParseRule parses a rule of the configuration. Each of callers is "anonymous", "*" for all identified callers, a name,
// or a name with the kind of credential, like "token:ci" or "key:alice". may is "none", "read", "write" or "admin".
// Anonymous callers can get permission to read only.
func ParseRule(callers, repositories []string, may string) (Rule, error) {
	var r Rule
	if may != "none" {
		op, err := ParseOperation(may)
		if err != nil {
			return r, fault.New(fault.Invalid, "may = %.40q: use none, read, write or admin", may)
		}
		r.permits = int(op) + 1
	}
	if len(callers) == 0 || len(repositories) == 0 {
		return r, fault.New(fault.Invalid, "a rule needs who and repositories")
	}
	for _, text := range callers {
		c := callerPattern{name: text}
		if by, name, ok := strings.Cut(text, ":"); ok {
			if !slices.Contains([]string{ByToken, ByKey, ByCertificate, ByHook, ByOIDC}, by) {
				return r, fault.New(fault.Invalid, "who = %.80q: use token, key, certificate, hook or oidc before the colon", text)
			}
			c = callerPattern{by, name}
		}
		if c.name != identified && text != anonymous {
			if err := CheckName(c.name); err != nil {
				return r, err
			}
		}
		if text == anonymous && r.permits > int(Read)+1 {
			return r, fault.New(fault.Invalid, "a rule permits anonymous callers to %s: they may only read", may)
		}
		r.callers = append(r.callers, c)
	}
	var err error
	r.repositories, err = ParsePatterns(repositories)
	return r, err
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
	return slices.ContainsFunc(r.callers, func(c callerPattern) bool {
		switch {
		case id.Anonymous():
			return c.name == anonymous
		case c.by != "" && c.by != id.By:
			return false
		}
		return c.name == identified || c.name == id.Name
	}) && matchAny(r.repositories, path, path.anyCase || r.permits == 0)
}

// decide returns the decision of the first matching rule. ok is false if no rule matches.
func decide(rules []Rule, id Identity, path target, op Operation) (d decision, ok bool) {
	for i := range rules {
		if rules[i].match(id, path) {
			return decisionOf(int(op) < rules[i].permits), true
		}
	}
	return denied, false
}
