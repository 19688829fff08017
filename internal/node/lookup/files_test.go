package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// files reads files as "mode id size path NUL", and their contents by ID.
func files(l *Reader, r *repo.Repo, q FilesRequest) (list []string, contents map[git.ObjectID][]byte, err error) {
	contents = make(map[git.ObjectID][]byte)
	err = l.Files(context.Background(), r, q, func(f *File) error {
		if f.Gone {
			list = append(list, fmt.Sprintf("gone\t%s", f.Path))
			return nil
		}
		list = append(list, fmt.Sprintf("%06o %s\t%s", f.Mode, f.ID, f.Path))
		if f.Content != nil {
			contents[f.ID] = bytes.Clone(f.Content)
			if f.Size != int64(len(f.Content)) {
				return fmt.Errorf("%s has %d bytes and %d", f.Path, f.Size, len(f.Content))
			}
		}
		return nil
	})
	return list, contents, err
}

// TestFilesAsGit compares all files of commits, and their differences, with git.
func TestFilesAsGit(t *testing.T) {
	t.Parallel()
	everyHome(t, func(t *testing.T, r *gittest.Repo) {
		l, opened := New(Options{}), openRepo(t, r)
		all := strings.Fields(r.Git("rev-list", "--all"))
		for i, text := range all {
			if i%5 != 0 {
				continue
			}
			commit := r.ID(text)
			have, contents, err := files(l, opened, FilesRequest{Commit: commit, Limit: MaxContent})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, line := range splitNul(r.Git("ls-tree", "-r", "-z", text)) {
				meta, path, _ := strings.Cut(line, "\t")
				f := strings.Fields(meta)
				want = append(want, fmt.Sprintf("%s %s\t%s", f[0], f[2], path))
				if content, ok := contents[r.ID(f[2])]; f[1] == "blob" && (!ok || blobID(opened, content) != f[2]) {
					t.Errorf("%s: %q is not what git has", text, path)
				}
			}
			if !slices.Equal(have, want) {
				t.Errorf("%s\nhave %q\nwant %q", text, have, want)
			}
			base := all[(i*7+3)%len(all)]
			have, _, err = files(l, opened, FilesRequest{Commit: commit, Base: r.ID(base), Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			want = nil
			fields := splitNul(r.Git("diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", base, text))
			for j := 0; j+1 < len(fields); j += 2 {
				if f := strings.Fields(fields[j]); f[4] == "D" {
					want = append(want, "gone\t"+fields[j+1])
				} else {
					want = append(want, fmt.Sprintf("%s %s\t%s", f[1], f[3], fields[j+1]))
				}
			}
			if !slices.Equal(have, want) {
				t.Errorf("%s to %s\nhave %q\nwant %q", base, text, have, want)
			}
			if n, err := l.Behind(t.Context(), opened, r.ID(base), commit, maxLog); err != nil ||
				fmt.Sprint(n) != r.Git("rev-list", "--count", base+".."+text) {
				t.Errorf("%s is %d commits behind %s, %v", base, n, text, err)
			}
		}
	})
}

func blobID(r *repo.Repo, content []byte) string {
	h := r.Format.New()
	fmt.Fprintf(h, "blob %d\x00%s", len(content), content)
	return git.RawObjectID(h.Sum(nil)).String()
}

func splitNul(s string) []string { return strings.Split(strings.TrimSuffix(s, "\x00"), "\x00") }

// A few trees with millions of paths and no file end with an error.
func TestFilesOfEmptyDirectories(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	tree := treeOf(t, r)
	for range 8 {
		var entries []any
		for i := range 12 {
			entries = append(entries, fmt.Sprintf("40000 d%02d", i), tree)
		}
		tree = treeOf(t, r, entries...)
	}
	commit := r.ID(strings.TrimSpace(r.Git("commit-tree", "-m", "x", tree.String())))
	l := New(Options{})
	l.bounds.diffTrees = 20_000
	err := l.Files(t.Context(), openRepo(t, r), FilesRequest{Commit: commit}, func(*File) error { return nil })
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "directories for only 0 files") {
		t.Errorf("got %v", err)
	}
}

func TestFilesThatCannotBeGiven(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	blob := func(text string) git.ObjectID { return store(t, r, git.Blob, []byte(text)) }
	long, fits, lost := blob(strings.Repeat("x", 3<<20)), blob(strings.Repeat("y", 2<<20)), blob("lost")
	tree := treeOf(t, r, "100644 a", long, "100644 b", fits, "120000 link", blob("a"), "100644 lost", lost,
		"160000 module", lost, "100644 none", blob(""),
		"100644 odd", treeOf(t, r), "40000 z", treeOf(t, r, "100755 run", blob("run")))
	commit := r.ID(strings.TrimSpace(r.Git("commit-tree", "-m", "x", tree.String())))
	if err := os.Remove(loosePath(r, lost)); err != nil {
		t.Fatal(err)
	}
	l, opened := New(Options{}), openRepo(t, r)
	var have []string
	list := func(f *File) error {
		have = append(have, fmt.Sprintf("%s %d %d %v", f.Path, f.Size, len(f.Content), f.Content == nil))
		return nil
	}
	if err := l.Files(t.Context(), opened, FilesRequest{Commit: commit, Limit: 2 << 20}, list); err != nil {
		t.Fatal(err)
	}
	want := []string{"a 3145728 0 true", "b 2097152 2097152 false", "link 1 1 false", "lost -1 0 true", "module 0 0 true",
		"none 0 0 false", "odd -1 0 true", "z/run 3 3 false"}
	if !slices.Equal(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
	have = nil
	if err := l.Files(t.Context(), opened, FilesRequest{Commit: commit}, list); err != nil || len(have) != len(want) {
		t.Errorf("no content: %q, %v", have, err)
	}
	enough := errors.New("enough")
	if err := l.Files(t.Context(), opened, FilesRequest{Commit: commit},
		func(*File) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("a sender that fails: %v", err)
	}
	absent, _ := git.ParseObjectID(strings.Repeat("1", 40))
	other, _ := git.ParseObjectID(strings.Repeat("1", 64))
	for _, c := range []struct {
		q    FilesRequest
		kind fault.Kind
	}{
		{FilesRequest{}, fault.Invalid}, {FilesRequest{Commit: commit, Limit: -1}, fault.Invalid},
		{FilesRequest{Commit: commit, Limit: MaxContent + 1}, fault.Invalid},
		{FilesRequest{Commit: tree}, fault.Invalid}, {FilesRequest{Commit: other}, fault.Invalid},
		{FilesRequest{Commit: absent}, fault.NotFound},
		{FilesRequest{Commit: commit, Base: absent}, fault.NotFound},
		{FilesRequest{Commit: commit, Base: tree}, fault.Invalid},
	} {
		if _, _, err := files(l, opened, c.q); !fault.Is(err, c.kind) {
			t.Errorf("%+v: %v, want %v", c.q, err, c.kind)
		}
	}
	for _, id := range []git.ObjectID{absent, other, tree, {}} {
		if n, err := l.Behind(t.Context(), opened, id, commit, 10); err == nil {
			t.Errorf("%s is %d commits behind", id, n)
		}
	}
	if _, err := l.Behind(t.Context(), opened, commit, commit, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("without a limit: %v", err)
	}
}
