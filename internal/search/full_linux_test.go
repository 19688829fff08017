package search_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/search"
)

// smallDisk is a file system of 1 MiB at some directory of the index.
func smallDisk(t *testing.T, s *source, below string) (o search.Options, dir string) {
	t.Helper()
	o = options(t, s)
	dir = filepath.Join(o.Dir, below)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		if os.Getenv("CI") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skip("*** No file system of a test's own can be mounted here: a full one is NOT tested. ***", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return o, dir
}

// noise is so many bytes of text that an index cannot make small.
func noise(seed uint64, n int) string {
	var b strings.Builder
	for r := rand.New(rand.NewPCG(seed, seed)); b.Len() < n; {
		fmt.Fprintf(&b, "%x\n", r.Uint64())
	}
	return b.String()
}

// TestDiskBecomesFull fills the disk while a shard is written. Indexed repositories have results, others are searched
// without an index, and no temporary files remain.
func TestDiskBecomesFull(t *testing.T) {
	t.Parallel()
	s := newSource()
	o, dir := smallDisk(t, s, "")
	first := s.push("a", main, files{"f": "needle"})
	e := start(t, o)
	await(t, e, "needle", has(1, first))

	large := files{"f": "needle"}
	for i := range 3 {
		large[fmt.Sprint("g", i)] = noise(uint64(i), 600_000)
	}
	s.push("b", main, large)
	eventually(t, "it is known that the disk is full", func() bool {
		failures := e.Status(nil).Failures
		return len(failures) == 1 && failures[0].Repository == "b" &&
			strings.Contains(failures[0].Error, "cannot be written to") &&
			strings.Contains(failures[0].Error, "no space") && !strings.Contains(failures[0].Error, dir)
	})
	f := await(t, e, "needle", finds(2))
	if len(f.Unindexed) != 1 || f.Unindexed[0] != "b" {
		t.Errorf("searched without an index: %q", f.Unindexed)
	}
	eventually(t, "nothing is left of what failed", func() bool {
		rest, err := filepath.Glob(filepath.Join(o.Dir, "shards", "b_*"))
		return err == nil && len(rest) == 0
	})
	// Others go on, and it does once there is room.
	third := s.push("c", main, files{"f": "needle of c"})
	await(t, e, "\"of c\" repo:c", has(1, third))
	last := s.push("b", main, files{"f": "needle"})
	await(t, e, "needle", func(f *found) bool { return has(3)(f) && strings.Contains(string(f.json), last.String()) })
}

// TestDirectoryBecomesReadOnly: the existing index has results and is reported as behind. Indexing continues when the
// directory is writable again.
func TestDirectoryBecomesReadOnly(t *testing.T) {
	t.Parallel()
	s := newSource()
	o, dir := smallDisk(t, s, "shards")
	first := s.push("a", main, files{"f": "needle"})
	e := start(t, o)
	await(t, e, "needle", has(1, first))
	eventually(t, "the directory is read-only", func() bool { // fails while a process writes
		return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") == nil
	})
	second := s.push("a", main, files{"f": "needle", "g": "needle"})
	s.push("b", main, files{"f": "needle"})
	eventually(t, "it is known", func() bool { return e.Status(nil).Failed == 2 })
	for _, failure := range e.Status(nil).Failures {
		if !strings.Contains(failure.Error, "read-only") || strings.Contains(failure.Error, dir) {
			t.Errorf("it is said of %s: %s", failure.Repository, failure.Error)
		}
	}
	// counted a moment after Current is known
	f := await(t, e, "needle repo:a", func(f *found) bool { return has(1, first)(f) && f.Repositories[0].Lag >= 0 })
	if r := f.Repositories[0]; r.Indexed != first.String() || r.Current != second.String() || r.Lag != 1 {
		t.Errorf("the index is %+v", r)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatal(err)
	}
	await(t, e, "needle", has(3))
}
