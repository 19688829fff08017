package bitmap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// BenchmarkBitmap measures with the repository of this project, or with the bundle that PACKHORSE_BENCH_BUNDLE names.
func BenchmarkBitmap(b *testing.B) {
	source := os.Getenv("PACKHORSE_BENCH_BUNDLE")
	if source == "" {
		var err error
		if source, err = filepath.Abs("../../.."); err != nil {
			b.Fatal(err)
		}
	}
	r := gittest.Init(b)
	if _, err := r.Try("fetch", "--quiet", source, "+refs/*:refs/*"); err != nil {
		b.Skip(err)
	}
	r.Git("repack", "-adb")
	m, err := Open(b.Context(), packDir(r), git.SHA1)
	if err != nil {
		b.Fatal(err)
	}
	var tip git.ObjectID
	for id := range strings.Lines(r.Git("rev-list", "--all")) {
		tip = git.MustParseObjectID(strings.TrimSpace(id))
		if _, ok := m.commits[tip]; ok {
			break
		}
	}
	b.Logf("%d objects, %d commits with a bitmap, %d bytes", m.Len(), len(m.commits), m.file.Len())
	set := make([]uint64, m.Words())
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			if _, err := Open(b.Context(), packDir(r), git.SHA1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tip", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := m.Or(tip, set); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("each", func(b *testing.B) {
		for b.Loop() {
			for commit := range m.commits {
				if _, err := m.Or(commit, set); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(m.commits)), "ns/commit")
	})
}
