package pack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// withBlob makes a repository in dir that holds one blob of its own.
func withBlob(t *testing.T, dir string) (*gittest.Repo, git.ObjectID) {
	t.Helper()
	r := gittest.InitAt(t, dir)
	return r, git.MustParseObjectID(r.GitIn("blob of "+filepath.Base(dir), "hash-object", "-w", "--stdin"))
}

func setAlternates(t *testing.T, r *gittest.Repo, text string) {
	t.Helper()
	write(t, filepath.Join(r.Dir, "objects/info/alternates"), []byte(text))
}

// gitSees asks the real git which of the objects it finds in a repository.
func gitSees(t *testing.T, r *gittest.Repo, ids []git.ObjectID) []bool {
	t.Helper()
	var in strings.Builder
	for _, id := range ids {
		fmt.Fprintln(&in, id)
	}
	var seen []bool
	for line := range strings.SplitSeq(r.GitIn(in.String(), "cat-file", "--batch-check"), "\n") {
		seen = append(seen, !strings.HasSuffix(line, "missing"))
	}
	return seen
}

func storeSees(t *testing.T, s *Store, ids []git.ObjectID) []bool {
	t.Helper()
	var seen []bool
	for _, id := range ids {
		ok, err := s.Has(id)
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, ok)
	}
	return seen
}

// TestAlternates compares the store with git for an alternates file.
func TestAlternates(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var repos []*gittest.Repo
	var ids []git.ObjectID
	names := []string{"a", "b b", "c\tc", "d", "#e", `"f`, "é", "h", "i", "j"}
	for _, name := range names {
		r, id := withBlob(t, filepath.Join(root, name))
		repos, ids = append(repos, r), append(ids, id)
	}
	if err := os.Symlink("d", filepath.Join(root, "link-to-d")); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"",
		root + "/b b/objects\n",
		root + "/b b/objects",
		"../../b b/objects\n# comment\n\n../../d/objects/\n",
		"../../b b/objects\r\n../../d/objects\n",
		` "../../b b/objects"` + "\n",
		`"../../c\tc/objects"` + "\n" + `"../../d/objects"` + "\n",
		`"../../c\tc/objects" ` + "\n../../d/objects\n",
		`"../../c\x"` + "\n../../d/objects\n",
		`"../../\"f/objects"` + "\n" + `"../../\303\251/objects"`,
		"../../é/objects\n../../h/objects\n../../é/objects\n",
		"../objects\n.\n../../d/objects\n",
		"../../none/objects\n../../d/objects\n",
		"../../link-to-d/objects\n",
		"../../link-to-d/../d/objects\n",
		"../../d/objects/../objects\n",
		"../../d/HEAD\n../../h/objects\n",
		"\"\"\n../../h/objects\n",
		"\"../../d/objects\n../../h/objects\n",
		"#e\n../../#e/objects\n",
	} {
		setAlternates(t, repos[0], text)
		s := openStore(t, repos[0].Dir, git.SHA1)
		if got, want := storeSees(t, s, ids), gitSees(t, repos[0], ids); !slices.Equal(got, want) {
			t.Errorf("alternates %q:\ngot  %v\nwant %v", text, got, want)
		}
	}
}

// TestNestedAlternates follows a chain of repositories as deep as git does, and loops.
func TestNestedAlternates(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var repos []*gittest.Repo
	var ids []git.ObjectID
	for i := range 10 {
		r, id := withBlob(t, filepath.Join(root, fmt.Sprint("r", i)))
		if i > 0 {
			setAlternates(t, repos[i-1], fmt.Sprintf("../../r%d/objects\n", i))
		}
		repos, ids = append(repos, r), append(ids, id)
	}
	setAlternates(t, repos[9], "../../r0/objects\n../../r5/objects\n")
	for i, r := range repos {
		s := openStore(t, r.Dir, git.SHA1)
		if got, want := storeSees(t, s, ids), gitSees(t, r, ids); !slices.Equal(got, want) {
			t.Errorf("from repository %d:\ngot  %v\nwant %v", i, got, want)
		}
		if !s.HasAlternates() || s.Dirs()[0] != filepath.Join(r.Dir, "objects") {
			t.Errorf("HasAlternates() = %v, Dirs() = %v", s.HasAlternates(), s.Dirs())
		}
	}
}

func TestAlternatesStayInsideRoot(t *testing.T) {
	t.Parallel()
	outer := t.TempDir()
	root := filepath.Join(outer, "root")
	r, own := withBlob(t, filepath.Join(root, "r"))
	_, inside := withBlob(t, filepath.Join(root, "inside"))
	_, outside := withBlob(t, filepath.Join(outer, "outside"))
	_, sibling := withBlob(t, filepath.Join(outer, "root2"))
	rootLink := filepath.Join(outer, "root-link")
	for link, target := range map[string]string{
		rootLink: root, filepath.Join(root, "out"): filepath.Join(outer, "outside"),
		filepath.Join(outer, "in"): filepath.Join(root, "inside"),
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	ids := []git.ObjectID{own, inside, outside, sibling}
	for _, test := range []struct {
		text   string
		denied bool
	}{
		{"../../inside/objects\n", false},
		{rootLink + "/inside/objects\n", false},
		{outer + "/in/objects\n", false},
		{"../../../outside/objects\n", true},
		{outer + "/outside/objects\n", true},
		{outer + "/root2/objects\n", true},
		{"../../out/objects\n", true},
		{outer + "/nothing/objects\n", true},
		{"/\n", true},
		{"../../nothing/objects\n", false},
	} {
		setAlternates(t, r, test.text)
		for _, given := range []string{root, rootLink} {
			s, err := Open(filepath.Join(given, "r/objects"), Options{Root: given})
			if test.denied {
				if !fault.Is(err, fault.Denied) || !strings.Contains(fault.Message(err), "objects/info/alternates") {
					t.Errorf("alternates %q, root %s: %v, want Denied that names the file", test.text, given, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("alternates %q, root %s: %v", test.text, given, err)
				continue
			}
			if got, want := storeSees(t, s, ids), gitSees(t, r, ids); !slices.Equal(got, want) {
				t.Errorf("alternates %q: got %v, want %v", test.text, got, want)
			}
		}
	}
	if _, err := Open(filepath.Join(outer, "outside/objects"), Options{Root: root}); !fault.Is(err, fault.Denied) {
		t.Errorf("an object directory outside the root: %v, want Denied", err)
	}
}

// TestAlternatesChange changes the file under an open store.
func TestAlternatesChange(t *testing.T) {
	t.Parallel()
	outer := t.TempDir()
	root := filepath.Join(outer, "root")
	r, _ := withBlob(t, filepath.Join(root, "r"))
	_, id := withBlob(t, filepath.Join(root, "other"))
	_, _ = withBlob(t, filepath.Join(outer, "outside"))
	s, err := Open(filepath.Join(r.Dir, "objects"), Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	see := func(want bool) {
		t.Helper()
		if err := s.Refresh(); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Has(id); got != want || err != nil {
			t.Errorf("Has = %v, %v; want %v", got, err, want)
		}
	}
	see(false)
	setAlternates(t, r, "../../other/objects\n")
	see(true)
	setAlternates(t, r, "")
	see(false)
	setAlternates(t, r, "../../later/objects\n")
	see(false)
	if len(s.Damaged()) != 1 {
		t.Errorf("Damaged() = %v, want the alternate that is not there", s.Damaged())
	}
	if err := os.Rename(filepath.Join(root, "other"), filepath.Join(root, "later")); err != nil {
		t.Fatal(err)
	}
	see(true)
	setAlternates(t, r, "../../../outside/objects\n")
	for range 2 {
		if err := s.Refresh(); !fault.Is(err, fault.Denied) {
			t.Errorf("Refresh after an escape: %v, want Denied each time", err)
		}
	}
	setAlternates(t, r, "../../later/objects\n")
	see(true)
}
