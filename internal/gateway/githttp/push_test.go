package githttp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// writers is a gateway.Auth that accepts all names. Only identified callers may push.
type writers struct{}

func (writers) HTTP(r *http.Request) (auth.Identity, error) {
	name, _, _ := r.BasicAuth()
	return auth.Identity{Name: name, By: "token"}, nil
}

func (writers) May(_ context.Context, id auth.Identity, _ git.RepoPath, op auth.Operation) error {
	if op > auth.Read && id.Anonymous() {
		return fault.New(fault.Unauthenticated, "who are you?")
	}
	return nil
}

func (writers) Configured() bool { return true }

func (writers) RefRules(context.Context, auth.Identity, git.RepoPath) (node.RefRules, error) {
	return node.RefRules{}, nil
}

func (writers) Reader(context.Context, auth.Identity) func([]git.RepoPath) ([]bool, bool) { return nil }

// pushTo posts a push.
func (s *server) pushTo(path string, body io.Reader, headers ...string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://"+s.addr+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	r.SetBasicAuth("alice", "secret")
	r.Header.Set("Content-Type", "application/x-git-receive-pack-request")
	for _, h := range headers {
		if name, value, ok := strings.Cut(h, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err.Error()
	}
	return response.StatusCode, string(answer)
}

// counting answers a push with how many bytes it has.
func counting() *fakeNode {
	return &fakeNode{
		advertise: func(s node.Session) ([]byte, error) {
			return []byte(string(s.Service) + " " + s.Version.String()), nil
		},
		serve: func(_ context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
			n, err := io.Copy(io.Discard, request)
			if err != nil {
				return node.Outcome{}, err
			}
			_, err = fmt.Fprintf(reply, "%d", n)
			return node.Outcome{Command: node.CommandPush}, err
		},
	}
}

func TestPushRequests(t *testing.T) {
	t.Parallel()
	const large = 3 << 20 // more than maxBody
	s := serve(t, counting(), options{auth: writers{}, maxBody: 1 << 20, maxPush: 1 << 20})
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(make([]byte, large))
	_ = z.Close()
	for name, test := range map[string]struct {
		status int
		says   string
		body   io.Reader
		header string
	}{
		"probe":          {200, "4", strings.NewReader("0000"), ""},
		"large":          {200, fmt.Sprint(large), bytes.NewReader(make([]byte, large)), ""},
		"chunks":         {200, fmt.Sprint(large), io.MultiReader(bytes.NewReader(make([]byte, large))), ""},
		"gzip":           {200, fmt.Sprint(large), &zipped, "Content-Encoding: gzip"},
		"no gzip":        {400, "not a gzip stream", strings.NewReader("0000"), "Content-Encoding: gzip"},
		"other encoding": {400, "unknown content encoding", strings.NewReader("0000"), "Content-Encoding: br"},
		"continue":       {200, "4", strings.NewReader("0000"), "Expect: 100-continue"},
		"content type": {415, "bad content type", strings.NewReader("0000"),
			"Content-Type: application/x-git-upload-pack-request"},
		"anonymous":       {401, "who are you?", strings.NewReader("0000"), "Authorization: "},
		"beyond the most": {400, "longer than", io.LimitReader(zeroes{}, 66<<20), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, body := s.pushTo("/repo/git-receive-pack", test.body, test.header)
			if status != test.status || !strings.Contains(body, test.says) {
				t.Errorf("got %d %q, want %d with %q", status, body, test.status, test.says)
			}
		})
	}
	r, _ := http.NewRequest(http.MethodGet, "http://"+s.addr+"/repo/info/refs?service=git-receive-pack", nil)
	r.SetBasicAuth("alice", "secret")
	r.Header.Set("Git-Protocol", "version=1")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(response.Body)
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if string(answer) != "001f# service=git-receive-pack\n0000git-receive-pack v1" ||
		response.Header.Get("Content-Type") != "application/x-git-receive-pack-advertisement" {
		t.Errorf("advertisement = %q, header = %v, want that of git-receive-pack", answer, response.Header)
	}
}

// TestProbes sends what git sends before a large request. Without a credential the response is empty, and the same for
// all repositories.
func TestProbes(t *testing.T) {
	t.Parallel()
	s := serve(t, counting(), options{auth: callers{may: func(id auth.Identity, _ git.RepoPath, _ auth.Operation) error {
		if id.Anonymous() {
			return fault.New(fault.Unauthenticated, "who are you?")
		}
		return nil
	}}})
	for _, service := range []string{"upload-pack", "receive-pack"} {
		for _, test := range []struct {
			header, body string
			status       int
			want         string
		}{
			{"", "0000", 200, ""},
			{"", "0001", 401, "who are you?\n"},
			{"", "0000" + "0000", 401, "who are you?\n"},
			{"Content-Encoding: gzip\r\n", "0000", 401, "who are you?\n"},
			{"Authorization: Bearer wrong\r\n", "0000", 401, "wrong\n"},
			{"Authorization: Bearer down\r\n", "0000", 503, "down\n"},
			{"Authorization: Bearer alice\r\n", "0000", 200, "4"},
		} {
			c := s.dial()
			c.send(fmt.Sprintf("POST /any/git-%[1]s HTTP/1.1\r\nHost: git.example\r\nContent-Type: application/x-git-%[1]s"+
				"-request\r\n%[2]sContent-Length: %[3]d\r\n\r\n%[4]s", service, test.header, len(test.body), test.body))
			response, body, err := c.answer()
			if err != nil || response.StatusCode != test.status || body != test.want {
				t.Errorf("%s, %q, %q: %v, %q, %v, want %d, %q", service, test.header, test.body, response, body, err,
					test.status, test.want)
			}
			if result := "application/x-git-" + service + "-result"; test.status == 200 &&
				response.Header.Get("Content-Type") != result {
				t.Errorf("content type = %q, want %q", response.Header.Get("Content-Type"), result)
			}
		}
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { return len(p), nil }

// TestPushStalls has clients that stop in the middle of a push. They get an error.
func TestPushStalls(t *testing.T) {
	t.Parallel()
	s := serve(t, counting(), options{auth: writers{}, readStall: 100 * time.Millisecond})
	c := s.dial()
	c.send("POST /repo/git-receive-pack HTTP/1.1\r\nHost: git.example\r\nAuthorization: Basic YWxpY2U6eA==\r\n" +
		"Content-Type: application/x-git-receive-pack-request\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0000\r\n")
	if response, body, _ := c.answer(); response.StatusCode == 200 {
		t.Errorf("status = %d, body = %q, want an error", response.StatusCode, body)
	}
	if !c.closed() {
		t.Error("the connection is open, want it closed")
	}
}

// TestPushesOfAStore sends pushes to nodes with one object store. Another node takes a push of which nothing was read.
func TestPushesOfAStore(t *testing.T) {
	t.Parallel()
	var fail atomic.Pointer[error] // of the first node that is asked
	var isRead atomic.Bool         // it fails after the first byte
	var asked atomic.Int32
	n := counting()
	count := n.serve
	n.serve = func(ctx context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
		err := fail.Load()
		if asked.Add(1) > 1 || err == nil {
			return count(ctx, request, reply)
		}
		if isRead.Load() {
			_, _ = io.ReadFull(request, make([]byte, 1))
		}
		return node.Outcome{}, *err
	}
	store := func() (string, bool) { return "s", true }
	s := serveRoutes(t, []router.Route{{Replicas: []*router.Replica{{Name: "a", Node: n, Store: store},
		{Name: "b", Node: n, Store: store}}}}, options{auth: writers{}})
	push := func() (int, string) {
		asked.Store(0)
		return s.pushTo("/repo/git-receive-pack", strings.NewReader("0000"))
	}
	for _, err := range []error{fault.New(fault.Unavailable, "not now"), fault.New(fault.Exhausted, "full"),
		fault.New(fault.Internal, "broken")} {
		fail.Store(&err)
		isRead.Store(false)
		if status, body := push(); status != 200 || body != "4" || asked.Load() != 2 {
			t.Errorf("error %v: status = %d, body = %q, nodes = %d, want 200, 4 and 2", err, status, body, asked.Load())
		}
		isRead.Store(true)
		if status, body := push(); status < 400 || !strings.Contains(body, fault.Message(err)) || asked.Load() != 1 {
			t.Errorf("error %v after a byte: status = %d, body = %q, nodes = %d, want its text and 1", err, status, body,
				asked.Load())
		}
	}
	if status, body := s.pushTo("/repo/git-receive-pack", strings.NewReader("0000")); status != 200 || body != "4" {
		t.Errorf("status = %d, body = %q, want 200 and 4", status, body)
	}
}

// Pushes to nodes without a common object store are refused.
func TestPushesToCopies(t *testing.T) {
	t.Parallel()
	s := replicas(t, options{auth: writers{}}, counting(), counting())
	status, body := s.pushTo("/repo/git-receive-pack", strings.NewReader("0000"))
	if status != 403 || !strings.Contains(body, "does not accept pushes to repo") || strings.Contains(body, "store") {
		t.Errorf("status = %d, body = %q, want 403 without names of nodes and stores", status, body)
	}
}

// A push of which nothing was read yet goes on over another connection to its node.
func TestPushOverAStaleConnection(t *testing.T) {
	t.Parallel()
	first := counting()
	count := first.serve
	var asked atomic.Int32
	first.serve = func(ctx context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
		if asked.Add(1)%2 == 1 {
			return node.Outcome{}, &node.StaleConnError{Err: fault.New(fault.Unavailable, "it was dead")}
		}
		return count(ctx, request, reply)
	}
	s := serve(t, first, options{auth: writers{}})
	for range 3 {
		if status, body := s.pushTo("/repo/git-receive-pack", strings.NewReader("0000")); status != 200 || body != "4" {
			t.Errorf("status = %d, body = %q, want 200 and 4", status, body)
		}
	}
}
