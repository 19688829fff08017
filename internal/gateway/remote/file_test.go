package remote_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// A file is given of commits that visible refs reach, by the node itself and by the node elsewhere.
func TestFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	app := gittest.InitAt(t, w.root+"/app.git")
	large := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	blob := func(data string) string { return strings.TrimSpace(app.GitIn(data, "hash-object", "-w", "--stdin")) }
	dir := strings.TrimSpace(app.GitIn("100755 blob "+blob("#!/bin/sh\n")+"\trun\n", "mktree"))
	tree := strings.TrimSpace(app.GitIn("100644 blob "+blob(string(large))+"\tlarge\n100644 blob "+blob("")+
		"\tempty\n040000 tree "+dir+"\tdir\n120000 blob "+
		blob("dir/run")+"\tlink\n100644 blob "+blob("x\x00")+"\tb\xff \u00e9#?\n", "mktree"))
	commit := func(parents ...string) string {
		args := []string{"commit-tree", "-m", "c", tree}
		for _, p := range parents {
			args = append(args, "-p", p)
		}
		return strings.TrimSpace(app.Git(args...))
	}
	first := commit()
	second := commit(first)
	loose, hidden := app.Commit("nobody's"), app.Commit("hidden")
	app.Git("update-ref", "refs/heads/main", second)
	app.Git("update-ref", "refs/secret/x", hidden.String())
	app.Git("config", "transfer.hideRefs", "refs/secret")
	app.Git("tag", "-a", "-m", "t", "v1", "main")
	for _, test := range []struct {
		repository, commit, path string
		limit                    int64
		want                     git.File
		kind                     fault.Kind // 0: none
	}{
		{"app", first, "large", 1 << 20, git.File{Size: int64(len(large)), Mode: 0o100644, Data: large}, 0},
		{"app.git", second, "large", 1 << 20, git.File{Size: int64(len(large)), Mode: 0o100644, Data: large}, 0},
		{"app", second, "large", 1000, git.File{Size: int64(len(large)), Mode: 0o100644}, 0},
		{"app", second, "empty", 1000, git.File{Mode: 0o100644}, 0},
		{"app", second, "dir/run", 1000, git.File{Size: 10, Mode: 0o100755, Data: []byte("#!/bin/sh\n")}, 0},
		{"app", second, "link", 1000, git.File{Size: 7, Mode: 0o120000, Data: []byte("dir/run")}, 0},
		{"app", second, "b\xff \u00e9#?", 1000, git.File{Size: 2, Mode: 0o100644, Data: []byte("x\x00")}, 0},
		{"app", second, "none", 1000, git.File{}, fault.NotFound},
		{"app", second, "../app", 1000, git.File{}, fault.NotFound},
		{"app", second, "dir", 1000, git.File{}, fault.Invalid},
		{"app", loose.String(), "file", 1000, git.File{}, fault.NotFound},
		{"app", hidden.String(), "file", 1000, git.File{}, fault.NotFound},
		{"app", tree, "large", 1000, git.File{}, fault.NotFound},
		{"app", app.ID("v1").String(), "large", 1000, git.File{}, fault.NotFound},
		{"app", strings.Repeat("1", 40), "large", 1000, git.File{}, fault.NotFound},
		{"app", strings.Repeat("1", 64), "large", 1000, git.File{}, fault.NotFound},
		{"none", first, "large", 1000, git.File{}, fault.NotFound},
		{".packhorse/absent/none", first, "large", 1000, git.File{}, fault.NotFound},
	} {
		path, id := repoPath(t, test.repository), git.MustParseObjectID(test.commit)
		ours, err := w.remote.File(t.Context(), path, id, test.path, test.limit)
		theirs, theirErr := w.node.File(t.Context(), path, id, test.path, test.limit)
		for _, got := range []struct {
			file git.File
			err  error
		}{{ours, err}, {theirs, theirErr}} {
			if len(got.file.Data) == 0 {
				got.file.Data = nil
			}
			if !reflect.DeepEqual(got.file, test.want) || (got.err != nil) != (test.kind != 0) ||
				got.err != nil && fault.KindOf(got.err) != test.kind {
				t.Errorf("%s %.10s %q: %d bytes, mode %o, %v", test.repository, test.commit, test.path, got.file.Size,
					got.file.Mode, got.err)
			}
		}
		if (err != nil) != (theirErr != nil) || err != nil && fault.Message(err) != fault.Message(theirErr) {
			t.Errorf("%q: %v; the node says %v", test.path, err, theirErr)
		}
	}
	if _, err := w.remote.File(t.Context(), repoPath(t, "app"), git.MustParseObjectID(first), "large",
		1<<30); !fault.Is(err, fault.Invalid) {
		t.Error("a limit beyond the limit: ", err)
	}
}
