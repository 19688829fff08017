package e2e

import (
	"testing"

	"golang.org/x/sys/unix"
)

// limitDescriptors bounds how many files a process may have open; the hard limit stays.
func limitDescriptors(t *testing.T, pid, n int) bool {
	t.Helper()
	var now unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now); err != nil {
		t.Fatal(err)
	}
	now.Cur = min(uint64(n), now.Max)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &now, nil); err != nil {
		t.Fatal(err)
	}
	return true
}
