package packcache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// A pack that was warmed is a hit, counts as no request, and skips probation.
func TestWarm(t *testing.T) {
	t.Parallel()
	src := &fakeSource{size: 1000, block: 100}
	now := newClock()
	c := newCache(t, src, Options{Now: now.now})
	n, made, err := c.Warm(t.Context(), spec("a"))
	if err != nil || !made || n != int64(len(framed(spec("a"), 1000, 100))) {
		t.Fatal(n, made, err)
	}
	c.settled(t)
	if n := metric(c.m.miss) + metric(c.m.hit) + metric(c.m.follow); n != 0 {
		t.Errorf("%v requests, want 0", n)
	}
	if _, made, err := c.Warm(t.Context(), spec("a")); made || err != nil {
		t.Error("the pack was made twice, want once:", err)
	}
	now.add(DefaultProbation + time.Second)
	c.sweep()
	if got := fetch(t, c, spec("a"), src); got.Result != packsource.Hit {
		t.Error(got.Result)
	}
}

// A cancelled warming cancels the fill, unless the fill has a follower.
func TestWarmGivenUp(t *testing.T) {
	t.Parallel()
	for _, followed := range []bool{false, true} {
		src := &fakeSource{size: 1000, block: 100, gate: make(chan struct{}), ended: make(chan error, 1)}
		c := newCache(t, src, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, made, err := c.Warm(ctx, spec("a")); made || !errors.Is(err, context.Canceled) {
				t.Error(made, err)
			}
		})
		src.gate <- struct{}{}
		if followed {
			p, err := c.Open(t.Context(), spec("a"))
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			wg.Wait()
			close(src.gate)
			if got := finish(t, p, spec("a"), src); got.Result != packsource.Follow {
				t.Error(got.Result)
			}
		} else {
			cancel()
			wg.Wait()
			if err := <-src.ended; !errors.Is(err, context.Canceled) { // without the grace that readers leave
				t.Error(err)
			}
		}
		c.settled(t)
	}
}

// Warming returns the error of the source.
func TestWarmFails(t *testing.T) {
	t.Parallel()
	want := errors.New("no slot")
	c := newCache(t, &fakeSource{open: func() error { return want }}, Options{})
	if _, made, err := c.Warm(t.Context(), spec("a")); made || !errors.Is(err, want) {
		t.Error(made, err)
	}
	c.settled(t)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Warm(t.Context(), spec("a")); err == nil {
		t.Error("a closed cache made a pack, want an error")
	}
}

// TestFits checks the size of packs that can be kept, with a budget and with the automatic one.
func TestFits(t *testing.T) {
	t.Parallel()
	fixed := newCache(t, &fakeSource{}, Options{MaxBytes: 1000})
	disk := func(s *system) { s.space = func(string) (size, free int64, err error) { return 10_000, 600, nil } }
	automatic := newCache(t, &fakeSource{}, Options{MaxBytes: -1, MinFree: 100}, disk)
	for _, c := range []struct {
		name  string
		cache *Cache
		limit int64
	}{{"1,000 bytes", fixed, 1000}, {"automatic", automatic, 500}} {
		if !c.cache.Fits(c.limit) || c.cache.Fits(c.limit+1) {
			t.Errorf("budget %s: Fits(%d) = %v, Fits(%d) = %v, want true and false", c.name, c.limit, c.cache.Fits(c.limit),
				c.limit+1, c.cache.Fits(c.limit+1))
		}
	}
}
