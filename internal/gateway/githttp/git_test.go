package githttp_test

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// TestOutputOfGit checks the messages of real git, because its users see nothing else.
func TestOutputOfGit(t *testing.T) {
	t.Parallel()
	capabilities := func(node.Session) ([]byte, error) {
		return protocol.Capabilities{Agent: "test", Format: git.SHA1}.Append(nil), nil
	}
	ok := serve(t, &fakeNode{advertise: capabilities, serve: failing(fault.New(fault.Invalid,
		"this one is not for you")).serve}, options{})
	down := serve(t, failing(fault.New(fault.Unavailable, "the disk is gone")), options{})
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"session": {[]string{"-c", "protocol.version=2", "ls-remote", "http://" + ok.addr + "/repo"},
			"remote error: this one is not for you"},
		"dumb": {[]string{"-c", "protocol.version=2", "ls-remote", "http://" + down.addr + "/-/repo"},
			"not found"},
		"unavailable": {[]string{"-c", "protocol.version=2", "ls-remote", "http://" + down.addr + "/repo"},
			"remote: the disk is gone"},
		"a second time": {[]string{"-c", "protocol.version=2", "ls-remote", "http://" + down.addr + "/repo"},
			"error: 503"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := gittest.At(t, t.TempDir()).Try(test.args...); err == nil ||
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("output of git = %s, error = %v, want %q", out, err, test.says)
			}
		})
	}

	repo := gittest.Init(t)
	repo.Git("update-ref", "refs/heads/main", repo.Commit("x").String())
	if _, err := repo.Try("push", "http://"+ok.addr+"/repo", "main"); err == nil ||
		!strings.Contains(err.Error(), "does not accept pushes") {
		t.Errorf("error of git push = %v, want that pushes are refused", err)
	}
}
