package auth

import (
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Words for callers in a rule.
const (
	anonymous = "anonymous" // those whom nobody knows
	everybody = "*"         // those who are known
)

// Rule says what some callers may do with some repositories. The first rule that is for both decides; those after it do
// not count.
type Rule struct {
	who          []who
	repositories []Pattern
	allows       int // operations below it, as a number; 0: none
}

// who is a caller as a rule names it.
type who struct {
	by   string // "" for any
	name string // of an identity, or one of the words
}

// ParseRule reads a rule as the configuration has it: each of who is "anonymous", "*" for whoever is known, a name, or
// a name with how it was proved, as in "token:ci" or "key:alice"; may is "none", "read", "write" or "admin". Nobody
// anonymous may be allowed more than to read.
func ParseRule(callers, repositories []string, may string) (Rule, error) {
	var r Rule
	if may != "none" {
		op, err := ParseOperation(may)
		if err != nil {
			return r, fault.New(fault.Invalid, "may is %.40q; it has to be none, read, write or admin", may)
		}
		r.allows = int(op) + 1
	}
	if len(callers) == 0 || len(repositories) == 0 {
		return r, fault.New(fault.Invalid, "a rule needs who and repositories")
	}
	for _, text := range callers {
		w := who{name: text}
		if text != anonymous && text != everybody {
			if by, name, ok := strings.Cut(text, ":"); ok {
				if !slices.Contains([]string{ByToken, ByKey, ByCertificate, ByHook}, by) {
					return r, fault.New(fault.Invalid, "who is %.80q; before the colon stands token, key, certificate or hook", text)
				}
				w = who{by, name}
			}
			if w.name != everybody || w.by == "" {
				if err := CheckName(w.name); err != nil {
					return r, err
				}
			}
		}
		if text == anonymous && r.allows > int(Read)+1 {
			return r, fault.New(fault.Invalid, "a rule lets anonymous callers %s; they may read at most", may)
		}
		r.who = append(r.who, w)
	}
	var err error
	r.repositories, err = ParsePatterns(repositories)
	return r, err
}

// How an identity was proved.
const (
	ByToken       = "token"
	ByKey         = "key"
	ByCertificate = "certificate"
	ByHook        = "hook"
)

func (r *Rule) isFor(id Identity, path []string) bool {
	return slices.ContainsFunc(r.who, func(w who) bool {
		switch {
		case id.Anonymous():
			return w.name == anonymous
		case w.by != "" && w.by != id.By:
			return false
		}
		return w.name == everybody || w.name == id.Name
	}) && matchAny(r.repositories, path)
}

// decide gives what the first rule for a caller and a repository allows, as in Rule.allows; -1 if there is no rule for
// them.
func decide(rules []Rule, id Identity, path []string) int {
	for i := range rules {
		if rules[i].isFor(id, path) {
			return rules[i].allows
		}
	}
	return -1
}
