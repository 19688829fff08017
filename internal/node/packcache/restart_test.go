package packcache

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

func TestRestart(t *testing.T) {
	t.Parallel()
	flip := func(path string, off int64) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if off < 0 {
			off += int64(len(b))
		}
		b[off] ^= 1
		return os.WriteFile(path, b, 0o600)
	}
	type files struct{ data, meta, other, otherMeta string }
	for name, x := range map[string]struct {
		damage func(f files) error
		want   packsource.Result
		bad    float64
	}{
		"intact":          {func(files) error { return nil }, packsource.Hit, 0},
		"cut":             {func(f files) error { return os.Truncate(f.data, 70_000) }, packsource.Miss, 1},
		"empty":           {func(f files) error { return os.Truncate(f.data, 0) }, packsource.Miss, 1},
		"longer":          {func(f files) error { return os.Truncate(f.data, 400_000) }, packsource.Miss, 1},
		"bit at start":    {func(f files) error { return flip(f.data, 10) }, packsource.Miss, 1},
		"bit at end":      {func(f files) error { return flip(f.data, -1) }, packsource.Miss, 1},
		"bit in sidecar":  {func(f files) error { return flip(f.meta, 60) }, packsource.Miss, 1},
		"bit in sum":      {func(f files) error { return flip(f.meta, -2) }, packsource.Miss, 1},
		"empty sidecar":   {func(f files) error { return os.Truncate(f.meta, 0) }, packsource.Miss, 1},
		"no sidecar":      {func(f files) error { return os.Remove(f.meta) }, packsource.Miss, 0},
		"no data":         {func(f files) error { return os.Remove(f.data) }, packsource.Miss, 0},
		"other's sidecar": {func(f files) error { return os.Rename(f.otherMeta, f.meta) }, packsource.Miss, 1},
		"other's entry": {func(f files) error { return replace(f.other, f.data, f.otherMeta, f.meta) }, packsource.Miss,
			1},
		"a directory": {func(f files) error { os.Remove(f.data); return os.Mkdir(f.data, 0o700) }, packsource.Miss, 0},
		"unreadable data": {func(f files) error { os.Remove(f.data); return os.Symlink("nowhere", f.data) }, packsource.Miss,
			0},
		"sidecar is a dir": {func(f files) error { os.Remove(f.meta); return os.Mkdir(f.meta, 0o700) }, packsource.Miss, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			src := &fakeSource{size: 200_000}
			c := newCache(t, src, Options{Dir: dir})
			for _, s := range []string{"a", "b"} {
				fetch(t, c, spec(s), src)
			}
			c.settled(t)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			c.checkAtRest(t)
			a, b := spec("a").Key(), spec("b").Key()
			if err := x.damage(files{c.path(a, dataExt), c.path(a, metaExt), c.path(b, dataExt),
				c.path(b, metaExt)}); err != nil {
				t.Fatal(err)
			}
			temp := filepath.Join(dir, tempName, fillPrefix+"17")
			if err := os.WriteFile(temp, []byte("half a pack"), 0o600); err != nil {
				t.Fatal(err)
			}
			foreign := filepath.Join(filepath.Dir(c.path(a, dataExt)), "notes.txt")
			if err := os.WriteFile(foreign, nil, 0o600); err != nil {
				t.Fatal(err)
			}

			d := newCache(t, src, Options{Dir: dir})
			if _, err := os.Stat(temp); !os.IsNotExist(err) {
				t.Errorf("a fill of the last run: %v", err)
			}
			if _, err := os.Stat(foreign); err != nil {
				t.Errorf("somebody else's file: %v", err)
			}
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					p, err := d.Open(t.Context(), spec("a"))
					if err != nil {
						t.Error(err)
						return
					}
					info := finish(t, p, spec("a"), src)
					if x.want == packsource.Hit && info.Result != packsource.Hit {
						t.Errorf("got %v", info.Result)
					}
				})
			}
			wg.Wait()
			want := int64(2)
			if x.want == packsource.Miss {
				want++
			}
			if n := src.opens.Load(); n != want {
				t.Errorf("inner opened %d times in all, want %d", n, want)
			}
			if n := metric(d.m.verified.WithLabelValues("bad")); n != x.bad {
				t.Errorf("%v bad entries, want %v", n, x.bad)
			}
			if n := metric(d.m.verified.WithLabelValues("ok")); n != 1-min(1, float64(want-2)) {
				t.Errorf("%v good entries", n)
			}
			d.settled(t)
			if info := fetch(t, d, spec("a"), src); info.Result != packsource.Hit {
				t.Errorf("in the end: %v, want %v", info.Result, packsource.Hit)
			}
		})
	}
}

// TestOtherVersion starts with entries of earlier versions, whose packs some clients cannot read.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := &fakeSource{size: 10_000}
	c := newCache(t, src, Options{Dir: dir})
	for _, s := range []string{"a", "b", "c"} {
		fetch(t, c, spec(s), src)
	}
	c.settled(t)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for s, version := range map[string]string{"a": "2", "b": "3"} {
		meta := c.path(spec(s).Key(), metaExt)
		old, err := os.ReadFile(meta)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(meta, bytes.Replace(old, []byte(sidecarVersion), []byte(versionPrefix+version), 1),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(c.path(spec("b").Key(), indexExt), []byte("index"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newCache(t, src, Options{Dir: dir})
	for _, s := range []string{"a", "b"} {
		for _, ext := range []string{dataExt, metaExt, indexExt} {
			if _, err := os.Stat(d.path(spec(s).Key(), ext)); !os.IsNotExist(err) {
				t.Errorf("%s%s: %v, want no file", s, ext, err)
			}
		}
		if info := fetch(t, d, spec(s), src); info.Result != packsource.Miss {
			t.Errorf("%s: %v, want %v", s, info.Result, packsource.Miss)
		}
	}
	if info := fetch(t, d, spec("c"), src); info.Result != packsource.Hit {
		t.Errorf("the entry of this version: %v, want %v", info.Result, packsource.Hit)
	}
	if n := metric(d.m.verified.WithLabelValues("bad")); n != 0 {
		t.Errorf("%v bad entries, want none", n)
	}
}

// Errors of the verification that are not due to the entry do not remove it. The pack is made without the cache.
func TestVerifyLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := &fakeSource{size: 100_000}
	c := newCache(t, src, Options{Dir: dir})
	fetch(t, c, spec("a"), src)
	c.settled(t)
	c.Close()
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		for _, ext := range []string{metaExt, dataExt} {
			var healed atomic.Bool
			d := newCache(t, src, Options{Dir: dir}, func(s *system) {
				s.open = func(path string) (*os.File, error) {
					if !healed.Load() && strings.HasSuffix(path, ext) {
						return nil, &os.PathError{Op: "open", Path: path, Err: errno}
					}
					return os.Open(path)
				}
			})
			for range 2 {
				if info := fetch(t, d, spec("a"), src); info.Result != packsource.Uncached {
					t.Errorf("%v at %s: %v, want %v", errno, ext, info.Result, packsource.Uncached)
				}
			}
			healed.Store(true)
			if info := fetch(t, d, spec("a"), src); info.Result != packsource.Hit {
				t.Errorf("%v at %s, afterwards: %v, want %v", errno, ext, info.Result, packsource.Hit)
			}
			busy, bad := metric(d.m.verified.WithLabelValues("busy")), metric(d.m.verified.WithLabelValues("bad"))
			if busy != 2 || bad != 0 {
				t.Errorf("%v busy, %v bad, want 2, 0", busy, bad)
			}
			d.Close()
			d.checkAtRest(t)
		}
	}
}

// A panic while an entry is verified costs the entry, not the server.
func TestPanicInVerify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := &fakeSource{size: 1000}
	c := newCache(t, src, Options{Dir: dir})
	fetch(t, c, spec("a"), src)
	c.settled(t)
	c.Close()
	var once sync.Once
	var log syncBuffer
	d := newCache(t, src, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))}, func(s *system) {
		s.open = func(path string) (*os.File, error) {
			if strings.HasSuffix(path, dataExt) {
				once.Do(func() { panic("a strange disk") })
			}
			return os.Open(path)
		}
	})
	if info := fetch(t, d, spec("a"), src); info.Result != packsource.Miss {
		t.Errorf("got %v, want %v", info.Result, packsource.Miss)
	}
	if !strings.Contains(log.String(), "a strange disk") {
		t.Errorf("log: %s", log.String())
	}
	d.settled(t)
	if info := fetch(t, d, spec("a"), src); info.Result != packsource.Hit {
		t.Errorf("afterwards: %v, want %v", info.Result, packsource.Hit)
	}
}

func replace(pairs ...string) error {
	for ; len(pairs) > 0; pairs = pairs[2:] {
		if err := os.Rename(pairs[0], pairs[1]); err != nil {
			return err
		}
	}
	return nil
}

// The order of use survives a graceful restart.
func TestRestartKeepsOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	clock := newClock()
	src := &fakeSource{size: 100_000}
	c := newCache(t, src, Options{Dir: dir, Now: clock.now})
	for _, s := range []string{"a", "b", "c", "a"} {
		fetch(t, c, spec(s), src)
		c.settled(t)
		clock.add(time.Second)
	}
	c.Close()
	c.checkAtRest(t)
	d := newCache(t, src, Options{Dir: dir, Now: clock.now, MaxBytes: 220_000})
	for s, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if _, ok := d.index.entries[spec(s).Key()]; ok != want {
			t.Errorf("%s is there: %v, want %v", s, ok, want)
		}
	}
	clock.add(DefaultMaxIdle)
	d.sweep()
	if len(d.index.entries) != 0 {
		t.Error("entries of the last run were not evicted, want evictions")
	}
}

func TestOneProcessOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := &fakeSource{size: 1000}
	c := newCache(t, src, Options{Dir: dir})
	fetch(t, c, spec("a"), src)
	_, err := Open(src, Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("second Open: %v", err)
	}
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Hit {
		t.Errorf("the first one: %v, want %v", info.Result, packsource.Hit)
	}
	c.Close()
	newCache(t, src, Options{Dir: dir})
}

// The defaults work on a real file system.
func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := Open(&fakeSource{}, Options{Dir: filepath.Join(t.TempDir(), "deep", "er")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.max <= 0 || c.max > 10<<30 || c.low <= 0 || c.low > 5<<30 || c.index.maxIdle != DefaultMaxIdle {
		t.Errorf("budget %d, floor %d", c.max, c.low)
	}
	if st, err := os.Stat(c.dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v", err)
	}
}

func FuzzParseSidecar(f *testing.F) {
	key := spec("a").Key()
	good := (&sidecar{Key: key.String(), Repository: "8:1:\"17\"", Length: 12345, Objects: 42, CRC: 0xdeadbeef}).encode()
	f.Add(good)
	f.Add((&sidecar{}).encode())
	f.Add(bytes.Replace(good, []byte("12345"), []byte("+12345"), 1))
	f.Add(bytes.ToUpper(good))
	f.Add([]byte(sidecarVersion + "\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSidecar(b, key)
		if err == nil && !bytes.Equal(s.encode(), b) {
			t.Errorf("%q parses to %+v, which is %q", b, s, s.encode())
		}
	})
	if s, err := parseSidecar(good, key); err != nil || s.Length != 12345 || s.Objects != 42 || s.CRC != 0xdeadbeef {
		f.Errorf("%+v, %v", s, err)
	}
}
