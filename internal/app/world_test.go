package app

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// front is a server with a proxy in it.
func front(t *testing.T, o Options) (*Proxy, *httptest.Server) {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(p)
	t.Cleanup(func() { s.Close(); p.Close() })
	return p, s
}

func TestRelay(t *testing.T) {
	t.Parallel()
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Method+" "+r.URL.Path+" "+string(b))
	}))
	t.Cleanup(back.Close)
	_, s := front(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: back.URL}}})
	resp, err := s.Client().Get(s.URL + "/hello")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "GET /hello " {
		t.Errorf("%q, %v", b, err)
	}
}
