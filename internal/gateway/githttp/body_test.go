package githttp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// chunked encodes a body in chunks of at most n bytes.
func chunked(body string, n int) string {
	var b strings.Builder
	for len(body) > 0 {
		piece := body[:min(n, len(body))]
		body = body[len(piece):]
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(piece), piece)
	}
	return b.String() + "0\r\n\r\n"
}

func TestBodies(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{serve: func(ctx context.Context, request io.Reader,
		reply node.ResponseWriter) (node.Outcome, error) {
		if _, err := readAll(request); err != nil {
			return node.Outcome{}, err
		}
		if err := reply.StartBulk(true); err != nil {
			return node.Outcome{}, err
		}
		_, err := reply.Write([]byte("0000"))
		return node.Outcome{Command: protocol.CommandFetch}, err
	}}, options{maxBody: 256 << 10})
	line := string(pktline.Append(nil, strings.Repeat("x", 9996))) // 10,000 bytes
	large := strings.Repeat(line, 20) + "0000"
	full := strings.Repeat(line, 26) + string(pktline.Append(nil, strings.Repeat("x", 256<<10-26*10000-8))) + "0000"
	random := zipped(full)
	length := func(body string) string { return fmt.Sprintf("Content-Length: %d", len(body)) }
	const gz, te = "Content-Encoding: gzip", "Transfer-Encoding: chunked"
	for name, test := range map[string]struct {
		request string
		says    string // "" for success
	}{
		"whole":               {post(length(lsRefs)) + lsRefs, ""},
		"chunked":             {post(te) + chunked(lsRefs, 3), ""},
		"large":               {post(length(large)) + large, ""},
		"large, chunked":      {post(te) + chunked(large, 7000), ""},
		"as long as allowed":  {post(length(full)) + full, ""},
		"longer than allowed": {post(length(full+"0")) + full + "0", "longer than 262144 bytes"},
		"gzip":                {post(gz, length(zipped(lsRefs))) + zipped(lsRefs), ""},
		"x-gzip, upper case":  {post("Content-Encoding: X-GZIP", length(zipped(lsRefs))) + zipped(lsRefs), ""},
		"identity":            {post("Content-Encoding: identity", length(lsRefs)) + lsRefs, ""},
		"gzip, large":         {post(gz, te) + chunked(zipped(large), 100), ""},
		"gzip, full":          {post(gz, length(random)) + random, ""},
		"gzip, two members": {post(gz, length(zipped(lsRefs[:9])+zipped(lsRefs[9:]))) + zipped(lsRefs[:9]) +
			zipped(lsRefs[9:]), ""},
		"gzip, cut off": {post(gz, length(zipped(lsRefs)[:25])) + zipped(lsRefs)[:25], "bad request"},
		"gzip, no checksum": {post(gz, length(zipped(lsRefs)[:len(zipped(lsRefs))-6])) +
			zipped(lsRefs)[:len(zipped(lsRefs))-6], "cut off"},
		"gzip, garbage behind": {post(gz, length(zipped(lsRefs)+"garbage, more than a header")) + zipped(lsRefs) +
			"garbage, more than a header", "cut off, damaged"},
		"gzip, bomb": {post(gz, length(zipped(lsRefs+strings.Repeat("0", 2<<20)))) +
			zipped(lsRefs+strings.Repeat("0", 2<<20)), "longer than"},
		"no gzip":              {post(gz, length(lsRefs)) + lsRefs, "not a gzip stream"},
		"unknown encoding":     {post("Content-Encoding: br", length(lsRefs)) + lsRefs, "unknown content encoding"},
		"empty":                {post("Content-Length: 0"), "bad request"},
		"no pkt-line":          {post("Content-Length: 4") + "zzzz", "bad request"},
		"expects 100-continue": {post("Expect: 100-continue", length(lsRefs)) + lsRefs, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.dial()
			go io.WriteString(c, test.request)
			response, body, err := c.answer()
			if response.StatusCode == 100 {
				response, body, err = c.answer()
			}
			if test.says == "" && (err != nil || body != "0000") {
				t.Errorf("status = %s, body = %q, error = %v, want 0000", response.Status, body, err)
			}
			if test.says != "" && (response.StatusCode != 200 || !strings.Contains(body, "ERR ") ||
				!strings.Contains(body, test.says)) {
				t.Errorf("%s (%v): %q, want an ERR packet with %q", response.Status, err, body, test.says)
			}
			if test.says == "" && response.Close != strings.Contains(test.request, te) {
				t.Errorf("closes = %t, want %t", response.Close, !response.Close)
			}
			if test.says == "" && !response.Close {
				c.send(post(length(lsRefs)) + lsRefs)
				if _, body, err := c.answer(); err != nil || body != "0000" {
					t.Errorf("next request: body = %q, error = %v, want 0000", body, err)
				}
			}
		})
	}
}

func TestTruncatedBodyIsIncomplete(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{serve: echo}, options{})
	for name, request := range map[string]string{
		"length": post("Content-Length: 100") + lsRefs,
		"chunks": post("Transfer-Encoding: chunked") + "18\r\n" + lsRefs + "\r\n",
	} {
		c := s.dial()
		c.send(request)
		_ = c.CloseWrite()
		if _, body, _ := c.answer(); !strings.Contains(body, "cut off") {
			t.Errorf("%s: body = %q, want that it was cut off", name, body)
		}
	}
}

// A client that stops sending holds its connection for a bounded time only, wherever it stops.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{advertise: advertise, serve: echo}, options{readStall: 100 * time.Millisecond, small: 1})
	for name, request := range map[string]string{
		"nothing":               post("Content-Length: 100"),
		"a part":                post("Content-Length: 100") + lsRefs,
		"a part of a chunk":     post("Transfer-Encoding: chunked") + "18\r\n000",
		"beyond the first part": post("Content-Length: 200000") + strings.Repeat("0005x", 20000),
		"of a refused type": strings.ReplaceAll(post("Content-Length: 100"), "Content-Type: a",
			"Content-Type: b") + "x",
		"of a GET":         "GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nx",
		"where nothing is": "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nx",
		"of a push":        "POST /x/git-receive-pack HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.dial()
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			c.send(request)
			_, _ = io.Copy(io.Discard, c.r) // an answer or none
			if !c.closed() {
				t.Error("the connection is open, want it closed")
			}
		})
	}
	trickle := s.dial()
	trickle.send(post("Content-Length: 100000"))
	for i := 0; ; i++ {
		if _, err := trickle.Write([]byte("0")); err != nil {
			break
		}
		if i > 3000 {
			t.Fatal("3000 single bytes were accepted, want an error")
		}
		time.Sleep(10 * time.Millisecond) // the client's pace
	}
}

// TestRequestsShareTheMemory fills the memory of large requests. Further ones are refused with Retry-After, and small
// ones are answered.
func TestRequestsShareTheMemory(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	hold := func(ctx context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
		lines, err := readAll(request)
		if err != nil {
			return node.Outcome{}, err
		}
		if len(lines) > 1 {
			if err := reply.ReserveMemory(int64(len(lines)) * 6 << 10); err != nil { // 180 KiB of large
				return node.Outcome{}, err
			}
			entered <- struct{}{}
			<-release
		}
		_, err = reply.Write([]byte("0000"))
		return node.Outcome{Command: protocol.CommandFetch}, err
	}
	s := serve(t, &fakeNode{advertise: advertise, serve: hold}, options{memory: 300 << 10})
	large := strings.Repeat(string(pktline.Append(nil, strings.Repeat("x", 9996))), 30) + "0000" // 300,000 bytes
	middle := strings.Repeat(string(pktline.Append(nil, strings.Repeat("x", 9996))), 6) + "0000"
	bomb := func() *connection {
		c := s.dial()
		c.send(post("Content-Encoding: gzip", fmt.Sprintf("Content-Length: %d", len(zipped(large)))) + zipped(large))
		return c
	}
	first := bomb()
	<-entered
	if n := s.value("packhorse_request_memory_bytes"); n != float64(len(zipped(large))+180<<10-64<<10) {
		// the received bytes and those of the session, beyond the free amount
		t.Errorf("counted bytes = %v, want %v", n, len(zipped(large))+180<<10-64<<10)
	}
	for name, c := range map[string]*connection{"gzip": bomb(), "plain": func() *connection {
		c := s.dial()
		go io.WriteString(c, post(fmt.Sprintf("Content-Length: %d", len(large)))+large)
		return c
	}()} {
		response, body, err := c.answer()
		if err != nil || response.StatusCode != http.StatusTooManyRequests ||
			response.Header.Get("Retry-After") != "1" {
			t.Errorf("%s, without memory: %s, %q, %v", name, response.Status, body, err)
		}
	}
	c := s.dial()
	c.send(post("Content-Length: 24") + lsRefs)
	if response, body, _ := c.answer(); body != "0000" {
		t.Errorf("small request: status = %s, body = %q, want 0000", response.Status, body)
	}
	if runtime.GOOS == "linux" { // another caller has room, because the first one cannot use all of it
		other := s.dialFrom("127.9.9.9")
		go func() {
			<-entered
			close(release)
		}()
		other.send(post(fmt.Sprintf("Content-Length: %d", len(middle))) + middle)
		if response, body, _ := other.answer(); body != "0000" {
			t.Errorf("another caller: status = %s, body = %q, want 0000", response.Status, body)
		}
	} else {
		close(release)
	}
	if _, body, _ := first.answer(); body != "0000" {
		t.Errorf("first large request: body = %q, want 0000", body)
	}
	go func() { <-entered }()
	if _, body, _ := bomb().answer(); body != "0000" {
		t.Errorf("later request: body = %q, want 0000", body)
	}
}

// TestDamagedEndIsRefused damages bodies after the request. The commands are not answered.
func TestDamagedEndIsRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{serve: echo}, options{})
	z := zipped(lsRefs)
	for name, body := range map[string]string{"no checksum": z[:len(z)-6], "garbage": z +
		"garbage, more than a header"} {
		c := s.dial()
		c.send(post("Content-Encoding: gzip", fmt.Sprintf("Content-Length: %d", len(body))) + body)
		if _, answer, _ := c.answer(); !strings.Contains(answer, "ERR ") ||
			!strings.Contains(answer, "cut off, damaged") {
			t.Errorf("%s: body = %q, want ERR that it is damaged", name, answer)
		}
	}
}

func TestSlowSendersDoNotFillTheLane(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{advertise: advertise, serve: echo}, options{small: 1})
	for range 5 {
		s.dial().send(post("Content-Length: 100") + "0")
		s.dial().send(post("Content-Length: 200000") + strings.Repeat("0005x", 20000))
	}
	if !eventually(func() bool { return s.value("packhorse_request_memory_bytes") == 5*(64<<10) }) {
		t.Errorf("%v bytes are counted for what slow senders sent", s.value("packhorse_request_memory_bytes"))
	}
	c := s.dial()
	c.send(post("Content-Length: 24") + lsRefs)
	if response, _, _ := c.answer(); response.StatusCode != http.StatusOK {
		t.Errorf("beside slow senders: status = %s, want 200", response.Status)
	}
}

func TestStalenessHeader(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{serve: func(_ context.Context, _ io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
		reply.(node.StalenessWriter).SetStaleness(90 * time.Second)
		_, err := reply.Write([]byte("0000"))
		return node.Outcome{Command: protocol.CommandFetch, Mirror: node.MirrorLocal, Stale: 90 * time.Second,
			OriginTime: 2 * time.Millisecond}, err
	}}, options{})
	c := s.dial()
	c.send(post("Content-Length: 4") + "0000")
	response, _, err := c.answer()
	if got := response.Header.Get("Packhorse-Staleness"); err != nil || got != "90" {
		t.Errorf("header Packhorse-Staleness = %q, error = %v, want 90", got, err)
	}
	const want = "origin_ms=2 stale_seconds=90"
	if !eventually(func() bool { return strings.Contains(s.log.String(), "mirror=local "+want) }) {
		t.Errorf("log = %s, want %s", s.log, want)
	}
}
