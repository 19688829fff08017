package gateway

import "testing"

// A page of a filtered list continues after a repository that was removed meanwhile.
func TestAfter(t *testing.T) {
	t.Parallel()
	var all []describedPath
	for _, path := range []string{"a", "team/app", "team/b", "team-x", "z"} { // ordered by components
		all = append(all, describedPath{path: path})
	}
	for path, want := range map[string]string{"": "a", "a": "team/app", "team/app": "team/b", "team/aa": "team/app",
		"team/z": "team-x", "z": "", "zz": ""} {
		got := ""
		if rest := after(all, path); len(rest) > 0 {
			got = rest[0].path
		}
		if got != want {
			t.Errorf("%q is followed by %q, want %q", path, got, want)
		}
	}
}
