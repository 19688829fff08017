package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func (i *Inspector) formatted(t *testing.T, r *repo.Repo, q *packhorsev1.FormatPatchRequest) string {
	t.Helper()
	var b strings.Builder
	if err := call(t, i, r, (*Call).FormatPatch, q, func(m *packhorsev1.FormatPatchResponse) error {
		b.Write(m.GetData())
		return nil
	}); err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	return b.String()
}

func TestSeriesAsGit(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	g := odd(t, 3, 60, "sha1")
	r := open(t, g)
	for _, from := range []string{"main~1", "main~7", "main~50"} {
		want := gitOutput(t, g, "format-patch", "--stdout", "--no-signature", "--full-index", from+"..main")
		if got := i.formatted(t, r, &packhorsev1.FormatPatchRequest{From: from}); got != want {
			t.Errorf("from %s: %.500q, want %.500q", from, got, want)
		}
		var b strings.Builder
		q := &packhorsev1.RangeDiffRequest{OldBase: from, OldTip: "main", NewBase: "main~20", NewTip: "main~3"}
		if err := call(t, i, r, (*Call).RangeDiff, q, func(m *packhorsev1.RangeDiffResponse) error {
			b.Write(m.GetData())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want := gitOutput(t, g, "range-diff", from+"..main", "main~20..main~3"); b.String() != want {
			t.Errorf("from %s: %.500q, want %.500q", from, b.String(), want)
		}
	}
	for _, q := range [][4]string{{"main~3", "main", "main~9", "main~9"}, {"main~9", "main~9", "main~3", "main"},
		{"main", "main", "main~9", "main~9"}} {
		var b strings.Builder
		if err := call(t, i, r, (*Call).RangeDiff, &packhorsev1.RangeDiffRequest{OldBase: q[0], OldTip: q[1], NewBase: q[2],
			NewTip: q[3]}, func(m *packhorsev1.RangeDiffResponse) error {
			b.Write(m.GetData())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		empty := func(base, tip string) string { // which Git accepts
			if base == tip {
				return base + ".." + tip + "~1"
			}
			return base + ".." + tip
		}
		if want := gitOutput(t, g, "range-diff", empty(q[0], q[1]), empty(q[2], q[3])); b.String() != want {
			t.Errorf("range-diff of %v: %q, want %q", q, b.String(), want)
		}
	}
	root := g.Git("rev-list", "--max-parents=0", "main")
	want := gitOutput(t, g, "format-patch", "--stdout", "--no-signature", "--full-index", "--root", root)
	if got := i.formatted(t, r, &packhorsev1.FormatPatchRequest{To: root}); got != want {
		t.Errorf("a root: %q, want %q", got, want)
	}
	if got := i.formatted(t, r, &packhorsev1.FormatPatchRequest{From: "main", To: "main~3"}); got != "" {
		t.Errorf("no commits: %q", got)
	}
	for field, q := range map[string]*packhorsev1.FormatPatchRequest{"max_commits": {From: "main~7", MaxCommits: 6},
		"from": {From: "-x"},
		"to":   {To: "--output=/tmp/x"}} {
		err := call(t, i, r, (*Call).FormatPatch, q, func(*packhorsev1.FormatPatchResponse) error { return nil })
		if f, ok := err.(*fault.Error); !ok || f.Field != field {
			t.Errorf("%+v: %v, want an error of field %q", q, err, field)
		}
	}
	for field, q := range map[string]*packhorsev1.RangeDiffRequest{"old_base": {OldTip: "main"},
		"new_tip": {OldBase: "main~", OldTip: "main"}} {
		err := call(t, i, r, (*Call).RangeDiff, q, func(*packhorsev1.RangeDiffResponse) error { return nil })
		if f, ok := err.(*fault.Error); !ok || f.Field != field {
			t.Errorf("%+v: %v, want an error of field %q", q, err, field)
		}
	}
}

// TestHostileRepository has configuration, attributes and hooks that would run a program in Git itself.
func TestHostileRepository(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	g := gittest.Init(t)
	canary := filepath.Join(t.TempDir(), "canary")
	evil := filepath.Join(t.TempDir(), "evil")
	if err := os.WriteFile(evil, []byte("#!/bin/sh\ntouch "+canary+"\ncat\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	attributes := "* diff=evil filter=evil merge=evil\n"
	who := "committer C <c@example.com> 1 +0000\ndata 0\n"
	g.GitIn(fmt.Sprintf("commit refs/heads/main\n%sM 644 inline .gitattributes\ndata %d\n%sM 644 inline f\ndata 2\na\n"+
		"commit refs/heads/main\n%sM 644 inline f\ndata 4\na\nb\n", who, len(attributes), attributes, who),
		"fast-import", "--quiet")
	for key, value := range map[string]string{"diff.external": evil, "diff.evil.command": evil, "diff.evil.textconv": evil,
		"filter.evil.clean": evil, "filter.evil.smudge": evil, "filter.evil.process": evil, "merge.evil.driver": evil,
		"core.fsmonitor": evil, "core.hooksPath": filepath.Dir(evil), "core.pager": evil, "pager.blame": evil,
		"format.signatureFile": "/etc/passwd", "diff.orderFile": "/etc/passwd", "blame.ignoreRevsFile": "/etc/passwd",
		"core.alternateRefsCommand": evil, "diff.noPrefix": "true", "color.ui": "always", "format.attach": "x"} {
		g.Git("config", key, value)
	}
	for _, name := range []string{"attributes", "grafts"} {
		if err := os.WriteFile(filepath.Join(g.Dir, "info", name), []byte(attributes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := open(t, g)
	files, _ := i.allPatches(t, r, &packhorsev1.PatchRequest{})
	if len(files) != 1 || !strings.Contains(string(files[0].Patch), "--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n a\n+b\n") {
		t.Errorf("patch %+v", files)
	}
	if got := i.porcelain(t, r, &packhorsev1.BlameRequest{Path: "f"}); strings.Count(got, "\n") != 2 {
		t.Errorf("blame %q", got)
	}
	got := i.formatted(t, r, &packhorsev1.FormatPatchRequest{})
	if !strings.Contains(got, "\n+b\n") || strings.Contains(got, "root:") {
		t.Errorf("mail %q", got)
	}
	if err := call(t, i, r, (*Call).RangeDiff, &packhorsev1.RangeDiffRequest{OldBase: "main~", OldTip: "main",
		NewTip: "main"}, func(*packhorsev1.RangeDiffResponse) error { return nil }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(canary); err == nil {
		t.Error("a program of the repository ran")
	}
}

// TestCallersThatGo checks that Git ends with its caller, and that the error of a caller is returned.
func TestCallersThatGo(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	g := odd(t, 4, 40, "sha1")
	r := open(t, g)
	gone := errors.New("gone")
	sent := 0
	q := &packhorsev1.PatchRequest{From: "main~20"}
	err := call(t, i, r, (*Call).Patch, q, func(*packhorsev1.PatchResponse) error { sent++; return gone })
	if !errors.Is(err, gone) || sent != 1 {
		t.Errorf("%d files, %v", sent, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	q = &packhorsev1.PatchRequest{From: "main~30", Context: proto.Int32(1000)}
	err = i.Call(ctx, r, "", func(c *Call) error {
		return c.Patch(q, func(*packhorsev1.PatchResponse) error { cancel(); return ctx.Err() })
	})
	if !errors.Is(err, context.Canceled) && !fault.Is(err, fault.Cancelled) {
		t.Errorf("error %v, want cancelled", err)
	}
}

// TestCache checks that an equal call needs no Git.
func TestCache(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	g := odd(t, 5, 40, "sha1")
	r := open(t, g)
	first, sum := i.allPatches(t, r, &packhorsev1.PatchRequest{From: "main~9"})
	blame := func() string {
		return i.porcelain(t, r, &packhorsev1.BlameRequest{Path: string(first[0].Path)})
	}
	mails := i.formatted(t, r, &packhorsev1.FormatPatchRequest{From: "main~9"})
	var lines string
	if first[0].Status != "D" && first[0].Mode != 0o160000 {
		lines = blame()
	}
	few, _ := i.allPatches(t, r, &packhorsev1.PatchRequest{From: "main~9", MaxFiles: 1})
	if len(few) != 1 {
		t.Errorf("%d files, want 1", len(few))
	}
	known := i.cache.lru.Len()
	again, sumAgain := i.allPatches(t, r, &packhorsev1.PatchRequest{From: "main~9"})
	if len(again) != len(first) || !proto.Equal(sum, sumAgain) || !proto.Equal(again[0], first[0]) {
		t.Errorf("%d files and %+v, want %d and %+v", len(again), sumAgain, len(first), sum)
	}
	if lines != "" && blame() != lines {
		t.Error("another blame")
	}
	if i.cache.lru.Len() != known {
		t.Errorf("%d results, want %d", i.cache.lru.Len(), known)
	}
	if got := i.formatted(t, r, &packhorsev1.FormatPatchRequest{From: "main~9"}); got != mails && len(mails) < maxCached {
		t.Error("other mails")
	}
	for n := range 200 { // results are dropped, the oldest first
		i.cache.add(fmt.Sprint(n), make([]byte, maxCached))
	}
	if i.cache.size > maxCache || i.cache.lru.Len() != maxCache/maxCached-1 {
		t.Errorf("%d bytes of %d results", i.cache.size, i.cache.lru.Len())
	}
}
