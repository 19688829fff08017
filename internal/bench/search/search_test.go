package search

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
)

// searchAnswers answers each API with two results in the API's format.
func searchAnswers(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/-/api/v1/search":
		if !strings.HasSuffix(r.URL.Query().Get("q"), " count:2") {
			http.Error(w, "no count", http.StatusBadRequest)
			return
		}
		w.Header().Set("Server-Timing", "index;dur=2.5, link;dur=0.125")
		io.WriteString(w, `{"results":[{"repository":"a","path":"x","commit":"1"},`+
			`{"repository":"b","path":"y","commit":"2"}]}`+"\n")
	case "/api/search":
		var asked struct{ Q string }
		if json.Unmarshal(body, &asked) != nil || asked.Q != "needle" {
			http.Error(w, "no query", http.StatusBadRequest)
			return
		}
		io.WriteString(w, `{"Result":{"Files":[{"FileName":"x","Repository":"a","Version":"1"},{"FileName":"y","Repository":"b","Version":"2"}]}}`)
	default:
		http.NotFound(w, r)
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(searchAnswers))
	defer server.Close()
	got := benchtest.JSON(t, "query results rates peer", "search", server.URL, "--query", "needle", "--results", "2",
		"--rates", "50,100", "--duration", "100ms", "--rounds", "3", "--peer", server.URL)
	if n := benchtest.Number(t, got, "results"); n != 2 {
		t.Errorf("%v results, want 2", n)
	}
	rates := got["rates"].([]any)
	if len(rates) != 2 {
		t.Fatalf("%d rates, want 2", len(rates))
	}
	for _, r := range rates {
		m := r.(map[string]any)
		if benchtest.Number(t, m, "failures") != 0 || benchtest.Number(t, m, "requests") == 0 ||
			benchtest.Number(t, m["latency_ms"].(map[string]any), "p95") <= 0 || benchtest.Number(t, m, "bytes") == 0 ||
			benchtest.Number(t, m, "p95_to_peer") <= 0 {
			t.Error(m)
		}
		if link := benchtest.Number(t, m["link_ms"].(map[string]any), "p95"); link != 0.125 {
			t.Errorf("the way to the process that searches takes %v ms, want 0.125", link)
		}
	}
}

func TestSearchFailures(t *testing.T) {
	t.Parallel()
	const good = `{"results":[{"repository":"a","commit":"1"}]}`
	for name, later := range map[string]func(http.ResponseWriter){
		"status":    func(w http.ResponseWriter) { http.Error(w, "too many searches", http.StatusTooManyRequests) },
		"truncated": func(w http.ResponseWriter) { io.WriteString(w, good[:20]) },
		"fewer":     func(w http.ResponseWriter) { io.WriteString(w, `{"results":[]}`) },
	} {
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) > 1 {
				later(w)
				return
			}
			io.WriteString(w, good)
		}))
		_, errs, err := benchtest.Run(t, t.Context(), "search", server.URL, "--query", "q", "--rates", "20", "--duration",
			"100ms")
		if err == nil || errs == "" {
			t.Errorf("%s: no error", name)
		}
		server.Close()
	}
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		io.WriteString(w, `{"results":[]}`)
	}))
	defer empty.Close()
	if _, _, err := benchtest.Run(t, t.Context(), "search", empty.URL, "--query", "q"); err == nil ||
		!strings.Contains(err.Error(), "finds nothing") {
		t.Errorf("nothing found: %v", err)
	}
	for _, args := range [][]string{{"--rates", "0"}, {"--rates", "1,x"}, {"--rates", "NaN"}, {"--results", "0"}} {
		if _, _, err := benchtest.Run(t, t.Context(), append([]string{"search", empty.URL, "--query", "q"},
			args...)...); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

func TestFellBehind(t *testing.T) {
	t.Parallel()
	flat, growing := &measured{}, &measured{}
	for i := range 100 {
		flat.latencies = append(flat.latencies, time.Duration(10+i%3)*time.Millisecond)
		growing.latencies = append(growing.latencies, time.Duration(10*i)*time.Millisecond)
	}
	if flat.fellBehind() || !growing.fellBehind() {
		t.Error("fellBehind is wrong, want false for steady latencies and true for growing ones")
	}
}
