package bucket_test

import (
	"net/http"
	"testing"
)

// A freshness check that finds nothing new: GET of a key that does not exist.
func BenchmarkGetMissing(b *testing.B) {
	s, _ := scripted(b, func(w http.ResponseWriter, r *http.Request) { answerError(w, http.StatusNotFound, "NoSuchKey") })
	b.ReportAllocs()
	for b.Loop() {
		_, _, _ = s.Get(b.Context(), "repos/1/log/2", 10)
	}
}
