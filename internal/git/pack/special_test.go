package pack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestPipesInsteadOfFiles would hang if a file were opened without O_NONBLOCK, because the pipes have no writer.
func TestPipesInsteadOfFiles(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]fault.Kind{
		"pack/*.pack":           fault.Corrupt,
		"pack/*.idx":            fault.NotFound, // without its index the pack is unknown; Damaged reports it
		"pack/multi-pack-index": fault.Internal, // none: each pack's own index answers
		"info/alternates":       fault.Corrupt,
		"??/*":                  fault.Corrupt,
	} {
		r := gittest.Init(t)
		id := r.Commit("a")
		r.Git("update-ref", "refs/heads/main", id.String())
		if pattern != "??/*" {
			r.Git("repack", "-adq")
			r.Git("multi-pack-index", "write")
			setAlternates(t, r, "")
		}
		if pattern == "pack/*.idx" {
			if err := os.Remove(filepath.Join(r.Dir, "objects/pack/multi-pack-index")); err != nil {
				t.Fatal(err)
			}
		}
		paths, err := filepath.Glob(filepath.Join(r.Dir, "objects", pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %q, %v", pattern, paths, err)
		}
		for _, path := range paths {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(filepath.Join(r.Dir, "objects"), Options{})
		if err == nil {
			defer s.Close()
			_, _, err = s.Read(id, 0)
		}
		if want == fault.Internal && err != nil || want != fault.Internal && !fault.Is(err, want) {
			t.Errorf("%s: %v, want %v", pattern, err, want)
		}
		if err != nil && strings.Contains(fault.Message(err), r.Dir) {
			t.Errorf("%s: the message tells a path: %q", pattern, fault.Message(err))
		}
	}
}

// TestLinkedObjectDirectory has repositories whose objects belong, or seem to belong, to another repository.
func TestLinkedObjectDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	owner, id := withBlob(t, filepath.Join(root, "owner"))
	if err := os.Mkdir(filepath.Join(root, "borrower"), 0o700); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"borrower/objects": "../owner/objects", "link-to-owner": "owner", "link-to-root": ".", "link-to-borrower": "borrower",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]bool{
		owner.Dir: false, filepath.Join(root, "link-to-owner"): false, filepath.Join(root, "link-to-root/owner"): false,
		filepath.Join(root, "borrower"): true, filepath.Join(root, "link-to-borrower"): true,
	} {
		s := openStore(t, dir, git.SHA1)
		if got := s.HasAlternates(); got != want {
			t.Errorf("%s: HasAlternates() = %v, want %v", dir, got, want)
		}
		if ok, err := s.Has(id); !ok || err != nil {
			t.Errorf("%s: Has: %v, %v", dir, ok, err)
		}
	}
}
