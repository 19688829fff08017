package lfs_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// pointer returns the text of the pointer file of an object with some content.
func pointer(content string) string {
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%x\nsize %d\n",
		sha256.Sum256([]byte(content)), len(content))
}

// scan returns the objects that a repository names, by their blobs.
func scan(t *testing.T, r *gittest.Repo, format git.ObjectFormat, cache *lfs.PointerCache) map[git.ObjectID]lfs.Object {
	t.Helper()
	store, err := pack.Open(filepath.Join(r.Dir, "objects"), pack.Options{Format: format})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	found := map[git.ObjectID]lfs.Object{}
	err = lfs.ScanPointers(t.Context(), store, cache, func(p lfs.Pointer) error {
		found[p.Blob] = p.Object
		return nil
	})
	if err != nil {
		t.Fatalf("Scan error = %v, want none", err)
	}
	return found
}

// TestScan compares the pointers in packs with deltas, loose objects and alternates with those that were written.
func TestScan(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			r := gittest.Init(t, "--object-format="+format)
			cache := lfs.NewPointerCache(filepath.Join(r.Dir, "lfs", "pointers"))
			want := map[git.ObjectID]lfs.Object{}
			add := func(content string) {
				text := pointer(content)
				o, ok := lfs.ParsePointer([]byte(text))
				if !ok {
					t.Fatalf("ParsePointer(%q) is not ok", text)
				}
				want[r.Blob(text)] = o
			}
			check := func(step string) {
				t.Helper()
				got := scan(t, r, objectFormat(format), cache)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: pointers = %v, want %v", step, got, want)
				}
			}
			entries := ""
			for i := range 30 {
				add(fmt.Sprint("object ", i))
				r.Blob(strings.Repeat(fmt.Sprint("line ", i, "\n"), 100))
				r.Blob(pointer(fmt.Sprint(i)) + strings.Repeat(" ", lfs.MaxPointer)) // too large
			}
			for blob := range want {
				entries += fmt.Sprintf("100644 blob %v\tfile %v\n", blob, blob)
			}
			r.Git("update-ref", "refs/hidden/one", r.CommitTree("pointers", entries).String())
			check("loose")
			r.Git("repack", "-adfq", "--depth=50", "--window=50")
			r.Git("prune-packed")
			check("loose and packed")
			check("from the cache")
			if _, err := os.Stat(filepath.Join(r.Dir, "lfs", "pointers")); err != nil {
				t.Errorf("no cache: %v", err)
			}
			add("later")
			check("with a new loose object")
			borrower := gittest.Init(t, "--object-format="+format)
			alternates := filepath.Join(borrower.Dir, "objects", "info", "alternates")
			if err := os.WriteFile(alternates, []byte(r.Dir+"/objects\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := scan(t, borrower, objectFormat(format), nil); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("pointers of a borrower = %v, want %v", got, want)
			}
		})
	}
}

func objectFormat(name string) git.ObjectFormat {
	if name == "sha256" {
		return git.SHA256
	}
	return git.SHA1
}

// TestIncompleteCacheIsNotUsed damages the file of a pack: its pointers are read again.
func TestIncompleteCacheIsNotUsed(t *testing.T) {
	r := gittest.Init(t)
	dir := filepath.Join(r.Dir, "lfs", "pointers")
	commit := r.CommitTree("one", fmt.Sprintf("100644 blob %v\tfile\n", r.Blob(pointer("one"))))
	r.Git("update-ref", "refs/heads/main", commit.String())
	r.Git("repack", "-adq")
	want := scan(t, r, git.SHA1, lfs.NewPointerCache(dir))
	if len(want) != 1 {
		t.Fatalf("pointers = %v, want one", want)
	}
	files, err := filepath.Glob(filepath.Join(dir, "pack-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files = %v, %v, want one", files, err)
	}
	for _, content := range []string{"", "end\n", "x\nend 2\n"} {
		if err := os.WriteFile(files[0], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := scan(t, r, git.SHA1, lfs.NewPointerCache(dir)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("pointers with the file %q = %v, want %v", content, got, want)
		}
	}
}

// TestDamageIsAnError damages a pack and a loose object: a scan must not report fewer pointers.
func TestDamageIsAnError(t *testing.T) {
	for _, packed := range []bool{true, false} {
		r := gittest.Init(t)
		commit := r.CommitTree("one", fmt.Sprintf("100644 blob %v\tfile\n", r.Blob(pointer("one"))))
		r.Git("update-ref", "refs/heads/main", commit.String())
		pattern := "objects/??/*"
		if packed {
			r.Git("repack", "-adq")
			pattern = "objects/pack/*.pack"
		}
		files, err := filepath.Glob(filepath.Join(r.Dir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("files = %v, %v, want some", files, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			os.Chmod(file, 0o600)
			for i := 14; i < len(content)-21; i++ {
				content[i] ^= 0x55
			}
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		store, err := pack.Open(filepath.Join(r.Dir, "objects"), pack.Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = lfs.ScanPointers(context.Background(), store, nil, func(lfs.Pointer) error { return nil })
		if !fault.Is(err, fault.Corrupt) {
			t.Errorf("Scan with damage (packed: %t) error = %v, want Corrupt", packed, err)
		}
		store.Close()
	}
}
