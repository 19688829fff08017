package storage_test

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// TestWithoutDescriptors: a repository that cannot be opened for want of file descriptors is not reported as missing.
// The test runs in a separate process, since the limit applies to the whole process.
func TestWithoutDescriptors(t *testing.T) {
	const inside = "PACKHORSE_TEST_WITHOUT_DESCRIPTORS"
	if os.Getenv(inside) == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestWithoutDescriptors$", "-test.v")
		c.Env = append(os.Environ(), inside+"=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	r := newRoot(t, storage.Options{})
	r.repo("app.git", "text")
	path := r.path("app")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	less := limit
	less.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &less); err != nil {
		t.Fatal(err)
	}
	_, _, err := r.Exists(t.Context(), path, "refs/heads/main")
	if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("%v", err)
	}
}
