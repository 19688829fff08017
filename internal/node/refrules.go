package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// RefChange is a set of kinds of changes of a ref.
type RefChange uint8

// Kinds of changes of a ref.
const (
	RefCreate RefChange = 1 << iota
	RefWrite            // to a commit that has the old one in its history
	RefForce            // any other change of an existing ref, and each change of an existing tag
	RefDelete
	AllRefChanges = RefCreate | RefWrite | RefForce | RefDelete
)

// refChanges has the words of rules, and those of refusals.
var refChanges = []struct {
	kind        RefChange
	word, event string
}{
	{RefCreate, "create", "creation"}, {RefWrite, "write", "update"}, {RefForce, "force", "forced update"},
	{RefDelete, "delete", "deletion"},
}

// String returns the words of the kinds, as in rules.
func (c RefChange) String() string {
	var words []string
	for _, r := range refChanges {
		if c&r.kind != 0 {
			words = append(words, r.word)
		}
	}
	if words == nil {
		return "none"
	}
	return strings.Join(words, ", ")
}

// RefChangesOf returns the kinds that an update of a ref can have before its commits are compared.
func RefChangesOf(ref git.RefName, before, after git.ObjectID) RefChange {
	switch {
	case after.IsZero():
		return RefDelete
	case before.IsZero():
		return RefCreate
	case strings.HasPrefix(string(ref), "refs/tags/"):
		return RefForce
	}
	return RefWrite | RefForce
}

// RefRule permits changes of refs.
type RefRule struct {
	Name string // for the user: `rule 3 (alice on team/**)`
	Refs []RefPattern
	May  RefChange
}

// RefRules limit the changes of one caller in one repository. The first rule that matches a ref decides; without one
// nothing is permitted. The zero value permits everything. A gateway makes them, and a node enforces them.
type RefRules struct {
	Rules []RefRule
	// Only are the only refs that the credential is for; empty: all. Credential is its name for the user.
	Only       []RefPattern
	Credential string
}

// IsZero reports whether everything is permitted.
func (r *RefRules) IsZero() bool { return len(r.Rules) == 0 && len(r.Only) == 0 }

// Same reports whether two sets of rules permit the same. Names of rules do not matter.
func (r *RefRules) Same(other *RefRules) bool {
	samePattern := func(a, b RefPattern) bool { return slices.Equal(a, b) }
	return slices.EqualFunc(r.Only, other.Only, samePattern) &&
		slices.EqualFunc(r.Rules, other.Rules, func(a, b RefRule) bool {
			return a.May == b.May && slices.EqualFunc(a.Refs, b.Refs, samePattern)
		})
}

// RefusedBy is in the reason of each refusal.
const RefusedBy = " refused by "

// Refusal returns why an update of a ref of one of some kinds is not permitted; "" if all these kinds are.
func (r *RefRules) Refusal(ref git.RefName, kinds RefChange) string {
	components := strings.Split(string(ref), "/")
	matches := func(p RefPattern) bool { return git.MatchComponents(p, components) }
	event := func(kinds RefChange) string {
		for _, c := range refChanges {
			if kinds&c.kind != 0 {
				return c.event
			}
		}
		return "change"
	}
	if len(r.Only) > 0 && !slices.ContainsFunc(r.Only, matches) {
		return event(kinds) + RefusedBy + r.Credential + ", which is for other refs"
	}
	if len(r.Rules) == 0 {
		return ""
	}
	for i := range r.Rules {
		rule := &r.Rules[i]
		if !slices.ContainsFunc(rule.Refs, matches) {
			continue
		}
		if wrong := kinds &^ rule.May; wrong != 0 {
			if rule.May == 0 {
				return event(wrong) + RefusedBy + rule.Name + ", which permits no changes"
			}
			return fmt.Sprintf("%s%s%s, which permits: %s", event(wrong), RefusedBy, rule.Name, rule.May)
		}
		return ""
	}
	return event(kinds) + RefusedBy + "the rules: no rule is for this ref"
}

// RefPattern selects refs by the components of their names: see git.MatchComponents.
type RefPattern []string

// ParseRefPattern parses a pattern of full names, such as "refs/heads/*".
func ParseRefPattern(s string) (RefPattern, error) {
	p := RefPattern(strings.Split(s, "/"))
	stars, problem := 0, ""
	for _, c := range p {
		switch {
		case c == "":
			problem = "it has an empty component"
		case c == "**":
			stars++
		case strings.Contains(c, "**"):
			problem = `"**" is not a whole component`
		}
	}
	switch {
	case p[0] != "refs" || len(p) < 2:
		problem = "it does not begin with refs/"
	case stars > 2:
		problem = `it has more than two "**"`
	case len(s) > git.MaxRefName:
		problem = "it is too long"
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune(`[]\^~:`, c) }):
		problem = "it has a character that refs cannot have"
	}
	if problem != "" {
		return nil, fault.New(fault.Invalid, "invalid pattern of refs %.80q: %s: use a form like refs/heads/main, "+
			"refs/heads/* or refs/**", s, problem)
	}
	return p, nil
}

// ParseRefPatterns parses several patterns.
func ParseRefPatterns(list []string) (all []RefPattern, err error) {
	for _, s := range list {
		p, err := ParseRefPattern(s)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (p RefPattern) String() string { return strings.Join(p, "/") }

// Message returns the rules as a message; nil if they are zero.
func (r *RefRules) Message() *packhorsev1.RefRules {
	if r.IsZero() {
		return nil
	}
	m := &packhorsev1.RefRules{Credential: r.Credential, Only: patternTexts(r.Only)}
	for _, rule := range r.Rules {
		one := &packhorsev1.RefRule{Name: rule.Name, Refs: patternTexts(rule.Refs)}
		if rule.May != 0 {
			one.May = strings.Split(rule.May.String(), ", ")
		}
		m.Rules = append(m.Rules, one)
	}
	return m
}

func patternTexts(list []RefPattern) (texts []string) {
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return texts
}

// RefRulesOf returns the rules in a message. The error is Invalid for a bad pattern or word, or too many of them.
func RefRulesOf(m *packhorsev1.RefRules) (r RefRules, err error) {
	if r.Only, err = ParseRefPatterns(m.GetOnly()); err != nil {
		return r, err
	}
	r.Credential = m.GetCredential()
	left := maxRefPatterns
	for _, one := range m.GetRules() {
		rule := RefRule{Name: one.GetName()}
		if rule.Refs, err = ParseRefPatterns(one.GetRefs()); err != nil {
			return r, err
		}
		for _, word := range one.GetMay() {
			kind := RefChangeOf(word)
			if kind == 0 {
				return r, fault.New(fault.Invalid, "may has %.40q, want create, write, force or delete", word)
			}
			rule.May |= kind
		}
		if left -= len(rule.Refs) + 1; left < 0 {
			return r, fault.New(fault.Invalid, "there are more than %d rules and patterns", maxRefPatterns)
		}
		r.Rules = append(r.Rules, rule)
	}
	return r, nil
}

// maxRefPatterns is the maximum number of rules and their patterns for one change.
const maxRefPatterns = 20_000

// RefChangeOf returns the kind that a word stands for; 0: none.
func RefChangeOf(word string) RefChange {
	for _, c := range refChanges {
		if c.word == word {
			return c.kind
		}
	}
	return 0
}
