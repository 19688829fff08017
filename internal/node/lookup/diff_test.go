package lookup

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// differences compares two trees, and prints the differences like git diff-tree.
func differences(l *Reader, r *repo.Repo, old, new git.ObjectID) (string, error) {
	hex := func(id git.ObjectID) string {
		if id.IsZero() {
			return strings.Repeat("0", r.Format.HexSize())
		}
		return id.String()
	}
	var raw strings.Builder
	d := &differ{operation: &operation{Reader: l, ctx: context.Background(), repo: r},
		each: func(path []byte, old, new treeEntry) error {
			fmt.Fprintf(&raw, ":%06o %06o %s %s %s\x00", old.mode, new.mode, hex(old.id), hex(new.id), path)
			return nil
		}}
	err := d.trees(old, new, 0)
	return raw.String(), err
}

// sameAsGit compares with git diff-tree.
func sameAsGit(t *testing.T, l *Reader, r *gittest.Repo, opened *repo.Repo, old, new git.ObjectID) {
	t.Helper()
	got, err := differences(l, opened, old, new)
	if err != nil {
		t.Errorf("%s %s: %v", old, new, err)
		return
	}
	var want strings.Builder
	fields := strings.Split(r.Git("diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", old.String(), new.String()),
		"\x00")
	for i := 0; i+1 < len(fields); i += 2 { // ":modes ids status", path
		fmt.Fprintf(&want, "%s %s\x00", fields[i][:strings.LastIndexByte(fields[i], ' ')], fields[i+1])
	}
	if got != want.String() {
		t.Errorf("%s %s:\ngot  %q\nwant %q", old, new, got, want.String())
	}
}

func TestDifferencesAreGits(t *testing.T) {
	t.Parallel()
	everyHome(t, func(t *testing.T, r *gittest.Repo) {
		l, opened := New(Options{}), openRepo(t, r)
		commits := strings.Fields(r.Git("rev-list", "--all"))
		for i, c := range commits[:8] {
			sameAsGit(t, l, r, opened, r.ID(c+"^{tree}"), r.ID(commits[len(commits)-1-i]+"^{tree}"))
		}
	})
}

// TestDifferencesOfOddFiles has unusual files.
func TestDifferencesOfOddFiles(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	put := func(s string) git.ObjectID { return store(t, r, git.Blob, []byte(s)) }
	dir := treeOf(t, r, "100644 f", put("f\n"), "100755 x", put("x"))
	sides := [][]any{
		{},
		{"100644 a", put("1\n2\n3\n")},
		{"100755 a", put("1\n2\n3\n")},
		{"120000 a", put("1\n2\n3\n")},
		{"100644 a", put("")},
		{"160000 a", put("1\n2\n3\n")},
		{"160000 a", dir},
		{"40000 a", dir},
		{"40000 a", treeOf(t, r)},
		{"100644 a", put("1\n"), "100644 a-b", put("1\n"), "40000 a.d", dir, "100644 a0", put("0\n")},
		{"100644 a-b", put("1\n"), "100644 a.d", put("1\n"), "40000 a", dir, "40000 a0", dir},
		{"100644 \xff\x01\"", put("1\n2\n")},
	}
	l, opened := New(Options{}), openRepo(t, r)
	for i, entries := range sides {
		old := treeOf(t, r, entries...)
		for _, entries := range sides[i:] {
			new := treeOf(t, r, entries...)
			sameAsGit(t, l, r, opened, old, new)
			sameAsGit(t, l, r, opened, new, old)
		}
	}
}
