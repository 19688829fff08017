package remote_test

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func TestClonesThroughAGateway(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{
		"tcp": {}, "unix": {unix: true}, "tcp, in band": {inBand: true}, "unix, in band": {unix: true, inBand: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			repo := w.repo("team/app.git", 3<<20)
			for _, version := range []string{"0", "1", "2"} {
				w.clone(repo, "team/app", version)
				w.clone(repo, "team/app", version)
			}
			// More by a fetch with haves.
			dir := t.TempDir()
			gittest.Run(t, "", "", "clone", "-q", w.url+"/team/app", dir)
			next := repo.Commit("next", repo.ID("main"))
			repo.Git("update-ref", "refs/heads/main", next.String())
			clone := gittest.At(t, dir)
			clone.Git("fetch", "-q")
			if got := clone.ID("origin/main"); got != next {
				t.Errorf("fetched %s, want %s", got, next)
			}
		})
	}
}
