package store

import (
	"errors"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// A repository whose settings another node has changed exists. Requests open it again.
func TestReconfigured(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n, other := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{}, named("other"))
	clone := newClone(t)
	if err := n.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	look := func() {
		t.Helper()
		if _, err := other.node.Commit(t.Context(), repoPath("app"), "main"); err != nil {
			t.Error(err)
		}
	}
	look()
	old := other.place("app")
	r, err := old.Open(t.Context(), repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = n.node.Configure(t.Context(), repoPath("app"), func(s places.Settings) error {
		s["transfer.hiderefs"] = []string{"refs/hidden"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	look()
	if err := old.Check(t.Context()); !errors.Is(err, places.ErrReconfigured) || !fault.Is(err, fault.Unavailable) {
		t.Errorf("Check() of the repository that was opened before = %v", err)
	}
}
