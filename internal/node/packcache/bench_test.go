package packcache

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// sinkOutput takes a file at no cost, as a kernel copy would, and drops all else.
type sinkOutput struct{}

func (sinkOutput) Write(p []byte) (int, error)   { return len(p), nil }
func (sinkOutput) Progress([]byte) error         { return nil }
func (sinkOutput) KeepAliveAfter() time.Duration { return 0 }
func (sinkOutput) KeepAlive() error              { return nil }
func (sinkOutput) ReadFrom(r io.Reader) (int64, error) {
	s := r.(*bulk.Section)
	n := s.N
	s.Offset, s.N = s.Offset+n, 0
	return n, nil
}

// repeatSource makes packs of the same megabyte over and over.
type repeatSource struct {
	block []byte
	times int
}

func newRepeatSource(size int) *repeatSource {
	block := pktline.AppendBand(nil, pktline.BandData, make([]byte, min(size, 16*pktline.MaxBandData)))
	return &repeatSource{block, (size + len(block) - 1) / len(block)}
}

func (s *repeatSource) Open(context.Context, *packsource.Spec) (packsource.Pack, error) {
	return sourceFuncPack{func(out packsource.Output) error {
		for range s.times {
			if _, err := out.Write(s.block); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

func send(b *testing.B, c *Cache, s *packsource.Spec) {
	p, err := c.Open(b.Context(), s)
	if err == nil {
		err = p.Send(b.Context(), sinkOutput{})
		p.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkHit(b *testing.B) {
	for _, size := range []int{1000, 100_000_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := newCache(b, newRepeatSource(size), Options{})
			s := spec("a")
			send(b, c, s)
			c.settled(b)
			b.ReportAllocs()
			for b.Loop() {
				send(b, c, s)
			}
		})
	}
}

// BenchmarkMiss measures the cost that the cache adds to making a pack, with a source that takes no time and a reader
// that does not copy. The reader need not wait for the whole pack.
func BenchmarkMiss(b *testing.B) {
	for _, size := range []int{1000, 1_000_000, 100_000_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			src := newRepeatSource(size)
			c := newCache(b, src, Options{MaxBytes: 1 << 29})
			b.SetBytes(int64(len(src.block) * src.times))
			b.ReportAllocs()
			var waited time.Duration
			n := 0
			for ; b.Loop(); n++ {
				began := time.Now()
				send(b, c, spec(fmt.Sprint(n)))
				waited += time.Since(began)
				c.settled(b)
			}
			b.ReportMetric(float64(waited.Nanoseconds())/float64(n), "ns/reader")
		})
	}
}

// BenchmarkPlainWrite writes the bytes of BenchmarkMiss to a file and removes it: the cost of the disk alone.
func BenchmarkPlainWrite(b *testing.B) {
	for _, size := range []int{1000, 1_000_000, 100_000_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			src := newRepeatSource(size)
			path := filepath.Join(b.TempDir(), "plain")
			b.SetBytes(int64(len(src.block) * src.times))
			for b.Loop() {
				f, err := os.Create(path)
				if err != nil {
					b.Fatal(err)
				}
				for range src.times {
					if _, err := f.Write(src.block); err != nil {
						b.Fatal(err)
					}
				}
				f.Close()
				os.Remove(path)
			}
		})
	}
}
