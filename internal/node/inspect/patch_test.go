package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func (i *Inspector) allPatches(t *testing.T, r *repo.Repo, q *packhorsev1.PatchRequest) (
	files []*packhorsev1.FileDiff, sum *packhorsev1.PatchSummary) {
	t.Helper()
	err := call(t, i, r, (*Call).Patch, q, func(m *packhorsev1.PatchResponse) error {
		switch {
		case m.GetFile() != nil:
			files = append(files, m.GetFile())
		case m.GetSummary() != nil:
			sum = m.GetSummary()
		default:
			files[len(files)-1].Patch = append(files[len(files)-1].Patch, m.GetPatch()...)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	return files, sum
}

// comparePatch compares the patch of a commit with that of git diff-tree, and the counts with git's.
func comparePatch(t *testing.T, i *Inspector, g *gittest.Repo, r *repo.Repo, q *packhorsev1.PatchRequest,
	args ...string) {
	t.Helper()
	q.MaxFileBytes = maxFileBytes
	files, sum := i.allPatches(t, r, q)
	command := append([]string{"diff-tree", "-r", "--full-index", "-M", "-l1000"}, args...)
	wantCounts := gitOutput(t, g, append(slices.Clone(command), "--numstat", "-z")...)
	var all, raw strings.Builder
	for _, f := range files {
		all.Write(f.Patch)
		status := f.Status
		if f.Similarity > 0 || f.Status == "R" {
			status += fmt.Sprintf("%03d", f.Similarity)
		}
		zero := strings.Repeat("0", r.Format.HexSize())
		fmt.Fprintf(&raw, ":%06o %06o %s %s %s\x00", f.OldMode, f.Mode, cmp.Or(f.OldOid, zero), cmp.Or(f.Oid, zero), status)
		names := string(f.Path) + "\x00"
		if f.Status == "R" {
			names = string(f.OldPath) + "\x00" + names
		}
		raw.WriteString(names)
		if f.Status == "R" {
			names = "\x00" + names
		}
		counted := fmt.Sprintf("%d\t%d\t%s", f.Additions, f.Deletions, names)
		// Git does not count the lines of binary files, and neither those of a rename or another type.
		if uncounted := "-\t-\t" + names; strings.HasPrefix(wantCounts, uncounted) &&
			(f.Binary || f.OldOid == f.Oid || f.Status == "T") {
			counted = uncounted
		}
		wantCounts = strings.TrimPrefix(wantCounts, counted)
	}
	patched := append(slices.Clone(command), "-p", fmt.Sprint("-U", max(q.GetContext(), 3)))
	if want := gitOutput(t, g, patched...); all.String() != want {
		t.Errorf("%q: patch differs:\n%.1000q\nwant\n%.1000q", args, all.String(), want)
	}
	if want := gitOutput(t, g, append(slices.Clone(command), "--raw", "-z")...); raw.String() != want {
		t.Errorf("%q: files\n%.1000q, want\n%.1000q", args, raw.String(), want)
	}
	if wantCounts != "" && q.IgnoreWhitespace == "" {
		t.Errorf("%q: counts at %.200q", args, wantCounts)
	}
	if int(sum.Files) != len(files) || sum.Truncated {
		t.Errorf("%q: %+v, want %d files", args, sum, len(files))
	}
}

func commits(g *gittest.Repo, n int) []string {
	all := strings.Fields(g.Git("rev-list", "main"))
	if n == 0 || len(all) <= n {
		return all
	}
	var some []string
	for k := range n {
		some = append(some, all[k*len(all)/n])
	}
	return some
}

func TestPatchAsGit(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	worlds := map[string]*gittest.Repo{"project": thisProject(t), "sha256": odd(t, 1, 40, "sha256")}
	sample, repos := sampleSize(12, 400), uint64(2)
	if !testing.Short() {
		repos = 20
	}
	for seed := range repos {
		worlds[fmt.Sprint("odd ", seed)] = odd(t, seed, 60, "sha1")
	}
	for name, g := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t, g)
			for n, id := range commits(g, sample) {
				parent := strings.Fields(g.Git("rev-list", "--parents", "-1", id))
				from := gitOutput(t, g, "hash-object", "-t", "tree", "/dev/null")
				from = strings.TrimSpace(from)
				if len(parent) > 1 {
					from = parent[1]
				}
				if n%4 == 3 {
					comparePatch(t, i, g, r, &packhorsev1.PatchRequest{To: id, NoRenames: true}, "--no-renames", from, id)
				} else {
					comparePatch(t, i, g, r, &packhorsev1.PatchRequest{To: id}, from, id)
				}
				if _, err := g.Try("rev-parse", "-q", "--verify", id+"~8"); err != nil {
					continue
				}
				option := []string{"AT_EOL", "CHANGE", "ALL"}[n%3]
				comparePatch(t, i, g, r, &packhorsev1.PatchRequest{From: id + "~8", To: id, IgnoreWhitespace: option,
					Context: proto.Int32(int32(n%5 + 3))},
					whitespaceOptions[option], id+"~8", id)
			}
		})
	}
}

// TestPatchLimits checks that limits cut where they should, for all limits.
func TestPatchLimits(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	g := odd(t, 7, 40, "sha1")
	r := open(t, g)
	whole, _ := i.allPatches(t, r, &packhorsev1.PatchRequest{From: "main~30", To: "main"})
	total := 0
	for _, f := range whole {
		total += len(f.Patch)
	}
	if len(whole) < 5 {
		t.Fatal("too few files")
	}
	for n := 1; n <= len(whole)+1; n++ {
		for _, names := range []bool{false, true} {
			files, sum := i.allPatches(t, r, &packhorsev1.PatchRequest{From: "main~30", To: "main", MaxFiles: int32(n),
				NamesOnly: names})
			if len(files) != min(n, len(whole)) || sum.Truncated != (n < len(whole)) {
				t.Errorf("max_files %d: %d files, %+v", n, len(files), sum)
			}
			if names && slices.ContainsFunc(files, func(f *packhorsev1.FileDiff) bool { return len(f.Patch) > 0 }) {
				t.Error("patches, want only names")
			}
		}
	}
	for n := 1; n <= total+10; n += 37 {
		files, sum := i.allPatches(t, r, &packhorsev1.PatchRequest{From: "main~30", To: "main", MaxBytes: int64(n)})
		size := 0
		for k, f := range files {
			size += len(f.Patch)
			rest, ok := strings.CutPrefix(string(whole[k].Patch), string(f.Patch))
			if !ok || f.Truncated != (rest != "") || f.Truncated && k != len(files)-1 ||
				len(f.Patch) > 0 && f.Patch[len(f.Patch)-1] != '\n' {
				t.Errorf("max_bytes %d: file %d: %q", n, k, f.Patch)
			}
			if f.Additions != whole[k].Additions || f.Deletions != whole[k].Deletions {
				t.Errorf("max_bytes %d: file %d: %d and %d lines", n, k, f.Additions, f.Deletions)
			}
		}
		if size > n || sum.Truncated != (len(files) < len(whole)) {
			t.Errorf("max_bytes %d: %d bytes, %d of %d files, %+v", n, size, len(files), len(whole), sum)
		}
	}
	for n := 1; n < 2000; n += 61 {
		files, sum := i.allPatches(t, r, &packhorsev1.PatchRequest{From: "main~30", To: "main", MaxFileBytes: int32(n)})
		if len(files) != len(whole) || sum.Truncated {
			t.Errorf("max_file_bytes %d: %d files", n, len(files))
		}
		for k, f := range files {
			if len(f.Patch) > n || f.Truncated != (len(whole[k].Patch) > n) {
				t.Errorf("max_file_bytes %d: %d bytes of %d", n, len(f.Patch), len(whole[k].Patch))
			}
		}
	}
}

// TestRenameLimit compares the summary with git's own warning.
func TestRenameLimit(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	for _, n := range []int{999, 1000, 1001} {
		g := gittest.Init(t)
		var in strings.Builder
		for c, dir := range []string{"old/a", "new/b"} {
			fmt.Fprintf(&in, "commit refs/heads/main\ncommitter C <c@example.com> 1 +0000\ndata 0\ndeleteall\n")
			for k := range n {
				text := fmt.Sprintf("%d\n%d\n%s%s\n", k, k*k, strings.Repeat(fmt.Sprint(k), 50), strings.Repeat("\nx", c))
				fmt.Fprintf(&in, "M 100644 inline %s%d\ndata %d\n%s\n", dir, k, len(text), text)
			}
		}
		g.GitIn(in.String(), "fast-import", "--quiet")
		_, sum := i.allPatches(t, open(t, g), &packhorsev1.PatchRequest{To: "main", NamesOnly: true, MaxFiles: 10})
		c := gitOutput(t, g, "-c", "alias.x=!git diff-tree -M -l1000 -r --raw main~ main 2>&1 >/dev/null", "x")
		if want := strings.Contains(c, "rename detection was skipped"); sum.RenameLimitReached != want || want != (n > 1000) {
			t.Errorf("%d files: limit reached %t, want %t (git: %q)", n, sum.RenameLimitReached, want, c)
		}
	}
}

func TestPatchRevisions(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	g := gittest.Init(t)
	in := func(text string) { g.GitIn(text, "fast-import", "--quiet", "--force") }
	const who = "committer C <c@example.com> 1 +0000\ndata 0\n"
	in("commit refs/heads/main\nmark :1\n" + who + "M 644 inline a\ndata 1\na\ncommit refs/heads/topic\n" + who +
		"from :1\nM 644 inline t\ndata 1\nt\ncommit refs/heads/main\n" + who + "from :1\nM 644 inline m\ndata 1\nm\n" +
		"commit refs/heads/alone\n" + who + "M 644 inline z\ndata 1\nz\ncommit refs/hidden/x\n" + who +
		"M 644 inline h\ndata 1\nh\n")
	g.Git("config", "transfer.hideRefs", "refs/hidden")
	r := open(t, g)
	names := func(q *packhorsev1.PatchRequest) string {
		files, _ := i.allPatches(t, r, q)
		var b strings.Builder
		for _, f := range files {
			fmt.Fprintf(&b, "%s %s ", f.Status, f.Path)
		}
		return strings.TrimSpace(b.String())
	}
	for want, q := range map[string]*packhorsev1.PatchRequest{
		"A m":     {},
		"A a":     {To: "main~"},
		"A t":     {From: "main", To: "topic", MergeBase: true},
		"D m A t": {From: "main", To: "topic"},
		"D m":     {From: "main", To: "topic", Paths: []string{"m", "*"}},
		"A a A m": {To: "main^{tree}"},
	} {
		if got := names(q); got != want {
			t.Errorf("%+v: %q, want %q", q, got, want)
		}
	}
	for field, list := range map[string][]*packhorsev1.PatchRequest{
		"from": {{From: "refs/hidden/x"}, {From: "--output=x"}, {From: "main\nblob"}, {From: "a..b"}, {From: "main:a"},
			{MergeBase: true}},
		"to": {{To: "nothing"}, {To: "refs/hidden/x"}, {To: strings.Repeat("1", 40)}, {To: "a\x00b"}},
		"paths[1]": {{Paths: []string{"a", ""}}, {Paths: []string{"a", "../x"}}, {Paths: []string{"a", "/etc/passwd"}},
			{Paths: []string{"a", "x\x00"}}},
		"paths": {{Paths: slices.Repeat([]string{"a"}, 1001)},
			{Paths: slices.Repeat([]string{strings.Repeat("a", 5000)}, 200)}},
		"context":        {{Context: proto.Int32(-1)}, {Context: proto.Int32(1001)}},
		"max_files":      {{MaxFiles: -1}, {MaxFiles: 100_001}},
		"max_file_bytes": {{MaxFileBytes: 65 << 20}}, "max_bytes": {{MaxBytes: 2 << 30}},
		"ignore_whitespace": {{IgnoreWhitespace: "-w"}},
		"":                  {{From: "alone", To: "main", MergeBase: true}},
	} {
		for _, q := range list {
			err := call(t, i, r, (*Call).Patch, q, func(*packhorsev1.PatchResponse) error { return nil })
			var f *fault.Error
			if errors := err != nil; errors {
				f = err.(*fault.Error)
			}
			want := []fault.Kind{fault.Invalid, fault.NotFound}
			if field == "" {
				want = []fault.Kind{fault.Precondition}
			}
			if err == nil || f.Field != field || !slices.Contains(want, f.Kind) {
				t.Errorf("%+v: %v, want an error of field %q", q, err, field)
			}
		}
	}
}
