package storage_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// newGrepper is a node that may search.
func newGrepper(t *testing.T) *root {
	t.Helper()
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		storage.ClassGrep: {Slots: 2, Queue: 100, Nice: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	return newRoot(t, storage.Options{Runner: runner})
}

func (r *root) grep(name string, q storage.GrepQuery) (hits []string, limited bool, err error) {
	if q.Limit == 0 {
		q.Limit = storage.MaxGrep
	}
	limited, err = r.Grep(r.t.Context(), r.path(name), q, func(h *storage.GrepHit) error {
		text := string(h.Text)
		if h.Cut {
			text = fmt.Sprintf("%d bytes of %.1s", len(text), text)
		}
		hits = append(hits, fmt.Sprintf("%s|%d|%d|%s", h.Path, h.Line, h.Column, text))
		return nil
	})
	return hits, limited, err
}

// commitFiles makes a commit of these files and returns its ID.
func commitFiles(r *gittest.Repo, files map[string]string, parents ...git.ObjectID) git.ObjectID {
	var index strings.Builder
	for name, text := range files {
		fmt.Fprintf(&index, "100644 %s\t%s\x00", strings.TrimSpace(r.GitIn(text, "hash-object", "-w", "--stdin")), name)
	}
	r.Git("read-tree", "--empty")
	r.GitIn(index.String(), "update-index", "-z", "--add", "--index-info")
	args := []string{"commit-tree", "-m", "files", strings.TrimSpace(r.Git("write-tree"))}
	for _, p := range parents {
		args = append(args, "-p", p.String())
	}
	id, err := git.ParseObjectID(strings.TrimSpace(r.Git(args...)))
	if err != nil {
		panic(err)
	}
	return id
}

func TestGrep(t *testing.T) {
	t.Parallel()
	r := newGrepper(t)
	for _, format := range []string{"sha1", "sha256"} {
		name := format + ".git"
		repo := r.repo(name, "x", "--object-format="+format)
		repo.Git("config", "grep.patternType", "perl") // nothing of it counts
		repo.Git("config", "color.grep", "always")
		repo.Git("config", "grep.fullName", "false")
		id := commitFiles(repo, map[string]string{
			"a:1:b":        "one needle\n\tneedle needle\nNEEDLE\n",
			"dir/we ird\n": "x\nno end: needle",
			"binary":       "needle\x00",
			"long":         strings.Repeat("y", 40_000) + "needle\nneedle after\n",
			"regexp":       "a.b\naxb\n-e\n",
		})
		for _, c := range []struct {
			q    storage.GrepQuery
			want []string
		}{
			{storage.GrepQuery{Pattern: "needle"}, []string{
				"a:1:b|1|4|one needle", "a:1:b|2|1|\tneedle needle", "dir/we ird\n|2|8|no end: needle",
				"long|1|40000|16384 bytes of y", "long|2|0|needle after",
			}},
			{storage.GrepQuery{Pattern: "nEEdle", IgnoreCase: true}, []string{
				"a:1:b|1|4|one needle", "a:1:b|2|1|\tneedle needle", "a:1:b|3|0|NEEDLE", "dir/we ird\n|2|8|no end: needle",
				"long|1|40000|16384 bytes of y",
				"long|2|0|needle after",
			}},
			{storage.GrepQuery{Pattern: "a.b"}, []string{"regexp|1|0|a.b"}},
			{storage.GrepQuery{Pattern: "^(a.b|zz)$", Regexp: true}, []string{"regexp|1|0|a.b", "regexp|2|0|axb"}},
			{storage.GrepQuery{Pattern: "-e"}, []string{"regexp|3|0|-e"}},
			{storage.GrepQuery{Pattern: "--open-files-in-pager=touch /tmp/x"}, nil},
		} {
			c.q.Commit = id
			if hits, limited, err := r.grep(name, c.q); err != nil || limited ||
				fmt.Sprintf("%q", hits) != fmt.Sprintf("%q", c.want) {
				t.Errorf("%s: %+v: %q, %v, %v, want %q", format, c.q, hits, limited, err, c.want)
			}
		}
		for limit, wantLimited := range map[int]bool{2: true, 4: true, 5: false, 6: false} {
			hits, limited, err := r.grep(name, storage.GrepQuery{Commit: id, Pattern: "needle", Limit: limit})
			if err != nil || limited != wantLimited || len(hits) != min(limit, 5) {
				t.Errorf("at most %d: %d, %v, %v", limit, len(hits), limited, err)
			}
		}
		absent, err := git.ParseObjectID(strings.Repeat("1", len(id.String())))
		r.do(err)
		refused := func(kind fault.Kind, q storage.GrepQuery) {
			t.Helper()
			if _, _, err := r.grep(name, q); !fault.Is(err, kind) {
				t.Errorf("%.60q: %v, want %v", q.Pattern, err, kind)
			}
		}
		refused(fault.Invalid, storage.GrepQuery{Commit: id})
		refused(fault.Invalid, storage.GrepQuery{Commit: id, Pattern: "a\nb"})
		refused(fault.Invalid, storage.GrepQuery{Commit: id, Pattern: "a\x00b"})
		refused(fault.Invalid, storage.GrepQuery{Commit: id, Pattern: "(", Regexp: true})
		refused(fault.Invalid, storage.GrepQuery{Commit: id, Pattern: strings.Repeat("a", storage.MaxPattern+1)})
		refused(fault.Invalid, storage.GrepQuery{Commit: id, Pattern: "x", Limit: -1})
		refused(fault.Invalid, storage.GrepQuery{Pattern: "x"})
		refused(fault.Invalid, storage.GrepQuery{Commit: repo.ID("main^{tree}"), Pattern: "x"})
		refused(fault.NotFound, storage.GrepQuery{Commit: absent, Pattern: "x"})
	}
}

// A sender that fails ends the search, and so does a context.
func TestGrepEnds(t *testing.T) {
	t.Parallel()
	r := newGrepper(t)
	repo := r.repo("a.git", "x")
	id := commitFiles(repo, map[string]string{"f": strings.Repeat("needle\n", 200_000)})
	enough := errors.New("enough")
	for _, want := range []error{enough, context.Canceled} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := 0
		_, err := r.Grep(ctx, r.path("a"), storage.GrepQuery{Commit: id, Pattern: "needle", Limit: storage.MaxGrep},
			func(*storage.GrepHit) error {
				switch seen++; {
				case seen < 10:
					return nil
				case want == enough:
					return want
				}
				cancel()
				return ctx.Err()
			})
		if !errors.Is(err, want) || seen != 10 {
			t.Errorf("%v after %d lines", err, seen)
		}
	}
	if _, err := newRoot(t, storage.Options{Root: filepath.Join(r.dir)}).Grep(t.Context(), r.path("a"), storage.GrepQuery{
		Commit: id, Pattern: "x", Limit: 1}, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without git: %v", err)
	}
}
