package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// BenchmarkList lists 10,000 names in pages: of a node that has listed them before, and of one that has just started.
// Removed names must cost nothing.
func BenchmarkList(b *testing.B) {
	for _, removed := range []int{0, 1000} {
		world := buckettest.NewMemory(1)
		if _, err := Init(b.Context(), world); err != nil {
			b.Fatal(err)
		}
		for i := range 10_000 + removed {
			path := repoPath(fmt.Sprintf("team%02d/app%05d", i%50, i))
			log, err := replog.OpenName(world, path)
			if err != nil {
				b.Fatal(err)
			}
			name := &replog.Name{Number: 1, Txn: replog.NewID(), At: time.Now(), Path: path, State: replog.Live,
				ID: replog.NewID()}
			if i < 1000 && removed > 0 {
				name.State = replog.Removed
			}
			if _, err := log.Append(b.Context(), name); err != nil {
				b.Fatal(err)
			}
		}
		list := func(s *Store) {
			count := 0
			for q := (places.ListQuery{Limit: places.MaxPage}); ; {
				page, err := s.List(b.Context(), q)
				if err != nil {
					b.Fatal(err)
				}
				count += len(page.Paths)
				if q.After, q.IsFurther = page.Next, true; q.After == "" {
					break
				}
			}
			if count != 10_000 {
				b.Fatalf("%d names", count)
			}
		}
		b.Run(fmt.Sprintf("known/removed=%d", removed), func(b *testing.B) {
			s := newNode(b, world)
			list(s)
			for b.Loop() {
				list(s)
			}
		})
		b.Run(fmt.Sprintf("first/removed=%d", removed), func(b *testing.B) {
			for b.Loop() {
				s := newNode(b, world)
				list(s)
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
