package search_test

import (
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search"
)

// TestNotices searches for content that is not indexed. The results have notices, also after a restart, but not about
// repositories that the caller may not read.
func TestNotices(t *testing.T) {
	t.Parallel()
	s := newSource()
	o := options(t, s)
	o.Branches = []string{"refs/heads/release"}
	s.push("team/a", main, files{"x": "needle"})
	s.push("team/a", "refs/heads/release", files{"x": "needle"})
	s.push("team/a", "refs/heads/feature", files{"x": "needle onlyhere"})
	s.push("other", main, files{
		"x": "needle", "utf16.txt": "n\x00e\x00e\x00d\x00l\x00e\x00", "large": strings.Repeat("large ", int(o.MaxFile)/6+2),
		"tiny": "ab", "empty": "",
	})
	e := search.New(o)
	await(t, e, "needle", has(2))
	check := func(e *search.Engine) {
		t.Helper()
		for _, test := range []struct {
			query, reason, message string
			may                    func(git.RepoPath) bool
		}{
			{"repo:a@feature onlyhere", "branch", "of team/a is not indexed", nil},
			{"repo:a rev:feature onlyhere", "branch", "of team/a is not indexed", nil},
			{"repo:a@nosuch needle", "branch", `No repository that was searched has a branch or tag "nosuch"`, nil},
			{"rev:release needle", "", "", nil},
			{"repo:a@release needle", "", "", nil},
			{"repo:a -rev:feature needle", "", "", nil},
			{"rev:feature onlyhere", "branch", `No repository that was searched has a branch or tag "feature"`,
				func(p git.RepoPath) bool { return p.String() == "other" }},
			{"repo:other needle", "files", "Of about 2 files the names were searched and not the content", nil},
			{"repo:team/ needle", "", "", nil},
			{"repo:other needle", "", "", func(p git.RepoPath) bool { return p.String() != "other" }},
			{"repo:team/ author:me", "filter", "author: is not a filter here", nil},
		} {
			f, err := ask(t, e, test.query, func(r *search.Request) {
				if test.may != nil {
					r.May = search.Each(test.may)
				}
			})
			if err != nil {
				t.Errorf("%s: %v", test.query, err)
				continue
			}
			var said []string
			for _, n := range f.Notices {
				if test.reason == n.Reason && strings.Contains(n.Message, test.message) {
					said = nil
					break
				}
				if n.Reason != "files" || test.reason == "" {
					said = append(said, n.Reason+": "+n.Message)
				}
			}
			if len(said) > 0 || test.reason != "" && len(f.Notices) == 0 {
				t.Errorf("%s: %v; want %s: %s", test.query, f.Notices, test.reason, test.message)
			}
		}
	}
	check(e)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = start(t, o)
	await(t, e, "needle", has(2))
	check(e)
}

// TestRefresh creates a repository without an event. The engine knows it after Refresh.
func TestRefresh(t *testing.T) {
	t.Parallel()
	s := newSource()
	o := options(t, s)
	o.Scan = time.Hour
	s.push("a", main, files{"x": "needle"})
	e := start(t, o)
	await(t, e, "needle", has(1))
	s.push("b", main, files{"x": "needle"})
	if err := e.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status := e.Status(nil); status.Repositories != 2 {
		t.Errorf("%+v", status)
	}
	await(t, e, "needle", func(f *found) bool { return has(2)(f) && e.Status(nil).Complete })
}
