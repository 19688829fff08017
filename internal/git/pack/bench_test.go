package pack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// benchStore opens the repository that PACK_BENCH_REPO names, or a random one.
func benchStore(b *testing.B) (*Store, []git.ObjectID) {
	b.Helper()
	dir := os.Getenv("PACK_BENCH_REPO")
	if dir == "" {
		dir = gittest.Random(b, 1, gittest.Shape{Commits: 500}).Dir
	}
	s, err := Open(filepath.Join(dir, "objects"), Options{Format: git.SHA1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	var ids []git.ObjectID
	for line := range strings.SplitSeq(gittest.Run(b, dir, "", "rev-list", "--all"), "\n") {
		ids = append(ids, git.MustParseObjectID(line))
	}
	return s, ids
}

func BenchmarkHasHit(b *testing.B) {
	s, ids := benchStore(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if ok, err := s.Has(ids[i%len(ids)]); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkHasMiss(b *testing.B) {
	s, ids := benchStore(b)
	for i := range ids {
		ids[i].Raw()[19] ^= 0x55
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if ok, err := s.Has(ids[i%len(ids)]); ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkReadCommit(b *testing.B) {
	s, ids := benchStore(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, data, err := s.Read(ids[i%len(ids)], 0)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ParseCommit(data, git.SHA1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHeader(b *testing.B) {
	s, ids := benchStore(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, _, err := s.Header(ids[i%len(ids)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWalk reads and parses every commit once, from a store just opened: `git rev-list --all` without
// commit-graph.
func BenchmarkWalk(b *testing.B) {
	first, ids := benchStore(b)
	for b.Loop() {
		s, err := Open(first.dir, Options{Format: git.SHA1})
		if err != nil {
			b.Fatal(err)
		}
		for _, id := range ids {
			_, data, err := s.Read(id, 0)
			if err == nil {
				_, err = ParseCommit(data, git.SHA1)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		s.Close()
	}
	b.ReportMetric(float64(len(ids)), "commits")
}
