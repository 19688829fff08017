package mirror

import (
	"context"
	"sync"
	"testing"
)

// An object that an own repository has as well takes no space of the cache, and its removal would free none.
func TestLFSEvictionOfOwnObject(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	shared, other := randomBytes(1, 1000), randomBytes(2, 1000)
	o := s.add("a", shared)
	w.gets("host/a", o, shared, "miss")
	w.addOwn(o, shared)
	b := w.lfs.budget
	if b.free(t.Context(), 2000) || b.bytes() != 0 {
		t.Errorf("free with an object that an own repository has: true, or %d bytes in the cache, want false, 0", b.bytes())
	}
	w.gets("host/a", s.add("a", other), other, "miss")
	if !b.free(t.Context(), 2000) || b.bytes() != 0 {
		t.Errorf("free with another object: false, or %d bytes in the cache, want true, 0", b.bytes())
	}
	w.gets("host/a", o, shared, "hit")
}

// hookContext calls a function at each check for its end.
type hookContext struct {
	context.Context
	check func()
}

func (c hookContext) Err() error {
	c.check()
	return nil
}

// A download that ends during a walk of the cache is counted.
func TestLFSDownloadEndsDuringWalk(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	content := randomBytes(1, 1000)
	w.gets("host/a", s.add("a", content), content, "miss")
	b := w.lfs.budget
	if !b.take(200) || !b.take(30) || !b.take(4) {
		t.Fatal("take = false, want true")
	}
	end := sync.OnceFunc(func() {
		b.release(200, true)
		b.release(30, false)
	})
	_, err := b.shrink(hookContext{t.Context(), end}, b.limit)
	w.do(err)
	if got := b.bytes(); got != 1204 || b.running != 4 {
		t.Errorf("%d bytes in the cache, %d of downloads, want 1204, 4", got, b.running)
	}
}
