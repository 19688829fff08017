package packcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

func TestMissThenHit(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 300_000}
	c := newCache(t, src, Options{})
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Miss || info.Wait != time.Millisecond ||
		info.Made.Source != packsource.SourceGit {
		t.Errorf("first: %+v", info)
	}
	c.settled(t)
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Hit || info.Wait != 0 ||
		info.Made.Source != "" {
		t.Errorf("second: %+v", info)
	}
	p, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	var out extentOutput
	if err := p.Send(t.Context(), &out); err != nil || out.sections != 1 ||
		!bytes.Equal(out.data.Bytes(), framed(spec("a"), src.size, 0)) {
		t.Errorf("by ReadFrom: %v, %d sections", err, out.sections)
	}
	p.Close()
	p.Close()
	if n := src.opens.Load(); n != 1 {
		t.Errorf("inner opened %d times, want 1", n)
	}
	for result, want := range map[string]float64{"hit": 2, "miss": 1, "follow": 0} {
		if n := metric(c.m.requests.WithLabelValues(result)); n != want {
			t.Errorf("%s: %v, want %v", result, n, want)
		}
	}
	st, err := os.Stat(c.path(spec("a").Key(), dataExt))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("data file: %v %v", st, err)
	}
}

// Parallel requests for a cold key make one pack, for any way and time of reading.
func TestHerd(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 4 {
		src := &fakeSource{size: 500_000, block: 1 + rng.IntN(65000), batch: rng.IntN(5), gate: make(chan struct{})}
		if src.block < 500 {
			src.size = 50 * src.block
		}
		c := newCache(t, src, Options{})
		s := spec(fmt.Sprint(round))
		want := framed(s, src.size, src.block)
		var wg sync.WaitGroup
		writes := 0
		for i := range 30 {
			wg.Go(func() {
				p, err := c.Open(t.Context(), s)
				if err != nil {
					t.Error(err)
					return
				}
				defer p.Close()
				var out packsource.Output
				var plain output
				var extent extentOutput
				if out = &plain; i%2 == 0 {
					out = &extent
				}
				if err := p.Send(t.Context(), out); err != nil {
					t.Error(err)
				}
				got := plain.data.Bytes()
				if i%2 == 0 {
					got = extent.data.Bytes()
				}
				if !bytes.Equal(got, want) {
					t.Errorf("reader %d got %d bytes, not the pack of %d", i, len(got), len(want))
				}
			})
			for range rng.IntN(3) { // let the fill continue for a while
				select {
				case src.gate <- struct{}{}:
					writes++
				case <-time.After(time.Millisecond):
				}
			}
		}
		close(src.gate)
		wg.Wait()
		if n := src.opens.Load(); n != 1 {
			t.Errorf("round %d: inner opened %d times, want 1", round, n)
		}
	}
}

func TestOpenErrorReachesAllAndIsNotCached(t *testing.T) {
	t.Parallel()
	busy := fault.Retry(fault.Exhausted, time.Second, "too many packs at once")
	release := make(chan struct{})
	src := &fakeSource{size: 10}
	src.open = func() error { <-release; return busy }
	c := newCache(t, src, Options{})
	errs := make(chan error, 10)
	for range cap(errs) {
		go func() {
			_, err := c.Open(t.Context(), spec("a"))
			errs <- err
		}()
	}
	gittest.WaitFor(t, "all wait", func() bool { return c.readersOf(spec("a")) == cap(errs) })
	close(release)
	for range cap(errs) {
		if err := <-errs; err != busy {
			t.Errorf("got %v, want %v", err, busy)
		}
	}
	src.open = nil
	if info := fetch(t, c, spec("a"), src); info.Result != packsource.Miss {
		t.Errorf("afterwards: %+v", info)
	}
	if src.opens.Load() != 2 {
		t.Errorf("inner opened %d times, want 2", src.opens.Load())
	}
}

func (c *Cache) readersOf(s *packsource.Spec) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.fills[s.Key()]
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.readers)
}

// A fill that fails at any point fails for all its readers, and the next request makes the pack again.
func TestFailureInMidFill(t *testing.T) {
	t.Parallel()
	broken := fault.New(fault.Internal, "git pack-objects was killed")
	for _, at := range []int64{1, 100_000, 499_000} {
		src := &fakeSource{size: 500_000, block: 10_000, gate: make(chan struct{})}
		src.after = func(written int64, _ packsource.Output) error {
			if written >= at {
				return broken
			}
			return nil
		}
		c := newCache(t, src, Options{})
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				p, err := c.Open(t.Context(), spec("a"))
				if err != nil {
					t.Error(err)
					return
				}
				defer p.Close()
				var out output
				if err := p.Send(t.Context(), &out); err != broken {
					t.Errorf("reader %d: %v, want %v", i, err, broken)
				}
			})
		}
		gittest.WaitFor(t, "all are there", func() bool { return c.readersOf(spec("a")) == 10 })
		close(src.gate)
		wg.Wait()
		src.after = nil
		c.settled(t)
		if info := fetch(t, c, spec("a"), src); info.Result != packsource.Miss {
			t.Errorf("afterwards: %+v", info)
		}
	}
}

func TestSourceThatBreaksTheContract(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]string{"half a packet": "0010\x01abc", "another band": "0008\x02abc",
		"nothing": ""} {
		c := newCache(t, sourceFunc(func(out packsource.Output) error {
			if write == "" {
				return nil
			}
			_, err := out.Write([]byte(write))
			return err
		}), Options{})
		p, err := c.Open(t.Context(), spec("a"))
		if err != nil {
			t.Fatal(err)
		}
		var out output
		if err := p.Send(t.Context(), &out); err == nil {
			t.Errorf("%s: no error", name)
		}
		p.Close()
	}
}

type sourceFunc func(packsource.Output) error

func (f sourceFunc) Open(context.Context, *packsource.Spec) (packsource.Pack, error) {
	return sourceFuncPack{f}, nil
}

type sourceFuncPack struct{ f sourceFunc }

func (sourceFuncPack) Size() int64                                           { return -1 }
func (p sourceFuncPack) Send(_ context.Context, out packsource.Output) error { return p.f(out) }
func (sourceFuncPack) Info() packsource.Info                                 { return packsource.Info{} }
func (sourceFuncPack) Close() error                                          { return nil }

// The fill belongs to no reader: the first one may go.
func TestFirstReaderLeaves(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 500_000, gate: make(chan struct{})}
	c := newCache(t, src, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	first, err := c.Open(ctx, spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error)
	go func() { gone <- first.Send(ctx, &output{}) }()
	src.gate <- struct{}{}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("first: %v", err)
	}
	first.Close()
	close(src.gate)
	if info := finish(t, second, spec("a"), src); info.Result != packsource.Follow {
		t.Errorf("second: %+v", info)
	}
}

func TestGrace(t *testing.T) {
	t.Parallel()
	t.Run("kept", func(t *testing.T) {
		src := &fakeSource{size: 500_000, gate: make(chan struct{})}
		c := newCache(t, src, Options{Grace: time.Hour})
		p, err := c.Open(t.Context(), spec("a"))
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		src.gate <- struct{}{}
		q, err := c.Open(t.Context(), spec("a"))
		if err != nil {
			t.Fatal(err)
		}
		close(src.gate)
		finish(t, q, spec("a"), src)
		if src.opens.Load() != 1 {
			t.Errorf("inner opened %d times, want 1", src.opens.Load())
		}
	})
	for name, grace := range map[string]time.Duration{"ends": time.Millisecond, "none": -1} {
		t.Run(name, func(t *testing.T) {
			src := &fakeSource{size: 500_000, gate: make(chan struct{}), ended: make(chan error, 1)}
			c := newCache(t, src, Options{Grace: grace})
			p, err := c.Open(t.Context(), spec("a"))
			if err != nil {
				t.Fatal(err)
			}
			src.gate <- struct{}{}
			src.gate <- struct{}{} // so the first packet is stored
			p.Close()
			if err := <-src.ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the fill ended with %v", err)
			}
			c.settled(t)
			close(src.gate)
			src.ended = nil
			if info := fetch(t, c, spec("a"), src); info.Result != packsource.Miss {
				t.Errorf("afterwards: %+v", info)
			}
		})
	}
	t.Run("in open", func(t *testing.T) {
		release := make(chan struct{})
		src := &fakeSource{size: 10, open: func() error { <-release; return nil }}
		c := newCache(t, src, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error)
		go func() { _, err := c.Open(ctx, spec("a")); got <- err }()
		gittest.WaitFor(t, "it waits", func() bool { return c.readersOf(spec("a")) == 1 })
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		close(release)
	})
}

// Readers start and stop at random. Those that stay get the whole pack.
func TestRandomCancellation(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	src := &fakeSource{size: 100_000, block: 2000}
	c := newCache(t, src, Options{Grace: time.Millisecond, MaxBytes: 1 << 19})
	var wg sync.WaitGroup
	for i := range 200 {
		s := spec(fmt.Sprint(rng.IntN(12)))
		stay, after := rng.IntN(3) > 0, rng.IntN(60)
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := c.Open(ctx, s)
			if err != nil {
				t.Error(err)
				return
			}
			if stay {
				if _, err := receive(ctx, p, s, src); err != nil {
					t.Errorf("reader %d: %v", i, err)
				}
				return
			}
			defer p.Close()
			n := 0
			p.Send(ctx, &output{onWrite: func() error {
				if n++; n > after {
					cancel()
				}
				return nil
			}})
		})
		if i%20 == 19 {
			time.Sleep(time.Millisecond)
		}
	}
	wg.Wait()
}

func TestProgress(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 10, gate: make(chan struct{})}
	src.open = func() error { return nil }
	stage := make(chan struct{})
	c := newCache(t, sourceFunc(func(out packsource.Output) error {
		out.Progress([]byte("Counting objects: 100% (9/9), done.\nCompressing:  50%\rCompressing:  70%\r"))
		stage <- struct{}{}
		<-stage
		out.Progress([]byte("Compressing: 100%, done.\n"))
		_, err := out.Write(framed(spec("a"), 10, 0))
		return err
	}), Options{})
	first, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	<-stage
	late, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	stage <- struct{}{}
	for _, x := range []struct {
		p    packsource.Pack
		want string
	}{
		{first, "Counting objects: 100% (9/9), done.\nCompressing:  50%\rCompressing:  70%\rCompressing: 100%, done.\n"},
		{late, "Compressing:  70%\rCompressing: 100%, done.\n"},
	} {
		var out output
		if err := x.p.Send(t.Context(), &out); err != nil || out.progress.String() != x.want {
			t.Errorf("%v, progress %q, want %q", err, out.progress.String(), x.want)
		}
		x.p.Close()
	}
}

func TestProgressIsBounded(t *testing.T) {
	t.Parallel()
	var p progress
	for i := range 10_000 {
		p.add(fmt.Appendf(nil, "line %d\r", i))
	}
	p.add(bytes.Repeat([]byte("x"), 3*progressTail))
	p.add([]byte("\nlast line\nrest"))
	buf := new(buffer)
	text, pos := p.since(0, buf[:])
	if len(p.text) > progressTail || pos != p.end || !strings.HasSuffix(string(text), "last line\nrest") {
		t.Errorf("%d bytes, position %d of %d, ends in %q", len(p.text), pos, p.end, text[max(0, len(text)-20):])
	}
	text, _ = p.since(p.latest(), buf[:])
	if string(text) != "last line\nrest" {
		t.Errorf("latest: %q", text)
	}
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 100, gate: make(chan struct{})}
	c := newCache(t, src, Options{})
	p, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	out := output{silence: time.Millisecond}
	out.onAlive = func() {
		if out.alive == 3 {
			close(src.gate)
		}
	}
	if err := p.Send(t.Context(), &out); err != nil || out.alive < 3 {
		t.Errorf("%v, %d signs of life", err, out.alive)
	}
	p.Close()
}

func TestCloseEndsFills(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 500_000, gate: make(chan struct{}, 1)}
	c := newCache(t, src, Options{})
	p, err := c.Open(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	src.gate <- struct{}{}
	got := make(chan error)
	go func() { got <- p.Send(t.Context(), &output{}) }()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; !fault.Is(err, fault.Unavailable) {
		t.Errorf("reader got %v", err)
	}
	p.Close()
	if _, err := c.Open(t.Context(), spec("a")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Open after Close: %v", err)
	}
	c.checkAtRest(t)
}

// When a fill was cancelled without the reader's doing, the reader gets an error that asks for a retry.
func TestGivenUpFillIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, given := range map[string]error{"context": context.Canceled,
		"fault": fault.New(fault.Cancelled, "the caller went away")} {
		for _, inOpen := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, in Open: %v", name, inOpen), func(t *testing.T) {
				t.Parallel()
				release := make(chan struct{})
				src := &fakeSource{size: 1000}
				if inOpen {
					src.open = func() error { <-release; return given }
				} else {
					src.after = func(int64, packsource.Output) error { <-release; return given }
				}
				c := newCache(t, src, Options{})
				errs := make(chan error)
				for range 2 {
					go func() {
						p, err := c.Open(t.Context(), spec("a"))
						if err == nil {
							err = p.Send(t.Context(), &output{})
							p.Close()
						}
						errs <- err
					}()
				}
				gittest.WaitFor(t, "both are there", func() bool { return c.readersOf(spec("a")) == 2 })
				close(release)
				for range 2 {
					if err := <-errs; !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) <= 0 {
						t.Errorf("got %v, of kind %v", err, fault.KindOf(err))
					}
				}
			})
		}
	}
}

// The copy of a sealed Spec in a fill is also sealed: it never computes the key again.
func TestSpecOfKeepsTheKey(t *testing.T) {
	t.Parallel()
	s := spec("a")
	s.Seal()
	copied := specOf(s)
	copied.Repo.Incarnation = "b"
	if copied.Key() != s.Key() {
		t.Error("the copy is not sealed")
	}
}

// A panic of the inner Source fails one fill, not the server.
func TestPanicInFill(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"open", "send", "info", "close"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			src := &panickingSource{fakeSource: fakeSource{size: 1000}, where: where}
			var log syncBuffer
			c := newCache(t, src, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			p, err := c.Open(t.Context(), spec("a"))
			if err == nil {
				err = p.Send(t.Context(), &output{})
				p.Close()
			}
			if where == "close" {
				if err != nil { // the readers had all by then
					t.Error(err)
				}
			} else if err == nil || !fault.Is(err, fault.Internal) {
				t.Errorf("got %v", err)
			}
			c.settled(t)
			gittest.WaitFor(t, "it is logged", func() bool { return strings.Contains(log.String(), "panickingSource") })
			src.set("")
			fetch(t, c, spec("a"), &src.fakeSource)
		})
	}
}

// A reader without keep-alives gets no byte before the pack.
func TestNoKeepAlive(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 100, gate: make(chan struct{})}
	c := newCache(t, src, Options{})
	open := func() packsource.Pack {
		p, err := c.Open(t.Context(), spec("a"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	patient, p := open(), open()
	defer patient.Close()
	defer p.Close()
	impatient, quiet := output{silence: time.Millisecond}, output{}
	impatient.onAlive = func() {
		if impatient.alive == 3 {
			close(src.gate)
		}
	}
	done := make(chan error, 1)
	go func() { done <- patient.Send(t.Context(), &quiet) }()
	if err := p.Send(t.Context(), &impatient); err != nil || impatient.alive < 3 {
		t.Errorf("%v, %d signs of life", err, impatient.alive)
	}
	if err := <-done; err != nil || quiet.alive != 0 {
		t.Errorf("%v, %d signs of life where none are asked for, want 0", err, quiet.alive)
	}
}
