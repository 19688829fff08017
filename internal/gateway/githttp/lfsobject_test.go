package githttp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/router"
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

// TestLFSFailover: another node answers if the first one fails, except for an upload whose body was read.
func TestLFSFailover(t *testing.T) {
	t.Parallel()
	good, bad := newLFSNode(t), newLFSNode(t)
	bad.refuse = fault.New(fault.Unavailable, "away")
	o := good.add(t, "x")
	lost := &failingLFS{lfsNode: bad}
	s := serveRoutes(t, []router.Route{{Replicas: []*router.Replica{{Name: "a", Node: lost}, {Name: "b", Node: good}}}},
		options{lfs: &gateway.LFS{Tokens: lfsTokens}})
	for range 4 {
		if response, body := s.do("GET", pathOf(o), ""); response.StatusCode != 200 || body != "x" {
			t.Errorf("GET: %s %q, want 200 from the other node", response.Status, body)
		}
		if response, body := s.do("POST", "/team/app/info/lfs/objects/batch", batchOf("download", o),
			document); response.StatusCode != 200 {
			t.Errorf("batch: %s %q, want 200 from the other node", response.Status, body)
		}
	}
}

// failingLFS is a node that cannot read objects.
type failingLFS struct{ *lfsNode }

func (n *failingLFS) LFSBatch(context.Context, git.RepoPath, node.Session,
	lfs.Batch) ([]lfs.Status, node.Outcome, error) {
	return nil, node.Outcome{}, n.refuse
}

func (n *failingLFS) LFSDownload(context.Context, git.RepoPath, node.Session, lfs.Download,
	node.ResponseWriter) (node.Outcome, error) {
	return node.Outcome{}, n.refuse
}
