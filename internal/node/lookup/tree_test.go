package lookup

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// tree lists all pages, as git ls-tree -z would.
func tree(t testing.TB, l *Reader, r *repo.Repo, q TreeRequest) (string, error) {
	t.Helper()
	var out strings.Builder
	for {
		page, err := l.Tree(context.Background(), r, q)
		if err != nil {
			return "", err
		}
		if len(page.Entries) > q.PageSize && q.PageSize > 0 {
			t.Errorf("a page of %d has %d entries", q.PageSize, len(page.Entries))
		}
		for _, e := range page.Entries {
			fmt.Fprintf(&out, "%06o %s %s\t%s\x00", e.Mode, e.Type(), e.ID, e.Path)
		}
		if q.Token = page.Next; q.Token == "" {
			return out.String(), nil
		}
		q.In = PathIn{Revision: "not looked at"}
	}
}

func TestTreeIsGits(t *testing.T) {
	t.Parallel()
	everyHome(t, func(t *testing.T, r *gittest.Repo) {
		l, opened := New(Options{}), openRepo(t, r)
		for _, dir := range []string{"", "dir", "dir/", "deep/er", "deep/er/and/deeper/"} {
			for _, size := range []int{0, 1, 2, 3, 100} {
				for _, recursive := range []bool{false, true} {
					args := []string{"ls-tree", "-z", "main:" + dir}
					if recursive {
						args = append(args, "-r")
					}
					want, failed := r.Try(args...)
					have, err := tree(t, l, opened, TreeRequest{In: PathIn{"main", dir}, Recursive: recursive, PageSize: size})
					if have != want || (err != nil) != (failed != nil) || err != nil && !fault.Is(err, fault.NotFound) {
						t.Errorf("%q, pages of %d, recursive %v:\nhave %q, %v\nwant %q", dir, size, recursive, have, err, want)
					}
				}
			}
		}
	})
}

func TestPagesAreOfOneTree(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{})
	l, opened, ctx := New(Options{}), openRepo(t, r), context.Background()
	first, err := l.Tree(ctx, opened, TreeRequest{In: PathIn{Revision: "main"}, PageSize: 1})
	if err != nil || first.Next == "" {
		t.Fatal(first, err)
	}
	r.Git("update-ref", "refs/heads/main", r.Commit("other").String())
	second, err := l.Tree(ctx, opened, TreeRequest{In: PathIn{Revision: "main"}, Token: first.Next})
	if err != nil || second.ID != first.ID || second.Next != "" {
		t.Errorf("%+v, %v", second, err)
	}
}

func TestTokensAreNotTrusted(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{})
	l, opened := New(Options{}), openRepo(t, r)
	root, file := r.ID("main^{tree}"), r.ID("light-blob")
	token := func(b ...any) string {
		var raw []byte
		for _, part := range b {
			switch part := part.(type) {
			case int:
				raw = append(raw, byte(part))
			case git.ObjectID:
				raw = append(raw, part.Raw()...)
			}
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	for _, bad := range []string{"x", "====", token(1, 1), token(1, 1, root), token(2, 1, root, 0), token(1, 0, root, 0),
		token(1, 2, root, 0),
		token(1, 1, root, 200, 1), token(1, 1, root, 0, 0), token(1, 1, root, 1, 0), token(1, 1, root, 0x80),
		token(1, 1, file, 0),
		token(1, 1, root, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), strings.Repeat("A", 1<<20)} {
		if have, err := l.Tree(context.Background(), opened, TreeRequest{Token: bad, Recursive: true}); !fault.Is(err,
			fault.Invalid) {
			t.Errorf("%.80q gave %+v, %v", bad, have, err)
		}
	}
	if _, err := l.Tree(context.Background(), opened, TreeRequest{PageSize: -1}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a page of less than nothing gave %v", err)
	}
}

func FuzzToken(f *testing.F) {
	r := gittest.Random(f, 1, gittest.Shape{Commits: 10})
	l, opened, ctx := New(Options{}), openRepo(f, r), context.Background()
	page, err := l.Tree(ctx, opened, TreeRequest{Recursive: true, PageSize: 2})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(page.Next, true)
	f.Fuzz(func(t *testing.T, token string, recursive bool) {
		page, err := l.Tree(ctx, opened, TreeRequest{Token: token, Recursive: recursive})
		if err != nil && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.NotFound) {
			t.Errorf("%q: %v", token, err)
		}
		if err == nil && token != "" && page.Next != "" {
			t.Errorf("%q: the last page has another behind it", token)
		}
	})
}

// chain nests a tree in depth others.
func chain(t testing.TB, r *gittest.Repo, id git.ObjectID, depth int) git.ObjectID {
	for range depth {
		id = treeOf(t, r, "40000 d", id)
	}
	return id
}

func TestDeepTreesAreRefused(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	l, opened := tight(), openRepo(t, r)
	depth := l.bounds.depth
	leaf := treeOf(t, r, "100644 f", store(t, r, git.Blob, []byte("x\n")))
	deepest := chain(t, r, leaf, depth-1)
	deeper := chain(t, r, deepest, 1)
	want := strings.Repeat("d/", depth-1) + "f"
	for _, size := range []int{0, 1} {
		have, err := tree(t, l, opened, TreeRequest{In: PathIn{Revision: deepest.String()}, Recursive: true, PageSize: size})
		if err != nil || !strings.HasSuffix(have, "\t"+want+"\x00") {
			t.Errorf("%d directories deep: %.80q, %v", depth, have, err)
		}
	}
	found, err := differences(l, opened, git.ObjectID{}, deepest)
	if err != nil || !strings.HasSuffix(found, want+"\x00") {
		t.Errorf("%d directories deep: %q, %v", depth, found, err)
	}
	if _, err := tree(t, l, opened, TreeRequest{In: PathIn{Revision: deeper.String()}, Recursive: true}); !fault.Is(err,
		fault.Invalid) {
		t.Errorf("listing what is too deep: %v", err)
	}
	if _, err := differences(l, opened, git.ObjectID{}, deeper); !fault.Is(err, fault.Invalid) {
		t.Errorf("comparing what is too deep: %v", err)
	}
	if _, _, err := blob(t, l, opened, BlobRequest{In: PathIn{deeper.String(), "d/" + want}}); err != nil {
		t.Errorf("a path that deep: %v", err)
	}
}

// bomb is a tree that holds another ten times, which holds another ten times, and so on.
func bomb(t testing.TB, r *gittest.Repo, id git.ObjectID, depth int) git.ObjectID {
	for range depth {
		var entries []any
		for i := range 10 {
			entries = append(entries, fmt.Sprintf("40000 %d", i), id)
		}
		id = treeOf(t, r, entries...)
	}
	return id
}

func TestTreeBombs(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	file := store(t, r, git.Blob, []byte("x\n"))
	full := bomb(t, r, treeOf(t, r, "100644 f", file), 10)
	empty := bomb(t, r, treeOf(t, r), 10)
	other := bomb(t, r, treeOf(t, r, "40000 e", treeOf(t, r)), 10)
	l, opened, ctx := tight(), openRepo(t, r), context.Background()

	q := TreeRequest{In: PathIn{Revision: full.String()}, Recursive: true, PageSize: 20_000}
	for range 3 {
		page, err := l.Tree(ctx, opened, q)
		if err != nil || len(page.Entries) < 100 || len(page.Entries) > 200 || page.Next == "" {
			t.Fatalf("a page has %d entries, next %q, %v", len(page.Entries), page.Next, err)
		}
		q.Token = page.Next
	}
	var tokens []string
	q = TreeRequest{In: PathIn{Revision: empty.String()}, Recursive: true}
	for range 3 {
		page, err := l.Tree(ctx, opened, q)
		if err != nil || len(page.Entries) != 0 || page.Next == "" || slices.Contains(tokens, page.Next) {
			t.Fatalf("a page of nothing has %d entries, next %q, %v", len(page.Entries), page.Next, err)
		}
		tokens = append(tokens, page.Next)
		q.Token = page.Next
	}

	if _, err := differences(l, opened, empty, other); !fault.Is(err, fault.Invalid) {
		t.Errorf("comparing nothing with nothing: %v", err)
	}
}

func TestOddTrees(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	file := store(t, r, git.Blob, []byte("x\n"))
	dir := treeOf(t, r, "100644 f", file)
	odd := treeOf(t, r, "100664 ..", file, "100644 a", file, "40000 a", dir, "100644 a", file, "40000 a/b", dir, "100644 "+
		strings.Repeat("x", 5000), file,
		"100755 \xff", file, "40000 z", dir, "100644 c", file)
	l, opened := New(Options{}), openRepo(t, r)
	for _, recursive := range []bool{false, true} {
		args := []string{"ls-tree", "-z", odd.String()}
		if recursive {
			args = append(args, "-r")
		}
		for _, size := range []int{1, 4, 100} {
			have, err := tree(t, l, opened, TreeRequest{In: PathIn{Revision: odd.String()}, Recursive: recursive,
				PageSize: size})
			if want := r.Git(args...); err != nil || have != want {
				t.Errorf("have %q, %v\nwant %q", have, err, want)
			}
		}
	}
	long := treeOf(t, r, "100644 "+strings.Repeat("x", maxPageBytes+1), file)
	if _, err := tree(t, l, opened, TreeRequest{In: PathIn{Revision: long.String()}}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a name without end: %v", err)
	}
	if _, err := differences(l, opened, git.ObjectID{}, long); !fault.Is(err, fault.Invalid) {
		t.Errorf("comparing a name without end: %v", err)
	}
	many := make([]any, 0, 4000)
	for i := range 2000 {
		many = append(many, fmt.Sprintf("100644 %04d%s", i, strings.Repeat("x", 1000)), file)
	}
	page, err := l.Tree(context.Background(), opened, TreeRequest{In: PathIn{Revision: treeOf(t, r, many...).String()},
		PageSize: 10_000})
	if err != nil || page.Next == "" || len(page.Entries) > 1100 {
		t.Errorf("a page of long names has %d entries, %v", len(page.Entries), err)
	}
	bogus := store(t, r, git.Tree, []byte("100644 a\x00short"))
	if _, err := tree(t, l, opened, TreeRequest{In: PathIn{Revision: bogus.String()}}); !fault.Is(err, fault.Corrupt) ||
		!strings.Contains(fault.Message(err), bogus.String()) {
		t.Errorf("a bogus tree: %v", err)
	}
}
