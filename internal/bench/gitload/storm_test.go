package gitload

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
)

// TestStorm counts refusals with Retry-After. Any other result except for success is an error.
func TestStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	root, _ := benchtest.History(t, 8)
	behind, err := url.Parse(benchtest.Backend(t, root, false).URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		status  int
		advice  string
		failing bool
	}{
		{"refused", http.StatusTooManyRequests, "1", false},
		{"unavailable", http.StatusServiceUnavailable, "1", false},
		{"without advice", http.StatusTooManyRequests, "", true},
		{"broken", http.StatusInternalServerError, "1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var fulls atomic.Int64
			proxy := httputil.NewSingleHostReverseProxy(behind)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				full := bytes.Contains(body, []byte("command=fetch")) && !bytes.Contains(body, []byte("deepen "))
				if full && fulls.Add(1)%2 == 0 {
					if c.advice != "" {
						w.Header().Set("Retry-After", c.advice)
					}
					http.Error(w, "come back later", c.status)
					return
				}
				proxy.ServeHTTP(w, r)
			}))
			defer s.Close()
			args := []string{"storm", s.URL + "/demo.git", "--clients", "3", "--enough", "1", "--duration", "100ms"}
			if c.failing {
				if _, errs, err := benchtest.Run(t, t.Context(), args...); err == nil ||
					!strings.Contains(errs, "come back later") {
					t.Errorf("%v\n%s", err, errs)
				}
				return
			}
			got := benchtest.JSON(t, "alone enough storm clients few ratio hits", args...)
			if runtime.GOOS == "linux" { // this process is the server
				more := append(args, "--server-pid", strconv.Itoa(os.Getpid()), "--memory")
				with := benchtest.JSON(t, "alone enough storm clients few ratio hits memory_limit_bytes below_memory_limit",
					append(more, "64GiB")...)
				peak := with["storm"].(map[string]any)
				if with["below_memory_limit"] != true || benchtest.Number(t, peak, "peak_anon_bytes") <= 0 ||
					benchtest.Number(t, peak, "peak_server_rss_bytes") <= 0 {
					t.Error(with)
				}
				if _, _, err := benchtest.Run(t, t.Context(), append(more, "1KiB")...); err == nil ||
					!strings.Contains(err.Error(), "more memory than 1024 bytes") {
					t.Errorf("above the limit: %v", err)
				}
			}
			storm := got["storm"].(map[string]any)
			if benchtest.Number(t, storm, "completed") < 1 || benchtest.Number(t, storm, "refused") < 1 ||
				benchtest.Number(t, storm, "failed") != 0 {
				t.Error(got)
			}
		})
	}
}
