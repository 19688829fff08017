package packcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// fullDisk makes writes fail once the disk has taken limit bytes; a failing write is a short one.
type fullDisk struct {
	err   error
	limit atomic.Int64
	used  atomic.Int64
}

func (d *fullDisk) system(s *system) {
	write := s.write
	s.write = func(f *os.File, p []byte, off int64) (int, error) {
		n := int64(len(p))
		if over := d.used.Add(n) - d.limit.Load(); over > 0 {
			d.used.Add(-min(over, n))
			n, err := write(f, p[:n-min(over, n)], off)
			return n, errors.Join(err, &os.PathError{Op: "write", Path: f.Name(), Err: d.err})
		}
		return write(f, p, off)
	}
}

// TestBrokenDisk fails disk operations at every position of the pack. All readers get the pack, and no entry and no
// file remains.
func TestBrokenDisk(t *testing.T) {
	t.Parallel()
	for _, errno := range []error{syscall.ENOSPC, syscall.EIO, syscall.EDQUOT} {
		for _, limit := range []int64{0, 1, 70_000, 799_999} {
			t.Run(fmt.Sprintf("%v at %d", errno, limit), func(t *testing.T) {
				t.Parallel()
				disk := &fullDisk{err: errno}
				disk.limit.Store(limit)
				src := &fakeSource{size: 800_000, batch: 3, gate: make(chan struct{})}
				c := newCache(t, src, Options{}, disk.system)
				var packs []packsource.Pack
				for range 5 {
					p, err := c.Open(t.Context(), spec("a"))
					if err != nil {
						t.Fatal(err)
					}
					packs = append(packs, p)
				}
				close(src.gate)
				var wg sync.WaitGroup
				for i, p := range packs {
					wg.Go(func() {
						info := finish(t, p, spec("a"), src)
						if want := []packsource.Result{packsource.Uncached, packsource.Follow}[min(i, 1)]; info.Result != want {
							t.Errorf("reader %d: %v, want %v", i, info.Result, want)
						}
					})
				}
				wg.Wait()
				if src.opens.Load() != 1 || metric(c.m.degraded.WithLabelValues(causeOf(errno))) != 1 {
					t.Errorf("inner opened %d times", src.opens.Load())
				}
				c.settled(t)
				if fetch(t, c, spec("a"), src); src.opens.Load() != 2 {
					t.Errorf("inner opened %d times afterwards, want 2", src.opens.Load())
				}
				c.settled(t)
				disk.limit.Store(1 << 30)
				fetch(t, c, spec("a"), src)
				c.settled(t)
				if info := fetch(t, c, spec("a"), src); info.Result != packsource.Hit {
					t.Errorf("with a good disk again: %v, want %v", info.Result, packsource.Hit)
				}
			})
		}
	}
}

// On a full disk, idle entries are evicted before packs go uncached.
func TestFullDiskEvictsFirst(t *testing.T) {
	t.Parallel()
	disk := &fullDisk{err: syscall.ENOSPC}
	disk.limit.Store(1_000_000)
	src := &fakeSource{size: 300_000}
	c := newCache(t, src, Options{}, disk.system, func(s *system) {
		// The fake disk ignores removals: each eviction gives back three packs.
		write := s.write
		s.write = func(f *os.File, p []byte, off int64) (int, error) {
			n, err := write(f, p, off)
			if err != nil {
				disk.used.Store(100_000)
			}
			return n, err
		}
	})
	for i := range 5 {
		if info := fetch(t, c, spec(fmt.Sprint(i)), src); info.Result != packsource.Miss {
			t.Errorf("pack %d: %v, want %v", i, info.Result, packsource.Miss)
		}
		c.settled(t)
	}
	if n := metric(c.m.evictions.WithLabelValues(evictSpace)); n != 3 {
		t.Errorf("%v entries evicted, want 3", n)
	}
	if info := fetch(t, c, spec("4"), src); info.Result != packsource.Hit {
		t.Errorf("the last pack: %v, want %v", info.Result, packsource.Hit)
	}
}

func TestNoFile(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(s *system){
		"no descriptors": func(s *system) {
			s.create = func(path string) (*os.File, error) {
				return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EMFILE}
			}
		},
		"rename fails": func(s *system) {
			s.rename = func(from, to string) error { return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EIO} }
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := &fakeSource{size: 1_000_000}
			c := newCache(t, src, Options{}, fail)
			for range 2 {
				fetch(t, c, spec("a"), src)
				c.settled(t)
			}
			if src.opens.Load() != 2 {
				t.Errorf("inner opened %d times, want 2", src.opens.Load())
			}
		})
	}
}

// The cache creates its directory or parts of it again if they were removed.
func TestDirectoryRemoved(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 1000}
	c := newCache(t, src, Options{})
	fetch(t, c, spec("a"), src)
	c.settled(t)
	if err := os.RemoveAll(c.dir); err != nil {
		t.Fatal(err)
	}
	for i, want := range []packsource.Result{packsource.Miss, packsource.Hit} {
		if info := fetch(t, c, spec("a"), src); info.Result != want {
			t.Errorf("request %d: %v, want %v", i, info.Result, want)
		}
		c.settled(t)
	}
}

// An entry that cannot be opened for want of descriptors is still good.
func TestHitWithoutDescriptor(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 1000}
	var broken atomic.Bool
	c := newCache(t, src, Options{}, func(s *system) {
		s.open = func(path string) (*os.File, error) {
			if broken.Load() {
				return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EMFILE}
			}
			return os.Open(path)
		}
	})
	fetch(t, c, spec("a"), src)
	c.settled(t)
	broken.Store(true)
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Uncached {
		t.Errorf("without descriptors: %v, want %v", info.Result, packsource.Uncached)
	}
	broken.Store(false)
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Hit {
		t.Errorf("with descriptors: %v, want %v", info.Result, packsource.Hit)
	}
}

// An entry that was truncated or removed while the server runs is made again for its reader.
func TestDamagedEntry(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"removed": os.Remove,
		"cut":     func(path string) error { return os.Truncate(path, 500_000) },
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"no pack": func(path string) error { return os.WriteFile(path, make([]byte, 2_000_000), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			src := &fakeSource{size: 1_000_000}
			c := newCache(t, src, Options{})
			fetch(t, c, spec("a"), src)
			c.settled(t)
			if err := damage(c.path(spec("a").Key(), dataExt)); err != nil {
				t.Fatal(err)
			}
			for i, want := range []packsource.Result{packsource.Miss, packsource.Hit} {
				if info := fetch(t, c, spec("a"), src); info.Result != want {
					t.Errorf("request %d: %v, want %v", i, info.Result, want)
				}
				c.settled(t)
			}
		})
	}
}

// A pack that turns out to be damaged in the middle fails its reader, and only that one.
func TestDamageFoundWhileSending(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 1_000_000}
	c := newCache(t, src, Options{})
	fetch(t, c, spec("a"), src)
	c.settled(t)
	f, err := os.OpenFile(c.path(spec("a").Key(), dataExt), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("zzzz"), 10*65520); err != nil {
		t.Fatal(err)
	}
	if err := p.Send(t.Context(), &output{}); err == nil {
		t.Error("no error")
	}
	p.Close()
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Miss {
		t.Errorf("afterwards: %v, want %v", info.Result, packsource.Miss)
	}
}

// A fill that cannot write waits for its slowest reader and ends with its last.
func TestStreamWithSlowAndLeavingReaders(t *testing.T) {
	t.Parallel()
	disk := &fullDisk{err: syscall.ENOSPC}
	disk.limit.Store(200_000)
	src := &fakeSource{size: 5_000_000, ended: make(chan error, 2), gate: make(chan struct{})}
	c := newCache(t, src, Options{Grace: time.Hour}, disk.system)
	open := func() packsource.Pack {
		p, err := c.Open(t.Context(), spec("a"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	fast, slow := open(), open()
	silent := open() // never sends
	close(src.gate)
	done := make(chan struct{})
	var reached atomic.Int64
	go func() {
		defer close(done)
		var out output
		out.onWrite = func() error { reached.Store(int64(out.data.Len())); return nil }
		if err := fast.Send(t.Context(), &out); err != nil || !bytes.Equal(out.data.Bytes(), framed(spec("a"), src.size, 0)) {
			t.Errorf("fast: %v, %d bytes", err, out.data.Len())
		}
		fast.Close()
	}()
	gittest.WaitFor(t, "the file's part is sent", func() bool { return reached.Load() >= 100_000 })
	gittest.WaitFor(t, "the fill is detached", func() bool { return c.readersOf(spec("a")) == 0 })
	select {
	case <-done:
		t.Error("the fast reader finished first, want it to wait for the others")
	case <-time.After(20 * time.Millisecond):
	}
	silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := slow.Send(ctx, &output{onWrite: func() error {
		if n++; n == 20 {
			cancel()
		}
		return nil
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("slow: %v", err)
	}
	<-done
	slow.Close()
	if err := <-src.ended; err != nil {
		t.Errorf("the fill: %v", err)
	}

	alone := open()
	gittest.WaitFor(t, "the fill is detached", func() bool { return c.readersOf(spec("a")) == 0 })
	alone.Close()
	if err := <-src.ended; err == nil {
		t.Error("the fill continued without readers, want it cancelled")
	}
}

// A pack larger than the budget is streamed, and its file is removed after its last reader. A pack may use the whole
// budget.
func TestLargerThanBudget(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 3_000_000}
	c := newCache(t, src, Options{MaxBytes: 1 << 20})
	small := &fakeSource{size: 400_000}
	c.inner = small
	for _, name := range []string{"small", "smaller"} {
		fetch(t, c, spec(name), small)
		c.settled(t)
	}
	c.inner = src
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Uncached {
		t.Errorf("got %v, want %v", info.Result, packsource.Uncached)
	}
	c.settled(t)
	if n := metric(c.m.degraded.WithLabelValues("size")); n != 1 {
		t.Errorf("degraded %v times, want 1", n)
	}
	if n := metric(c.m.bytes); n != 0 {
		t.Errorf("%v bytes left, want 0", n)
	}
	src.size = 1_000_000
	for _, want := range []packsource.Result{packsource.Miss, packsource.Hit} {
		if info := fetch(t, c, spec("b"), src); info.Result != want {
			t.Errorf("a pack of the size of the budget: %v, want %v", info.Result, want)
		}
		c.settled(t)
	}
}

// The free-space floor evicts, then keeps the cache from writing.
func TestFreeSpaceFloor(t *testing.T) {
	t.Parallel()
	const size = 1 << 30
	var taken atomic.Int64 // by others
	src := &fakeSource{size: 1_000_000}
	clock := newClock()
	var c *Cache
	free := func(string) (int64, int64, error) {
		free := size - taken.Load()
		if c != nil {
			c.mu.Lock()
			free -= c.index.bytes + c.filling
			c.mu.Unlock()
		}
		return size, free, nil
	}
	c = newCache(t, src, Options{MinFree: size / 2, Now: clock.now}, func(s *system) { s.space = free })
	for i := range 3 {
		fetch(t, c, spec(fmt.Sprint(i)), src)
		c.settled(t)
	}
	taken.Store(size/2 - 2_100_000)
	clock.add(statInterval)
	c.sweep()
	if n := c.counts().entries; n != 2 {
		t.Errorf("%v entries above the floor, want 2", n)
	}
	taken.Store(size)
	clock.add(statInterval)
	if info := fetch(t, c, spec("new"), src); info.Result != packsource.Uncached {
		t.Errorf("below the floor: %v, want %v", info.Result, packsource.Uncached)
	}
	if n := c.counts().entries; n != 0 {
		t.Errorf("%v entries below the floor, want 0", n)
	}
	taken.Store(0)
	clock.add(statWhileLow)
	fetch(t, c, spec("new"), src)
	c.settled(t)
	if info := fetch(t, c, spec("new"), src); info.Result != packsource.Hit {
		t.Errorf("with space again: %v, want %v", info.Result, packsource.Hit)
	}
}
