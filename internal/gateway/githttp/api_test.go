package githttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// callNode is a node that answers calls with messages, and an error after them.
type callNode struct {
	fakeNode
	mu       sync.Mutex
	calls    []node.Call
	messages []proto.Message
	err      error
}

func (n *callNode) Call(_ context.Context, c node.Call, receive func([]byte) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, c)
	for _, m := range n.messages {
		text, err := proto.Marshal(m)
		if err == nil {
			err = receive(text)
		}
		if err != nil {
			return err
		}
	}
	return n.err
}

func (n *callNode) set(err error, messages ...proto.Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls, n.messages, n.err = nil, messages, err
}

// hungNode is a node that answers no call.
type hungNode struct{ fakeNode }

func (*hungNode) Call(ctx context.Context, _ node.Call, _ func([]byte) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAPITimeLimit(t *testing.T) {
	t.Parallel()
	s := serve(t, &hungNode{}, options{auth: ofTeam, api: true, timeLimit: time.Millisecond})
	status, _, text, err := s.request("GET", "repos/team/app/refs", "", "", "")
	if status != 504 || !strings.Contains(text, `"kind":"deadline","message":"the request took more than 1ms"`) {
		t.Errorf("status %d, %s, %v", status, text, err)
	}
}

// ofTeam lets everybody read team/app, bob and alice everything below team, and alice write.
var ofTeam = callers{func(id auth.Identity, repo git.RepoPath, op auth.Operation) error {
	switch {
	case repo.String() == "team/app" && op == auth.Read, id.Name == "alice":
		return nil
	case id.Anonymous():
		return fault.New(fault.Unauthenticated, "say who you are")
	case id.Name == "bob" && op == auth.Read:
		return nil
	case id.Name == "bob":
		return fault.New(fault.Denied, "you may not write")
	}
	return auth.NoRepository(repo)
}}

// apiServer begins a server whose only node is n. Each name is a commit.
func apiServer(t *testing.T, n router.Node) *server {
	t.Helper()
	return serveRoutes(t, []router.Route{{Replicas: []*router.Replica{
		{Name: "local", Node: n, Revisions: &apiRevisions{}}}}}, options{auth: ofTeam, api: true})
}

type apiRevisions struct{ revisions }

func (*apiRevisions) Watch(context.Context, []node.Known, func(node.Event) error) error { return nil }

// request sends a request. Lines of the header end with \r\n.
func (s *server) request(method, path, who, header, body string) (status int, h http.Header, text string, err error) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.addr+"/-/api/v1/"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if who != "" {
		r.Header.Set("Authorization", "Bearer "+who)
	}
	for line := range strings.Lines(header) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		r.Header.Set(name, value)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		ExpectContinueTimeout: time.Minute}}).Do(r)
	if err != nil {
		return 0, nil, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, string(data), err
}

const commitBody = `{"branch":"main","message":"First","changes":[{"put":{"path":"a.txt","text":"hello\n"}}]}`

func TestAPIRights(t *testing.T) {
	t.Parallel()
	n := &callNode{}
	s := apiServer(t, n)
	n.set(nil, &packhorsev1.CommitServiceCreateResponse{Commit: "abc"})
	for _, test := range []struct {
		method, path, who string
		status            int
	}{
		{"GET", "team/app/tree/main/", "", 200}, {"GET", "team/app/tree/main/", "wrong", 401},
		{"GET", "team/app/tree/main/", "down", 503}, {"GET", "team/secret/tree/main/", "", 401},
		{"GET", "team/secret/tree/main/", "eve", 404}, {"GET", "team/secret/tree/main/", "bob", 200},
		{"POST", "team/app/commits", "", 401}, {"POST", "team/app/commits", "eve", 404},
		{"POST", "team/app/commits", "bob", 403}, {"POST", "team/app/commits", "alice", 200},
		{"POST", "team/app/refs", "bob", 403}, {"POST", "team/app/patches", "bob", 403},
		{"POST", "team/app/merges", "bob", 403}, {"PUT", "team/app/branches/x", "bob", 403},
		{"DELETE", "team/app/branches/x", "bob", 403}, {"POST", "team/app/merges/check", "bob", 200},
		{"POST", "team/app/is-ancestor", "", 200},
	} {
		body := ""
		if test.method != "GET" && strings.HasSuffix(test.path, "commits") {
			body = commitBody
		}
		if test.who == "eve" {
			n.set(fault.New(fault.NotFound, "no repository .packhorse here"))
		} else if test.status == 200 {
			n.set(nil)
		}
		status, h, text, _ := s.request(test.method, "repos/"+test.path, test.who, "", body)
		if status != test.status {
			t.Errorf("%s %s by %s: status %d, want %d: %s", test.method, test.path, test.who, status, test.status, text)
		}
		if (status == 401) != (h.Get("WWW-Authenticate") != "") || strings.Contains(text, ".packhorse") {
			t.Errorf("%s %s by %s: %v %s", test.method, test.path, test.who, h, text)
		}
		if asked := len(n.calls) > 0; asked != (test.status == 200 || test.who == "eve" && test.method == "POST") {
			t.Errorf("%s %s by %s: the node was asked: %v", test.method, test.path, test.who, asked)
		}
		n.set(nil)
	}
}

func TestAPIActor(t *testing.T) {
	t.Parallel()
	n := &callNode{}
	s := apiServer(t, n)
	n.set(nil, &packhorsev1.CommitServiceCreateResponse{Commit: "abc", Version: &packhorsev1.Version{Epoch: 1 << 60}})
	form := "Content-Type: application/x-www-form-urlencoded\r\n"
	status, _, text, _ := s.request("POST", "repos/team/app/commits", "alice", form, commitBody)
	if want := `{"commit":"abc","version":{"epoch":"1152921504606846976"}}` + "\n"; status != 200 || text != want {
		t.Errorf("status %d, %s, want %s", status, text, want)
	}
	var sent packhorsev1.CommitServiceCreateRequest
	if len(n.calls) != 1 || proto.Unmarshal(n.calls[0].Request, &sent) != nil {
		t.Fatalf("calls = %v, want one", n.calls)
	}
	a := sent.GetActor()
	if a.GetName() != "alice" || a.GetAddress() != "127.0.0.1" || sent.GetRepository() != "team/app" {
		t.Errorf("actor %v of %s", a, sent.GetRepository())
	}
	if c := n.calls[0]; c.Procedure != "/packhorse.v1.CommitService/Create" || c.Reachable != "1" ||
		c.Caller != "alice" {
		t.Errorf("call %s, %q of %q", c.Procedure, c.Reachable, c.Caller)
	}
}

func TestAPIRefusals(t *testing.T) {
	t.Parallel()
	n := &callNode{}
	s := apiServer(t, n)
	long := `{"message":"` + strings.Repeat("a", gateway.MaxAPIBody) + `"}`
	for _, test := range []struct {
		method, path, header, body string
		status                     int
		want                       string
	}{
		{"POST", "repos/team/app/commits", "Expect: 100-continue", long, 413, "8 MiB"},
		{"POST", "repos/team/app/commits", "Content-Type: multipart/form-data; boundary=x", "--x", 415, "content type"},
		{"POST", "repos/team/app/commits", "Content-Type: text/plain", "{}", 415, "content type"},
		{"POST", "repos/team/app/commits", "Sec-Fetch-Site: cross-site", "{}", 403, "web pages"},
		{"POST", "repos/team/app/commits", "Sec-Fetch-Site: same-site", "{}", 403, "web pages"},
		{"DELETE", "repos/team/app/branches/x", "Origin: https://evil.example", "", 403, "web pages"},
		{"POST", "repos/team/app/commits", "", `{"actor":{"name":"root"}}`, 400, `"field":"actor"`},
		{"POST", "repos/team/app/commits", "", `{"nothing":1}`, 400, `"field":"nothing"`},
		{"POST", "repos/team/app/commits", "Content-Encoding: br", `{}`, 400, "encoding"},
		{"PATCH", "repos/team/app/commits", "", "", 405, "use POST"},
		{"GET", "repos/team/app/merges/check", "", "", 405, "use POST"},
		{"GET", "repos/team/app/tree", "", "", 404, "not found"},
		{"PUT", "repos/team/app", "", "", 405, "use GET or PATCH or DELETE"},
		{"PUT", "repos", "", "", 405, "use GET or POST"},
		{"POST", "repos", "", `{}`, 404, `"field":"repository"`},
		{"POST", "repos", "", `{"repository":"a/../b"}`, 404, `"field":"repository"`},
		{"POST", "repos", "Origin: https://evil.example", `{"repository":"a"}`, 403, "web pages"},
		{"POST", "repos/team/app/forks", "", `{"repository":"a"}`, 400, `"field":"repository"`},
		{"POST", "repos/team/app/rename", "", `{"to":"../b"}`, 404, "no such repository"},
		{"GET", "repos/?limit=1001", "", "", 400, `"field":"limit"`},
		{"GET", "repos/../app/tree/main/", "", "", 404, "no such repository"},
		{"GET", "repos/team%2F..%2Fapp/tree/main/", "", "", 404, "no such repository"},
		{"GET", "repos/team/%2e%2e/app/tree/main/", "", "", 404, "no such repository"},
		{"GET", "repos/team%00/tree/main/", "", "", 404, "no such repository"},
		{"GET", "repos/team/app/tree/none/", "", "", 404, "no revision none"},
		{"GET", "repos/team/app/tree/twice/", "", "", 409, `"kind":"exists"`},
		{"GET", "repos/team/app/tree/main/?nothing=1", "", "", 400, `"field":"nothing"`},
		{"GET", "repos/team/app/tree/main/?limit=1;2", "", "", 400, "bad query"},
		{"GET", "repos/team/app/tree//x", "", "", 400, "no revision"},
		{"GET", "repos/team/app/compare/main", "", "", 400, "two revisions"},
		{"GET", "repos/team/%ff/tree/main/", "", "", 400, "UTF-8"},
		{"GET", "repos/team/app/log/%ff", "", "", 400, "UTF-8"},
		{"GET", "repos/team/app/raw/main/%ff", "", "", 400, "UTF-8"},
	} {
		status, h, text, _ := s.request(test.method, test.path, "alice", test.header, test.body)
		var document struct {
			Error struct{ Kind, Message string }
		}
		if err := json.Unmarshal([]byte(text), &document); err != nil || document.Error.Kind == "" ||
			document.Error.Message == "" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %.50s: not an error: %.300s", test.method, test.path, text)
		}
		if status != test.status || !strings.Contains(text, test.want) {
			t.Errorf("%s %.50s %s: %d %.300s\nwant %d %s", test.method, test.path, test.header, status, text, test.status,
				test.want)
		}
		if status == 405 && h.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", test.method, test.path)
		}
	}
	if len(n.calls) > 0 {
		t.Errorf("%d requests reached the node", len(n.calls))
	}
	// a path of any length is answered
	status, _, text, _ := s.request("GET", "repos/team/app/tree/main/"+strings.Repeat("a/", 2500), "alice", "", "")
	if status != 200 || text == "" {
		t.Errorf("a long path: %d %.300s", status, text)
	}
}

func TestAPIFailures(t *testing.T) {
	t.Parallel()
	n := &callNode{}
	s := apiServer(t, n)
	aborted := &fault.Error{Kind: fault.Aborted, Msg: "it moved", Mismatches: []fault.Mismatch{
		{Name: "refs/heads/main", Expected: "a", Actual: "b"}}}
	problem := &packhorsev1.Fault{Kind: packhorsev1.FaultKind_FAULT_KIND_ABORTED, Message: "it moved"}
	for _, test := range []struct {
		path    string
		message proto.Message
		err     error
		status  int
		want    string
	}{
		{"commits", nil, aborted, 409, `"mismatches":[{"name":"refs/heads/main","expected":"a","actual":"b"}]`},
		{"merges", &packhorsev1.MergeResponse{Conflicts: []*packhorsev1.Conflict{{Path: []byte("a.txt")}}}, nil, 409,
			`{"conflicts":[{"path":"a.txt"}],"error":{"kind":"precondition",`},
		{"refs", &packhorsev1.UpdateResponse{Results: []*packhorsev1.UpdateResult{{Fault: problem}}}, nil, 409,
			`"results":[{"fault":{"kind":"aborted","message":"it moved"}}]`},
		{"refs", &packhorsev1.UpdateResponse{Results: []*packhorsev1.UpdateResult{{Fault: problem}, {OldOid: "a"}}}, nil, 200,
			`{"old_oid":"a"}`},
		{"merges", nil, fault.New(fault.Precondition, "unrelated"), 409, `"kind":"precondition"`},
		{"merges", nil, fault.Retry(fault.Exhausted, 5e9, "full"), 429, `"retry_after":5`},
		{"commits", nil, fault.New(fault.Full, "full"), 507, `"kind":"full"`},
		{"commits", nil, fault.InField("changes[3].put.path", fault.New(fault.Invalid, "bad")), 400,
			`"field":"changes[3].put.path"`},
		{"merges/check", &packhorsev1.CheckResponse{Id: "1", Fault: problem}, nil, 200,
			`{"fault":{"kind":"aborted","message":"it moved"},"id":"1"}` + "\n"},
	} {
		var messages []proto.Message
		if test.message != nil {
			messages = append(messages, test.message)
		}
		n.set(test.err, messages...)
		status, _, text, _ := s.request("POST", "repos/team/app/"+test.path, "alice", "", "{}")
		if status != test.status || !strings.Contains(text, test.want) {
			t.Errorf("%s: %d %s\nwant %d %s", test.path, status, text, test.status, test.want)
		}
		if len(n.calls) != 1 {
			t.Errorf("%s: the node was asked %d times", test.path, len(n.calls))
		}
	}
}

// A failure in the middle of JSON lines is the last line, and the response does not look complete.
func TestAPILines(t *testing.T) {
	t.Parallel()
	n := &callNode{}
	s := apiServer(t, n)
	line := func(path string) proto.Message {
		return &packhorsev1.LastCommitsResponse{Entries: []*packhorsev1.LastCommit{{Name: []byte(path)}}}
	}
	n.set(nil, line("a"), line("b"))
	const path, accept = "repos/team/app/last-commits/main/", "Accept: application/jsonl"
	status, h, text, err := s.request("GET", path, "", accept, "")
	const both = `{"entries":[{"name":"a"}]}` + "\n" + `{"entries":[{"name":"b"}]}` + "\n"
	if status != 200 || text != both || err != nil || h.Get("Content-Type") != "application/jsonl" {
		t.Errorf("%d %s, %v, %v", status, text, h, err)
	}
	_, _, text, err = s.request("GET", path, "", "", "")
	if text != `{"commits":[],"entries":[{"name":"a"},{"name":"b"}]}`+"\n" || err != nil {
		t.Errorf("document %s, %v", text, err)
	}
	n.set(fault.New(fault.Corrupt, "it is damaged"), line("a"), line("b"))
	_, _, text, err = s.request("GET", path, "", accept, "")
	if want := both + `{"error":{"kind":"corrupt","message":"it is damaged"}}` + "\n"; text != want ||
		!errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%s, error = %v, want one", text, err)
	}
	for _, accept := range []string{"", "Accept: application/jsonl"} {
		n.set(fault.New(fault.Corrupt, "it is damaged"))
		if status, _, text, err := s.request("GET", path, "", accept, ""); status != 500 || err != nil ||
			!strings.Contains(text, `"kind":"corrupt"`) {
			t.Errorf("%d %s, %v", status, text, err)
		}
	}
	big := make([]proto.Message, 20)
	for i := range big {
		big[i] = line(strings.Repeat("a", 1<<20))
	}
	n.set(nil, big...)
	if status, _, text, _ := s.request("GET", path, "", "", ""); status != 400 || !strings.Contains(text, "jsonl") {
		t.Errorf("a document that is too long: %d %.100s", status, text)
	}
	if status, _, text, err := s.request("GET", path, "", accept, ""); status != 200 || len(text) < 20<<20 || err != nil {
		t.Errorf("lines: %d, %d bytes, %v", status, len(text), err)
	}
}

func TestAPIDiff(t *testing.T) {
	t.Parallel()
	n := &callNode{}
	s := apiServer(t, n)
	n.set(nil,
		&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_File{File: &packhorsev1.FileDiff{Path: []byte("a"),
			Status: "M", Patch: []byte("diff ")}}},
		&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_Patch{Patch: []byte("é")}},
		&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_File{File: &packhorsev1.FileDiff{Path: []byte("b")}}},
		&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_Summary{Summary: &packhorsev1.PatchSummary{Files: 2}}})
	const path = "repos/team/app/compare/main...topic"
	for accept, want := range map[string]string{
		"*/*":              `{"files":[{"path":"a","status":"M","patch":"diff é"},{"path":"b"}],"summary":{"files":2}}` + "\n",
		"application/json": `{"files":[{"path":"a","status":"M","patch":"diff é"},{"path":"b"}],"summary":{"files":2}}` + "\n",
		"text/plain":       "diff é",
		"application/jsonl": `{"file":{"path":"a","status":"M","patch":"diff "}}` + "\n" + `{"patch":"é"}` + "\n" + `{"file":{"path":"b"}}` + "\n" +
			`{"summary":{"files":2}}` + "\n",
	} {
		status, _, text, err := s.request("GET", path, "", "Accept: "+accept, "")
		if status != 200 || text != want || err != nil {
			t.Errorf("%s: %d %q, %v\nwant %q", accept, status, text, err, want)
		}
	}
}

func TestAPITags(t *testing.T) {
	t.Parallel()
	n := &callNode{}
	s := apiServer(t, n)
	n.set(nil, &packhorsev1.TreeResponse{Oid: "abc"})
	const id = "0123456789012345678901234567890123456789"
	_, h, _, _ := s.request("GET", "repos/team/app/tree/main/", "", "", "")
	tag := h.Get("ETag")
	if tag == "" || h.Get("Cache-Control") != "private, no-cache" || !strings.Contains(h.Get("Vary"), "Authorization") {
		t.Errorf("%v", h)
	}
	asked := len(n.calls)
	status, h, text, _ := s.request("GET", "repos/team/app/tree/main/", "", "If-None-Match: \"x\", W/"+tag, "")
	if status != 304 || text != "" || h.Get("ETag") != tag || len(n.calls) != asked {
		t.Errorf("%d %s %v, %d calls", status, text, h, len(n.calls)-asked)
	}
	status, _, _, _ = s.request("GET", "repos/team/app/tree/main/?limit=1", "", "If-None-Match: "+tag, "")
	if status != 200 {
		t.Errorf("the tag is that of other parameters: %d", status)
	}
	if _, h, _, _ := s.request("GET", "repos/team/app/tree/"+id+"/", "", "", ""); !strings.Contains(h.Get("Cache-Control"),
		"immutable") {
		t.Errorf("%v", h)
	}
	// an object that a name has led to needs no check
	if got := n.calls[len(n.calls)-1].Reachable; got != "1 "+id {
		t.Errorf("Reachable = %q", got)
	}
	for path, response := range map[string]proto.Message{"log/" + id + "?exclude=main": &packhorsev1.LogResponse{},
		"diff/" + id + "?from=main":                &packhorsev1.PatchResponse{},
		"blame/" + id + "/a?ignore_revisions=main": &packhorsev1.BlameResponse{}} {
		n.set(nil, response)
		_, h, _, _ := s.request("GET", "repos/team/app/"+path, "", "", "")
		asked := len(n.calls)
		s.request("GET", "repos/team/app/"+path, "", "If-None-Match: "+h.Get("ETag"), "")
		if h.Get("Cache-Control") != "private, no-cache" || len(n.calls) == asked {
			t.Errorf("%s: cached although main can change: %v", path, h)
		}
	}
	n.set(nil, &packhorsev1.RefServiceListResponse{Refs: []*packhorsev1.Ref{{Name: "refs/heads/main"}},
		NextPageToken: "t"})
	_, h, text, _ = s.request("GET", "repos/team/app/branches?limit=1", "", "", "")
	if text != `{"next":"t","refs":[{"name":"refs/heads/main"}]}`+"\n" {
		t.Errorf("%s", text)
	}
	tag = h.Get("ETag")
	status, _, _, _ = s.request("GET", "repos/team/app/branches?limit=1", "", "If-None-Match: "+tag, "")
	if status != 304 {
		t.Errorf("%d, want 304", status)
	}
}

func TestAPIRaw(t *testing.T) {
	t.Parallel()
	n := &callNode{}
	s := apiServer(t, n)
	blob := func(parts ...string) {
		var messages []proto.Message
		for i, part := range parts {
			m := &packhorsev1.BlobResponse{Data: []byte(part)}
			if i == 0 {
				m.Header = &packhorsev1.BlobHeader{Oid: "abc", Size: int64(len(strings.Join(parts, "")))}
			}
			messages = append(messages, m)
		}
		n.set(nil, messages...)
	}
	const path = "repos/team/app/raw/main/dir/é\"x.txt"
	for _, test := range []struct {
		name, header string
		parts        []string
		status       int
		kind, body   string
	}{
		{"text", "", []string{"<script>", "é"}, 200, "text/plain; charset=utf-8", "<script>é"},
		{"empty", "", []string{""}, 200, "text/plain; charset=utf-8", ""},
		{"cut in a character", "", []string{"a\né"[:3], "é"[1:]}, 200, "text/plain; charset=utf-8", "a\né"},
		{"binary", "", []string{"\xff\xfe"}, 200, "application/octet-stream", "\xff\xfe"},
	} {
		blob(test.parts...)
		status, h, text, err := s.request("GET", strings.ReplaceAll(path, `"`, "%22"), "", test.header, "")
		if status != test.status || h.Get("Content-Type") != test.kind || text != test.body || err != nil {
			t.Errorf("%s: %d %s %q, %v", test.name, status, h.Get("Content-Type"), text, err)
		}
		if status < 300 && (h.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(
			h.Get("Content-Security-Policy"), "sandbox") || h.Get("ETag") == "") {
			t.Errorf("%s: %v", test.name, h)
		}
	}
	blob("abcd")
	status, h, text, err := s.request("HEAD", "repos/team/app/raw/main/a", "", "", "")
	if status != 200 || h.Get("Content-Length") != "4" || text != "" || err != nil {
		t.Errorf("%d %v %q %v", status, h, text, err)
	}
	blob("ab")
	n.err = fault.New(fault.Corrupt, "it is damaged")
	n.messages[0].(*packhorsev1.BlobResponse).Header.Size = 4
	if _, _, _, err := s.request("GET", "repos/team/app/raw/main/a", "", "", ""); err == nil {
		t.Error("a file that was cut looks complete")
	}
}

// A change is not sent to another node unless the first one has not begun it. A call that reads is.
func TestAPIFailover(t *testing.T) {
	t.Parallel()
	down := fault.New(fault.Unavailable, "down")
	one, two := &callNode{}, &callNode{}
	s := serveRoutes(t, []router.Route{{Replicas: []*router.Replica{
		{Name: "a", Node: one, Revisions: &apiRevisions{}, Store: func() (string, bool) { return "store", true }},
		{Name: "b", Node: two, Revisions: &apiRevisions{}, Store: func() (string, bool) { return "store", true }},
	}}}, options{auth: ofTeam, api: true})
	for _, test := range []struct {
		name, method, path string
		err                error
		messages           []proto.Message
		calls              int
	}{
		{"change", "POST", "commits", down, nil, 1},
		{"change that was not sent", "POST", "commits", &node.UnsentError{Err: down}, nil, 2},
		{"look-up", "GET", "branches", down, nil, 2},
		{"look-up that was answered in part", "GET", "branches", down,
			[]proto.Message{&packhorsev1.RefServiceListResponse{}}, 1},
	} {
		one.set(test.err, test.messages...)
		two.set(test.err, test.messages...)
		status, _, text, _ := s.request(test.method, "repos/team/app/"+test.path, "alice", "", "")
		if calls := len(one.calls) + len(two.calls); status != 503 || calls != test.calls {
			t.Errorf("%s: %d %s after %d calls, want 503 after %d", test.name, status, text, calls, test.calls)
		}
		for _, c := range append(one.calls, two.calls...) {
			if (c.StoreID == "store") != (test.method == "POST") {
				t.Errorf("%s: store %q", test.name, c.StoreID)
			}
		}
	}
}

func TestOpenAPIIsServed(t *testing.T) {
	t.Parallel()
	s := apiServer(t, &callNode{})
	status, h, text, _ := s.request("GET", "openapi.json", "", "", "")
	if status != 200 || h.Get("Content-Type") != "application/json" || !json.Valid([]byte(text)) {
		t.Errorf("%d %v %.100s", status, h, text)
	}
	off := serve(t, &callNode{}, options{auth: ofTeam})
	for _, path := range []string{"openapi.json", "repos/team/app/tree/main/"} {
		if status, _, text, _ := off.request("GET", path, "", "", ""); status != 404 {
			t.Errorf("turned off: %d %s", status, text)
		}
	}
}
