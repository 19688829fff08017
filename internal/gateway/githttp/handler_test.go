package githttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

func TestResponsesByRequest(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{advertise: advertise, serve: echo}, options{})
	for name, test := range map[string]struct {
		request string // without the blank line
		status  int
		says    string
		header  [2]string
	}{
		"advertisement": {"GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nGit-Protocol: version=2", 200,
			"version 2\n0000", [2]string{"Content-Type", "application/x-git-upload-pack-advertisement"}},
		"nested": {"GET /a/b/c.git/info/refs?service=git-upload-pack HTTP/1.1\r\nGit-Protocol: version=2",
			200, "version 2", [2]string{}},
		"slashes": {"GET //repo//info/refs?service=git-upload-pack HTTP/1.1\r\nGit-Protocol: version=2", 200,
			"version 2", [2]string{}},
		"several keys": {"GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nGit-Protocol: a:version=1:version=2:b=c",
			200, "version 2", [2]string{}},
		"HEAD": {"HEAD /repo/info/refs?service=git-upload-pack HTTP/1.1", 200, "", [2]string{}},
		"version 0": {"GET /repo/info/refs?service=git-upload-pack HTTP/1.1", 200,
			"001e# service=git-upload-pack\n0000000eversion 0\n0000", [2]string{"Content-Length", "52"}},
		"version 1": {"GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nGit-Protocol: version=1", 200,
			"001e# service=git-upload-pack\n0000000eversion 1\n0000", [2]string{}},
		"odd version": {"GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nGit-Protocol: ::version=22;version=2\x80",
			200, "version 0\n0000", [2]string{}},
		"dumb refs":  {"GET /repo/info/refs HTTP/1.1", 403, "dumb HTTP", [2]string{}},
		"dumb HEAD":  {"GET /repo/HEAD HTTP/1.1", 403, "dumb HTTP", [2]string{}},
		"dumb packs": {"GET /repo/objects/info/packs HTTP/1.1", 403, "dumb HTTP", [2]string{}},
		"push, discovery": {"GET /repo/info/refs?service=git-receive-pack HTTP/1.1", 403, "does not accept pushes",
			[2]string{}},
		"push": {"POST /repo/git-receive-pack HTTP/1.1\r\nContent-Length: 4\r\n\r\n0000", 403,
			"does not accept pushes", [2]string{}},
		"unknown service": {"GET /repo/info/refs?service=git-upload-archive HTTP/1.1", 403, "unknown service",
			[2]string{}},
		"bad query": {"GET /repo/info/refs?service=%zz HTTP/1.1", 400, "bad query", [2]string{}},
		"PUT": {"PUT /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nContent-Length: 0", 405,
			"use GET", [2]string{"Allow", "GET"}},
		"OPTIONS":          {"OPTIONS /repo/git-upload-pack HTTP/1.1", 405, "use POST", [2]string{"Allow", "POST"}},
		"GET of a session": {"GET /repo/git-upload-pack HTTP/1.1", 405, "use POST", [2]string{"Allow", "POST"}},
		"odd method":       {"BREW /repo/info/refs HTTP/1.1", 405, "use GET", [2]string{}},
		"content type": {"POST /repo/git-upload-pack HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: " +
			"4\r\n\r\n0000", 415, "bad content type", [2]string{}},
		"session in v0": {"POST /repo/git-upload-pack HTTP/1.1\r\nContent-Type: " +
			"application/x-git-upload-pack-request\r\nContent-Length: 4\r\n\r\n0000", 200, "0005\n0000",
			[2]string{"Content-Type", "application/x-git-upload-pack-result"}},
		"root":          {"GET / HTTP/1.1", 404, "git clone http://git.example/team/app", [2]string{}},
		"ours":          {"GET /-/metrics HTTP/1.1", 404, "private listener", [2]string{}},
		"ours, session": {"GET /-/x/info/refs?service=git-upload-pack HTTP/1.1", 404, "", [2]string{}},
		"ours, disguised": {"GET //-/x/info/refs?service=git-upload-pack HTTP/1.1", 404, "no such repository",
			[2]string{}},
		"a page": {"GET /repo HTTP/1.1", 404, "git clone", [2]string{}},
		"no repository": {"GET /info/refs?service=git-upload-pack HTTP/1.1", 404, "no repository named",
			[2]string{}},
		"up": {"GET /a/../b/info/refs?service=git-upload-pack HTTP/1.1", 404, "no such repository",
			[2]string{}},
		"up, encoded": {"GET /%2e%2e/b/info/refs?service=git-upload-pack HTTP/1.1", 404, "no such repository",
			[2]string{}},
		"encoded slash": {"GET /..%2f..%2fetc/info/refs?service=git-upload-pack HTTP/1.1", 404, "no such repository",
			[2]string{}},
		"NUL": {"GET /a%00b/info/refs?service=git-upload-pack HTTP/1.1", 404, "no such repository",
			[2]string{}},
		"newline": {"GET /a%0ab/info/refs?service=git-upload-pack HTTP/1.1", 404, "no such repository",
			[2]string{}},
		"backslash": {"GET /a%5c..%5cb/info/refs?service=git-upload-pack HTTP/1.1", 404, "no such repository",
			[2]string{}},
		"long": {"GET /" + strings.Repeat("a/", 1000) + "info/refs?service=git-upload-pack HTTP/1.1", 404,
			"no such repository", [2]string{}},
		"huge header": {"GET /repo/info/refs HTTP/1.1\r\nX: " + strings.Repeat("x", 100<<10), 431, "",
			[2]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.dial()
			head, rest, _ := strings.Cut(test.request, "\r\n\r\n")
			first, headers, _ := strings.Cut(head, "\r\n")
			if headers != "" {
				headers += "\r\n"
			}
			go io.WriteString(c, first+"\r\nHost: git.example\r\nConnection: close\r\n"+headers+"\r\n"+rest)
			method, _, _ := strings.Cut(first, " ")
			response, err := http.ReadResponse(c.r, &http.Request{Method: method})
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != test.status || !strings.Contains(string(body), test.says) {
				t.Fatalf("got %s (%v), want %d with %q:\n%s", response.Status, err, test.status, test.says, body)
			}
			if test.status == 431 {
				return // before our handler
			}
			h := response.Header
			if got := h.Get(test.header[0]); test.header[0] != "" && got != test.header[1] {
				t.Errorf("%s is %q, want %q", test.header[0], got, test.header[1])
			}
			if !strings.Contains(h.Get("Cache-Control"), "no-cache") || h.Get("Pragma") != "no-cache" ||
				h.Get("Expires") == "" {
				t.Errorf("header = %v, want no-cache", h)
			}
			if test.status != 200 {
				if h.Get("Content-Type") != "text/plain; charset=utf-8" ||
					h.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("header of an error = %v, want text/plain and nosniff", h)
				}
				if test.request[0] != 'H' && !strings.HasSuffix(string(body), "\n") {
					t.Errorf("text of an error = %q, want a final newline", body)
				}
			}
		})
	}
}

func TestErrorsAreRenderedByTheirKind(t *testing.T) {
	t.Parallel()
	const secret = "/srv/secret/path"
	for kind, want := range map[fault.Kind]struct {
		discovery  int
		before     int // status of a session's error before the answer
		retryAfter bool
	}{
		fault.Internal:    {500, 500, false},
		fault.Invalid:     {400, 200, false},
		fault.NotFound:    {404, 404, false},
		fault.Denied:      {403, 403, false},
		fault.Exhausted:   {429, 429, true},
		fault.Unavailable: {503, 503, true},
		fault.Corrupt:     {500, 500, false},
		fault.Deadline:    {504, 504, false},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			err := fault.Wrap(kind, "what the client may know", &http.ProtocolError{ErrorString: secret})
			s := serve(t, failing(err), options{})
			for _, request := range []struct {
				text   string
				status int
			}{
				{"GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: version=2\r\n\r\n",
					want.discovery},
				{post("Content-Length: 24") + lsRefs, want.before},
			} {
				c := s.dial()
				c.send(request.text)
				response, body, err := c.answer()
				if err != nil || response.StatusCode != request.status ||
					!strings.Contains(body, "what the client may know") {
					t.Errorf("got %s (%v), want %d: %q", response.Status, err, request.status, body)
				}
				if strings.Contains(body, secret) {
					t.Errorf("body = %q, want it without the cause", body)
				}
				if got := response.Header.Get("Retry-After"); (got != "") != want.retryAfter {
					t.Errorf("Retry-After is %q", got)
				}
				if response.StatusCode == 200 && !strings.HasPrefix(body, "00") {
					t.Errorf("body = %q, want an ERR packet", body)
				}
				// The same connection serves the next request.
				c.send("GET /-/ HTTP/1.1\r\nHost: h\r\n\r\n")
				if response, _, _ := c.answer(); response.StatusCode != 404 {
					t.Errorf("next request: status = %s, want 404", response.Status)
				}
			}
			if !strings.Contains(s.log.String(), secret) {
				t.Errorf("log = %s, want the cause", s.log)
			}
		})
	}
}

func failing(err error) *fakeNode {
	return &fakeNode{
		advertise: func(node.Session) ([]byte, error) { return nil, err },
		serve: func(context.Context, io.Reader, node.ResponseWriter) (node.Outcome, error) {
			return node.Outcome{}, err
		},
	}
}

func TestFullLanesRefuse(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	var hit atomic.Bool
	s := serve(t, &fakeNode{
		advertise: advertise,
		serve: func(_ context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
			if _, err := readAll(request); err != nil {
				return node.Outcome{}, err
			}
			if err := reply.StartBulk(!hit.Load()); err != nil {
				return node.Outcome{Command: protocol.CommandFetch}, err
			}
			if !hit.Load() {
				entered <- struct{}{}
				<-leave
			}
			_, err := reply.Write([]byte("0000"))
			return node.Outcome{Command: protocol.CommandFetch}, err
		},
	}, options{small: 1, bulk: 1})
	first := s.dial()
	first.send(post("Content-Length: 24") + lsRefs)
	<-entered
	second := s.dial()
	second.send(post("Content-Length: 24") + lsRefs)
	response, body, err := second.answer()
	if err != nil || response.StatusCode != 429 || response.Header.Get("Retry-After") == "" ||
		!strings.Contains(body, "too many cold requests at the same time; try again") ||
		!strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("with a full lane: %s (%v) %q %v", response.Status, err, body, response.Header)
	}
	hit.Store(true)
	second.send(post("Content-Length: 24") + lsRefs)
	if response, body, err := second.answer(); err != nil || response.StatusCode != 200 || body != "0000" {
		t.Errorf("hit beside cold packs: status = %s, error = %v, body = %q, want 0000", response.Status, err, body)
	}
	hit.Store(false)
	second.send("GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: version=2\r\n\r\n")
	if response, _, _ := second.answer(); response.StatusCode != 200 {
		t.Errorf("small request beside a bulk one: status = %s, want 200", response.Status)
	}
	close(leave)
	if response, body, err := first.answer(); err != nil || body != "0000" {
		t.Errorf("request in the lane: status = %s, error = %v, body = %q, want 0000", response.Status, err, body)
	}
}

func TestPipelinedRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{advertise: advertise, serve: echo}, options{})
	c := s.dial()
	one := post("Content-Length: 24") + lsRefs
	c.send(strings.Repeat(one+"GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: "+
		"version=2\r\n\r\n", 20))
	for i := range 20 {
		if _, body, err := c.answer(); err != nil || !strings.Contains(body, "command=ls-refs") {
			t.Fatalf("answer %d: body = %q, error = %v, want ls-refs", i, body, err)
		}
		if _, body, err := c.answer(); err != nil || !strings.Contains(body, "version 2") {
			t.Fatalf("advertisement %d: body = %q, error = %v, want version 2", i, body, err)
		}
	}
}

// TestSmugglingShapes sends ambiguous requests. They are refused by name, and a smuggled request is not answered.
// Package httpguard tests all shapes.
func TestSmugglingShapes(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{advertise: advertise, serve: echo}, options{})
	const hidden = "GET /-/hidden HTTP/1.1\r\nHost: h\r\n\r\n"
	for name, test := range map[string]struct{ request, says string }{
		"two lengths": {post("Content-Length: 24", "Content-Length: 25") + lsRefs + hidden,
			"Content-Length must be one decimal number"},
		"list of lengths": {post("Content-Length: 24, 24") + lsRefs + hidden, "Content-Length must be one decimal number"},
		"unknown encoding": {post("Transfer-Encoding: xchunked") + lsRefs + hidden,
			"Transfer-Encoding must be chunked"},
		"folded header": {post("X: a\r\n b", "Content-Length: 24") + lsRefs + hidden,
			"a header begins with a space"},
		"space before colon": {post("Content-Length : 24") + lsRefs + hidden, "a space before its colon"},
		"bad chunk size": {post("Transfer-Encoding: chunked") + "-5\r\n" + hidden,
			"invalid chunk"},
		"chunk size too long": {post("Transfer-Encoding: chunked") + "ffffffffffffffffff\r\n" + hidden,
			"invalid chunk"},
		"no chunk end": {post("Transfer-Encoding: chunked") + "18\r\n" + lsRefs + "x" + hidden,
			"invalid chunk"},
		"length and chunks": {post("Content-Length: 3", "Transfer-Encoding: chunked") + "18\r\n" + lsRefs +
			"\r\n0\r\n\r\n", "Content-Length and Transfer-Encoding in one request"},
		"bare line feeds": {strings.ReplaceAll(post("Content-Length: 24"), "\r\n", "\n") + lsRefs,
			"end with CR and LF"},
		"control in header": {post("X: a\x00b") + hidden, "a control character"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.dial()
			c.send(test.request)
			_ = c.CloseWrite()
			all, err := io.ReadAll(c.r)
			if n := strings.Count(string(all), "HTTP/1.1 "); n != 1 || err != nil ||
				!strings.HasPrefix(string(all), "HTTP/1.1 400 Bad Request\r\n") ||
				!strings.Contains(string(all), test.says) {
				t.Errorf("error = %v, response = %s, want one 400 with %q", err, all, test.says)
			}
		})
	}
	// and the server still serves
	c := s.dial()
	c.send(post("Content-Length: 24") + lsRefs)
	if _, body, err := c.answer(); err != nil || !strings.Contains(body, "ls-refs") {
		t.Errorf("later request: body = %q, error = %v, want ls-refs", body, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{advertise: advertise, serve: echo}, options{})
	var wg sync.WaitGroup
	for range 500 {
		c := s.dial()
		wg.Go(func() {
			for range 3 {
				if _, err := io.WriteString(c, post("Content-Length: 24")+lsRefs); err != nil {
					t.Errorf("WriteString error = %v, want none", err)
					return
				}
				response, err := http.ReadResponse(c.r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 200 || len(body) == 0 {
					t.Errorf("status = %s, body = %q, error = %v, want 200 with a body", response.Status, body, err)
				}
			}
			c.Close()
		})
	}
	wg.Wait()
	if n := s.value("packhorse_requests_total{operation=ls_refs,result=ok}"); n != 1500 {
		t.Errorf("%v requests counted, want 1500", n)
	}
}

func TestLogLines(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{advertise: advertise, serve: echo}, options{})
	c := s.dial()
	c.send("GET /x%0alevel=ERROR%20msg=forged?a HTTP/1.1\r\nHost: h\r\nUser-Agent: a\"b\x80 level=ERROR" +
		strings.Repeat("x", 1000) + "\r\n\r\n")
	_, _, _ = c.answer()
	c.send("GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: version=2\r\n\r\n")
	_, _, _ = c.answer()
	if !eventually(func() bool { return strings.Count(s.log.String(), "\n") >= 2 }) {
		t.Fatalf("log = %s, want 2 lines", s.log)
	}
	lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("lines of 2 requests = %d, want 2:\n%s", len(lines), s.log)
	}
	if len(lines[0]) > 1000 || !strings.Contains(lines[0], `path="/x\nlevel`) {
		t.Errorf("line of the refused request = %s, want at most 1000 bytes with the path quoted", lines[0])
	}
	for _, want := range []string{"operation=info_refs", "result=ok", "status=200", "repository=repo",
		"client=127.0.0.1:", `protocol="HTTP/1.1 v2"`, "ms=", "bytes="} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("the line lacks %s: %s", want, lines[1])
		}
	}
}

// While the server drains, each answer ends its connection, also one that was asked for before.
func TestDrainingEndsConnections(t *testing.T) {
	t.Parallel()
	working, release := make(chan struct{}), make(chan struct{})
	s := serve(t, &fakeNode{advertise: advertise, serve: func(_ context.Context, _ io.Reader,
		reply node.ResponseWriter) (node.Outcome, error) {
		close(working)
		<-release
		_, err := reply.Write([]byte("0000"))
		return node.Outcome{Command: protocol.CommandFetch}, err
	}}, options{application: application{}})
	const (
		advertised = "GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n\r\n"
		page       = "GET /page HTTP/1.1\r\nHost: h\r\n\r\n"
		none       = "GET /repo/objects/info/packs HTTP/1.1\r\nHost: h\r\n\r\n"
	)
	kept := s.dial()
	for _, request := range []string{advertised, page, none} {
		kept.send(request)
		if response, body, err := kept.answer(); err != nil || response.Close {
			t.Errorf("%q before the drain: body = %q, error = %v, want an open connection", request, body, err)
		}
	}
	before := s.dial()
	before.send(post(fmt.Sprint("Content-Length: ", len(lsRefs))) + lsRefs)
	<-working
	s.handler.Drain()
	close(release)
	if response, body, err := before.answer(); err != nil || body != "0000" || !response.Close {
		t.Errorf("request that ran before the drain: close = %v, body = %q, error = %v, want 0000 and close", response.Close,
			body, err)
	}
	for i, request := range []string{advertised, page, none} {
		c := s.dial()
		if i == 0 {
			c = kept
		}
		c.send(request)
		if response, body, err := c.answer(); err != nil || !response.Close {
			t.Errorf("%q during the drain: body = %q, error = %v, want a closed connection", request, body, err)
		}
	}
}
