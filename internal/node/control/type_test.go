package control

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"
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
	p := newPort(t)
	const path = "/packhorse.v1.Lines/Test"
	fail := connect.NewError(connect.CodeAborted, errors.New("it moved"))
	type empty = emptypb.Empty
	var lines int
	var problem error
	p.server.mux.Handle(path, connect.NewServerStreamHandler(path,
		func(_ context.Context, r *connect.Request[empty], stream *connect.ServerStream[empty]) error {
			if r.Header().Get(callerHeader) != "somebody" {
				return connect.NewError(connect.CodeInternal, errors.New("another caller"))
			}
			for range lines {
				if err := stream.Send(new(empty)); err != nil {
					return err
				}
			}
			return problem
		}))
	for _, test := range []struct {
		name, want string
		lines      int
		err        error
		status     int
		isCut      bool
	}{
		{"empty", "", 0, nil, 200, false},
		{"two", "{}\n{}\n", 2, nil, 200, false},
		{"no line", `{"code":"aborted","message":"it moved"}`, 0, fail, 409, false},
		{"a line", "{}\n" + `{"error":{"code":"aborted","message":"it moved"}}` + "\n", 1, fail, 200, true},
	} {
		lines, problem = test.lines, test.err
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(callerHeader, "somebody")
		isCut := func() (isCut bool) {
			defer func() { isCut = recover() == http.ErrAbortHandler }()
			p.server.serveLines(w, r)
			return false
		}()
		if w.Code != test.status || w.Body.String() != test.want || isCut != test.isCut {
			t.Errorf("%s: %d %q, cut: %v", test.name, w.Code, w.Body, isCut)
		}
	}
}
