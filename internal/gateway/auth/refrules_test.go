package auth

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// modelMay reports whether words permit a kind of update, by the table of docs/how-to/auth.md, as text.
func modelMay(words []string, hasRefs bool, kind string) bool {
	for _, w := range words {
		switch {
		case w == "admin", w == "write" && !hasRefs, w == kind, w == "force" && kind == "write":
			return true
		}
	}
	return false
}

// modelMatch matches simple patterns: names, "x/*" and "x/**".
func modelMatch(pattern, name, text string) bool {
	if pattern = strings.ReplaceAll(pattern, "{name}", name); strings.HasSuffix(pattern, "/**") {
		return strings.HasPrefix(text, strings.TrimSuffix(pattern, "**"))
	}
	ok, _ := path.Match(pattern, text)
	return ok
}

// TestRulesAreTheModel compares decisions about random rules with those of a simple model.
func TestRulesAreTheModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	groups := []GroupSpec{{"devs", []string{"alice", "token:bob"}}, {"empty", nil}}
	members := map[string][]string{"group:devs": {"alice", "bob"}, "*": {"alice", "bob", "carol"}}
	paths := []string{"team/app", "team/sub/x", "users/alice", "users/bob", "tools"}
	names := []string{"refs/heads/main", "refs/heads/alice/x", "refs/heads/bob/y", "refs/tags/v1"}
	kinds := map[string]node.RefChange{"create": node.RefCreate, "write": node.RefWrite, "force": node.RefForce,
		"delete": node.RefDelete}
	metrics := NewMetrics(nil)
	for range 3000 {
		var specs []RuleSpec
		for range random.IntN(5) + 1 {
			s := RuleSpec{Who: []string{pick("alice", "bob", "group:devs", "group:empty", "*")},
				Repositories: []string{pick("team/**", "users/{name}", "tools", "users/**", "users/*")}}
			if random.IntN(2) == 0 {
				s.Refs = []string{pick("refs/heads/main", "refs/heads/*", "refs/heads/{name}/**", "refs/**", "refs/tags/*")}
				s.May = pick("none", "write", "create", "force", "delete", "create, write", "write,delete")
			} else {
				s.May = pick("none", "read", "write", "admin", "create", "read,create", "force", "delete, create")
			}
			specs = append(specs, s)
		}
		list, err := ParseRules(groups, specs, func(i int) string { return fmt.Sprintf("rule %d", i+1) })
		if err != nil {
			t.Fatalf("%+v: %v", specs, err)
		}
		a := New(Options{Rules: list, Metrics: metrics, Sources: NewSources(metrics, discard), Log: discard})
		for _, name := range []string{"alice", "bob", "carol"} {
			id, repo := Identity{Name: name, By: ByToken, Credential: name + "/1"}, pick(paths...)
			p, _ := git.ParseRepoPath(repo)
			isFor := func(s RuleSpec) bool {
				who := s.Who[0]
				return (who == name || slices.Contains(members[who], name)) && modelMatch(s.Repositories[0], name, repo)
			}
			reads := false
			if i := slices.IndexFunc(specs, func(s RuleSpec) bool { return s.Refs == nil && isFor(s) }); i >= 0 {
				reads = specs[i].May != "none"
			}
			if got := a.May(t.Context(), id, p, Read); (got == nil) != reads {
				t.Fatalf("%+v: %s reads %s: %v, want %v", specs, name, repo, got, reads)
			}
			mayWrite := a.May(t.Context(), id, p, Write)
			if !reads && !fault.Is(mayWrite, fault.NotFound) {
				t.Fatalf("%+v: %s writes %s without reading: %v", specs, name, repo, mayWrite)
			}
			rules, err := a.RefRules(t.Context(), id, p)
			if err != nil {
				t.Fatal(err)
			}
			some := false
			for _, ref := range names {
				for kind, bit := range kinds {
					want := false
					for _, s := range specs {
						if isFor(s) && (s.Refs == nil || modelMatch(s.Refs[0], name, ref)) {
							words := strings.FieldsFunc(s.May, func(r rune) bool { return r == ',' || r == ' ' })
							want = modelMay(words, s.Refs != nil, kind)
							break
						}
					}
					some = some || want
					got := rules.Refusal(git.RefName(ref), bit)
					if (got == "") != want {
						t.Fatalf("%+v: %s, %s of %s in %s: %q, want %v", specs, name, kind, ref, repo, got, want)
					}
					if got != "" && !strings.Contains(got, " refused by ") {
						t.Fatalf("a refusal without its reason: %q", got)
					}
				}
			}
			if some && reads && mayWrite != nil {
				t.Fatalf("%+v: %s may change a ref of %s, and not write: %v", specs, name, repo, mayWrite)
			}
		}
	}
}

// TestBadRules checks refusals of rules that would not mean what they say.
func TestBadRules(t *testing.T) {
	t.Parallel()
	many := slices.Repeat([]string{"refs/heads/x"}, maxInRule+1)
	for want, r := range map[string]RuleSpec{
		"refs applies to changes":     {Refs: []string{"refs/heads/main"}, May: "read"},
		"use create, write, force":    {Refs: []string{"refs/heads/main"}, May: "admin"},
		"does not begin with refs/":   {Refs: []string{"main"}, May: "write"},
		`more than two "**"`:          {Refs: []string{"refs/**/a/**/b/**"}, May: "write"},
		"empty component":             {Refs: []string{"refs/heads//x"}, May: "write"},
		"a character that refs":       {Refs: []string{"refs/heads/[ab]"}, May: "write"},
		"no such group":               {Who: []string{"group:nobody"}, May: "read"},
		"may only read":               {Who: []string{"anonymous"}, Refs: []string{"refs/**"}, May: "create"},
		"at most 1000":                {Refs: many, May: "write"},
		"no control characters":       {Name: "a\nb", May: "write"},
		"several of them with commas": {May: "none, read"},
	} {
		if r.Who == nil {
			r.Who = []string{"*"}
		}
		r.Repositories = []string{"**"}
		_, err := ParseRules(nil, []RuleSpec{r}, func(int) string { return "rule 1" })
		if err == nil || !strings.Contains(err.Error(), want) || !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
	for want, groups := range map[string][]GroupSpec{
		"defined twice":    {{"a", nil}, {"a", nil}},
		"before the colon": {{"a", []string{"group:b"}}},
		"a member is":      {{"a", []string{"*"}}},
		"invalid name":     {{"a/b", nil}},
	} {
		if _, err := ParseRules(groups, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", groups, err, want)
		}
	}
}

// TestOwnName checks that the name of a caller never widens a pattern.
func TestOwnName(t *testing.T) {
	t.Parallel()
	all, err := ParseRules(nil, []RuleSpec{{Who: []string{"*", "anonymous"}, May: "read",
		Repositories: []string{"users/{name}", "users/{name}/**"}}}, func(int) string { return "rule 1" })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, repo string
		want       bool
	}{
		{"alice", "users/alice", true}, {"alice", "users/alice.git", true}, {"alice", "users/alice/x/y", true},
		{"alice", "users/bob", false}, {"alice.git", "users/alice", false}, {"a.ice", "users/alice", false},
		{"a", "users/a-b", false}, {"", "users/alice", false}, {"", "users/{name}", false}, {"Alice", "users/alice", false},
	} {
		repo := repoPath(t, c.repo)
		components := pathOf(repo)
		got := all[0].match(Identity{Name: c.name, By: ByToken}, target{components, fold(components), false})
		if got != c.want {
			t.Errorf("%q matches %s: %v, want %v", c.name, c.repo, got, c.want)
		}
	}
}
