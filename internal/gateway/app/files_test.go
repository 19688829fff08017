package app

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A worker has files sent from below the roots, and nothing else, by whatever name.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inside, outside := filepath.Join(dir, "files"), filepath.Join(dir, "outside")
	content := strings.Repeat("0123456789", 100_000)
	writeFile(t, filepath.Join(inside, "a b.txt"), content)
	writeFile(t, filepath.Join(inside, "sub/c"), "c")
	writeFile(t, filepath.Join(outside, "secret"), "secret")
	for link, to := range map[string]string{"good": "sub/c", "evil": outside + "/secret", "up": "../outside/secret",
		"dir": outside} {
		if err := os.Symlink(to, filepath.Join(inside, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(inside, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{headerSendfile, headerRedirect} {
		prefix := inside + "/"
		if header == headerRedirect {
			prefix = "/protected/"
		}
		ask := func(t *testing.T, answer string, fields ...string) (int, map[string][]string, string) {
			t.Helper()
			worker := serveRaw(t, say(answer))
			f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: worker.address}},
				Files: Files{header, []FileRoot{{inside, "/protected/"}}}})
			status, h, body, err := f.get("/", fields...)
			if err != nil {
				t.Fatal(err)
			}
			for name := range h {
				if strings.Contains(name, "Sendfile") || strings.Contains(name, "Accel") {
					t.Errorf("the client sees %s", name)
				}
			}
			return status, h, body
		}
		wants := func(name string) string {
			return "HTTP/1.1 200 OK\r\nContent-Type: text/x\r\n" + header + ": " + name + "\r\nContent-Length: 0\r\n\r\n"
		}
		space := "a b.txt"
		if header == headerRedirect {
			space = "a%20b.txt"
		}
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			status, h, body := ask(t, wants(prefix+space))
			if status != 200 || body != content || h["Content-Type"][0] != "text/x" ||
				h["Content-Length"][0] != itoa(len(content)) || h["Etag"] == nil || h["Last-Modified"] == nil {
				t.Fatalf("%d, %d bytes, %v", status, len(body), h)
			}
			etag := h["Etag"][0]
			for _, test := range []struct {
				status int
				body   string
				fields []string
			}{
				{206, content[10:20], []string{"Range: bytes=10-19"}},
				{206, content[len(content)-5:], []string{"Range: bytes=-5"}},
				{416, "invalid range: failed to overlap\n", []string{"Range: bytes=9999999-"}},
				{206, content[:1], []string{"Range: bytes=0-0", "If-Range: " + etag}},
				{200, content, []string{"Range: bytes=0-0", "If-Range: \"other\""}},
				{304, "", []string{"If-None-Match: " + etag}},
				{304, "", []string{"If-Modified-Since: " + h["Last-Modified"][0]}},
			} {
				if status, _, body := ask(t, wants(prefix+space), test.fields...); status != test.status || body != test.body {
					t.Errorf("%q: %d, %.50q", test.fields, status, body)
				}
			}
			// Of an error's page there are no parts, and no conditions hold for it.
			for _, field := range []string{"Range: bytes=0-3", "If-None-Match: *", "If-Match: \"other\"", "If-Modified-Since: " +
				h["Last-Modified"][0]} {
				answer := strings.Replace(wants(prefix+space), "200 OK", "404 Not Found", 1)
				if status, h, body := ask(t, answer, field); status != 404 || body != content || h["Accept-Ranges"] != nil {
					t.Errorf("an error's page, %s: %d, %d bytes, %v", field, status, len(body), h["Accept-Ranges"])
				}
			}
			if status, _, body := ask(t, wants(prefix+"good")); status != 200 || body != "c" {
				t.Errorf("a link that stays inside: %d %q", status, body)
			}
			if status, _, body := ask(t, wants(prefix+"none")); status != 404 || strings.Contains(body, dir) {
				t.Errorf("none: %d %q", status, body)
			}
			for _, name := range []string{
				prefix + "evil", prefix + "up", prefix + "dir/secret", prefix + "pipe", prefix + "sub", prefix, inside,
				"/protected", prefix + "../outside/secret",
				prefix + "sub/../../outside/secret", prefix + "/" + outside + "/secret", outside + "/secret", "/etc/passwd",
				"etc/passwd", prefix + "./good", prefix + "%2e%2e/outside/secret",
				prefix + "good%00",
			} {
				if status, _, body := ask(t, wants(name)); status != 502 && status != 404 || strings.Contains(body, "secret") ||
					strings.Contains(body, dir) {
					t.Errorf("%s: %d %q", name, status, body)
				}
			}
			// The worker's own body is dropped, whatever its length, and its status is kept.
			answer := "HTTP/1.1 201 Created\r\n" + header + ": " + prefix +
				"good\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nown\r\n0\r\n\r\n"
			if status, h, body := ask(t, answer); status != 201 || body != "c" ||
				h["Content-Type"][0] != "application/octet-stream" {
				t.Errorf("with a body: %d %q", status, body)
			}
			for said, want := range map[string]int{"204 No Content": 204, "304 Not Modified": 304,
				"206 Partial Content\r\nContent-Range: bytes 0-0/9": 200} {
				status, h, body := ask(t, "HTTP/1.1 "+said+"\r\nContent-Length: 0\r\n"+header+": "+prefix+"good\r\n\r\n")
				if status != want || (body == "c") != (want == 200) || h["Content-Range"] != nil {
					t.Errorf("%s: %d %q, %v", said, status, body, h)
				}
			}
		})
	}
}

// Conditions and ranges are about what a GET finds: what a worker has done already is not taken back by them.
func TestFileOfAPost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "content")
	worker := serveRaw(t, say("HTTP/1.1 200 OK\r\n"+headerSendfile+": "+dir+"/a\r\nContent-Length: 0\r\n\r\n"))
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: worker.address}},
		Files: Files{headerSendfile, []FileRoot{{dir, ""}}}})
	for _, field := range []string{"If-None-Match: *", "If-Match: \"other\"", "Range: bytes=0-3"} {
		if status, _, body, err := f.do(http.MethodPost, "/", strings.NewReader("x"), field); err != nil || status != 200 ||
			body != "content" {
			t.Errorf("%s: %d %q, %v", field, status, body, err)
		}
	}
}

// The bytes of a file do not come by here.
func TestFileByTheKernel(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has the copy that is looked for")
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), strings.Repeat("0123456789", 1_000_000))
	w := serveRaw(t, say("HTTP/1.1 200 OK\r\nX-Sendfile: "+dir+"/f\r\nContent-Length: 0\r\n\r\n"))
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: w.address}},
		Files: Files{headerSendfile, []FileRoot{{Dir: dir}}}})
	if status, _, body, err := f.get("/"); err != nil || status != 200 || len(body) != 10_000_000 {
		t.Fatal(status, len(body), err)
	}
	if r := <-f.records; !r.File || r.Out != 10_000_000 || r.Kernel < r.Out-1024 {
		t.Errorf("%+v", r)
	}
}

// A file is sent even if the worker stalls within its own body, which no client gets.
func TestFileOfAStalledWorker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "f"), "content")
	w := serveRaw(t, say("HTTP/1.1 200 OK\r\nX-Sendfile: "+path+"\r\nContent-Length: 5\r\n\r\nab"))
	f := newFront(t, Options{Workers: one(w.address), StallTimeout: 100 * time.Millisecond,
		Files: Files{headerSendfile, []FileRoot{{Dir: dir}}}})
	c := f.dial()
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("ReadResponse: error = %v, want the file", err)
	}
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK || string(body) != "content" || err != nil {
		t.Errorf("response = %d %q, error = %v, want 200 and the file", response.StatusCode, body, err)
	}
}

// A file that gets shorter while it is sent does not look whole.
func TestFileShrinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "f"), strings.Repeat("0123456789", 5_000_000))
	w := serveRaw(t, say("HTTP/1.1 200 OK\r\nX-Sendfile: "+path+"\r\nContent-Length: 0\r\n\r\n"))
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: w.address}},
		Files: Files{headerSendfile, []FileRoot{{Dir: dir}}}})
	c := f.dial()
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, response.Body); err == nil {
		t.Errorf("%d bytes look whole", n)
	}
	if r := <-f.records; !r.Cut {
		t.Errorf("%+v", r)
	}
}

func TestFileRoots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, files := range []Files{
		{"X-Other", nil}, {headerSendfile, []FileRoot{{"relative", ""}}}, {headerRedirect, []FileRoot{{dir, "no"}}},
		{headerRedirect, []FileRoot{{dir, "/"}}}, {headerSendfile, []FileRoot{{dir + "/none", ""}}},
	} {
		if _, err := New(Options{Files: files}); err == nil {
			t.Errorf("%+v: got no error", files)
		}
	}
}
