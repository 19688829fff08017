package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestClientsOfStore has each installed client push to one server of a store and clone from another one. .ci/clients
// installs them in PACKHORSE_CLIENTS.
func TestClientsOfStore(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	m, w := &matrix{work: t.TempDir()}, newStoreWorld(t)
	a, b := w.serve("a", ""), w.serve("b", "")
	oracle := &client{name: "git by file path", program: "clients/git/driver"}
	for i, c := range clients(os.Getenv("PACKHORSE_CLIENTS")) {
		if _, err := m.drive(c, "version"); err != nil {
			t.Logf("*** %s is not installed: NOT tested ***", c.name)
			continue
		}
		for _, op := range []string{"push", "clone"} {
			if reason := c.limits[op]; reason != "" {
				t.Logf("*** %s: %s: %s ***", c.name, op, reason)
			}
		}
		repo := fmt.Sprintf("client%d.git", i)
		runPackhorse(t, "", "repo", "create", repo, "--config", a.config())
		served := gittest.InitAt(t, filepath.Join(t.TempDir(), "served.git"))
		served.Git("fetch", "-q", filepath.Join(makeTemplates(t), "random"), "+refs/*:refs/*")
		w.git(served.Dir, "push", "-q", "--mirror", a.url(repo))
		own := filepath.Join(t.TempDir(), "own")
		served.Git("clone", "-q", ".", own)
		local := gittest.At(t, own)
		for _, branch := range []string{"main", "topic"} {
			tip := local.Commit(c.name+" "+branch, local.ID("origin/main"), local.ID("origin/release/1.0"))
			local.Git("update-ref", "refs/heads/"+branch, tip.String())
			if c.limits["push"] != "" {
				w.git(own, "push", "-q", a.url(repo), branch)
			} else if _, err := m.drive(c, "push", own, a.url(repo), branch); err != nil {
				t.Errorf("%s cannot push to a store: %v", c.name, err)
			}
			served.Git("fetch", "-q", own, branch+":"+branch)
		}
		if got, want := listed(b.refs(repo)), listed(w.git("", "ls-remote", served.Dir)); got != want {
			t.Errorf("after pushes by %s, the other server has the refs\n%s\nwant\n%s", c.name, got, want)
		}
		got, want := filepath.Join(t.TempDir(), "got"), filepath.Join(t.TempDir(), "want")
		if _, err := m.drive(oracle, "clone", "file://"+served.Dir, want); err != nil {
			t.Fatal(err)
		}
		if _, err := m.drive(c, "clone", b.url(repo), got); err != nil {
			t.Errorf("%s cannot clone from a store: %v", c.name, err)
			continue
		}
		if err := sameFetched(got, want, operations[1]); err != nil {
			t.Errorf("%s cloned from a store: %v", c.name, err)
		}
	}
}
