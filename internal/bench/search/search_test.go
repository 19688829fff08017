package search

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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
	case "/.api/search/stream":
		io.WriteString(w, "event: matches\ndata: "+
			`[{"type":"content","repository":"a","commit":"1"},{"repository":"b","commit":"2"}]`+
			"\n\nevent: done\ndata: {}\n\n")
	case "/.api/graphql":
		io.WriteString(w, `{"data":{"search":{"results":{"results":[`+
			`{"repository":{"name":"a"},"file":{"commit":{"oid":"1"}}},{"repository":{"name":"b"},"file":{"commit":{"oid":"2"}}}]}}}}`)
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

func TestSearchAPIs(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(searchAnswers))
	defer server.Close()
	for api := range searchAPIs {
		got := benchtest.JSON(t, "query api results resolve rates peer", "search", server.URL, "--query", "needle", "--api",
			api, "--results", "2",
			"--rates", "50,100", "--duration", "100ms", "--rounds", "3", "--peer", server.URL)
		if n := benchtest.Number(t, got, "results"); n != 2 {
			t.Errorf("%s: %v results, want 2", api, n)
		}
		rates := got["rates"].([]any)
		if len(rates) != 2 {
			t.Fatalf("%s: %d rates, want 2", api, len(rates))
		}
		for _, r := range rates {
			m := r.(map[string]any)
			if benchtest.Number(t, m, "failures") != 0 || benchtest.Number(t, m, "requests") == 0 ||
				benchtest.Number(t, m, "p95_ms") <= 0 || benchtest.Number(t, m, "bytes") == 0 ||
				benchtest.Number(t, m, "p95_to_peer") <= 0 {
				t.Errorf("%s: %v", api, m)
			}
			if link := m["link_p95_ms"]; api == "json" && link != 0.125 || api != "json" && link != nil {
				t.Errorf("%s: the way to the process that searches takes %v ms", api, link)
			}
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
	for _, args := range [][]string{{"--rates", "0"}, {"--rates", "1,x"}, {"--rates", "NaN"}, {"--api", "soap"},
		{"--resolve", "magic"}, {"--resolve", "process"}, {"--results", "0"}} {
		if _, _, err := benchtest.Run(t, t.Context(), append([]string{"search", empty.URL, "--query", "q"},
			args...)...); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

// TestSearchResolve finds the object IDs with git, and checks that this takes time.
func TestSearchResolve(t *testing.T) {
	t.Parallel()
	_, repo := benchtest.History(t, 2)
	id := strings.TrimSpace(repo.Git("rev-parse", "HEAD"))
	var listed atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/-/api/v1/search/status" {
			listed.Add(1)
			return
		}
		name := strings.TrimSuffix(filepath.Base(repo.Dir), ".git")
		fmt.Fprintf(w, `{"results":[{"repository":%q,"commit":%q},{"repository":%[1]q,"commit":%[2]q}]}`, name, id)
	}))
	defer server.Close()
	kinds := []string{"process", "memory", "none"}
	redis := startRedis(t)
	if redis != "" {
		kinds = append(kinds, "redis")
	}
	for _, resolve := range kinds {
		got := benchtest.JSON(t, "query api results resolve rates resolve_share", "search", server.URL, "--query", "q",
			"--rates", "20", "--duration", "50ms",
			"--resolve", resolve, "--root", filepath.Dir(repo.Dir), "--redis", redis)
		share := benchtest.Number(t, got, "resolve_share")
		if resolve == "process" && (share < 0.1 || listed.Load() == 0) {
			t.Errorf("finding object IDs by git took %v of the time, and the index was listed %d times", share, listed.Load())
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

// startRedis starts a Redis without persistence and returns its URL. Without redis-server it returns "".
func startRedis(t *testing.T) string {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("redis-server is not installed")
		}
		t.Log("*** There is no redis-server: --resolve redis is NOT tested. ***")
		return ""
	}
	dir, err := os.MkdirTemp("", "redis") // short: the path of a socket has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(program, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		os.RemoveAll(dir)
	})
	for t.Context().Err() == nil {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return "unix://" + socket
}
