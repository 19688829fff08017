package repo

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// hideRule is one value of transfer.hideRefs, uploadpack.hideRefs or receive.hideRefs (git-config(1),
// "transfer.hideRefs").
type hideRule struct {
	prefix string // covers the ref of this name and those below it
	shows  bool   // "!": matching refs are not hidden
}

// hideRules are a repository's rules in the order of its config. The last rule that covers a name decides.
type hideRules []hideRule

// Sections whose hideRefs apply in addition to those of "transfer".
const (
	hideFetch = "uploadpack"
	hidePush  = "receive"
)

// hiddenRefs reads the rules of both keys as one list. "^" matches the name before namespaces are removed. Namespaces
// are not served, so it has no effect.
func hiddenRefs(c Config, section string) (hideRules, error) {
	var rules hideRules
	for _, v := range c.variables {
		if v.key != "transfer.hiderefs" && v.key != section+".hiderefs" {
			continue
		}
		if v.bare {
			return nil, fault.New(fault.Corrupt, "the repository's config has a %s without a value", v.key)
		}
		name, shows := strings.CutPrefix(v.value, "!")
		name = strings.TrimRight(strings.TrimPrefix(name, "^"), "/")
		if name != "" { // an empty name would cover nothing
			rules = append(rules, hideRule{name, shows})
		}
	}
	return rules, nil
}

// hides reports whether a ref is hidden.
func (h hideRules) hides(name git.RefName) bool {
	for i := len(h) - 1; i >= 0; i-- {
		rest, ok := strings.CutPrefix(string(name), h[i].prefix)
		if ok && (rest == "" || rest[0] == '/') {
			return !h[i].shows
		}
	}
	return false
}

// any reports whether some ref may be hidden.
func (h hideRules) any() bool {
	for _, rule := range h {
		if !rule.shows {
			return true
		}
	}
	return false
}
