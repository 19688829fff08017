package githttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
)

// TestLFSDownload downloads an object whole and in parts.
func TestLFSDownload(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	const content = "0123456789"
	o := n.add(t, content)
	tag := `"` + o.OID.String() + `"`
	s := serveLFS(t, n, options{})
	for _, c := range []struct {
		name   string
		header []string
		status int
		body   string
		of     string // Content-Range
	}{
		{"whole", nil, 200, content, ""},
		{"first", []string{"Range: bytes=0-0"}, 206, "0", "bytes 0-0/10"},
		{"middle", []string{"Range: bytes=2-4"}, 206, "234", "bytes 2-4/10"},
		{"rest", []string{"Range: bytes=7-"}, 206, "789", "bytes 7-9/10"},
		{"beyond", []string{"Range: bytes=7-9223372036854775807"}, 206, "789", "bytes 7-9/10"},
		{"suffix", []string{"Range: bytes=-3"}, 206, "789", "bytes 7-9/10"},
		{"long suffix", []string{"Range: bytes=-300"}, 206, content, "bytes 0-9/10"},
		{"empty suffix", []string{"Range: bytes=-0"}, 416, "", "bytes */10"},
		{"after the end", []string{"Range: bytes=10-"}, 416, "", "bytes */10"},
		{"far", []string{"Range: bytes=9223372036854775807-"}, 416, "", "bytes */10"},
		{"out of range", []string{"Range: bytes=9223372036854775808-"}, 200, content, ""},
		{"several", []string{"Range: bytes=0-1,0-2,0-3"}, 200, content, ""},
		{"backwards", []string{"Range: bytes=4-2"}, 200, content, ""},
		{"unit", []string{"Range: lines=1-2"}, 200, content, ""},
		{"signs", []string{"Range: bytes=+1-2"}, 200, content, ""},
		{"same", []string{"Range: bytes=2-4", "If-Range: " + tag}, 206, "234", "bytes 2-4/10"},
		{"other", []string{"Range: bytes=2-4", `If-Range: "x"`}, 200, content, ""},
	} {
		response, body := s.do("GET", pathOf(o), "", append(c.header, bob)...)
		if response.StatusCode != c.status || c.status != 416 && body != c.body ||
			response.Header.Get("Content-Range") != c.of {
			t.Errorf("%s: %s %q of %q, want %d %q of %q", c.name, response.Status, body,
				response.Header.Get("Content-Range"), c.status, c.body, c.of)
		}
		if c.status != 416 && (response.Header.Get("ETag") != tag || response.Header.Get("Accept-Ranges") != "bytes") {
			t.Errorf("%s: header %v, want the ETag and Accept-Ranges", c.name, response.Header)
		}
	}
	for _, method := range []string{"GET", "HEAD"} {
		for condition, status := range map[string]int{tag: 304, `"x", W/` + tag: 304, "*": 304, `"x"`: 200} {
			response, body := s.do(method, pathOf(o), "", bob, "If-None-Match: "+condition)
			if response.StatusCode != status || status == 304 && (body != "" || response.Header.Get("ETag") != tag) {
				t.Errorf("%s of other content than %s: %s %v %q, want %d", method, condition, response.Status, response.Header,
					body, status)
			}
		}
	}
	missing := pathOf(objectOf("missing"))
	if response, body := s.do("GET", missing, "", bob, "If-None-Match: *"); response.StatusCode != 404 {
		t.Errorf("a missing object: %s %q, want 404", response.Status, body)
	}
	before := s.value("packhorse_lfs_bytes_total{operation=lfs_download}")
	if response, body := s.do("GET", missing, "", bob); response.StatusCode != 404 ||
		s.value("packhorse_lfs_bytes_total{operation=lfs_download}") != before {
		t.Errorf("a missing object: %s %q, and its answer counts as bytes of an object, want 404", response.Status, body)
	}
	response, _ := s.do("HEAD", pathOf(o), "", bob, "Range: bytes=2-4")
	if response.StatusCode != 200 || response.ContentLength != 10 || response.Header.Get("ETag") != tag {
		t.Errorf("HEAD: %s %v, want 200 and the length", response.Status, response.Header)
	}
	c := s.dial() // HTTP/1.0 has no chunks
	c.send("GET " + pathOf(o) + " HTTP/1.0\r\n" + bob + "\r\n\r\n")
	if response, body, err := c.answer(); err != nil || body != content || response.ContentLength != 10 {
		t.Errorf("HTTP/1.0: %s %q, %v, want the content", response.Status, body, err)
	}
	if !strings.Contains(s.log.String(), "operation=lfs_download") ||
		s.value("packhorse_lfs_bytes_total{operation=lfs_download}") == 0 {
		t.Errorf("log = %s, want downloads, and their bytes in a metric", s.log)
	}
}

// TestLFSUpload uploads objects with PUT and with tus.
func TestLFSUpload(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	s := serveLFS(t, n, options{maxBody: 200}) // which does not limit uploads
	content := strings.Repeat("some content of an object", 100)
	o := objectOf(content)
	if response, body := s.do("PUT", pathOf(o), content, alice); response.StatusCode != 200 || body != "" {
		t.Errorf("PUT: %s %q, want 200", response.Status, body)
	}
	if response, body := s.do("POST", "/team/app/info/lfs/objects/verify",
		fmt.Sprintf(`{"oid":"%s","size":%d}`, o.OID, o.Size),
		alice, document); response.StatusCode != 200 {
		t.Errorf("verify: %s %q, want 200", response.Status, body)
	}
	empty := objectOf("")
	if response, body := s.do("PUT", pathOf(empty), "", alice); response.StatusCode != 200 {
		t.Errorf("PUT of an empty object: %s %q, want 200", response.Status, body)
	}
	if response, body := s.do("GET", pathOf(empty), "", alice); response.StatusCode != 200 || body != "" {
		t.Errorf("GET of an empty object: %s %q, want 200", response.Status, body)
	}
	c := s.dial()
	chunked := "PUT " + pathOf(objectOf("ab")) + " HTTP/1.1\r\nHost: h\r\n" + alice +
		"\r\nTransfer-Encoding: chunked\r\n\r\n"
	c.send(chunked + "1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
	if response, body, _ := c.answer(); response.StatusCode != 200 {
		t.Errorf("chunked PUT: %s %q, want 200", response.Status, body)
	}
	c = s.dial()
	c.send(chunked + "3\r\nabc\r\n0\r\n\r\n")
	if response, body, _ := c.answer(); response.StatusCode != 422 {
		t.Errorf("chunked PUT with more bytes: %s %q, want 422", response.Status, body)
	}
	c = s.dial()
	c.send("PUT " + pathOf(objectOf("cut")) + " HTTP/1.1\r\nHost: h\r\n" + alice + "\r\nContent-Length: 3\r\n\r\ncu")
	_ = c.CloseWrite()
	if response, body, _ := c.answer(); response.StatusCode != 422 {
		t.Errorf("PUT that is cut off: %s %q, want 422", response.Status, body)
	}
	n.refuse = fault.New(fault.Full, "the disk is full")
	if response, body := s.do("PUT", pathOf(objectOf("full")), "full", alice); response.StatusCode != 507 ||
		!strings.Contains(body, "the disk is full") {
		t.Errorf("PUT with a full disk: %s %q, want 507", response.Status, body)
	}
}

func TestLFSTus(t *testing.T) {
	t.Parallel()
	n := newLFSNode(t)
	s := serveLFS(t, n, options{})
	const content = "0123456789"
	o := objectOf(content)
	const version = "Tus-Resumable: 1.0.0"
	offset := func(want string) {
		t.Helper()
		response, _ := s.do("HEAD", pathOf(o), "", alice, version)
		if h := response.Header; response.StatusCode != 200 || h.Get("Upload-Offset") != want ||
			h.Get("Upload-Length") != "10" ||
			h.Get("Tus-Resumable") != "1.0.0" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("HEAD: %s %v, want the offset %s of 10", response.Status, h, want)
		}
	}
	patch := func(at, body string, status int, want string) {
		t.Helper()
		response, text := s.do("PATCH", pathOf(o), body, alice, version, "Content-Type: application/offset+octet-stream",
			"Upload-Offset: "+at)
		if response.StatusCode != status || response.Header.Get("Upload-Offset") != want {
			t.Errorf("PATCH at %s: %s %v %q, want %d and the offset %q", at, response.Status, response.Header, text, status,
				want)
		}
	}
	offset("0")
	patch("0", "0123", 204, "4")
	offset("4")
	patch("3", "3456789", 409, "4")
	patch("5", "56789", 409, "4")
	patch("4", "456789x", 400, "")
	patch("11", "", 400, "")
	patch("-1", "x", 400, "")
	patch("9223372036854775807", "x", 400, "")
	patch("4", "456789", 204, "10")
	offset("10")
	patch("10", "", 204, "10")
	patch("10", "x", 400, "")
	if response, body := s.do("GET", pathOf(o), "", alice); response.StatusCode != 200 || body != content {
		t.Errorf("GET: %s %q, want the content", response.Status, body)
	}
}

// TestLFSSlowUpload: a client that stops sending loses its place.
func TestLFSSlowUpload(t *testing.T) {
	t.Parallel()
	s := serveLFS(t, newLFSNode(t), options{readStall: 50 * time.Millisecond})
	c := s.dial()
	c.send("PUT " + pathOf(objectOf("slow")) + " HTTP/1.1\r\nHost: h\r\n" + alice + "\r\nContent-Length: 4\r\n\r\nsl")
	if response, body, _ := c.answer(); response.StatusCode != 422 {
		t.Errorf("PUT that stops: %s %q, want 422", response.Status, body)
	}
	if !strings.Contains(s.log.String(), "cut off or took too long") {
		t.Errorf("log = %s, want the reason", s.log)
	}
}

// TestLFSFailover: another node answers if the first one fails, except for an upload whose body was read, and for a
// lock that the first one may have made or removed.
func TestLFSFailover(t *testing.T) {
	t.Parallel()
	n := &failingLFS{lfsNode: newLFSNode(t)}
	store := func() (string, bool) { return "s1", true }
	s := serveLFSRoutes(t, []router.Route{{Replicas: []*router.Replica{{Name: "a", Node: n, Store: store},
		{Name: "b", Node: n, Store: store}}}}, options{})
	away := fault.New(fault.Unavailable, "away")
	o := n.add(t, "x")
	const locks = "/team/app/info/lfs/locks"
	tus := []string{"Tus-Resumable: 1.0.0", "Content-Type: application/offset+octet-stream", "Upload-Offset: 0"}
	for _, c := range []struct {
		name               string
		err                error
		reads              bool // the first node reads before it fails
		method, path, body string
		headers            []string
		status             int
	}{
		{"download", away, false, "GET", pathOf(o), "", nil, 200},
		{"batch", away, false, "POST", "/team/app/info/lfs/objects/batch", batchOf("download", o), nil, 200},
		{"PUT", away, false, "PUT", pathOf(objectOf("put")), "put", nil, 200},
		{"PUT, read", away, true, "PUT", pathOf(objectOf("read")), "read", nil, 503},
		{"PATCH", away, false, "PATCH", pathOf(objectOf("patch")), "patch", tus, 204},
		{"PATCH, read", away, true, "PATCH", pathOf(objectOf("patch 2")), "patch 2", tus, 503},
		{"list", away, false, "GET", locks, "", nil, 200},
		{"lock", away, false, "POST", locks, `{"path":"a"}`, nil, 503},
		{"lock, internal", errors.New("a bug"), false, "POST", locks, `{"path":"a"}`, nil, 500},
		{"unlock", away, false, "POST", locks + "/id0/unlock", `{}`, nil, 503},
		{"lock, not sent", &node.UnsentError{Err: away}, false, "POST", locks, `{"path":"b"}`, nil, 201},
		{"lock, no room", fault.New(fault.Exhausted, "full"), false, "POST", locks, `{"path":"c"}`, nil, 201},
	} {
		n.reads = c.reads
		n.err.Store(&c.err)
		headers := append([]string{alice, document}, c.headers...)
		if response, body := s.do(c.method, c.path, c.body, headers...); response.StatusCode != c.status {
			t.Errorf("%s: %s %q, want %d", c.name, response.Status, body, c.status)
		}
		if n.err.Swap(nil) != nil {
			t.Errorf("%s: no node has failed", c.name)
		}
	}
}

// failingLFS is a node whose next request fails with err; nil: none.
type failingLFS struct {
	*lfsNode
	err   atomic.Pointer[error]
	reads bool // it reads before it fails
}

func (n *failingLFS) fail() error {
	if err := n.err.Swap(nil); err != nil {
		return *err
	}
	return nil
}

func (n *failingLFS) LFSBatch(ctx context.Context, repo git.RepoPath, session node.Session,
	b lfs.Batch) ([]lfs.Status, node.Outcome, error) {
	if err := n.fail(); err != nil {
		return nil, node.Outcome{}, err
	}
	return n.lfsNode.LFSBatch(ctx, repo, session, b)
}

func (n *failingLFS) LFSDownload(ctx context.Context, repo git.RepoPath, session node.Session, d lfs.Download,
	w node.ResponseWriter) (node.Outcome, error) {
	if err := n.fail(); err != nil {
		return node.Outcome{}, err
	}
	return n.lfsNode.LFSDownload(ctx, repo, session, d, w)
}

func (n *failingLFS) LFSUpload(ctx context.Context, repo git.RepoPath, session node.Session, u lfs.Upload,
	content io.Reader) (int64, node.Outcome, error) {
	if n.reads {
		_, _ = content.Read(make([]byte, 1))
	}
	if err := n.fail(); err != nil {
		return 0, node.Outcome{}, err
	}
	return n.lfsNode.LFSUpload(ctx, repo, session, u, content)
}

func (n *failingLFS) LFSLocks(ctx context.Context, repo git.RepoPath, session node.Session,
	q lfs.LockRequest) (lfs.LockAnswer, node.Outcome, error) {
	if err := n.fail(); err != nil {
		return lfs.LockAnswer{}, node.Outcome{}, err
	}
	return n.lfsNode.LFSLocks(ctx, repo, session, q)
}
