package uploadpack

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestColdPacks: a pack is, until the cache has it, and what is made of memory never is; without a cache every pack
// is.
func TestColdPacks(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	g.Git("update-ref", "refs/heads/main", g.Commit("a").String())
	s := &testServer{Repo: g, repo: openRepo(t, g.Dir), format: git.SHA1}
	q := &testRequest{command: "fetch", args: []string{"want " + g.ID("main").String(), "done"}}
	server := New(cached(t, newSource(t)), Options{})
	for i, want := range []bool{true, false, false} {
		response, outcome, err := s.serve(server, q.bytes(git.SHA1))
		if err != nil || response.bulk != 1 || response.cold != want {
			t.Errorf("%d: cold %v, %s, %v", i, response.cold, outcome.Fetch.Pack, err)
		}
	}
	server = New(newSource(t), Options{})
	for range 2 {
		if response, _, err := s.serve(server, q.bytes(git.SHA1)); err != nil || !response.cold {
			t.Errorf("without a cache: cold %v, %v", response.cold, err)
		}
	}
}
