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
	contents := [][]byte{randomBytes(1, 1000), randomBytes(2, 1000)}
	for _, content := range contents {
		w.gets("host/a", s.add("a", content), content, "miss")
	}
	o := s.add("a", contents[0])
	w.addOwn(o, contents[0])
	if b := w.lfs.budget; !b.free(t.Context(), 2000) || b.bytes() != 0 {
		t.Errorf("%d bytes in the cache after free, want 0", b.bytes())
	}
	w.gets("host/a", o, contents[0], "hit")
	if w.lfs.budget.free(t.Context(), 2000) {
		t.Error("free reports that it has freed the space of an object that an own repository has")
	}
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
	w.do(b.shrink(hookContext{t.Context(), end}, b.limit))
	if got := b.bytes(); got != 1204 || b.running != 4 {
		t.Errorf("%d bytes in the cache, %d of downloads, want 1204, 4", got, b.running)
	}
}
