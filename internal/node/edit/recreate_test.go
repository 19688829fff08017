package edit_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// The commits of real histories are made again from their differences, with the same IDs. PACKHORSE_TEST_BUNDLES is a
// pattern of files with further histories.
func TestRecreateHistory(t *testing.T) {
	t.Parallel()
	own := gittest.At(t, "../../..")
	if _, err := own.Try("rev-parse", "--verify", "-q", "HEAD"); err != nil {
		t.Skip("the project has no history here")
	}
	dir := own.Git("rev-parse", "--path-format=absolute", "--git-common-dir")
	if testing.Short() {
		recreate(t, gittest.At(t, dir), "-n", "200", own.Git("rev-parse", "HEAD"))
		return
	}
	recreate(t, gittest.At(t, dir), own.Git("rev-parse", "HEAD"))
	found, _ := filepath.Glob(os.Getenv("PACKHORSE_TEST_BUNDLES"))
	for _, bundle := range found {
		of := gittest.Init(t)
		of.Git("fetch", "-q", bundle, "+refs/*:refs/*")
		recreate(t, of, "--all")
	}
}

// recreate makes the commits that git log selects again.
func recreate(t *testing.T, of *gittest.Repo, selection ...string) {
	t.Helper()
	s := newState(t, of)
	out := of.Git(append([]string{"log", "-z", "--root", "--diff-merges=first-parent", "--raw", "--no-abbrev",
		"--no-renames", "--format=commit %H"}, selection...)...)
	var commit string
	var changes []*edit.Change
	made := 0
	flush := func() {
		if commit != "" {
			recreateCommit(t, s, git.MustParseObjectID(commit), changes)
			made++
		}
		changes = nil
	}
	for tokens := strings.Split(out, "\x00"); len(tokens) > 0; tokens = tokens[1:] {
		token := strings.TrimLeft(tokens[0], "\n")
		switch id, isCommit := strings.CutPrefix(token, "commit "); {
		case isCommit:
			flush()
			commit = id
		case strings.HasPrefix(token, ":"):
			words := strings.Fields(token[1:])
			tokens = tokens[1:]
			c := &edit.Change{Field: "change", Path: tokens[0]}
			if words[4] == "D" {
				c.Kind = edit.Delete
			} else {
				mode, err := strconv.ParseUint(words[1], 8, 32)
				if err != nil {
					t.Fatal(err)
				}
				c.Mode, c.ID = uint32(mode), git.MustParseObjectID(words[3])
			}
			changes = append(changes, c)
		}
	}
	flush()
	t.Logf("%d commits of %s", made, of.Dir)
	if made == 0 {
		t.Error("no commits")
	}
}

func recreateCommit(t *testing.T, s *state, id git.ObjectID, changes []*edit.Change) {
	t.Helper()
	_, data, err := s.Read(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	commit, err := pack.ParseCommit(data, id.Format())
	if err != nil {
		t.Fatal(err)
	}
	header, message, _ := bytes.Cut(data, []byte("\n\n"))
	_, header, _ = bytes.Cut(header, []byte("\nauthor "))
	author, header, _ := bytes.Cut(header, []byte("\ncommitter "))
	committer, extra, _ := bytes.Cut(header, []byte("\n"))
	r := edit.Request{Target: edit.Target{Branch: "refs/heads/made-again", Create: true}, AllowEmpty: true}
	if len(commit.Parents) > 0 {
		r.Target.Start, r.Parents = commit.Parents[0], commit.Parents[1:]
	}
	r.Header.Author, r.Header.Committer, err = edit.Lines(edit.Person{Raw: author}, edit.Person{Raw: committer}, nobody,
		now)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	if r.Header.Message, err = edit.CheckMessage("", message); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	if r.Header.Extra, err = edit.CheckExtra(extra); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	_, made, err := build(t, s, &r, changes)
	if err != nil || made.Commit != id || made.Tree != commit.Tree {
		t.Fatalf("%s was made again as %s, %v", id, made.Commit, err)
	}
}

// One changed file in a directory of this project.
func BenchmarkOneFile(b *testing.B) {
	own := gittest.At(b, "../../..")
	dir := own.Git("rev-parse", "--path-format=absolute", "--git-common-dir")
	s := newState(b, gittest.At(b, dir))
	head := own.ID("HEAD")
	for b.Loop() {
		blob := write.NewObject(git.SHA1, git.Blob, []byte("some text\n"))
		r := edit.Request{Target: edit.Target{Branch: "refs/heads/made-again", Create: true, Start: head}}
		r.Header.Author, r.Header.Committer, _ = edit.Lines(edit.Person{}, edit.Person{}, nobody, now)
		if _, _, err := build(b, s, &r, []*edit.Change{{Path: "internal/node/edit/new.go", Blob: blob}}); err != nil {
			b.Fatal(err)
		}
	}
}
