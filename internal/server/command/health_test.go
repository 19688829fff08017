package command

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	startServe(t, "--root", root, "--ops", "127.0.0.1:0")
	if code, out, errs := runMain("health", "--root", root); code != exitOK || !strings.HasPrefix(out, "ok") {
		t.Errorf("health of a running server = %d, %q, %q, want 0 and ok", code, out, errs)
	}
	full := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "disk full")
	}))
	defer full.Close()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--ops", full.URL}, exitFailed, "is not ready: 503 Service Unavailable: disk full"},
		{[]string{"--ops", "127.0.0.1:1"}, exitFailed, "connection refused"},
		{[]string{"--ops", "nothing"}, exitUsage, "is not HOST:PORT"},
		{[]string{"--state", t.TempDir()}, exitFailed, "no server runs with the state directory"},
	} {
		code, out, errs := runMain(append([]string{"health"}, c.args...)...)
		if code != c.code || out != "" || !strings.Contains(errs, c.says) {
			t.Errorf("health %q = %d, %q, %q, want %d and %q", c.args, code, out, errs, c.code, c.says)
		}
	}
}
