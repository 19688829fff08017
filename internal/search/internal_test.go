package search

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git"
)

// The last output of a worker contains names of shards, and so of repositories.
func TestErrorOfAWorkerHasNoNames(t *testing.T) {
	t.Parallel()
	e := &Engine{searchWorker: &searchWorker{
		reason: "exit status 2: loading 1 shard(s): team%2Fsecret.git_v16.00000.zoekt"}}
	all, some := e.Status(nil).Error, e.Status(Each(func(git.RepoPath) bool { return false })).Error
	if !strings.Contains(all, "secret") || strings.Contains(some, "secret") || some == "" {
		t.Errorf("got error %q, and %q for a caller without access; want the name only in the first one", all, some)
	}
}

// Other processes do not inherit sockets to a search worker, because that would hide the end of the worker.
func TestSocketsAreNotInherited(t *testing.T) {
	t.Parallel()
	own, child, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	defer child.Close()
	flags, err := unix.FcntlInt(child.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags of the socket = %#x, %v, want FD_CLOEXEC", flags, err)
	}
}
