package api_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
)

// BenchmarkAnswers measures the cost of the APIs alone: the searcher returns 11,000 results at once.
func BenchmarkAnswers(b *testing.B) {
	a, err := api.NewAPI(api.APIOptions{Searcher: &searcher{}})
	if err != nil {
		b.Fatal(err)
	}
	src := post(srcSearch, map[string]any{"query": "many count:11000"})
	for name, c := range map[string]conversation{
		"json":   {"GET", "/-/api/v1/search?q=many+count:11000", "", ""},
		"stream": {"GET", "/.api/search/stream?q=many+count:11000&cm=t", "", ""}, "graphql": src,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				if err := a.Serve(w, httptest.NewRequest(c.method, c.target, strings.NewReader(c.body)), &visitor{}); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(w.Body.Len()))
			}
		})
	}
}
