package app

import (
	"strings"
	"testing"
)

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"/-/readiness*", "/-/readiness", true},
		{"/-/readiness*", "/-/readiness/all", true},
		{"/-/readiness*", "/-/liveness", false},
		{"/a", "/a", true},
		{"/a", "/a/", false},
		{"*.json", "/a/b.json", true},
		{"*.json", "/a/b.json/c", false},
		{"/*/raw/*", "/a/b/raw/c", true},
		{"/*/raw/*", "/raw/c", false},
		{"/*a*a", "/a", false},
		{"/*a*a", "/aa", true},
		{"*", "", true},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil || p.Match(c.path) != c.want {
			t.Errorf("%s for %s: %v, %v", c.pattern, c.path, !c.want, err)
		}
	}
	for _, bad := range []string{"", "a", "/a?b", "/a\n", "/" + strings.Repeat("a", 2000), "/" + strings.Repeat("*", 9)} {
		if p, err := ParsePattern(bad); err == nil {
			t.Errorf("%.40q is taken for %q", bad, p)
		}
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	classes := Classes{Fast: []Pattern{"/-/readiness*"}, Slow: []Pattern{"/export/*", "/-/readiness/slow"}}
	for path, want := range map[string]Class{
		"/-/readiness": Fast, "/-/readiness/slow": Fast, "/export/1": Slow, "/": Normal,
		"/-/readiness/../../export/1": Normal, "/-/readiness//x": Normal, `/-/readiness\..\x`: Normal,
	} {
		if got := classes.of(path); got != want {
			t.Errorf("%s is %s, not %s", path, got, want)
		}
	}
}
