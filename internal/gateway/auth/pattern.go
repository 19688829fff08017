package auth

import (
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Pattern selects repositories by the components of their paths: "team/app" is one repository, "team/*" those directly
// in team, "team/**" those at any depth below team, and "**" all. In a component "*" matches any characters and "?"
// one.
type Pattern struct {
	components []string
	folded     []string // components in lower case
}

// maxStars is the maximum number of "**" in a pattern. It limits the work of a match.
const maxStars = 2

// ParsePattern parses a pattern. A final ".git" is ignored, as in the names of repositories.
func ParsePattern(s string) (Pattern, error) {
	bad := func(why string) (Pattern, error) {
		return Pattern{}, fault.New(fault.Invalid,
			"invalid pattern of repositories %.80q: %s: use a form like team/app, team/* or team/**", s, why)
	}
	if strings.ContainsAny(s, `[]\`) {
		return bad(`it contains one of []\`)
	}
	repo, err := git.ParseRepoPath(s)
	if err != nil || repo.String() != s {
		return bad("it is not a path of a repository without slashes at its ends")
	}
	components := pathOf(repo)
	p := Pattern{components, fold(components)}
	stars := 0
	for _, c := range p.components {
		if c == "**" {
			stars++
		} else if strings.Contains(c, "**") {
			return bad(`"**" is not a whole component`)
		}
	}
	if stars > maxStars {
		return bad(`it has more than two "**"`)
	}
	return p, nil
}

// ParsePatterns parses several patterns.
func ParsePatterns(list []string) (all []Pattern, err error) {
	for _, s := range list {
		p, err := ParsePattern(s)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (p Pattern) String() string { return strings.Join(p.components, "/") }

// pathOf returns the components of a repository's path for patterns. All names of one repository ("app", "app.git",
// "app/.git", "app.git/.git") give the same result.
func pathOf(repo git.RepoPath) []string {
	components := strings.Split(repo.String(), "/")
	for {
		last := len(components) - 1
		switch short := strings.TrimSuffix(components[last], ".git"); {
		case short == components[last]:
			return components
		case short != "":
			components[last] = short
		case last > 0: // ".git"
			components = components[:last]
		default:
			return components
		}
	}
}

// Covers reports whether the pattern matches a repository, by any of its names.
func (p Pattern) Covers(repo git.RepoPath) bool { return p.match(pathOf(repo)) }

// CoversAnyCase is Covers without regard to case.
func (p Pattern) CoversAnyCase(repo git.RepoPath) bool {
	return git.MatchComponents(p.folded, fold(pathOf(repo)))
}

func (p Pattern) match(components []string) bool {
	return git.MatchComponents(p.components, components)
}

// target is the path of a repository that patterns are compared with.
type target struct {
	components []string
	folded     []string // components in lower case
	anyCase    bool     // paths that only differ in case are of the same repository
}

// targetOf returns the target for rules and grants.
func (a *Auth) targetOf(repo git.RepoPath) target {
	components := pathOf(repo)
	return target{components, fold(components), a.o.Origins.foldsCase(repo)}
}

// fold returns the components of a path in lower case.
func fold(path []string) []string {
	folded := make([]string, len(path))
	for i, c := range path {
		folded[i] = strings.ToLower(c)
	}
	return folded
}

// matchFor reports whether the pattern of a rule matches for a caller with a name. It never matches for an anonymous
// caller if it has ownName.
func (p Pattern) matchFor(name string, t target, anyCase bool) bool {
	pattern, components := p.components, t.components
	if anyCase {
		pattern, components, name = p.folded, t.folded, strings.ToLower(name)
	}
	placed := placeName(pattern, name)
	return (name != "" || len(placed) == 0 || &placed[0] == &pattern[0]) && git.MatchComponents(placed, components)
}

// CoversFor is Covers for a caller with a name, for which ownName stands.
func (p Pattern) CoversFor(name string, repo git.RepoPath) bool {
	return p.matchFor(name, target{components: pathOf(repo)}, false)
}

// matchAny reports whether a pattern matches. Without anyCase, the case of letters has to be the same.
func matchAny(patterns []Pattern, t target, anyCase bool) bool {
	return slices.ContainsFunc(patterns, func(p Pattern) bool {
		if anyCase {
			return git.MatchComponents(p.folded, t.folded)
		}
		return p.match(t.components)
	})
}
