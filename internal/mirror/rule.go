package mirror

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Rule maps the paths below a prefix to the repositories of an origin.
type Rule struct {
	Prefix string         // path of the mirrors here, such as "github.com"
	URL    *url.URL       // of the origin, the base of the repositories' paths
	Origin *origin.Origin // its client; the caller closes it after the Mirrors
	// Allowed reports whether a repository may be mirrored, by its path below URL. Nil means that all may.
	Allowed func(git.RepoPath) bool

	// Refs are patterns of the refs to mirror, such as "refs/heads/*". Empty means DefaultRefs.
	Refs     []string
	Fresh    Freshness
	StaleFor time.Duration // how long a mirror is used while its origin does not answer
	FirstUse bool          // the first request for a repository creates its mirror
	FoldCase bool          // the origin ignores the case of paths
	// OriginDecides reports whether the origin decides about readers of a mirror.
	OriginDecides bool
	// ChangeRequests lets readers fetch change requests by ID that are not in Refs, although OriginDecides is false.
	ChangeRequests bool
	PushToOrigin   bool  // false: pushes are refused
	MaxPack        int64 // maximum size of a pack in bytes. Zero means no limit.
}

// DefaultRefs are the refs that are mirrored by default.
var DefaultRefs = []string{"refs/heads/*", "refs/tags/*"}

// Freshness is how long a check of the origin holds. Zero means Always.
type Freshness struct {
	Every   time.Duration
	Webhook bool // the origin reports changes; checks without a report are rare
}

const (
	// alwaysWindow is the time in which callers share a check if each request needs the current state.
	alwaysWindow = time.Second
	// webhookWindow is how long a check holds if the origin reports changes, because a report can be lost.
	webhookWindow = 10 * time.Minute
)

func (f Freshness) window() time.Duration {
	switch {
	case f.Webhook:
		return webhookWindow
	case f.Every > 0:
		return f.Every
	}
	return alwaysWindow
}

// SetRules replaces the rules. Mirrors without a rule are kept, and are not served as mirrors any more.
func (m *Mirrors) SetRules(rules []Rule) error {
	rules = slices.Clone(rules)
	for i := range rules {
		r := &rules[i]
		prefix, err := git.ParseRepoPath(r.Prefix)
		if err != nil {
			return fault.Wrap(fault.Invalid, "invalid path of mirrors", err)
		}
		r.Prefix = prefix.String()
		if len(r.Refs) == 0 {
			r.Refs = DefaultRefs
		}
		for _, pattern := range r.Refs {
			if err := CheckRefPattern(pattern); err != nil {
				return err
			}
		}
	}
	// the longest prefix is the first match
	slices.SortStableFunc(rules, func(a, b Rule) int { return len(b.Prefix) - len(a.Prefix) })
	m.rules.Store(&rules)
	return nil
}

// CheckRefPattern returns an error if a pattern of Rule.Refs is invalid: it begins with refs/ and has at most one "*",
// which matches any characters.
func CheckRefPattern(pattern string) error {
	if _, err := git.ParseRefName(strings.Replace(pattern, "*", "x", 1)); err != nil || pattern == string(git.HEAD) {
		return fault.New(fault.Invalid, "invalid pattern of refs %.80q: use a form like refs/heads/* or refs/pull/*/head",
			pattern)
	}
	return nil
}

// prefixes returns the prefixes of the names of the mirrored refs.
func (r *Rule) prefixes() []string {
	list := make([]string, len(r.Refs))
	for i, pattern := range r.Refs {
		list[i], _, _ = strings.Cut(pattern, "*")
	}
	return list
}

// list asks the origin for the refs of a repository. It refuses one that has moved to a path that the rule does not
// allow.
func (r *Rule) list(ctx context.Context, path string, auth node.Secret) (*origin.Refs, error) {
	return r.listPrefixes(ctx, path, auth, r.prefixes())
}

// listPrefixes is list for refs whose names begin with one of the prefixes.
func (r *Rule) listPrefixes(ctx context.Context, path string, auth node.Secret, prefixes []string) (*origin.Refs,
	error) {
	refs, err := r.Origin.Refs(ctx, path, auth, prefixes)
	if err == nil && refs.Moved != "" && !r.allows(refs.Moved) {
		return nil, fault.New(fault.Denied, "the repository has moved to %s, which the mirror's rule does not allow",
			refs.Moved)
	}
	return refs, err
}

// allows reports whether the rule allows to mirror the repository at a path of the origin.
func (r *Rule) allows(path string) bool {
	parsed, err := git.ParseRepoPath(path)
	return err == nil && (r.Allowed == nil || r.Allowed(parsed))
}

// mirrors reports whether a ref is mirrored.
func (r *Rule) mirrors(name git.RefName) bool {
	return slices.ContainsFunc(r.Refs, func(pattern string) bool {
		before, after, wild := strings.Cut(pattern, "*")
		if !wild {
			return string(name) == pattern
		}
		return len(name) >= len(before)+len(after) && strings.HasPrefix(string(name), before) &&
			strings.HasSuffix(string(name), after)
	})
}

// mirrorsHead reports whether HEAD of the origin is, or will be, at a mirrored ref.
func (r *Rule) mirrorsHead(list *origin.List) bool {
	if list.Head != "" {
		return r.mirrors(list.Head)
	}
	return slices.ContainsFunc(list.Refs, func(ref origin.Ref) bool {
		return ref.ID == list.HeadID && r.mirrors(ref.Name)
	})
}

// find returns the rule for a path and the path of the repository at the origin. ok is false if the path is not that of
// a mirror.
func (m *Mirrors) find(path git.RepoPath) (rule *Rule, originPath string, ok bool) {
	rule, originPath = findRule(*m.rules.Load(), path)
	if rule == nil || rule.FoldCase && m.isOwn(path) { // its mirror would have another path on disk
		return nil, "", false
	}
	return rule, originPath, true
}

// findRule returns the rule with the longest prefix of a path, if it allows the repository, and its path at the origin.
func findRule(rules []Rule, path git.RepoPath) (rule *Rule, originPath string) {
	for i := range rules {
		rest, ok := strings.CutPrefix(path.String(), rules[i].Prefix+"/")
		if ok && (rule == nil || len(rules[i].Prefix) > len(rule.Prefix)) {
			rule, originPath = &rules[i], rest
		}
	}
	if rule == nil || !rule.allows(originPath) {
		return nil, ""
	}
	return rule, strings.Trim(originPath, "/")
}

// canonical returns the path that all names of a mirror lead to.
func (r *Rule) canonical(path git.RepoPath) git.RepoPath {
	name := path.String()
	if r.FoldCase {
		name = strings.ToLower(name)
	}
	for long := ""; name != long; { // each of "app", "app.git" and "app.git.git" would open the same directory
		long = name
		name = strings.TrimSuffix(strings.TrimSuffix(name, "/.git"), ".git")
	}
	short, err := git.ParseRepoPath(name)
	if err != nil { // such as ".git"
		return path
	}
	return short
}

// PathOf returns the path of the mirror of a repository by its URL at the origin, as in webhooks. The scheme and a user
// name are ignored. ok is false if no rule covers it.
func (m *Mirrors) PathOf(repository *url.URL) (path git.RepoPath, ok bool) {
	for _, r := range *m.rules.Load() {
		if !strings.EqualFold(repository.Hostname(), r.URL.Hostname()) {
			continue
		}
		below, found := strings.CutPrefix(repository.Path, strings.TrimSuffix(r.URL.Path, "/")+"/")
		if !found {
			continue
		}
		path, err := git.ParseRepoPath(r.Prefix + "/" + strings.Trim(below, "/"))
		if err != nil {
			continue
		}
		if _, _, ok := m.find(path); ok {
			return r.canonical(path), true
		}
	}
	return git.RepoPath{}, false
}
