package origin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
	"github.com/packhorse-git/packhorse/internal/node"
)

// serve returns a repository at a server. Its path is checked.
func serve(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, path string)) LFSRepository {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ok := strings.CutPrefix(r.URL.Path, "/team/app.git/info/lfs")
		if !ok {
			t.Errorf("request for %s, want one below the repository", r.URL.Path)
		}
		answer(w, r, path)
	}))
	t.Cleanup(s.Close)
	u, err := ParseURL(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	o, err := New(Options{URL: u})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return LFSRepository{Origin: o, Path: "team/app", Auth: node.NewSecret("Basic own")}
}

func object(i, size int) lfs.Object {
	return lfs.Object{OID: lfs.OID{byte(i), byte(i >> 8)}, Size: int64(size)}
}

func TestBatchAnswers(t *testing.T) {
	t.Parallel()
	host := ""
	action := func(href string) *wire.Actions { return &wire.Actions{Download: &wire.Action{Href: href}} }
	cases := []struct {
		name   string
		answer *wire.ObjectAnswer
		state  lfs.State
		kind   fault.Kind // if Refused
	}{
		{"present", &wire.ObjectAnswer{Object: wire.Object{Size: 9}, Actions: action("HOST/x")}, lfs.Present, 0},
		{"without a size", &wire.ObjectAnswer{Actions: action("HOST/x")}, lfs.Present, 0},
		{"without an action", &wire.ObjectAnswer{Object: wire.Object{Size: 9}}, lfs.Missing, 0},
		{"404", &wire.ObjectAnswer{Error: &wire.ObjectError{Code: 404, Message: "no"}}, lfs.Missing, 0},
		{"422", &wire.ObjectAnswer{Error: &wire.ObjectError{Code: 422, Message: "no"}}, lfs.Refused, fault.Invalid},
		{"500", &wire.ObjectAnswer{Error: &wire.ObjectError{Code: 500, Message: "no"}}, lfs.Refused, fault.Unavailable},
		{"another size", &wire.ObjectAnswer{Object: wire.Object{Size: 8}, Actions: action("HOST/x")}, lfs.Refused,
			fault.Invalid},
		{"another host", &wire.ObjectAnswer{Object: wire.Object{Size: 9}, Actions: action("http://169.254.169.254/x")},
			lfs.Refused, fault.Denied},
		{"a relative URL", &wire.ObjectAnswer{Object: wire.Object{Size: 9}, Actions: action("/x")}, lfs.Refused,
			fault.Unavailable},
		{"a long URL", &wire.ObjectAnswer{Object: wire.Object{Size: 9},
			Actions: action("HOST/" + strings.Repeat("x", maxAction))}, lfs.Refused, fault.Unavailable},
		{"an invalid header", &wire.ObjectAnswer{Actions: action("HOST/bad-header")}, lfs.Refused, fault.Unavailable},
		{"no answer", nil, lfs.Refused, fault.Unavailable},
	}
	r := serve(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		var response wire.BatchResponse
		for i, c := range cases {
			if c.answer == nil {
				continue
			}
			a := *c.answer
			a.OID = object(i, 0).OID.String()
			if a.Actions != nil {
				a.Actions = action(strings.Replace(a.Actions.Download.Href, "HOST", host, 1))
				a.Actions.Download.ExpiresIn = 1 << 60
				a.Actions.Download.Header = map[string]string{"Authorization": "Basic own", "X-A": "b", "Range": "bytes=1-"}
				if strings.HasSuffix(a.Actions.Download.Href, "/bad-header") {
					a.Actions.Download.Header["X-A"] = "b\r\nc"
				}
			}
			response.Objects = append([]wire.ObjectAnswer{a}, response.Objects...) // in another order
		}
		_ = json.NewEncoder(w).Encode(response)
	})
	host = "http://" + r.Origin.Host()
	b := lfs.Batch{}
	for i := range cases {
		b.Objects = append(b.Objects, object(i, 9))
	}
	answers, err := r.Batch(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		got := answers[i]
		if got.State != c.state || got.State == lfs.Refused && !fault.Is(got.Err, c.kind) {
			t.Errorf("%s: state %v, error %v, want %v, kind %v", c.name, got.State, got.Err, c.state, c.kind)
		}
		if got.State != lfs.Present {
			continue
		}
		if h := got.Action.Header; h.Get("Authorization") != "" || h.Get("Range") != "" || h.Get("X-A") != "b" {
			t.Errorf("%s: headers %v, want X-A only", c.name, h)
		}
		if !got.Action.IsValid(time.Now()) || got.Action.IsValid(time.Now().Add(25*time.Hour)) {
			t.Errorf("%s: expires %v, want tomorrow at the latest", c.name, got.Action.Expires)
		}
	}
}

func TestBatchIsSplit(t *testing.T) {
	t.Parallel()
	r := serve(t, func(w http.ResponseWriter, r *http.Request, path string) {
		var q wire.BatchRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || path != "/objects/batch" || len(q.Objects) > batchSize ||
			q.Operation != wire.Download || r.Header.Get("Authorization") != "Basic own" {
			t.Errorf("batch %v at %s, error %v, want at most %d objects", q, path, err, batchSize)
		}
		var response wire.BatchResponse
		for _, o := range q.Objects {
			response.Objects = append(response.Objects, wire.ObjectAnswer{Object: o,
				Actions: &wire.Actions{Download: &wire.Action{Href: "http://" + r.Host + "/" + o.OID}}})
		}
		_ = json.NewEncoder(w).Encode(response)
	})
	b := lfs.Batch{}
	for i := range 1234 {
		b.Objects = append(b.Objects, object(i, i))
	}
	answers, err := r.Batch(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a.State != lfs.Present || a.Action.URL.Path != "/"+b.Objects[i].OID.String() {
			t.Fatalf("answer %d: %v, want the action of its object", i, a)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for status, kind := range map[int]fault.Kind{401: fault.Unauthenticated, 403: fault.Denied, 404: fault.NotFound,
		413: fault.Invalid, 422: fault.Invalid, 429: fault.Exhausted, 501: fault.NotFound, 502: fault.Unavailable,
		507: fault.Full} {
		r := serve(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"message":"the\treason"}`)
		})
		_, err := r.Batch(t.Context(), lfs.Batch{Objects: []lfs.Object{object(1, 1)}})
		if !fault.Is(err, kind) || !strings.Contains(fault.Message(err), "the reason") {
			t.Errorf("status %d: error %v (%v), want %v with the server's message", status, err, fault.KindOf(err), kind)
		}
	}
	for name, body := range map[string]string{"not JSON": "<html>", "cut off": `{"objects":[`,
		"another transfer": `{"transfer":"multipart"}`, "another hash": `{"hash_algo":"sha512"}`} {
		r := serve(t, func(w http.ResponseWriter, _ *http.Request, _ string) { fmt.Fprint(w, body) })
		_, err := r.Batch(t.Context(), lfs.Batch{Objects: []lfs.Object{object(1, 1)}})
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: error %v, want Unavailable", name, err)
		}
	}
}

func TestUpload(t *testing.T) {
	t.Parallel()
	var requests []string
	r := serve(t, func(w http.ResponseWriter, r *http.Request, path string) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		requests = append(requests, r.Method+" "+path+" "+r.Header.Get("Authorization")+" "+r.Header.Get("X-A")+" "+
			string(body))
	})
	at := func(path string) *LFSAction {
		a, err := r.action(&wire.Action{Href: "http://" + r.Origin.Host() + "/team/app.git/info/lfs" + path,
			Header: map[string]string{"X-A": "b"}}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	answer := &LFSAnswer{Action: at("/put"), Verify: at("/verify")}
	if err := r.Upload(t.Context(), answer, object(1, 7), strings.NewReader("content and more")); err != nil {
		t.Fatal(err)
	}
	want := []string{"PUT /put Basic own b content",
		`POST /verify Basic own b {"oid":"` + object(1, 0).OID.String() + `","size":7}`}
	if fmt.Sprint(requests) != fmt.Sprint(want) {
		t.Errorf("requests %q, want %q", requests, want)
	}
	err := r.Upload(t.Context(), answer, object(1, 70), strings.NewReader("content"))
	if !fault.Is(err, fault.Invalid) || len(requests) != 2 {
		t.Errorf("Upload of a body that ends early: %v and %d requests, want Invalid and no verification", err, len(requests))
	}
}

// A server can say that an action needs no other credential, and have the caller's own one among the action's headers.
func TestAuthenticatedAction(t *testing.T) {
	t.Parallel()
	var got string
	r := serve(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		got = r.Header.Get("Authorization")
		fmt.Fprint(w, "content")
	})
	other := r
	other.Auth = node.NewSecret("Basic other")
	for header, want := range map[string]string{"": "", "Basic own": "Basic other", "Bearer signed": "Bearer signed"} {
		w := &wire.Action{Href: "http://" + r.Origin.Host() + "/team/app.git/info/lfs/x"}
		if header != "" {
			w.Header = map[string]string{"Authorization": header}
		}
		a, err := r.action(w, true, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		content, err := other.Download(t.Context(), a, object(1, 7), 0, "")
		if err != nil {
			t.Fatal(err)
		}
		_ = content.Body.Close()
		if got != want {
			t.Errorf("download with the header %q: credential %q, want %q", header, got, want)
		}
	}
}

func TestDownload(t *testing.T) {
	t.Parallel()
	const content = "0123456789"
	header, status, body := http.Header{}, 200, content
	r := serve(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		if got := r.Header["Accept-Encoding"]; len(got) != 1 || got[0] != "identity" {
			t.Errorf("Accept-Encoding = %q, want identity", got)
		}
		for name, values := range header {
			w.Header()[name] = values
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	})
	a, err := r.action(&wire.Action{Href: "http://" + r.Origin.Host() + "/team/app.git/info/lfs/x"}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		status int
		header http.Header
		body   string
		from   int64 // offset of the request
		want   int64 // offset of the content; -1: an error
		wrong  bool
	}{
		{"whole", 200, nil, content, 0, 0, false},
		{"whole instead of a range", 200, nil, content, 4, 0, false},
		{"range", 206, http.Header{"Content-Range": {"bytes 4-9/10"}}, content[4:], 4, 4, false},
		{"another range", 206, http.Header{"Content-Range": {"bytes 5-9/10"}}, content[5:], 4, -1, true},
		{"range of another object", 206, http.Header{"Content-Range": {"bytes 4-19/20"}}, content[4:], 4, -1, true},
		{"range not asked for", 206, http.Header{"Content-Range": {"bytes 4-9/10"}}, content[4:], 0, -1, false},
		{"another length", 200, nil, content + content, 0, -1, true},
		{"no content", 204, nil, "", 0, -1, false},
		{"packed", 200, http.Header{"Content-Encoding": {"gzip"}}, content, 0, -1, false},
		{"not packed", 200, http.Header{"Content-Encoding": {"identity"}}, content, 0, 0, false},
	} {
		header, status, body = c.header, c.status, c.body
		got, err := r.Download(t.Context(), a, object(1, 10), c.from, "")
		if (err != nil) != (c.want < 0) || errors.Is(err, ErrWrongObject) != c.wrong {
			t.Errorf("%s: error %v, want one: %v, ErrWrongObject: %v", c.name, err, c.want < 0, c.wrong)
			continue
		}
		if err != nil {
			if c.name == "packed" && !strings.Contains(fault.Message(err), "content coding gzip") {
				t.Errorf("%s: message %q, want the content coding", c.name, fault.Message(err))
			}
			continue
		}
		b, err := io.ReadAll(got.Body)
		if got.Offset != c.want || string(b) != content[c.want:] || err != nil || got.Body.Close() != nil {
			t.Errorf("%s: offset %d, %q, %v, want %d", c.name, got.Offset, b, err, c.want)
		}
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	lock := wire.Lock{ID: "7", Path: "a b", LockedAt: time.Unix(1e9, 0).UTC(), Owner: &wire.Owner{Name: "bob"}}
	reader := false
	r := serve(t, func(w http.ResponseWriter, r *http.Request, path string) {
		document := any(nil)
		switch r.Method + " " + path {
		case "POST /locks":
			w.WriteHeader(http.StatusConflict)
			document = wire.LockResponse{Lock: &lock, Message: "already locked"}
		case "POST /locks/verify":
			if reader {
				w.WriteHeader(http.StatusForbidden)
			}
			document = wire.VerifyLocksResponse{Ours: []wire.Lock{lock}, NextCursor: "next"}
		case "GET /locks":
			if id := r.URL.Query().Get("id"); id != "" && id != "7" {
				lock.ID = "../../x"
			}
			document = wire.LockList{Locks: []wire.Lock{lock}}
		case "POST /locks/7/unlock":
			document = wire.LockResponse{Lock: &lock}
		default:
			t.Errorf("request %s %s, want one of locks", r.Method, path)
		}
		_ = json.NewEncoder(w).Encode(document)
	})
	want := lfs.Lock{ID: "7", Path: "a b", Owner: "bob", Time: lock.LockedAt}
	check := func(name string, q lfs.LockRequest, kind fault.Kind, ours bool) {
		t.Helper()
		want.Ours = ours
		got, err := r.Locks(t.Context(), q)
		if err != nil && !fault.Is(err, kind) || err == nil && kind != fault.Internal || len(got.Locks) != 1 ||
			got.Locks[0] != want {
			t.Errorf("%s: %v, %v, want %v and kind %v", name, got, err, want, kind)
		}
	}
	check("create", lfs.LockRequest{Path: "a b"}, fault.Exists, false)
	check("list", lfs.LockRequest{Action: lfs.ListLocks}, fault.Internal, true)
	check("list one", lfs.LockRequest{Action: lfs.ListLocks, ID: "7"}, fault.Internal, false)
	reader = true
	check("list as a reader", lfs.LockRequest{Action: lfs.ListLocks}, fault.Internal, false)
	check("unlock", lfs.LockRequest{Action: lfs.Unlock, ID: "7"}, fault.Internal, true)
	if _, err := r.Locks(t.Context(), lfs.LockRequest{Action: lfs.Unlock, ID: "../7"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("Unlock with an invalid ID: %v, want NotFound", err)
	}
	if _, err := r.Locks(t.Context(), lfs.LockRequest{Action: lfs.ListLocks, ID: "8"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a lock with an invalid ID: %v, want Unavailable", err)
	}
}
