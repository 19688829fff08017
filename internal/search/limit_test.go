package search_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// A search is limited if it has more results than it was to give, and only then, from an index or without.
func TestLimited(t *testing.T) {
	t.Parallel()
	indexed, bare := newSource(), newSource()
	bare.broken = fault.New(fault.Corrupt, "a tree is damaged")
	for i := range 3 {
		f := files{}
		for j := range 4 {
			f[fmt.Sprintf("f%d", j)] = strings.Repeat("needle needle needle\n", 100)
		}
		for _, s := range []*source{indexed, bare} {
			s.push(fmt.Sprint("r", i), main, f)
		}
	}
	for name, s := range map[string]*source{"indexed": indexed, "bare": bare} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, options(t, s))
			all := finds(12)
			if s == indexed {
				all = has(12)
			}
			await(t, e, "needle", all)
			await(t, e, "needle", func(f *found) bool {
				return all(f) && e.Status(nil).Repositories == 3 &&
					len(f.Missing) == 0
			})
			for _, test := range []struct {
				query          string
				limit, results int
				limited        bool
			}{
				{"needle", 12, 12, false},
				{"needle", 100, 12, false},
				{"needle", 11, 11, true},
				{"needle", 4, 4, true},
				{"needle", 1, 1, true},
				{"needle select:repo", 100, 3, false},
				{"needle select:repo", 3, 3, false},
				{"needle select:repo", 2, 2, true},
				{"needle select:repo", 1, 1, true},
				{"needle select:file", 12, 12, false},
				{"needle select:file", 5, 5, true},
				{"needle repo:r1", 4, 4, false},
				{"needle repo:r1", 3, 3, true},
				{"nothing", 1, 0, false},
			} {
				f, err := ask(t, e, test.query, func(r *search.Request) { r.Limit = test.limit })
				if err != nil || f.Results != test.results || f.Limited != test.limited {
					t.Errorf("%s, up to %d: %d results, limited: %t, %v", test.query, test.limit, f.Results, f.Limited, err)
				}
				// A stream may give fewer where files have many matches: it begins no more shards once it has some, and cannot
				// know then whether there were any.
				f, err = ask(t, e, test.query, func(r *search.Request) { r.Limit, r.Format = test.limit, schema.StreamLines })
				more, known := test.limited || f.Results < test.results, s != indexed || 300*test.results <= 100*test.limit
				if err != nil || f.Results > test.results || f.Limited != more && (known || more) {
					t.Errorf("%s, a stream up to %d: %d results, limited: %t, %v", test.query, test.limit, f.Results, f.Limited, err)
				}
			}
		})
	}
}
