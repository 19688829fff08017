package auth

import (
	"net/http"
	"strings"
	"testing"
	"unicode"
)

// FuzzHeader: whatever comes as Authorization, nothing that could break out of a line, a field or an environment gets
// through.
func FuzzHeader(f *testing.F) {
	for _, seed := range []string{"", "Basic", "Basic YTpi", "basic  YTpi ", "Bearer x", "Bearer x y", "Basic YQpiOmM=",
		"Basic \x00", "Digest a=b", basic("a:b", "c:d"), basic("\x7f", "\xff")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		c, ok, err := fromHeader(http.Header{"Authorization": {value}})
		if ok != (err == nil) || !ok && c.Secret != "" {
			t.Fatalf("fromHeader(%q) = %v, %v, want ok or an error", value, ok, err)
		}
		for _, s := range []string{c.User, c.Secret, c.Scheme} {
			if strings.ContainsFunc(s, unicode.IsControl) || len(s) > maxCredential {
				t.Errorf("fromHeader accepts %q, want no control characters and at most %d bytes", s, maxCredential)
			}
		}
		if c.Scheme == "basic" && ok {
			if again, ok, err := fromHeader(http.Header{"Authorization": {basic(c.User, c.Secret)}}); !ok || err != nil ||
				again.User != c.User || again.Secret != c.Secret {
				t.Errorf("%+v encoded and parsed again = %+v, %v, want the same", c, again, err)
			}
		}
	})
}

// FuzzPattern checks that a pattern survives parsing its own text. A pattern without stars matches itself. No pattern
// matches names outside of its first component.
func FuzzPattern(f *testing.F) {
	for _, seed := range []string{"a", "a/b.git", "**", "a/**", "a/**/b/**", "*", "?", "a*b/c?", ".git", "a/.git/.git",
		"..", "[a]", "a//b", strings.Repeat("a/", 100) + "b"} {
		f.Add(seed, "a/b")
	}
	f.Fuzz(func(t *testing.T, text, other string) {
		p, err := ParsePattern(text)
		if err != nil {
			return
		}
		again, err := ParsePattern(p.String())
		if err != nil || again.String() != p.String() {
			t.Fatalf("%q parsed = %q, parsed again = %q, %v, want the same", text, p, again, err)
		}
		if !strings.ContainsAny(text, "*?") && !p.match(p.components) {
			t.Errorf("match(%q, itself) = false, want true", text)
		}
		components := strings.Split(other, "/")
		if first := p.components[0]; p.match(components) && !strings.ContainsAny(first, "*?") && components[0] != first {
			t.Errorf("match(%q, %q) = true, want false", text, other)
		}
	})
}

// FuzzRepositoryTemplate checks that the value of a claim gives access to one repository below the directory of the
// template, and to no others.
func FuzzRepositoryTemplate(f *testing.F) {
	for _, seed := range []string{"acme/app", "a", "**", "a/*", "../b", "a/../b", "/a", "a/", "a//b", ".git", "a.git/b",
		"a/.GIT", "{x}", "a\x00b", "a\\b", "[a]", "é", "-"} {
		f.Add(seed)
	}
	template, err := parseRepositoryTemplate("host/{claim}")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value string) {
		p, err := template.pattern(map[string]any{"claim": value})
		if err != nil {
			return
		}
		if got := p.String(); got != "host/"+value || !p.Covers(repoPath(t, got)) || p.Covers(repoPath(t, "host/x"+value)) ||
			p.Covers(repoPath(t, got+"/x")) {
			t.Errorf("pattern of %q = %q, want that repository only", value, got)
		}
	})
}
