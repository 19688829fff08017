package control

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTypes: what curl can send to a call gets an answer or instructions.
func TestTypes(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	const js, form = "application/json", "application/x-www-form-urlencoded"
	for _, test := range []struct {
		method, path, contentType string
		status                    int
		text                      string
	}{
		{"POST", "/packhorse.v1.ObjectService/Blob", js, 415, "packhorse.v1.ObjectService/Blob"},
		{"POST", "/packhorse.v1.ObjectService/Log", js, 415, "grpcurl -plaintext -d JSON localhost"},
		{"POST", "/packhorse.v1.RefService/List", "application/json; charset=utf-8", 415, "stream"},
		{"POST", "/packhorse.v1.RefService/List", "application/proto", 415, "stream"},
		{"POST", "/packhorse.v1.RefService/Watch", "", 415, "stream"},
		{"GET", "/packhorse.v1.RefService/List?encoding=json&message={}", "", 405, "stream"},
		{"POST", "/packhorse.v1.RepositoryService/Get", form, 415, "curl --json"},
		{"POST", "/packhorse.v1.RepositoryService/Get", js, 404, `"code":"not_found"`},
		{"POST", "/packhorse.v1.RepositoryService/Get", "application/json;charset=UTF-8", 404, `"code":"not_found"`},
		{"POST", "/packhorse.v1.None/Get", form, 404, "not found"},
		{"POST", "/", form, 404, "not found"},
	} {
		r := httptest.NewRequest(test.method, test.path, strings.NewReader(`{"repository": "none"}`))
		r.Host = "localhost"
		r.Header.Set("Content-Type", test.contentType)
		w := httptest.NewRecorder()
		p.server.ServeHTTP(w, r)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.text) {
			t.Errorf("%s %s as %q: %d %q, want %d with %q", test.method, test.path, test.contentType, w.Code, w.Body,
				test.status, test.text)
		}
		if w.Code == http.StatusUnsupportedMediaType && strings.Count(w.Body.String(), "\n") != 1 {
			t.Errorf("%s: text = %q, want one line", test.path, w.Body)
		}
	}
}
