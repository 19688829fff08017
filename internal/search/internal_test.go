package search

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git"
)

// What a process said before it ended has names of shards, and so of repositories.
func TestEndOfAProcessIsToldWithoutNames(t *testing.T) {
	t.Parallel()
	e := &Engine{searching: &searching{why: "exit status 2: loading 1 shard(s): team%2Fsecret.git_v16.00000.zoekt"}}
	if all, some := e.Status(nil).Error, e.Status(Each(func(git.RepoPath) bool { return false })).Error; !strings.Contains(all, "secret") || strings.Contains(some, "secret") || some == "" {
		t.Errorf("%q, and to those who may not read it %q", all, some)
	}
}

// Sockets to a process that searches are nobody else's: one that inherited an end would hide that the process has gone.
func TestSocketsAreNotInherited(t *testing.T) {
	t.Parallel()
	fds, err := pairOfSockets()
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%#x, %v", flags, err)
		}
		unix.Close(fd)
	}
}
