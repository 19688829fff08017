package balance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHeap compares with a sorted list.
func TestHeap(t *testing.T) {
	t.Parallel()
	type item struct{ key, id, place int }
	rapid.Check(t, func(t *rapid.T) {
		before := func(a, b *item) bool { return a.key < b.key || a.key == b.key && a.id < b.id }
		h := heap[*item]{before: before, place: func(i *item) *int { return &i.place }}
		var all []*item
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				i := &item{key: rapid.IntRange(0, 20).Draw(t, "key"), id: len(all)}
				all = append(all, i)
				h.put(i)
			},
			"change": func(t *rapid.T) {
				if len(all) > 0 {
					i := rapid.SampledFrom(all).Draw(t, "which")
					i.key = rapid.IntRange(0, 20).Draw(t, "key")
					h.put(i)
				}
			},
			"remove": func(t *rapid.T) {
				if len(all) > 0 {
					h.remove(rapid.SampledFrom(all).Draw(t, "which"))
				}
			},
			"": func(t *rapid.T) {
				var want, got []*item
				for _, i := range all {
					if i.place > 0 {
						want = append(want, i)
					}
				}
				slices.SortFunc(want, func(a, b *item) int {
					if before(a, b) {
						return -1
					}
					return 1
				})
				h.ascend(func(i *item) bool {
					got = append(got, i)
					return false
				})
				if top, ok := h.top(); !slices.Equal(got, want) || ok != (len(want) > 0) || ok && top != want[0] {
					t.Fatalf("%d elements in another order than %d", len(got), len(want))
				}
			},
		})
	})
}

// TestEstimates: routes are known for as long as there are not too many of them since, and are never more than so many.
func TestEstimates(t *testing.T) {
	t.Parallel()
	var s estimates
	for i := range 5 * routesKept {
		s.add(fmt.Sprint(i), time.Second)
		s.add("often", time.Minute)
		if n := len(s.now) + len(s.old); n > 2*routesKept {
			t.Fatalf("%d routes are kept", n)
		}
	}
	if d := s.of("often"); d != time.Minute {
		t.Errorf("the route that is often asked for takes %v", d)
	}
	if _, known := s.worth("0"); known || s.of("0") == time.Second {
		t.Error("the first of many is still known")
	}
}
