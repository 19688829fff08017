package packcache

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// indexed is a fakeSource whose packs have an index of 100,000 bytes.
func indexed(size int) *fakeSource {
	return &fakeSource{size: size, index: func(s *packsource.Spec, w io.Writer) error {
		_, err := w.Write(indexOf(s))
		return err
	}}
}

func indexOf(s *packsource.Spec) []byte {
	sum := sha256.Sum256([]byte(s.Key().String()))
	return bytes.Repeat(sum[:], 100_000/len(sum))
}

// of returns a Spec of a repository with a key of its own.
func of(repository, name string) *packsource.Spec {
	return &packsource.Spec{Repo: packsource.Repository{Incarnation: repository}, Filter: name}
}

// borrow borrows the pack of s, and compares both files.
func borrow(t *testing.T, c *Cache, s *packsource.Spec, src *fakeSource) *packsource.Borrowed {
	t.Helper()
	b, err := c.Borrow(s.Key())
	if err != nil {
		t.Fatalf("Borrow(%s) = %v, want a pack", s.Filter, err)
	}
	pack, err := io.ReadAll(b.Pack)
	index, err2 := io.ReadAll(b.Index)
	if err := errors.Join(err, err2); err != nil || int64(len(pack)) != b.Size ||
		!bytes.Equal(pack, framed(s, src.size, src.block)) || !bytes.Equal(index, indexOf(s)) {
		t.Errorf("Borrow(%s): %d and %d bytes (%v), want the pack and its index", s.Filter, len(pack), len(index), err)
	}
	return b
}

func wantNotFound(t *testing.T, c *Cache, s *packsource.Spec) {
	t.Helper()
	b, err := c.Borrow(s.Key())
	if err == nil {
		b.Close()
	}
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("Borrow(%s) = %v, want NotFound", s.Filter, err)
	}
}

// fill makes the packs of specs, one after the other.
func (c *Cache) fillWith(t *testing.T, src *fakeSource, specs ...*packsource.Spec) {
	t.Helper()
	for _, s := range specs {
		fetch(t, c, s, src)
		c.settled(t)
	}
}

func TestLibrary(t *testing.T) {
	t.Parallel()
	dir, src := t.TempDir(), indexed(200_000)
	c := newCache(t, src, Options{Dir: dir})
	a, b, other := of("one", "a"), of("one", "b"), of("two", "a")
	c.fillWith(t, src, a, b, other)
	plain := of("one", "plain")
	src.index = nil
	c.fillWith(t, src, plain)
	check := func(c *Cache, packs []packsource.Key) {
		t.Helper()
		if got := c.Packs("one"); !slices.Equal(got, packs) {
			t.Errorf("Packs = %v, want %v", got, packs)
		}
		for _, s := range []*packsource.Spec{a, b, other} {
			lent := borrow(t, c, s, src)
			lent.Close()
			lent.Close()
		}
		wantNotFound(t, c, plain)
		wantNotFound(t, c, of("one", "unknown"))
	}
	check(c, []packsource.Key{b.Key(), a.Key()})
	if n := c.counts().indexBytes; n != 3*102_400 {
		t.Errorf("%v bytes of indexes, want %v", n, 3*102_400)
	}
	c.Close()
	c.checkAtRest(t)
	if _, err := c.Borrow(a.Key()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Borrow after Close = %v, want Unavailable", err)
	}

	c = newCache(t, src, Options{Dir: dir})
	if got := c.Packs("one"); len(got) != 2 {
		t.Errorf("after a restart: Packs = %v, want 2 keys", got)
	}
	check(c, c.Packs("one"))
	for _, s := range []*packsource.Spec{plain, a} {
		if info := fetch(t, c, s, src); info.Result != packsource.Hit {
			t.Errorf("%s: %v, want %v", s.Filter, info.Result, packsource.Hit)
		}
	}
	if n := metric(c.m.verified.WithLabelValues("ok")); n != 2 {
		t.Errorf("%v entries verified, want 2", n)
	}
	c.DropAll()
	if got := c.Packs("one"); len(got) != 0 || c.counts().indexBytes != 0 {
		t.Errorf("after DropAll: Packs = %v and %v bytes of indexes, want none", got, c.counts().indexBytes)
	}
}

// The readers of a fill have the end of the pack before its index is written.
func TestReadersDoNotWaitForIndex(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	src := indexed(100_000)
	write := src.index
	src.index = func(s *packsource.Spec, w io.Writer) error { <-gate; return write(s, w) }
	c := newCache(t, src, Options{})
	if info := fetch(t, c, of("one", "a"), src); info.Result != packsource.Miss {
		t.Errorf("%v, want %v", info.Result, packsource.Miss)
	}
	if info := fetch(t, c, of("one", "a"), src); info.Result != packsource.Hit {
		t.Errorf("second reader: %v, want %v", info.Result, packsource.Hit)
	}
	wantNotFound(t, c, of("one", "a"))
	close(gate)
	c.settled(t)
	borrow(t, c, of("one", "a"), src).Close()
}

// An index that cannot be written leaves an entry without one.
func TestIndexFails(t *testing.T) {
	t.Parallel()
	half := func(s *packsource.Spec, w io.Writer) error {
		w.Write(indexOf(s))
		return errors.New("half an index")
	}
	none := func(*system) {}
	for name, x := range map[string]struct {
		index  func(s *packsource.Spec, w io.Writer) error
		budget int64
		system func(s *system)
	}{
		"source":   {index: half, system: none},
		"panic":    {index: func(*packsource.Spec, io.Writer) error { panic("a bug") }, system: none},
		"panic 2":  {index: func(s *packsource.Spec, w io.Writer) error { half(s, w); panic("a bug") }, system: none},
		"budget":   {budget: 200_000, system: none},
		"create":   {system: func(s *system) { s.create = failing(s.create, syscall.EMFILE) }},
		"no space": {system: fullAfter(150_000, syscall.ENOSPC)},
		"damage":   {system: fullAfter(150_000, syscall.EIO)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := indexed(120_000)
			if x.index != nil {
				src.index = x.index
			}
			c := newCache(t, src, Options{MaxBytes: x.budget}, x.system)
			s := of("one", "a")
			c.fillWith(t, src, s)
			wantNotFound(t, c, s)
			if _, err := os.Stat(c.path(s.Key(), indexExt)); !os.IsNotExist(err) {
				t.Errorf("the index: %v, want no file", err)
			}
			if got := c.Packs("one"); len(got) != 0 {
				t.Errorf("Packs = %v, want none", got)
			}
			if info := fetch(t, c, s, src); info.Result != packsource.Hit {
				t.Errorf("%v, want %v", info.Result, packsource.Hit)
			}
		})
	}
}

// failing makes the creation of indexes fail.
func failing(create func(string) (*os.File, error), errno error) func(string) (*os.File, error) {
	return func(path string) (*os.File, error) {
		if filepath.Ext(path) == indexExt {
			return nil, &os.PathError{Op: "open", Path: path, Err: errno}
		}
		return create(path)
	}
}

// fullAfter makes the writes of indexes fail after limit bytes on the disk.
func fullAfter(limit int64, errno error) func(s *system) {
	disk := &fullDisk{err: errno}
	disk.limit.Store(limit)
	return func(s *system) {
		write := s.write
		disk.system(s)
		limited := s.write
		s.write = func(f *os.File, p []byte, off int64) (int, error) {
			if filepath.Ext(f.Name()) == metaExt {
				return write(f, p, off)
			}
			return limited(f, p, off)
		}
	}
}

// A rename that fails leaves neither an index nor an entry.
func TestIndexWithoutRename(t *testing.T) {
	t.Parallel()
	src := indexed(100_000)
	c := newCache(t, src, Options{}, func(s *system) {
		s.rename = func(from, to string) error { return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EIO} }
	})
	c.fillWith(t, src, of("one", "a"))
	wantNotFound(t, c, of("one", "a"))
}

// The states of the directory that a crash or another program can leave. None of them is trusted wrongly.
func TestRestartWithIndex(t *testing.T) {
	t.Parallel()
	remove := func(exts ...string) func(path func(ext string) string) error {
		return func(path func(ext string) string) (err error) {
			for _, ext := range exts {
				err = errors.Join(err, os.Remove(path(ext)))
			}
			return err
		}
	}
	type paths = func(ext string) string
	directory := func(p paths) error { return errors.Join(os.Remove(p(indexExt)), os.Mkdir(p(indexExt), 0o700)) }
	for name, x := range map[string]struct {
		damage   func(path paths) error
		borrowed bool // the index is usable
		hit      bool // the pack is usable
		index    bool // the index is still there before it is verified
	}{
		"intact":                    {func(paths) error { return nil }, true, true, true},
		"index only":                {remove(dataExt, metaExt), false, false, false},
		"index and sidecar":         {remove(dataExt), false, false, false},
		"index and data":            {remove(metaExt), false, false, false},
		"index cut":                 {func(p paths) error { return os.Truncate(p(indexExt), 50_000) }, false, false, true},
		"index longer":              {func(p paths) error { return os.Truncate(p(indexExt), 200_000) }, false, false, true},
		"index empty":               {func(p paths) error { return os.Truncate(p(indexExt), 0) }, false, false, true},
		"bit in index":              {func(p paths) error { return flip(p(indexExt), 77_777) }, false, false, true},
		"data cut":                  {func(p paths) error { return os.Truncate(p(dataExt), 50_000) }, false, false, true},
		"bit in index's checksum":   {func(p paths) error { return flip(p(metaExt), 185) }, false, false, true},
		"no index":                  {remove(indexExt), false, false, false},
		"index is a directory":      {directory, false, false, true},
		"sidecar without the index": {func(p paths) error { return withoutIndex(p(metaExt)) }, false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, first := range []string{"borrow", "open"} {
				dir, src, s := t.TempDir(), indexed(100_000), of("one", "a")
				c := newCache(t, src, Options{Dir: dir})
				c.fillWith(t, src, s)
				c.Close()
				c.checkAtRest(t)
				if err := x.damage(func(ext string) string { return c.path(s.Key(), ext) }); err != nil {
					t.Fatal(err)
				}
				c = newCache(t, src, Options{Dir: dir})
				if _, err := os.Lstat(c.path(s.Key(), indexExt)); (err == nil) != x.index {
					t.Errorf("the index after the start: %v, want it there: %v", err, x.index)
				}
				if first == "borrow" && x.borrowed {
					borrow(t, c, s, src).Close()
				} else if first == "borrow" {
					wantNotFound(t, c, s)
				}
				want := packsource.Miss
				if x.hit {
					want = packsource.Hit
				}
				if info := fetch(t, c, s, src); info.Result != want {
					t.Errorf("%v, want %v", info.Result, want)
				}
				c.settled(t)
				if x.borrowed || !x.hit { // made again
					borrow(t, c, s, src).Close()
				} else {
					wantNotFound(t, c, s)
				}
				c.Close()
				c.checkAtRest(t)
			}
		})
	}
}

func flip(path string, off int64) error {
	b, err := os.ReadFile(path)
	if err == nil {
		b[off] ^= 1
		err = os.WriteFile(path, b, 0o600)
	}
	return err
}

// A pack of an earlier run is lent by its index alone. A request reads it completely, and finds the damage.
func TestBorrowUnverified(t *testing.T) {
	t.Parallel()
	dir, src, s := t.TempDir(), indexed(100_000), of("one", "a")
	c := newCache(t, src, Options{Dir: dir})
	c.fillWith(t, src, s)
	c.Close()
	c.checkAtRest(t)
	if err := flip(c.path(s.Key(), dataExt), 77_777); err != nil {
		t.Fatal(err)
	}
	c = newCache(t, src, Options{Dir: dir})
	b, err := c.Borrow(s.Key())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if index, err := io.ReadAll(b.Index); err != nil || !bytes.Equal(index, indexOf(s)) {
		t.Errorf("the index: %d bytes, %v, want all", len(index), err)
	}
	if n := metric(c.m.verified.WithLabelValues("ok")) + metric(c.m.verified.WithLabelValues("bad")); n != 0 {
		t.Errorf("%v packs verified, want 0", n)
	}
	if info := fetch(t, c, s, src); info.Result != packsource.Miss {
		t.Errorf("%v, want %v", info.Result, packsource.Miss)
	}
	c.settled(t)
	borrow(t, c, s, src).Close()
}

// withoutIndex replaces a sidecar by that of the same pack without an index, as an older version writes it.
func withoutIndex(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	key, _ := packsource.ParseKey(strings.TrimSuffix(filepath.Base(path), metaExt))
	s, err := parseSidecar(b, key)
	if err != nil {
		return err
	}
	s.IndexLength = 0
	return os.WriteFile(path, s.encode(), 0o600)
}

// A crash while a key is filled again may leave the files of two fills. Only those that belong together are trusted.
func TestFilesOfTwoFills(t *testing.T) {
	t.Parallel()
	exts := []string{dataExt, metaExt, indexExt}
	for mask := range 1 << len(exts) {
		dir, s := t.TempDir(), of("one", "a")
		old, src := indexed(100_000), indexed(100_000)
		old.block = 1000 // other bytes
		old.index = func(s *packsource.Spec, w io.Writer) error {
			_, err := w.Write(bytes.ToUpper(indexOf(s)))
			return err
		}
		oldDir := t.TempDir()
		c := newCache(t, old, Options{Dir: oldDir})
		c.fillWith(t, old, s)
		c.Close()
		d := newCache(t, src, Options{Dir: dir})
		d.fillWith(t, src, s)
		d.Close()
		for i, ext := range exts {
			if mask&(1<<i) != 0 {
				if err := os.Rename(c.path(s.Key(), ext), d.path(s.Key(), ext)); err != nil {
					t.Fatal(err)
				}
			}
		}
		d = newCache(t, src, Options{Dir: dir})
		switch mask {
		case 0:
			borrow(t, d, s, src).Close()
		case 1<<len(exts) - 1:
			b, err := d.Borrow(s.Key())
			if err != nil {
				t.Errorf("all files of the old fill: %v", err)
			} else {
				b.Close()
			}
			d.DropAll()
		default:
			wantNotFound(t, d, s)
		}
		d.Close()
		d.checkAtRest(t)
	}
}

// An index or a pack that another program changes while the server runs is not lent.
func TestBorrowChanged(t *testing.T) {
	t.Parallel()
	for _, ext := range []string{dataExt, indexExt} {
		for name, change := range map[string]func(path string) error{
			"cut":      func(path string) error { return os.Truncate(path, 5000) },
			"removed":  os.Remove,
			"replaced": func(path string) error { return os.WriteFile(path, make([]byte, 99_968), 0o600) },
		} {
			src, s := indexed(100_000), of("one", "a")
			c := newCache(t, src, Options{})
			c.fillWith(t, src, s)
			if err := change(c.path(s.Key(), ext)); err != nil {
				t.Fatal(err)
			}
			wantNotFound(t, c, s)
			if n := metric(c.m.evictions.WithLabelValues(evictCorrupt)); n != 1 {
				t.Errorf("%s of %s: %v entries removed, want 1", name, ext, n)
			}
			c.fillWith(t, src, s)
			borrow(t, c, s, src).Close()
			later := time.Now().Add(time.Minute) // the same bytes
			if err := os.Chtimes(c.path(s.Key(), ext), later, later); err != nil {
				t.Fatal(err)
			}
			borrow(t, c, s, src).Close()
		}
	}
}

// Without a free descriptor, the entry stays.
func TestBorrowWithoutDescriptor(t *testing.T) {
	t.Parallel()
	var broken bool
	src, s := indexed(100_000), of("one", "a")
	c := newCache(t, src, Options{}, func(sys *system) {
		sys.open = func(path string) (*os.File, error) {
			if broken && filepath.Ext(path) == indexExt {
				return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EMFILE}
			}
			return os.Open(path)
		}
	})
	c.fillWith(t, src, s)
	broken = true
	if _, err := c.Borrow(s.Key()); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("Borrow = %v, want EMFILE", err)
	}
	c.distrust(c.index.entries[s.Key()])
	if _, err := c.Borrow(s.Key()); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("Borrow of an unverified entry = %v, want EMFILE", err)
	}
	broken = false
	borrow(t, c, s, src).Close()
}

// A borrowed entry stays, whatever else needs room. Borrowing does not delay the end of an idle entry.
func TestBorrowedStays(t *testing.T) {
	t.Parallel()
	clock, src := newClock(), indexed(100_000)
	c := newCache(t, src, Options{MaxBytes: 700_000, Now: clock.now})
	base := of("one", "base")
	c.fillWith(t, src, base, base)
	b := borrow(t, c, base, src)
	if n := c.counts().borrowed; n != 1 {
		t.Errorf("%v borrowed entries, want 1", n)
	}
	for i := range 10 { // each of them twice: they are younger in the order of eviction
		c.fillWith(t, src, of("one", fmt.Sprint(i)), of("one", fmt.Sprint(i)))
	}
	clock.add(time.Hour)
	c.sweep()
	if got := c.Packs("one"); !slices.Equal(got, []packsource.Key{base.Key()}) {
		t.Errorf("Packs = %v, want the borrowed one", got)
	}
	borrow(t, c, base, src).Close()
	b.Close()
	c.sweep()
	if got := c.Packs("one"); len(got) != 0 || c.counts().borrowed != 0 {
		t.Errorf("Packs = %v, %v borrowed entries, want none", got, c.counts().borrowed)
	}
}

// Borrowing does not change the order of eviction.
func TestBorrowIsNoRequest(t *testing.T) {
	t.Parallel()
	clock, src := newClock(), indexed(100_000)
	c := newCache(t, src, Options{MaxBytes: 700_000, Now: clock.now})
	first, second := of("one", "first"), of("one", "second")
	c.fillWith(t, src, first, first, second, second)
	borrow(t, c, first, src).Close()
	c.fillWith(t, src, of("one", "third"), of("one", "third"), of("one", "fourth"))
	if c.Has(first.Key()) || !c.Has(second.Key()) {
		t.Errorf("first %v, second %v, want only the second", c.Has(first.Key()), c.Has(second.Key()))
	}
}

// Drop removes a borrowed entry. The borrower can read on.
func TestDropBorrowed(t *testing.T) {
	t.Parallel()
	src, s := indexed(100_000), of("one", "a")
	c := newCache(t, src, Options{})
	c.fillWith(t, src, s)
	b, err := c.Borrow(s.Key())
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Drop("one", Damaged); d.Entries != 1 {
		t.Errorf("dropped %+v, want 1 entry", d)
	}
	wantNotFound(t, c, s)
	if c.counts().borrowed != 0 || metric(c.m.bytes) < 200_000 {
		t.Errorf("%v borrowed entries, %v bytes, want 0 and the space of the file that is read", c.counts().borrowed,
			metric(c.m.bytes))
	}
	if index, err := io.ReadAll(b.Index); err != nil || !bytes.Equal(index, indexOf(s)) {
		t.Errorf("the open index: %d bytes, %v, want all", len(index), err)
	}
	b.Close()
	if metric(c.m.bytes) != 0 {
		t.Errorf("%v bytes, want 0", metric(c.m.bytes))
	}
}

// Borrowers and requests under a small budget, while a repository is dropped again and again.
func TestBorrowUnderLoad(t *testing.T) {
	t.Parallel()
	src := indexed(60_000)
	c := newCache(t, src, Options{MaxBytes: 900_000})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 60 {
				s := of("one", fmt.Sprint((i*7+w*3)%9))
				if w == 0 && i%10 == 0 {
					c.Drop("one", Requested)
				}
				if w%2 == 0 {
					fetch(t, c, s, src)
					continue
				}
				for _, key := range c.Packs("one") {
					b, err := c.Borrow(key)
					if fault.Is(err, fault.NotFound) {
						continue
					}
					if err != nil {
						t.Errorf("Borrow = %v", err)
						return
					}
					if n, err := io.Copy(io.Discard, b.Pack); n != b.Size || err != nil {
						t.Errorf("borrowed %d bytes, %v, want %d", n, err, b.Size)
					}
					b.Close()
				}
			}
		})
	}
	wg.Wait()
	c.settled(t)
	gittest.WaitFor(t, "the budget is kept", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.index.bytes+c.filling+c.index.zombies <= c.max
	})
}
