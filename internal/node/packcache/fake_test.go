package packcache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSource is an inner Source under the test's control. Without any hook it makes packs of size bytes at once.
type fakeSource struct {
	size  int           // payload bytes of each pack
	block int           // payload bytes of each packet; 0: the most
	batch int           // packets in each Write; 0: 1
	opens atomic.Int64  // calls of Open
	open  func() error  // called in Open
	gate  chan struct{} // each Write waits for a token, unless nil or closed
	after func(written int64, out packsource.Output) error
	ended chan error                                  // gets the result of each Send, unless nil
	index func(s *packsource.Spec, w io.Writer) error // WriteIndex; nil: the packs have no index
}

func (s *fakeSource) Open(ctx context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	s.opens.Add(1)
	if s.open != nil {
		if err := s.open(); err != nil {
			return nil, err
		}
	}
	return &fakePack{s: s, spec: spec, want: framed(spec, s.size, s.block)}, nil
}

type fakePack struct {
	s    *fakeSource
	spec *packsource.Spec
	want []byte
	sent int64
}

func (p *fakePack) Size() int64 { return -1 }
func (p *fakePack) Info() packsource.Info {
	return packsource.Info{Result: packsource.Uncached, Bytes: p.sent, Objects: 7, Wait: time.Millisecond,
		Made: packsource.Made{Source: packsource.SourceGit}}
}
func (p *fakePack) Close() error { return nil }

func (p *fakePack) WriteIndex(w io.Writer) error {
	if p.s.index == nil {
		return nil
	}
	return p.s.index(p.spec, w)
}

func (p *fakePack) Send(ctx context.Context, out packsource.Output) (err error) {
	if p.s.ended != nil {
		defer func() { p.s.ended <- err }()
	}
	rest := p.want
	for len(rest) > 0 {
		if p.s.gate != nil {
			select {
			case <-p.s.gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n := 0
		for range max(1, p.s.batch) {
			if n < len(rest) {
				k, _ := pktline.ParseLength(rest[n:])
				n += k
			}
		}
		if _, err := out.Write(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
		p.sent += int64(n)
		if p.s.after != nil {
			if err := p.s.after(p.sent, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// spec returns a Spec with a key of its own.
func spec(name string) *packsource.Spec {
	return &packsource.Spec{Repo: packsource.Repository{Incarnation: name}}
}

// framed is the pack that a fakeSource makes of a Spec.
func framed(s *packsource.Spec, size, block int) []byte {
	rng := rand.NewChaCha8(s.Key())
	data := make([]byte, size)
	rng.Read(data)
	if block == 0 {
		return pktline.AppendBand(nil, pktline.BandData, data)
	}
	var out []byte
	for len(data) > 0 {
		n := min(block, len(data))
		out = pktline.AppendBand(out, pktline.BandData, data[:n])
		data = data[n:]
	}
	return out
}

// output collects a pack.
type output struct {
	data     bytes.Buffer
	progress bytes.Buffer
	silence  time.Duration
	alive    int
	onWrite  func() error // before each Write
	onAlive  func()
}

func (o *output) Write(p []byte) (int, error) {
	if o.onWrite != nil {
		if err := o.onWrite(); err != nil {
			return 0, err
		}
	}
	if n, err := wholeFrames(p); err != nil || n != len(p) {
		return 0, errors.New("a Write that is not whole packets")
	}
	return o.data.Write(p)
}

func (o *output) Progress(text []byte) error    { o.progress.Write(text); return nil }
func (o *output) KeepAliveAfter() time.Duration { return o.silence }

func (o *output) KeepAlive() error {
	o.alive++
	if o.onAlive != nil {
		o.onAlive()
	}
	return nil
}

// extentOutput takes files by ReadFrom.
type extentOutput struct {
	output
	sections int
}

func (o *extentOutput) ReadFrom(r io.Reader) (int64, error) {
	if _, ok := r.(*bulk.Section); !ok {
		return 0, errors.New("not a section")
	}
	o.sections++
	before := o.data.Len()
	n, err := o.data.ReadFrom(r)
	if err == nil {
		if k, ferr := wholeFrames(o.data.Bytes()[before:]); ferr != nil || k != int(n) {
			err = errors.New("a section that is not whole packets")
		}
	}
	return n, err
}

// clock is a time that tests set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Unix(1_700_000_000, 0)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	c.t = c.t.Add(d)
	c.mu.Unlock()
}

// newCache opens a cache for one test. At the end of the test it checks that nothing is left over.
func newCache(t testing.TB, inner packsource.Source, o Options, change ...func(*system)) *Cache {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 30
	}
	if o.MinFree == 0 {
		o.MinFree = -1
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	sys := realSystem()
	for _, f := range change {
		f(&sys)
	}
	c, err := open(inner, o, sys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.closed {
			return // the test closed it, and another cache may use the directory now
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		c.checkAtRest(t)
	})
	return c
}

// checkAtRest compares the cache's records with the directory. The cache must be idle.
func (c *Cache) checkAtRest(t testing.TB) {
	t.Helper()
	if len(c.fills) != 0 || c.filling != 0 || len(c.unlinking) != 0 || c.index.zombies != 0 {
		t.Errorf("at rest: %d fills, %d bytes in fills, %d names, %d bytes of zombies, want 0, 0, 0, 0",
			len(c.fills), c.filling, len(c.unlinking), c.index.zombies)
	}
	var cost int64
	indexed := 0
	for _, e := range c.index.entries {
		if cost += e.cost; e.indexSize > 0 {
			indexed++
		}
		if e.refs != 0 {
			t.Errorf("at rest: entry %v has %d readers, want 0", e.key, e.refs)
		}
	}
	if cost != c.index.bytes {
		t.Errorf("at rest: %d bytes counted, want %d as the entries have", c.index.bytes, cost)
	}
	if c.index.pinned != 0 {
		t.Errorf("at rest: %d bytes borrowed, want 0", c.index.pinned)
	}
	if n := metric(c.m.bytes); n != float64(c.index.bytes) {
		t.Errorf("at rest: bytes metric %v, counted %d", n, c.index.bytes)
	}
	files, indexes := 0, 0
	filepath.WalkDir(c.dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			t.Error(err)
		case strings.HasSuffix(path, dataExt):
			files++
		case strings.HasSuffix(path, indexExt):
			indexes++
		case filepath.Base(filepath.Dir(path)) == tempName:
			t.Errorf("at rest: left over %s", path)
		}
		return nil
	})
	if files != len(c.index.entries) || indexes != indexed {
		t.Errorf("at rest: %d data files, %d indexes, want %d, %d", files, indexes, len(c.index.entries), indexed)
	}
}

// fetch opens and sends a pack, and compares it with the fake's pack.
func fetch(t testing.TB, c *Cache, s *packsource.Spec, src *fakeSource) packsource.Info {
	t.Helper()
	p, err := c.Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return finish(t, p, s, src)
}

func finish(t testing.TB, p packsource.Pack, s *packsource.Spec, src *fakeSource) packsource.Info {
	t.Helper()
	info, err := receive(t.Context(), p, s, src)
	if err != nil {
		t.Error(err)
	}
	return info
}

// receive sends p, closes it, and compares.
func receive(ctx context.Context, p packsource.Pack, s *packsource.Spec, src *fakeSource) (packsource.Info, error) {
	var out output
	size := p.Size()
	err := p.Send(ctx, &out)
	info := p.Info()
	if cerr := p.Close(); err == nil {
		err = cerr
	}
	want := framed(s, src.size, src.block)
	switch {
	case err != nil:
	case !bytes.Equal(out.data.Bytes(), want):
		err = errors.New("another pack than the source made")
	case info.Bytes != int64(len(want)) || size >= 0 && size != int64(len(want)):
		err = errors.New("wrong size")
	case info.Objects != 7:
		err = errors.New("wrong object count")
	}
	return info, err
}

// settled waits until no fill is registered.
func (c *Cache) settled(t testing.TB) {
	t.Helper()
	gittest.WaitFor(t, "fills end", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.fills) == 0 && c.filling == 0
	})
}

// counts is a copy of the index's counts.
func (c *Cache) counts() (n struct{ entries, borrowed, indexBytes int64 }) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.entries = int64(len(c.index.entries))
	for _, e := range c.index.entries {
		n.indexBytes += blocks(e.indexSize)
		n.borrowed += int64(min(e.pins, 1))
	}
	return n
}

// metric is the value of a counter or gauge.
func metric(m prometheus.Metric) float64 {
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		panic(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}

// panickingSource panics at a given point.
type panickingSource struct {
	fakeSource
	mu    sync.Mutex
	where string
}

func (s *panickingSource) set(where string) {
	s.mu.Lock()
	s.where = where
	s.mu.Unlock()
}

func (s *panickingSource) at(where string) {
	s.mu.Lock()
	here := s.where == where
	s.mu.Unlock()
	if here {
		panic("panickingSource: " + where)
	}
}

func (s *panickingSource) Open(ctx context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	s.at("open")
	p, err := s.fakeSource.Open(ctx, spec)
	return panickingPack{p, s}, err
}

type panickingPack struct {
	packsource.Pack
	s *panickingSource
}

func (p panickingPack) Info() packsource.Info { p.s.at("info"); return p.Pack.Info() }
func (p panickingPack) Close() error          { p.s.at("close"); return p.Pack.Close() }
func (p panickingPack) Send(ctx context.Context, out packsource.Output) error {
	p.s.at("send")
	return p.Pack.Send(ctx, out)
}

// syncBuffer takes a log.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
