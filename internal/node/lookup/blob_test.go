package lookup

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// blob reads a blob, and holds Blob to its pieces.
func blob(t rapid.TB, l *Reader, r *repo.Repo, q BlobRequest) (h BlobHeader, data []byte, err error) {
	heads, short := 0, false
	err = l.Blob(context.Background(), r, q, func(got BlobHeader) error {
		h = got
		heads++
		return nil
	}, func(b []byte) error {
		if heads != 1 || short || len(b) == 0 || len(b) > l.bounds.piece {
			t.Errorf("a piece of %d bytes after %d headers", len(b), heads)
		}
		short = len(b) < l.bounds.piece
		data = append(data, b...)
		return nil
	})
	if err == nil && heads != 1 {
		t.Errorf("%d headers", heads)
	}
	return h, data, err
}

func TestBlobIsGits(t *testing.T) {
	t.Parallel()
	everyHome(t, func(t *testing.T, r *gittest.Repo) {
		l, opened := New(Options{}), openRepo(t, r)
		for line := range strings.SplitSeq(r.Git("ls-tree", "-rz", "HEAD"), "\x00") {
			what, path, ok := strings.Cut(line, "\t")
			if !ok {
				continue
			}
			id := git.MustParseObjectID(strings.Fields(what)[2])
			want, _ := r.Try("cat-file", "blob", id.String())
			h, data, err := blob(t, l, opened, BlobRequest{In: PathIn{"HEAD", path}})
			if err != nil || h.ID != id || h.Mode != 0o100644 || h.Size != int64(len(data)) ||
				strings.TrimSuffix(string(data), "\n") != want {
				t.Errorf("%q: %+v, %d bytes, %v", path, h, len(data), err)
			}
			if h, again, err := blob(t, l, opened, BlobRequest{ID: id}); err != nil || h.Mode != 0 || !bytes.Equal(data, again) {
				t.Errorf("%q by ID: %+v, %d bytes, %v", path, h, len(again), err)
			}
		}
	})
}

func TestBlobErrors(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	file := store(t, r, git.Blob, []byte("x"))
	dir := treeOf(t, r, "100644 f", file)
	root := treeOf(t, r, "100644 a", file, "100644 a", dir, "40000 d", dir, "160000 m", file, "120000 s", file)
	l, opened := New(Options{}), openRepo(t, r)
	for _, c := range []struct {
		q    BlobRequest
		kind fault.Kind
	}{
		{BlobRequest{In: PathIn{root.String(), ""}}, fault.Invalid},
		{BlobRequest{In: PathIn{root.String(), "d"}}, fault.Invalid},
		{BlobRequest{In: PathIn{root.String(), "d/"}}, fault.Invalid},
		{BlobRequest{In: PathIn{root.String(), "m"}}, fault.Invalid},
		{BlobRequest{In: PathIn{root.String(), "a/"}}, fault.NotFound},
		{BlobRequest{In: PathIn{root.String(), "a/f"}}, fault.NotFound},
		{BlobRequest{In: PathIn{root.String(), "/a"}}, fault.NotFound},
		{BlobRequest{In: PathIn{root.String(), "d//f"}}, fault.NotFound},
		{BlobRequest{In: PathIn{root.String(), "d/../a"}}, fault.NotFound},
		{BlobRequest{In: PathIn{root.String(), "./a"}}, fault.NotFound},
		{BlobRequest{In: PathIn{root.String(), "a\x00"}}, fault.NotFound},
		{BlobRequest{In: PathIn{root.String(), "d/f/"}}, fault.NotFound},
		{BlobRequest{In: PathIn{root.String(), strings.Repeat("d/", 1<<16)}}, fault.Invalid},
		{BlobRequest{In: PathIn{file.String(), "a"}}, fault.Invalid},
		{BlobRequest{ID: root}, fault.Invalid},
		{BlobRequest{ID: git.MustParseObjectID(strings.Repeat("1", 40))}, fault.NotFound},
		{BlobRequest{ID: git.MustParseObjectID(strings.Repeat("1", 64))}, fault.Invalid},
		{BlobRequest{ID: file, Offset: 2}, fault.Invalid},
		{BlobRequest{ID: file, Offset: -1}, fault.Invalid},
		{BlobRequest{ID: file, Length: -1}, fault.Invalid},
	} {
		if _, _, err := blob(t, l, opened, c.q); !fault.Is(err, c.kind) {
			t.Errorf("%.100q gave %v, want %s", c.q.In.Path, err, c.kind)
		}
	}
	for path, mode := range map[string]uint32{"a": 0o100644, "s": 0o120000, "d/f": 0o100644} {
		if h, data, err := blob(t, l, opened, BlobRequest{In: PathIn{root.String(), path}}); err != nil || h.Mode != mode ||
			string(data) != "x" {
			t.Errorf("%s: %+v %q %v", path, h, data, err)
		}
	}
}

// large makes a repository with blobs that are larger than a Reader with a tight limit reads whole: loose, packed,
// delta.
func large(t testing.TB) (r *gittest.Repo, contents map[git.ObjectID][]byte) {
	t.Helper()
	r = gittest.Init(t)
	rnd := rand.New(rand.NewPCG(1, 1))
	contents = map[git.ObjectID][]byte{}
	fill := func(n int, random bool) []byte {
		b := make([]byte, n)
		for i := range b {
			if b[i] = byte(i >> 5); random {
				b[i] = byte(rnd.Uint32())
			}
		}
		return b
	}
	packed, base := fill(5001, false), fill(20_000, true)
	delta := append(bytes.Clone(base), "and more"...)
	for _, b := range [][]byte{packed, base, delta} {
		contents[store(t, r, git.Blob, b)] = b
	}
	var list strings.Builder
	for id := range contents {
		list.WriteString(id.String() + " name\n")
	}
	r.GitIn(list.String(), "pack-objects", "-q", "--depth=5", filepath.Join(r.Dir, "objects/pack/pack"))
	r.Git("prune-packed")
	loose := fill(20_017, true)
	contents[store(t, r, git.Blob, loose)] = loose
	return r, contents
}

func TestLargeBlobRanges(t *testing.T) {
	t.Parallel()
	r, contents := large(t)
	l, opened := tight(), openRepo(t, r)
	const piece = 1000
	deltas := 0
	for id, want := range contents {
		stream, err := opened.Objects.Stream(id)
		if err == nil {
			stream.Close()
		} else {
			deltas++
		}
		if _, data, err := blob(t, l, opened, BlobRequest{ID: id}); err != nil || !bytes.Equal(data, want) {
			t.Errorf("%s: %d bytes, %v", id, len(data), err)
		}
		size := int64(len(want))
		edges := rapid.OneOf(rapid.SampledFrom([]int64{0, 1, piece - 1, piece, piece + 1, size - piece, size - 1, size}),
			rapid.Int64Range(0, size))
		rapid.Check(t, func(t *rapid.T) {
			q := BlobRequest{ID: id, Offset: edges.Draw(t, "offset"), Length: edges.Draw(t, "length")}
			end := size
			if q.Length > 0 {
				end = min(end, q.Offset+q.Length)
			}
			if _, data, err := blob(t, l, opened, q); err != nil || !bytes.Equal(data, want[q.Offset:end]) {
				t.Fatalf("%d+%d gave %d bytes, %v", q.Offset, q.Length, len(data), err)
			}
		})
	}
	if deltas != 1 {
		t.Errorf("%d of the blobs are deltas, want 1", deltas)
	}
}

// A damaged blob never looks like a whole one: its last bytes are not given.
func TestDamagedLargeBlob(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	want := make([]byte, 20_000)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(rnd.Uint32())
	}
	id := store(t, r, git.Blob, want)
	whole, err := os.ReadFile(loosePath(r, id))
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(want)
	other[5]++
	swapped, err := os.ReadFile(loosePath(r, store(t, r, git.Blob, other)))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 0x10
	l, opened := tight(), openRepo(t, r)
	for name, file := range map[string][]byte{
		"flipped": flipped, "of another": swapped, "cut": whole[:len(whole)-5], "longer": append(bytes.Clone(whole), 0),
		"empty": {},
	} {
		if err := os.WriteFile(loosePath(r, id), file, 0o600); err != nil {
			t.Fatal(err)
		}
		h, data, err := blob(t, l, opened, BlobRequest{ID: id})
		if !fault.Is(err, fault.Corrupt) || !strings.Contains(fault.Message(err), id.String()) || len(data) >= len(want) {
			t.Errorf("%s: %+v, %d bytes, %v", name, h, len(data), err)
		}
	}
	// Another, undamaged copy is used until the first byte is sent.
	if err := os.WriteFile(loosePath(r, id), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	borrows := gittest.Init(t)
	store(t, borrows, git.Blob, want)
	if err := os.WriteFile(filepath.Join(r.Dir, "objects/info/alternates"), []byte(borrows.Dir+"/objects\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, data, err := blob(t, l, openRepo(t, r), BlobRequest{ID: id}); err != nil || !bytes.Equal(data, want) {
		t.Errorf("with a whole copy elsewhere: %d bytes, %v", len(data), err)
	}
}

func TestBlobEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	r, contents := large(t)
	opened := openRepo(t, r)
	for id := range contents {
		ctx, cancel := context.WithCancel(context.Background())
		pieces := 0
		err := tight().Blob(ctx, opened, BlobRequest{ID: id}, func(BlobHeader) error { return nil }, func([]byte) error {
			pieces++
			cancel()
			return ctx.Err()
		})
		if !fault.Is(err, fault.Cancelled) || pieces != 1 {
			t.Errorf("%d pieces, %v", pieces, err)
		}
	}
}
