package places

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func (r *testRoot) borrow(from *gittest.Repo, alternates string) {
	r.t.Helper()
	r.do(os.WriteFile(filepath.Join(from.Dir, "objects/info/alternates"), []byte(alternates+"\n"), 0o600))
}

// TestDeleteOfALender refuses to remove a repository whatever way another one needs it, and removes it when forced.
func TestDeleteOfALender(t *testing.T) {
	t.Parallel()
	for name, needs := range map[string]func(r *testRoot, lender *gittest.Repo) (borrower string){
		"an absolute path": func(r *testRoot, lender *gittest.Repo) string {
			r.borrow(r.repo("team/fork.git", "f"), lender.Dir+"/objects")
			return "team/fork.git"
		},
		"a relative path": func(r *testRoot, _ *gittest.Repo) string {
			r.borrow(r.repo("team/fork.git", "f"), "# comment\n../../none/objects\n../../../team/lender.git/objects")
			return "team/fork.git"
		},
		"a chain, that leads in a circle, over a directory that is no repository": func(r *testRoot, _ *gittest.Repo) string {
			pool := filepath.Join(r.dir, "pool/objects/info")
			r.do(os.MkdirAll(pool, 0o700))
			r.do(os.WriteFile(filepath.Join(pool, "alternates"), []byte("../../a.git/objects\n../../team/lender.git/objects\n"),
				0o600))
			r.borrow(r.repo("a.git", "a"), "../../pool/objects")
			return "a.git"
		},
		"a link to it": func(r *testRoot, lender *gittest.Repo) string {
			r.do(os.Symlink(lender.Dir, filepath.Join(r.dir, "link")))
			r.borrow(r.repo("fork.git", "f"), r.dir+"/link/objects")
			return "fork.git"
		},
		"a link in it to elsewhere": func(r *testRoot, lender *gittest.Repo) string {
			r.do(os.Rename(filepath.Join(lender.Dir, "objects"), filepath.Join(r.dir, "pool")))
			r.do(os.Symlink("../../pool", filepath.Join(lender.Dir, "objects")))
			r.borrow(r.repo("fork.git", "f"), "../../team/lender.git/objects")
			return "fork.git"
		},
		"a link in place of the packs": func(r *testRoot, lender *gittest.Repo) string {
			pack := filepath.Join(r.repo("fork.git", "f").Dir, "objects/pack")
			r.do(errors.Join(os.RemoveAll(pack), os.Symlink(lender.Dir+"/objects/pack", pack)))
			return "fork.git"
		},
		"a work tree": func(r *testRoot, lender *gittest.Repo) string {
			r.borrow(r.repo("work/.git", "w"), lender.Dir+"/objects")
			return "work/.git"
		},
		"a submodule in a work tree": func(r *testRoot, lender *gittest.Repo) string {
			r.repo("work/.git", "w")
			r.borrow(r.repo("work/.git/modules/some/sub", "s"), lender.Dir+"/objects")
			return "work/.git/modules/some/sub"
		},
		"a linked worktree of a repository that is not served": func(r *testRoot, lender *gittest.Repo) string {
			r.do(os.MkdirAll(filepath.Join(r.dir, ".packhorse"), 0o700))
			main := r.repo(".packhorse/main.git", "m")
			r.borrow(main, lender.Dir+"/objects")
			main.Git("worktree", "add", "-q", filepath.Join(r.dir, "linked"), "main")
			return "linked/.git"
		},
		"a file that names it": func(r *testRoot, lender *gittest.Repo) string {
			r.do(os.WriteFile(filepath.Join(r.dir, "alias.git"), []byte("gitdir: team/lender.git\n"), 0o600))
			return "alias.git"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestRoot(t, t.TempDir())
			lender := r.repo("team/lender.git", "l")
			r.repo("team/other.git", "o")
			borrower := needs(r, lender)
			err := r.Delete(t.Context(), r.path("team/lender"), DeleteOptions{})
			if !fault.Is(err, fault.Denied) || !strings.Contains(fault.Message(err), " "+borrower+". ") {
				t.Fatalf("%v; want Denied that names %s", err, borrower)
			}
			r.do(r.Delete(t.Context(), r.path("team/other"), DeleteOptions{}))
			r.do(r.Delete(t.Context(), r.path("team/lender"), DeleteOptions{Force: true}))
		})
	}
}

// TestSearchForBorrowersThatEndsEarly refuses a removal although the search found no borrower.
func TestSearchForBorrowersThatEndsEarly(t *testing.T) {
	t.Parallel()
	r := newTestRoot(t, t.TempDir())
	r.repo("a.git", "a")
	r.borrow(r.repo("b.git", "b"), strings.Repeat("x", 2<<20)) // longer than such a file may be
	refused := func(why string) {
		t.Helper()
		if err := r.Delete(t.Context(), r.path("a"), DeleteOptions{}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", why, err)
		}
	}
	refused("alternates that cannot be read")
	r.borrow(gittest.At(t, filepath.Join(r.dir, "b.git")), "")
	r.borrowerEntries = 1
	refused("too many entries")
	r.borrowerEntries = 1000
	r.do(r.Delete(t.Context(), r.path("a"), DeleteOptions{}))
	if _, err := os.Stat(filepath.Join(r.dir, "a.git")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
