package control

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
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
		{"POST", "/packhorse.v1.ObjectService/Blob", js, 400, `"code":"invalid_argument"`},
		{"POST", "/packhorse.v1.ObjectService/Log", js, 404, `"details":[{"type":"packhorse.v1.Fault"`},
		{"POST", "/packhorse.v1.RefService/List", "application/json; charset=utf-8", 404, `"code":"not_found"`},
		{"POST", "/packhorse.v1.RefService/List", "application/proto", 415, "grpcurl -plaintext -d JSON localhost"},
		{"POST", "/packhorse.v1.CommitService/CreateStream", js, 415, "stream"},
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

// An error in the middle of JSON lines is the last line, and the response is cut.
func TestLines(t *testing.T) {
	t.Parallel()
	message := func(flags byte, text string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text))), text...)
	}
	for _, test := range []struct {
		name, want string
		status     int
		isCut      bool
		parts      [][]byte
	}{
		{"empty", "", 200, false, [][]byte{message(2, "{}")}},
		{"two", "{\"a\":1}\n{}\n", 200, false, [][]byte{message(0, `{"a":1}`), message(0, "{}"), message(2, "{}")}},
		{"no line", `{"code":"aborted","message":"it moved"}` + "\n", 409, false,
			[][]byte{message(2, `{"error":{"code":"aborted","message":"it moved"}}`)}},
		{"a line", "{}\n" + `{"error":{"code":"aborted"}}` + "\n", 200, true,
			[][]byte{message(0, "{}"), message(2, `{"error":{"code":"aborted"}}`)}},
	} {
		w := httptest.NewRecorder()
		lines := &lineWriter{ResponseWriter: w}
		for _, b := range bytes.Join(test.parts, nil) { // in any pieces
			if _, err := lines.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Content-Type", "application/json")
		isCut := func() (isCut bool) {
			defer func() { isCut = recover() == http.ErrAbortHandler }()
			lines.end(connect.NewErrorWriter(), r)
			return false
		}()
		if w.Code != test.status || w.Body.String() != test.want || isCut != test.isCut {
			t.Errorf("%s: %d %q, cut: %v", test.name, w.Code, w.Body, isCut)
		}
	}
}
