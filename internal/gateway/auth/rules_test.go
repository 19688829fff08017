package auth

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/git"
)

func repoPath(t testing.TB, s string) git.RepoPath {
	t.Helper()
	p, err := git.ParseRepoPath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "alice", "Alice.B", "ci-runner_7", "a@example.org", "a+b", "9",
		strings.Repeat("n", MaxName)} {
		if err := CheckName(good); err != nil {
			t.Errorf("CheckName(%q) = %v, want nil", good, err)
		}
	}
	for _, bad := range []string{"", "-x", "--upload-pack=x", ".a", "@", "a b", "a\n", "a\r\nX-Header: y", "a\x00", "a\tb",
		"a;b", "a=b", "a/b", "a:b", "a'b", "ä",
		"*", "anonymous", strings.Repeat("n", MaxName+1)} {
		if CheckName(bad) == nil {
			t.Errorf("CheckName(%q) = nil, want an error", bad)
		}
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for pattern, repos := range map[string]map[string]bool{
		"team/app": {"team/app": true, "team/app.git": true, "team/app/.git": true, "team/app.git/.git": true,
			"team/app.git.git": true,
			"team/app2":        false, "team": false, "team/app/x": false, "Team/app": false},
		"team/app.git": {"team/app": true, "team/app.git": true},
		"team/*":       {"team/app": true, "team/a/b": false, "team": false, "teams/app": false, "team.git/app": false},
		"team/**": {"team/app": true, "team/a/b.git": true, "team": false, "teams/app": false, "team/.git": false,
			"team.git": false},
		"**":         {"a": true, "a/b/c": true, ".git": true},
		"*":          {"a": true, "a/b": false},
		"**/app":     {"app": true, "a/app": true, "a/b/app.git": true, "a/apps": false},
		"a/**/z":     {"a/z": true, "a/b/z": true, "a/b/c/z": true, "a/b": false, "az": false},
		"a/**/**":    {"a/b": true, "a": false},
		"team/a?p-*": {"team/app-x": true, "team/app-": true, "team/ap-x": false, "team/app-x/y": false},
	} {
		p, err := ParsePattern(pattern)
		if err != nil {
			t.Errorf("ParsePattern(%q) error = %v, want none", pattern, err)
			continue
		}
		for repo, want := range repos {
			if got := p.match(pathOf(repoPath(t, repo))); got != want {
				t.Errorf("match(%s, %s) = %v, want %v", pattern, repo, got, want)
			}
		}
	}
	for _, bad := range []string{"", "/", "/team", "team/", "a//b", "../x", "a/../b", "a/**b", "a***", "**/**/**", "a[b]",
		`a\*`, "-/x", "a\nb"} {
		if _, err := ParsePattern(bad); err == nil {
			t.Errorf("ParsePattern(%q) error = nil, want one", bad)
		}
	}
}

// TestPatternsByComponents: a pattern without stars is for the repository of that path alone, however it is spelled,
// and for nothing beside it.
func TestPatternsByComponents(t *testing.T) {
	t.Parallel()
	component := rapid.StringMatching(`[a-c.*?]{1,4}`).Filter(func(s string) bool { return s != "." && s != ".." })
	path := rapid.Custom(func(r *rapid.T) string {
		return strings.Join(rapid.SliceOfN(component, 1, 4).Draw(r, "components"), "/")
	})
	rapid.Check(t, func(r *rapid.T) {
		text, other := path.Draw(r, "pattern"), path.Draw(r, "repository")
		repo, err := git.ParseRepoPath(other)
		if err != nil {
			r.Skip()
		}
		if p, err := ParsePattern(text); err == nil {
			got := p.match(pathOf(repo))
			if !strings.ContainsAny(text, "*?") && got != (text == strings.Join(pathOf(repo), "/")) &&
				!strings.Contains(text, ".git") {
				r.Errorf("%q is for %q: %v", text, other, got)
			}
			below, err := ParsePattern(text + "/**")
			if err == nil && !strings.Contains(text, "**") &&
				below.match(pathOf(repo)) != (len(p.components) < len(pathOf(repo)) && p.match(pathOf(repo)[:len(p.components)])) {
				r.Errorf("%q/** and %q do not fit", text, other)
			}
		}
	})
}

// parseOne parses one rule.
func parseOne(who, repositories []string, may string) (Rule, error) {
	all, err := ParseRules(nil, []RuleSpec{{Who: who, Repositories: repositories, May: may}},
		func(int) string { return "rule 1" })
	if err != nil {
		return Rule{}, err
	}
	return all[0], nil
}

func rules(t testing.TB, texts ...string) (all []Rule) {
	t.Helper()
	for _, text := range texts {
		f := strings.Fields(text)
		r, err := parseOne(strings.Split(f[0], ","), strings.Split(f[1], ","), f[2])
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, r)
	}
	return all
}

func TestParseRule(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"anonymous ** write", "alice,anonymous ** admin", "alice ** all", "alice ** Read",
		"alice ../x read", "ssh:alice ** read", "token: ** read",
		"al;ice ** read", "token:anonymous ** read"} {
		f := strings.Fields(bad)
		if _, err := parseOne(strings.Split(f[0], ","), strings.Split(f[1], ","), f[2]); err == nil {
			t.Errorf("ParseRules(%s) error = nil, want one", bad)
		}
	}
	if _, err := parseOne(nil, []string{"**"}, "read"); err == nil {
		t.Error("ParseRule without callers: error = nil, want one")
	}
	if _, err := parseOne([]string{"*"}, nil, "read"); err == nil {
		t.Error("ParseRule without repositories: error = nil, want one")
	}
	rules(t, "token:* ** read", "key:alice,certificate:alice,hook:bob ** admin", "anonymous ** none",
		"*,anonymous pub/** read")
}

// A rule that permits nothing ignores case, in the rule and in the request. One that permits something does not.
func TestForbiddenInAnyCase(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"acme/secret", "Acme/Secret", "ACME/sec*", "Acme/**"} {
		for _, may := range []string{"none", "read"} {
			r, err := parseOne([]string{"*", "anonymous"}, []string{pattern}, may)
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{"acme/secret", "Acme/Secret", "acme/Secret"} {
				components := strings.Split(path, "/")
				got := r.match(Identity{}, target{components, fold(components), false})
				p, _ := ParsePattern(pattern)
				if want := may == "none" || p.match(components); got != want {
					t.Errorf("%s of %s matches %s: %v, want %v", may, pattern, path, got, want)
				}
			}
		}
	}
}

// If all spellings of a path lead to one repository, rules and grants ignore case in both directions. A rule that
// grants less than a later one is not skipped.
func TestRulesInAnyCase(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"Acme/App", "acme/app", "ACME/*"} {
		for _, prefix := range []string{"any/", "forge/any/", "own/"} {
			w := newOriginWorld(t, newForge(), Options{Rules: append(rules(t, "ci "+prefix+pattern+" read"),
				rules(t, "* ** write")...)})
			p, err := ParsePattern(prefix + pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"Acme/App", "acme/app", "aCME/app.git"} {
				repo := repoPath(t, prefix+name)
				ignores := prefix != "own/"
				isSame := ignores || p.Covers(repo)
				ci, other := Identity{Name: "ci", By: ByToken}, Identity{Name: "x", By: ByToken,
					Grant: &Grant{Operation: Read, Repositories: []Pattern{p}}}
				if err := w.May(t.Context(), ci, repo, Write); (err != nil) != isSame {
					t.Errorf("rule for %s%s, push to %s: %v, want a refusal: %v", prefix, pattern, repo, err, isSame)
				}
				if err := w.May(t.Context(), other, repo, Read); (err == nil) != isSame {
					t.Errorf("grant for %s%s, fetch of %s: %v, want success: %v", prefix, pattern, repo, err, isSame)
				}
				if readable, _ := w.Reader(t.Context(), other)([]git.RepoPath{repo}); readable[0] != isSame {
					t.Errorf("grant for %s%s: %s is readable: %v, want %v", prefix, pattern, repo, readable[0], isSame)
				}
			}
		}
	}
}
