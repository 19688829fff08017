package app

import "testing"

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
			t.Errorf("ParsePattern(%q).Match(%q) = %v, %v, want %v, nil", c.pattern, c.path, p.Match(c.path), err, c.want)
		}
	}
	for _, bad := range []string{"", "a", "/a?b"} {
		if p, err := ParsePattern(bad); err == nil {
			t.Errorf("ParsePattern(%q) = %q, nil, want an error", bad, p)
		}
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	r := Routing{Slow: []Pattern{"/export/*"}}
	for path, want := range map[string]Class{"/export/1": Slow, "/": Normal} {
		if got := r.classOf(path); got != want {
			t.Errorf("classOf(%q) = %s, want %s", path, got, want)
		}
	}
	for path, want := range map[string]bool{"/a/b": true, "/a/../b": false, "/a//b": false, `/a\..\b`: false} {
		if got := isPlain(path); got != want {
			t.Errorf("isPlain(%q) = %v, want %v", path, got, want)
		}
	}
}
