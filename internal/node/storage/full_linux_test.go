package storage_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// fullDisk is a file system of a megabyte, and what fills it up.
func fullDisk(t *testing.T) (dir string, fill func() (empty func())) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("no file system of a test's own can be mounted here:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, func() func() {
		ballast, err := os.Create(filepath.Join(dir, "ballast"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ballast.Close() })
		for size := 64 << 10; size > 0; size /= 2 {
			for err = nil; err == nil; {
				_, err = ballast.Write(make([]byte, size))
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
		}
		return func() {
			if err := ballast.Truncate(0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Maintenance reports a full disk, and nothing is lost.
func TestMaintainOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir, fill := fullDisk(t)
	r := newRoot(t, storage.Options{Root: dir, Runner: newRunner(t)})
	for _, name := range []string{"app", "fork"} {
		repo := gittest.InitAt(t, filepath.Join(dir, name+".git"), "--template=")
		repo.Git("update-ref", "refs/heads/main", repo.Commit("x").String())
		if name == "fork" {
			if err := os.MkdirAll(repo.Dir+"/objects/info", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(repo.Dir+"/objects/info/alternates", []byte("../../app.git/objects\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		history(repo, 1)
	}
	empty := fill()
	for _, name := range []string{"app", "fork"} {
		if _, err := r.Maintain(t.Context(), r.path(name)); !fault.Is(err, fault.Unavailable) ||
			!strings.Contains(fault.Message(err), "disk") {
			t.Errorf("%s: %v (%s)", name, err, fault.KindOf(err))
		}
	}
	empty()
	for _, name := range []string{"app", "fork"} {
		if _, err := r.Maintain(t.Context(), r.path(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		gittest.At(t, filepath.Join(dir, name+".git")).Git("fsck", "--full")
	}
}

// Creating a repository on a full disk fails with an error that names the cause, and leaves nothing behind.
func TestCreateOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir, fill := fullDisk(t)
	r := newRoot(t, storage.Options{Root: dir, Runner: newRunner(t)})
	empty := fill()
	if _, err := r.Create(t.Context(), r.path("app"), storage.CreateOptions{}); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Message(err), "full") {
		t.Errorf("%v (%s)", err, fault.KindOf(err))
	}
	for _, place := range []string{"app*", ".packhorse/new/*"} {
		if left, err := filepath.Glob(filepath.Join(dir, place)); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
	empty()
	if _, err := r.Create(t.Context(), r.path("app"), storage.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// An update reports a full disk, changes nothing, and works when there is room again.
func TestIngestOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir, fill := fullDisk(t)
	r := newIngester(t, storage.Options{Root: dir})
	from := gittest.Init(t)
	from.Git("update-ref", "refs/heads/main", from.Commit("x").String())
	_, err := r.Create(t.Context(), r.path("app"), storage.CreateOptions{})
	r.do(err)
	fetches := 0
	_, err = r.Ingest(t.Context(), r.path("app"), stateOf(t, from, &fetches))
	r.do(err)
	before := gittest.At(t, dir+"/app.git").Git("for-each-ref")
	from.Git("update-ref", "refs/heads/main", from.Commit("y", from.ID("main")).String())
	empty := fill()
	_, err = r.Ingest(t.Context(), r.path("app"), stateOf(t, from, &fetches))
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "full") {
		t.Errorf("Ingest on a full disk: %v, want Unavailable", err)
	}
	if got := gittest.At(t, dir+"/app.git").Git("for-each-ref"); got != before {
		t.Errorf("refs on a full disk:\n%s\nwant\n%s", got, before)
	}
	empty()
	_, err = r.Ingest(t.Context(), r.path("app"), stateOf(t, from, &fetches))
	r.do(err)
	r.sameRefs("app.git", from, 0)
}

// A change on a full disk fails, no ref names a missing object, and the next change works when there is room again.
func TestWriteOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir, fill := fullDisk(t)
	r := newWritten(t, receivepack.Options{}, dir)
	of := r.initAt("app.git")
	for range 2 { // the second one by the process that stays
		_, err := r.change("app", put("main", "a", "x"))
		r.do(err)
		_, err = r.change("app", put("main", "b", "x"))
		r.do(err)
	}
	empty := fill()
	before := of.ID("main")
	_, err := r.change("app", put("main", "c", strings.Repeat(fmt.Sprint(rand.Int64()), 10_000)))
	if err == nil || !strings.Contains(fault.Message(err), "full") || of.ID("main") != before {
		t.Errorf("on a full disk: %v", err)
	}
	files := 2
	for room := range 12 { // in pages: at first for parts of the pack, then for the pack without the ref
		empty()
		fill()
		info, err := os.Stat(filepath.Join(dir, "ballast"))
		r.do(err)
		r.do(os.Truncate(filepath.Join(dir, "ballast"), info.Size()-int64(room)<<12))
		before := of.ID("main")
		if _, err = r.change("app", put("main", fmt.Sprint("room", room), "x")); err == nil {
			files++
		}
		if (err == nil) == (of.ID("main") == before) {
			t.Errorf("with %d pages: main is %s and was %s, %v", room, of.ID("main"), before, err)
		}
	}
	if empty(); files == 2 || files == 14 {
		t.Errorf("%d of 12 changes were made", files-2)
	}
	_, err = r.change("app", put("main", "c", "x"))
	r.do(err)
	checkWritten(t, of, files+1)
}
