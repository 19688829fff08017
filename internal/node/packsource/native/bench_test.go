package native

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// BenchmarkSelect selects the objects of common shapes of packs. PACKHORSE_BENCH_REPO is a bare repository.
func BenchmarkSelect(b *testing.B) {
	dir := os.Getenv("PACKHORSE_BENCH_REPO")
	if dir == "" {
		b.Skip("PACKHORSE_BENCH_REPO is not set")
	}
	r := gittest.At(b, dir)
	store, err := pack.Open(dir+"/objects", pack.Options{Format: git.SHA1})
	if err != nil {
		b.Fatal(err)
	}
	g := graph.New(store, store.Dirs, graph.Options{})
	head, behind := r.ID("HEAD"), r.ID("HEAD~20")
	opened := newBitmaps()
	for name, spec := range map[string]*packsource.Spec{
		"full":    {Wants: []git.ObjectID{head}},
		"shallow": {Wants: []git.ObjectID{head}, Shallow: []git.ObjectID{head}},
		"fetch":   {Wants: []git.ObjectID{head}, Haves: []git.ObjectID{behind}, Thin: true},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			begin := processorTime()
			for b.Loop() {
				err := store.Raw(100, func(packs []*pack.Raw) error {
					s := &selection{ctx: context.Background(), spec: spec, store: store, graph: g, bitmaps: opened,
						view: newView(git.SHA1, nil, packs)}
					chosen, _, err := s.run()
					if err == nil {
						b.ReportMetric(float64(chosen.len()), "objects")
					}
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((processorTime()-begin).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// processorTime returns the processor time of this process. Unlike the time of day it hardly depends on other
// processes.
func processorTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
