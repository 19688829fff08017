package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// push returns the text of the page for a client and a push: "ok", or the reason why the client cannot push. The client
// moves main by commits with a merge, and creates a branch.
func (m *privateMatrix) push(t *testing.T, c *client, op operation) string {
	reason := c.limits[op.name]
	server := m.private["token"]
	if op.push == "SSH" {
		if m.ssh == "" {
			t.Skip("*** There is no ssh: pushes over SSH are NOT tested. ***")
		}
		if server = m.ssh; c.ssh {
			server = m.private["key"]
		}
	}
	switch err := m.tryPush(t, c, op, server); {
	case err == nil && reason != "":
		t.Errorf("%s can do it, other than its limits say: %s", c.name, reason)
	case err != nil && reason == "":
		t.Errorf("%s cannot push over %s: %v", c.name, op.push, err)
	case err != nil:
		return reason
	}
	return "ok"
}

func (m *privateMatrix) tryPush(t *testing.T, c *client, op operation, server string) error {
	name := strings.NewReplacer(" ", "-", "(", "", ")", "", ",",
		"").Replace(fmt.Sprintf("%s-%s-%s", c.name, c.protocol[:1], op.push))
	if err := os.CopyFS(m.repo(name), os.DirFS(m.repo(op.repo))); err != nil {
		t.Fatal(err)
	}
	served, own := gittest.At(t, m.repo(name)), filepath.Join(t.TempDir(), "own")
	served.Git("clone", "-q", ".", own)
	local := gittest.At(t, own)
	first := local.Commit("first of the day", local.ID("origin/main"))
	second := local.Commit("second of the day", first, local.ID("origin/release/1.0"))
	local.Git("update-ref", "refs/heads/main", second.String())
	local.Git("update-ref", "refs/heads/topic", first.String())
	own, err := filepath.EvalSymlinks(own)
	if err != nil {
		t.Fatal(err)
	}
	with := *c
	with.env = append(with.env[:len(with.env):len(with.env)], "KEY="+filepath.Join(m.work, "ci"))
	for _, branch := range []string{"main", "topic"} {
		if _, err := m.drive(&with, "push", own, server+"/"+name+".git", branch); err != nil {
			return err
		}
		if got, want := served.ID("refs/heads/"+branch), local.ID("refs/heads/"+branch); got != want {
			return fmt.Errorf("%s is at %s on the server, not at %s", branch, got, want)
		}
	}
	_, err = tryGit(served.Dir, "fsck", "--full", "--no-dangling", "--connectivity-only")
	return err
}
