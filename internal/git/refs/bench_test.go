package refs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// bigRepo makes the files that refs are made of, without objects: packed refs in a thousand directories, loose ones in
// fifty.
func bigRepo(b testing.TB, packed, loose int) *Store {
	dir := b.TempDir()
	write(b, filepath.Join(dir, "HEAD"), "ref: refs/heads/main\n")
	var text strings.Builder
	text.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for i := range packed {
		fmt.Fprintf(&text, "%040x refs/heads/group-%03d/branch-%06d\n", i+1, i*1000/packed, i)
	}
	fmt.Fprintf(&text, "%040x refs/heads/main\n", 1)
	write(b, filepath.Join(dir, "packed-refs"), text.String())
	if err := os.MkdirAll(filepath.Join(dir, "refs/heads"), 0o777); err != nil {
		b.Fatal(err)
	}
	for i := range loose {
		write(b, filepath.Join(dir, fmt.Sprintf("refs/tags/loose-%02d/tag-%06d", i%50, i)), fmt.Sprintf("%040x\n", i+1))
	}
	return Open(dir, dir, Options{Now: func() time.Time { return time.Now().Add(time.Hour) }})
}

func BenchmarkSnapshotValid(b *testing.B) {
	for _, n := range []struct{ packed, loose int }{{200_000, 3}, {200_000, 5_000}} {
		b.Run(fmt.Sprintf("packed=%d/loose=%d", n.packed, n.loose), func(b *testing.B) {
			s := bigRepo(b, n.packed, n.loose)
			snapshot(b, s)
			b.ReportAllocs()
			for b.Loop() {
				snapshot(b, s)
			}
		})
	}
}

// BenchmarkSnapshotLoad opens the repository for each snapshot.
func BenchmarkSnapshotLoad(b *testing.B) {
	for _, n := range []struct{ packed, loose int }{{200_000, 3}, {200_000, 5_000}} {
		b.Run(fmt.Sprintf("packed=%d/loose=%d", n.packed, n.loose), func(b *testing.B) {
			s := bigRepo(b, n.packed, n.loose)
			dir := filepath.Dir(strings.TrimSuffix(s.packedPath, "\x00"))
			b.ReportAllocs()
			for b.Loop() {
				snapshot(b, Open(dir, dir, Options{Now: s.clock}))
			}
		})
	}
}

// BenchmarkSnapshotOneChange writes one of many loose refs before each Snapshot.
func BenchmarkSnapshotOneChange(b *testing.B) {
	s := bigRepo(b, 200_000, 5_000)
	path := filepath.Join(filepath.Dir(s.packedPath), "refs/tags/loose-07/tag-000007")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		write(b, path, fmt.Sprintf("%040x\n", i%100+1))
		snapshot(b, s)
	}
}

func BenchmarkSnapshotParallel(b *testing.B) {
	s := bigRepo(b, 200_000, 3)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Snapshot(context.Background()); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	snap := snapshot(b, bigRepo(b, 200_000, 3))
	names := make([]git.RefName, 997)
	for i := range names {
		n := i * 200
		names[i] = git.RefName(fmt.Sprintf("refs/heads/group-%03d/branch-%06d", n*1000/200_000, n))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok, err := snap.Lookup(names[i%len(names)]); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkEach(b *testing.B) {
	snap := snapshot(b, bigRepo(b, 200_000, 3))
	for _, c := range []struct {
		prefix string
		want   int
	}{{"refs/heads/group-500/branch-100007", 1}, {"refs/heads/group-500/branch-1000", 100}, {"", 200_004}} {
		b.Run(fmt.Sprintf("answers=%d", c.want), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				if err := snap.Each(c.prefix, func(Ref) error { n++; return nil }); err != nil || n != c.want {
					b.Fatal(n, err)
				}
			}
		})
	}
}
