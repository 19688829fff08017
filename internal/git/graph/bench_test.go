package graph

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// benchEnv names a bare repository to measure with; it is not changed. Without it a small random one is used.
const benchEnv = "PACKHORSE_BENCH_REPO"

// benchRepo copies the repository, with its objects by reference, and with or without a commit-graph.
func benchRepo(b *testing.B, variant string) *gittest.Repo {
	b.Helper()
	dir := os.Getenv(benchEnv)
	if dir == "" {
		dir = gittest.Random(b, 1, gittest.Shape{Commits: 2000, Branches: 50, Merge: 0.2}).Dir
	}
	copied := filepath.Join(b.TempDir(), "copy.git")
	gittest.Run(b, "", "", "clone", "-q", "--bare", "--mirror", "--local", dir, copied)
	r := gittest.At(b, copied)
	if err := os.RemoveAll(filepath.Join(copied, "objects", "info", "commit-graph")); err != nil {
		b.Fatal(err)
	}
	writeGraph(r, variant)
	return r
}

// history has the commits of the benchmarks' questions.
type history struct {
	head, old git.ObjectID
	tips      []git.ObjectID // commits of all refs
	spread    []git.ObjectID // 500 commits over the whole history
	count     int
}

func newHistory(b *testing.B, r *gittest.Repo) history {
	b.Helper()
	h := history{head: r.ID("HEAD")}
	all := parseIDs(strings.Fields(r.Git("rev-list", "HEAD")))
	h.old = all[min(len(all)-1, 500)]
	h.count = len(all)
	for i := range 500 {
		h.spread = append(h.spread, all[i*len(all)/500])
	}
	for _, s := range strings.Fields(r.Git("for-each-ref", "--format=%(objectname)")) {
		h.tips = append(h.tips, git.MustParseObjectID(s))
	}
	h.tips = slices.Compact(h.tips)
	return h
}

func Benchmark(b *testing.B) {
	for _, variant := range []string{"none", "full", "chain"} {
		b.Run(variant, func(b *testing.B) {
			r := benchRepo(b, variant)
			h := newHistory(b, r)
			g := openGraph(b, r, Options{})
			ctx := b.Context()
			one := func(ids ...git.ObjectID) []git.ObjectID { return ids }
			for _, q := range []struct {
				name string
				ask  func() error
			}{
				{"AllReach/head-500", func() error { _, _, err := g.AllReach(ctx, one(h.head), one(h.old), nil); return err }},
				{"AllReach/tips-spread", func() error { _, _, err := g.AllReach(ctx, h.tips, h.spread, nil); return err }},
				{"Unreachable/one-in-tips", func() error {
					_, _,
						err := g.FirstUnreachable(ctx, h.tips, one(h.old), nil)
					return err
				}},
				{"Unreachable/tips-from-head", func() error {
					_, _,
						err := g.FirstUnreachable(ctx, one(h.head), h.tips, nil)
					return err
				}},
				{"Maximal/500-spread", func() error { _, err := g.Maximal(ctx, h.spread, nil); return err }},
				{"Maximal/500-tips", func() error { _, err := g.Maximal(ctx, h.tips[:min(500, len(h.tips))], nil); return err }},
				{"Depth/20", func() error { _, err := g.Depth(ctx, one(h.head), 20, nil, nil); return err }},
				{"Depth/100", func() error { _, err := g.Depth(ctx, one(h.head), 100, nil, nil); return err }},
				{"Since/not-500", func() error { _, err := g.Since(ctx, one(h.head), 0, one(h.old), nil, nil); return err }},
				{"Missing/500", func() error { _, _, err := g.Missing(ctx, one(h.head), one(h.old), nil, 0); return err }},
				{"Missing/all", func() error { _, _, err := g.Missing(ctx, one(h.head), nil, nil, 0); return err }},
				{"Between/all", func() error { _, err := g.Between(ctx, h.tips, nil, RangeOptions{}); return err }},
				{"Between/500", func() error { _, err := g.Between(ctx, h.tips, one(h.old), RangeOptions{}); return err }},
				{"Between/stop", func() error {
					_, err := g.Between(ctx, h.tips, nil,
						RangeOptions{Stop: func(id []byte) bool { return bytes.Equal(id, h.old.Raw()) }})
					return err
				}},
				{"Refresh", g.Refresh},
			} {
				b.Run(q.name, func(b *testing.B) {
					if err := q.ask(); err != nil { // what is parsed once is not measured here
						b.Fatal(err)
					}
					b.ReportAllocs()
					for b.Loop() {
						if err := q.ask(); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}

// BenchmarkFirstWalk parses the whole history from objects.
func BenchmarkFirstWalk(b *testing.B) {
	r := benchRepo(b, "none")
	h := newHistory(b, r)
	s, err := pack.Open(filepath.Join(r.Dir, "objects"), pack.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	n := 0
	for b.Loop() {
		g := New(s, s.Dirs, Options{})
		if _, _, err := g.AllReach(b.Context(), h.tips, h.spread[499:], nil); err != nil {
			b.Fatal(err)
		}
		n += g.view.Load().table.len()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/commit")
}

// BenchmarkTable fills a table and reports the cost of a stored commit.
func BenchmarkTable(b *testing.B) {
	const commits = 1_000_000
	var before, after runtime.MemStats
	var t *commitTable
	for b.Loop() {
		t = nil
		runtime.GC()
		runtime.ReadMemStats(&before)
		t = newTable(0, git.SHA1.Size())
		raw := make([]byte, git.SHA1.Size())
		for i := range uint32(commits) {
			binary.BigEndian.PutUint32(raw, i*2654435761)
			n := t.intern(raw)
			t.set(n, int64(i), raw, []uint32{max(n, 1) - 1})
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/commits, "B/commit")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/commits, "ns/commit")
	runtime.KeepAlive(t)
}
