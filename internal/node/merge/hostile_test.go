package merge

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/edit"
)

var testHeader = edit.Header{Author: "A <a@x> 1 +0000", Committer: "C <c@x> 1 +0000"}

// fork stores three trees as commits: a base, and two with it as parent.
func fork(r *gittest.Repo, trees [3]files) (ids [3]git.ObjectID) {
	b := r.Batch()
	for side, f := range trees {
		text := fmt.Sprintf("tree %s\n", f.store(b))
		if side != base {
			text += fmt.Sprintf("parent %s\n", ids[base])
		}
		text += fmt.Sprintf("author a <> 0 +0000\ncommitter a <> %d +0000\n\n%d", side, side)
		ids[side] = b.Object(git.Commit, []byte(text))
	}
	b.Store()
	return ids
}

// with returns files with other contents.
func (f files) with(change map[string]string) files {
	f = maps.Clone(f)
	for path, content := range change {
		f[path] = file{"100644", content}
	}
	return f
}

// Built-in merge drivers of .gitattributes apply, as in git merge. Programs that the repository's configuration names
// never run.
func TestMergeDrivers(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	mark := filepath.Join(t.TempDir(), "ran")
	program := "touch " + mark + "; false"
	for _, key := range []string{"merge.evil.driver", "merge.default", "filter.evil.clean", "filter.evil.smudge",
		"filter.evil.process", "diff.evil.textconv", "diff.evil.command", "diff.external", "core.fsmonitor", "core.pager",
		"merge.renormalize", "gpg.program", "core.alternateRefsCommand"} {
		value := program
		switch key {
		case "merge.default":
			value = "evil"
		case "merge.renormalize":
			value = "true"
		}
		r.Git("config", key, value)
	}
	start := files{
		".gitattributes":     {"100644", "* merge=evil filter=evil diff=evil\n*.union merge=union\n*.bin -merge\n"},
		"d/.gitattributes":   {"100644", "*.txt merge=union\n"},
		"d/e/.gitattributes": {"120000", "*.txt merge=union\n"}, // git follows no link
		".git~/x":            {"100644", "x"},
	}
	texts := func(line string) map[string]string {
		text := map[string]string{}
		for _, path := range []string{"a.union", "d/a.txt", "a.bin", "a.txt", "d/e/b.union"} {
			text[path] = "1\n2\n" + line + "\n3\n4\n"
		}
		return text
	}
	ids := fork(r, [3]files{start.with(texts("base")), start.with(texts("ours")), start.with(texts("theirs"))})
	r.Git("update-ref", "refs/heads/ours", ids[ours].String())
	r.Git("update-ref", "refs/heads/theirs", ids[theirs].String())
	c := newClone(t, r)
	c.git("checkout", "-q", "--detach", ids[ours].String())
	c.git("merge", "-q", ids[theirs].String())
	for name, program := range map[string]string{"git": "git", "newer git": newerGit} {
		m := newMerger(t, program)
		for range 2 { // by a new and by a reused process
			got, err := check(t, m, open(t, r.Dir), Pair{ids[ours], ids[theirs], false})
			if err != nil {
				t.Fatal(err)
			}
			if err := compareStages(c.stages(), &Result{Check: got}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			var paths []string
			for _, c := range got.Conflicts {
				paths = append(paths, c.Path)
			}
			if slices.Sort(paths); !slices.Equal(paths, []string{"a.bin", "a.txt"}) {
				t.Errorf("%s: conflicts in %q, want those without a driver and with the binary one", name, paths)
			}
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a program of the repository ran")
	}
	if left, err := filepath.Glob(filepath.Join(r.Dir, "objects", "??", "*")); err != nil || len(left) == 0 {
		t.Fatal(left, err)
	}
	if now := gittest.Run(t, r.Dir, "", "fsck", "--unreachable", "--no-reflogs"); strings.Contains(now, "unreachable") {
		t.Errorf("a check has written objects:\n%s", now)
	}
}

// Git merges commits of a SHA-256 repository. The result has its new objects.
func TestSHA256(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t, "--object-format=sha256")
	text := func(first, last string) files {
		return files{}.with(map[string]string{"d/f": first + "\n1\n2\n3\n4\n" + last + "\n"})
	}
	ids := fork(r, [3]files{text("a", "b"), text("A", "b"), text("a", "B")})
	got, err := newMerger(t, "git").Prepare(t.Context(), open(t, r.Dir), &Request{Method: Merge, Target: "refs/heads/main",
		Head: ids[ours], Source: Source{Text: "x", Commit: ids[theirs]}, Header: testHeader})
	if err != nil || len(got.Commits) != 1 || len(got.Objects) != 4 {
		t.Fatalf("%+v, %v: want a commit, two trees and a blob", got, err)
	}
	for _, o := range got.Objects {
		if want := "A\n1\n2\n3\n4\nB\n"; o.Type == git.Blob && string(o.Data) != want {
			t.Errorf("merged to %q, want %q", o.Data, want)
		}
	}
}

// The answer states that the search for renames was limited, and only then.
func TestRenameLimit(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	before, after := files{}, files{}
	for i := range 4 {
		text := strings.Repeat(fmt.Sprintf("line of %d\n", i), 20)
		before = before.with(map[string]string{fmt.Sprintf("old%d", i): text})
		after = after.with(map[string]string{fmt.Sprintf("new%d", i): text + "more\n"})
	}
	ids := fork(r, [3]files{before, after, before.with(map[string]string{"old1": "theirs\n" + before["old1"].content})})
	for _, limit := range []string{"1", "100"} {
		m := newMerger(t, newerGit)
		m.config = [][2]string{{"merge.renameLimit", limit}}
		got, err := check(t, m, open(t, r.Dir), Pair{ids[ours], ids[theirs], false})
		isLimited := limit == "1"
		if err != nil || got.RenameLimit != isLimited || got.Tree.IsZero() != isLimited {
			t.Errorf("limit %s: %+v, %v", limit, got, err)
		}
	}
}

// Merges with several bases, with none, and of commits that have each other.
func TestRelations(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	lines := func(a, b, c string) files {
		return files{}.with(map[string]string{"f": a + "\n1\n2\n3\n" + b + "\n4\n5\n6\n" + c + "\n"})
	}
	ids := fork(r, [3]files{lines("a", "b", "c"), lines("A", "b", "c"), lines("a", "B", "c")})
	b := r.Batch()
	number := 10
	commit := func(f files, parents ...git.ObjectID) git.ObjectID {
		number++
		text := fmt.Sprintf("tree %s\n", f.store(b))
		for _, p := range parents {
			text += fmt.Sprintf("parent %s\n", p)
		}
		text += fmt.Sprintf("author a <> 0 +0000\ncommitter a <> %d +0000\n\nx", number)
		return b.Object(git.Commit, []byte(text))
	}
	left := commit(lines("A", "B", "left"), ids[ours], ids[theirs]) // criss-cross
	right := commit(lines("A", "B", "c"), ids[theirs], ids[ours])
	right = commit(lines("A", "B", "c").with(map[string]string{"g": "g\n"}), right)
	conflicting := commit(lines("A", "B", "right"), right)
	other := commit(files{}.with(map[string]string{"other": "x\n"}))
	b.Store()
	m, opened := newMerger(t, "git"), open(t, r.Dir)
	want := oracle(t, newerGit, r.Dir, [][2]git.ObjectID{{left, right}, {left, conflicting}})
	for i, source := range []git.ObjectID{right, conflicting} {
		for range 2 { // by a new and by a reused process
			got, err := check(t, m, opened, Pair{left, source, false})
			if err == nil {
				err = want[i].compare(Check{Tree: got.Tree, Conflicts: got.Conflicts})
			}
			if err != nil {
				t.Errorf("several bases, %d: %v", i, err)
			}
		}
	}
	prepare := func(method Method, head, source git.ObjectID, change func(*Request)) (Result, error) {
		q := &Request{Method: method, Target: "refs/heads/main", Head: head, Source: Source{Text: "topic",
			Ref: "refs/heads/topic", Commit: source}, Header: testHeader}
		if change != nil {
			change(q)
		}
		return m.Prepare(t.Context(), opened, q)
	}
	for _, method := range []Method{Merge, FastForward, Squash, Rebase} {
		if _, err := prepare(method, left, other, nil); !fault.Is(err, fault.Precondition) {
			t.Errorf("%s of unrelated histories: %v, want a precondition", method, err)
		}
		got, err := prepare(method, left, ids[ours], nil)
		if err != nil || !got.UpToDate || got.Commit != left || len(got.Objects) != 0 {
			t.Errorf("%s of what the target has: %+v, %v", method, got, err)
		}
		got, err = prepare(method, ids[ours], left, nil)
		if isForward := method == Merge || method == FastForward; err != nil || got.FastForward != isForward ||
			isForward && got.Commit != left {
			t.Errorf("%s of what has the target: %+v, %v", method, got, err)
		}
	}
	if _, err := prepare(FastForward, left, right, nil); !fault.Is(err, fault.Precondition) {
		t.Errorf("no fast-forward: %v, want a precondition", err)
	}
	got, err := prepare(Merge, left, other, func(q *Request) { q.AllowUnrelated = true })
	if err != nil || len(got.Commits) != 1 {
		t.Errorf("unrelated histories: %+v, %v", got, err)
	}
	got, err = prepare(Merge, ids[ours], left, func(q *Request) { q.NoFastForward = true })
	if err != nil || got.FastForward || len(got.Objects) != 1 ||
		!strings.HasSuffix(string(got.Objects[0].Data), "\n\nMerge branch 'topic' into main\n") {
		t.Errorf("without fast-forward: %+v, %v", got, err)
	}
	got, err = prepare(Squash, ids[ours], left, nil)
	if err != nil || len(got.Objects) != 1 ||
		!strings.HasSuffix(string(got.Objects[0].Data), "\n\nSquash branch 'topic' into main\n\n* x\n* 2\n") {
		t.Errorf("squash: %+v, %v", got, err)
	}
	for name, change := range map[string]func(*Request){
		"a merge without mainline": func(*Request) {},
		"a parent too many":        func(q *Request) { q.Mainline = 3 },
	} {
		if _, err := prepare(CherryPick, right, left, change); !fault.Is(err, fault.Invalid) {
			t.Errorf("pick of %s: %v, want an invalid request", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Prepare(ctx, opened, &Request{Method: Merge, Head: left, Source: Source{Commit: right}}); !fault.Is(err,
		fault.Cancelled) {
		t.Errorf("a cancelled merge: %v", err)
	}
}

// A merge during which Git ends fails with an error that names the commits, and the next one gets another process.
func TestGitEnds(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	text := func(first, last string) files {
		return files{}.with(map[string]string{"f": first + "\n1\n2\n3\n4\n" + last + "\n"})
	}
	ids := fork(r, [3]files{text("a", "b"), text("A", "b"), text("a", "B")})
	broken := filepath.Join(t.TempDir(), "git")
	script := "#!/bin/sh\ncase \"$*\" in *merge-tree*) read line; kill -ABRT $$;; esac\nexec git \"$@\"\n"
	if err := os.WriteFile(broken, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	m, opened := newMerger(t, broken), open(t, r.Dir)
	for range 2 {
		_, err := check(t, m, opened, Pair{ids[ours], ids[theirs], false})
		if !fault.Is(err, fault.Internal) || !strings.Contains(fault.Message(err), ids[theirs].String()) {
			t.Errorf("%v, want an internal error with the commits", err)
		}
	}
}
