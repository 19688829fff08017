package native_test

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// BenchmarkPack makes packs of common shapes, and reports their size. PACKHORSE_BENCH_REPO is a bare repository.
func BenchmarkPack(b *testing.B) {
	dir := os.Getenv("PACKHORSE_BENCH_REPO")
	if dir == "" {
		b.Skip("PACKHORSE_BENCH_REPO is not set")
	}
	r := gittest.At(b, dir)
	repo := sourcetest.Repository(r)
	head, behind := []git.ObjectID{r.ID("HEAD")}, []git.ObjectID{r.ID("HEAD~20")}
	boundary := strings.Fields(r.Git("rev-list", "--first-parent", "--skip=19", "--max-count=1", "HEAD"))
	all := strings.Fields(r.Git("for-each-ref", "--format=%(objectname)"))
	ids := func(list []string) (ids []git.ObjectID) {
		for _, id := range list {
			ids = append(ids, git.MustParseObjectID(id))
		}
		slices.SortFunc(ids, git.ObjectID.Compare)
		return slices.Compact(ids)
	}
	for name, spec := range map[string]*packsource.Spec{
		"full":    {Repo: repo, Wants: ids(all), Offset: true},
		"depth 1": {Repo: repo, Wants: head, Shallow: head, Offset: true},
		"behind":  {Repo: repo, Wants: head, Shallow: ids(boundary), Offset: true},
		"fetch":   {Repo: repo, Wants: head, Haves: behind, Thin: true, Offset: true},
	} {
		for _, composed := range []bool{false, true} {
			if composed && len(spec.Haves) > 0 {
				continue
			}
			label := name
			source := newSource(b, true)
			if composed {
				label += ", composed"
				before := *spec
				if name != "full" {
					before.Wants = behind
				}
				source.SetLibrary(newLibrary(b, &before))
			}
			b.Run(label, func(b *testing.B) {
				begin := processorTime()
				size := 0
				for b.Loop() {
					p, err := source.Open(b.Context(), spec)
					if err != nil {
						b.Fatal(err)
					}
					out := counter{}
					if err := p.Send(b.Context(), &out); err != nil {
						b.Fatal(err)
					}
					size = out.n
					p.Close()
				}
				b.ReportMetric(float64((processorTime()-begin).Microseconds())/1000/float64(b.N), "cpu-ms/op")
				b.ReportMetric(float64(size), "pack-bytes")
			})
		}
	}
}

// counter counts the bytes of a pack.
type counter struct {
	sourcetest.Output
	n int
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
