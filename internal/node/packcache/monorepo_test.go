package packcache

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// composer makes packs of n times one MiB. It reads the newest pack of the repository while it makes the next one.
type composer struct {
	n     int
	c     *Cache
	block []byte // 1 MiB of packets
	lent  int    // packs that were composed from another one
}

func (s *composer) Open(_ context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	return &composed{s: s, spec: spec, n: s.n}, nil
}

type composed struct {
	s    *composer
	spec *packsource.Spec
	n    int
}

func (p *composed) Size() int64           { return -1 }
func (p *composed) Info() packsource.Info { return packsource.Info{Objects: 1} }
func (p *composed) Close() error          { return nil }

func (p *composed) Send(_ context.Context, out packsource.Output) error {
	if packs := p.s.c.Packs(p.spec.Repo.Incarnation); len(packs) > 0 {
		b, err := p.s.c.Borrow(packs[0])
		if err != nil {
			return err
		}
		defer b.Close()
		p.s.lent++
	}
	for range p.n {
		if _, err := out.Write(p.s.block); err != nil {
			return err
		}
	}
	return nil
}

func (p *composed) WriteIndex(w io.Writer) error {
	_, err := w.Write(make([]byte, 1<<20))
	return err
}

// mebibyte is whole packets of almost a MiB.
func mebibyte() []byte {
	return bytes.Repeat(pktline.AppendBand(nil, pktline.BandData, make([]byte, 65515)), 16)
}

// sparse makes files without content, except for their first bytes.
func sparse(s *system) {
	s.write = func(f *os.File, p []byte, off int64) (int, error) {
		if off == 0 {
			if _, err := f.WriteAt(p[:min(len(p), 4096)], 0); err != nil {
				return 0, err
			}
		}
		return len(p), f.Truncate(off + int64(len(p)))
	}
}

// fakeSpace is a disk of which the cache and others use a part.
type fakeSpace struct {
	size, others int64
	c            *Cache
	least        atomic.Int64 // the least free space that was seen
}

func (d *fakeSpace) system(s *system) {
	d.least.Store(d.size)
	s.space = func(string) (int64, int64, error) {
		free := d.size - d.others
		if c := d.c; c != nil {
			c.mu.Lock()
			free -= c.index.bytes + c.index.zombies + c.filling
			c.mu.Unlock()
		}
		d.least.Store(min(d.least.Load(), free))
		return d.size, free, nil
	}
}

// TestMonorepo has a repository of 6 GiB on a disk of 80 GB, with default settings. The pack of each tip is kept, is
// composed from the last one, and leaves room for small packs.
func TestMonorepo(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	t.Parallel()
	const gib = 1 << 30
	disk := &fakeSpace{size: 80e9, others: 6 * gib}
	source := &composer{n: 6 << 10, block: mebibyte()}
	pack := int64(source.n * len(source.block))
	clock := newClock()
	c := newCache(t, source, Options{MaxBytes: -1, MinFree: 4e9, Now: clock.now}, disk.system, sparse)
	disk.c, source.c = c, c
	if c.Stats().MaxBytes != 8e9 {
		t.Errorf("budget %d, want a tenth of the disk", c.Stats().MaxBytes)
	}
	get := func(s *packsource.Spec) packsource.Result {
		t.Helper()
		p, err := c.Open(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Send(t.Context(), nowhere{}); err != nil {
			t.Fatal(err)
		}
		c.settled(t)
		return p.Info().Result
	}
	c.inner = &fakeSource{size: 100_000}
	for i := range 20 {
		get(of("other", fmt.Sprint(i)))
	}
	c.inner = source
	for tip := range 3 {
		s := of("monorepo", fmt.Sprint(tip))
		for _, want := range []packsource.Result{packsource.Miss, packsource.Hit} {
			if got := get(s); got != want {
				t.Errorf("tip %d: %v, want %v", tip, got, want)
			}
		}
		for i := range 20 {
			if got := get(of("other", fmt.Sprint(i))); got != packsource.Hit {
				t.Errorf("tip %d: small pack %d is a %v, want %v", tip, i, got, packsource.Hit)
			}
		}
	}
	if source.lent != 2 {
		t.Errorf("%d packs composed, want 2", source.lent)
	}
	if got := c.Stats(); got.Bytes < 2*pack || got.Bytes > got.MaxBytes || got.MaxBytes > 4e9+13*gib {
		t.Errorf("%d of %d bytes in the cache, want two packs within the budget", got.Bytes, got.MaxBytes)
	}
	if least := disk.least.Load(); least < 80e9-6*gib-4e9-13*gib {
		t.Errorf("%d bytes free at the least, want the budget kept at any time", least)
	}
	// Others take the space: the floor is kept.
	disk.others = 80e9 - 12*gib - 4e9
	clock.add(statInterval)
	c.sweep()
	disk.least.Store(80e9)
	for _, want := range []packsource.Result{packsource.Miss, packsource.Hit} {
		if got := get(of("monorepo", "next")); got != want {
			t.Errorf("with room for two packs: %v, want %v", got, want)
		}
	}
	disk.others = 80e9 - 11*gib - 4e9
	clock.add(statInterval)
	c.sweep()
	disk.least.Store(80e9)
	if got := get(of("monorepo", "last")); got != packsource.Uncached {
		t.Errorf("without room for two packs: %v, want %v", got, packsource.Uncached)
	}
	if !c.Has(of("monorepo", "next").Key()) {
		t.Error("the last pack that could be kept is gone, want it kept")
	}
	if least := disk.least.Load(); least < 4e9-statEvery {
		t.Errorf("%d bytes free at the least, want the floor of 4 GB", least)
	}
}

// With max_bytes, the next pack is composed and kept although both exceed the budget. Afterwards the last one leaves.
func TestComposeWithinMaxBytes(t *testing.T) {
	t.Parallel()
	source := &composer{n: 6, block: mebibyte()}
	c := newCache(t, source, Options{MaxBytes: 10 << 20})
	source.c = c
	for tip := range 3 {
		s := of("one", fmt.Sprint(tip))
		for _, want := range []packsource.Result{packsource.Miss, packsource.Hit} {
			p, err := c.Open(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Send(t.Context(), nowhere{}); err != nil || p.Info().Result != want {
				t.Errorf("tip %d: %v, %v, want %v", tip, p.Info().Result, err, want)
			}
			p.Close()
			c.settled(t)
		}
		c.sweep()
		if got := c.Packs("one"); len(got) != 1 || got[0] != s.Key() || c.Stats().Bytes > 10<<20 {
			t.Errorf("tip %d: Packs = %v, %d bytes, want only that of the tip within the budget", tip, got, c.Stats().Bytes)
		}
	}
	if source.lent != 2 {
		t.Errorf("%d packs composed, want 2", source.lent)
	}
}
