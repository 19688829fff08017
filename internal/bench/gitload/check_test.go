package gitload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// pack returns n bytes that begin like a pack.
func pack(n int) []byte {
	return append([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x07"), bytes.Repeat([]byte("x"), n-12)...)
}

// answer frames a pack as the response to a v2 fetch.
func answer(pack []byte, step int) []byte {
	b := pktline.AppendLine(nil, "shallow-info")
	b = pktline.AppendLine(b, "shallow 0123456789012345678901234567890123456789")
	b = pktline.AppendDelim(b)
	b = pktline.AppendLine(b, "packfile")
	b = pktline.AppendBand(b, pktline.BandProgress, "counting")
	for len(pack) > 0 {
		n := min(step, len(pack))
		b = pktline.AppendBand(b, pktline.BandData, pack[:n])
		pack = pack[n:]
	}
	return pktline.AppendFlush(b)
}

// serveOnce returns a connection with a complete response.
func serveOnce(t testing.TB, response []byte) *loadgen.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer server.Close()
		server.Write(response)
	}()
	t.Cleanup(func() { client.Close(); <-done })
	return loadgen.NewConn(client, new(atomic.Int64), 0)
}

func sized(b []byte) []byte {
	return append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\ncontent-LENGTH: %d\r\n\r\n", len(b)), b...)
}

func chunked(b []byte, step int) []byte {
	out := []byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n")
	for len(b) > 0 {
		n := min(step, len(b))
		out = fmt.Appendf(out, "%X;ext=1\r\n%s\r\n", n, b[:n])
		b = b[n:]
	}
	return append(out, "0\r\nTrailer: x\r\n\r\n"...)
}

// check reads one response from a new connection.
func check(t testing.TB, response []byte, ref *Reference) (Walker, error) {
	t.Helper()
	c := serveOnce(t, response)
	b, err := c.Response()
	if err != nil {
		return Walker{}, err
	}
	var w Walker
	err = CheckFetch(b, ref, &w)
	if err == nil && b.First.IsZero() {
		t.Error("the time of the first byte is missing")
	}
	return w, err
}

func referenceOf(t testing.TB, answer []byte) *Reference {
	t.Helper()
	var w Walker
	if err := errors.Join(w.feed(answer), w.finish()); err != nil {
		t.Fatal(err)
	}
	return w.reference()
}

func TestCheckGood(t *testing.T) {
	t.Parallel()
	for _, size := range []int{12, 13, 1000, 70_000, 3_000_000} {
		for _, step := range []int{5, pktline.MaxBandData, 1000} {
			if size/step > 10_000 || testing.Short() && size > 100_000 {
				continue
			}
			a := answer(pack(size), step)
			ref := referenceOf(t, a)
			if ref.objects != 7 || ref.pack != int64(size) || ref.Size != int64(len(a)) {
				t.Fatalf("reference %+v", ref)
			}
			for name, response := range map[string][]byte{
				"sized": sized(a), "chunked": chunked(a, 1<<16), "small chunks": chunked(a, 77),
				"to the end": append([]byte("HTTP/1.0 200 OK\r\n\r\n"), a...),
			} {
				for _, ref := range []*Reference{nil, ref} {
					if _, err := check(t, response, ref); err != nil {
						t.Errorf("size %d step %d %s, reference %v: %v", size, step, name, ref != nil, err)
					}
				}
			}
		}
	}
}

func TestCheckSidebandAll(t *testing.T) {
	t.Parallel()
	b := pktline.Append(nil, "\x02progress")
	b = pktline.Append(b, "\x01packfile\n")
	b = pktline.Append(b, "\x01") // keep-alive
	b = pktline.AppendBand(b, pktline.BandData, pack(100))
	b = pktline.AppendFlush(b)
	if _, err := check(t, sized(b), nil); err != nil {
		t.Error(err)
	}
}

func TestCheckBad(t *testing.T) {
	t.Parallel()
	good := answer(pack(200_000), pktline.MaxBandData)
	ref := referenceOf(t, good)
	edit := func(f func(b []byte) []byte) []byte { return f(bytes.Clone(good)) }
	band := func(band pktline.Band, text string) []byte {
		b := pktline.AppendLine(nil, "packfile")
		b = pktline.AppendBand(b, pktline.BandData, pack(100))
		return pktline.AppendFlush(pktline.AppendBand(b, band, text))
	}
	for _, c := range []struct {
		name, want string
		response   []byte
	}{
		{"status", "HTTP status 503: busy", []byte("HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nbusy\n")},
		{"status with a broken body", "HTTP status 500", []byte("HTTP/1.1 500 Oops\r\nContent-Length: 50\r\n\r\nbusy\n")},
		{"short body", "unexpected EOF", sized(good)[:len(good)-1000]},
		{"short chunked body", "unexpected EOF", chunked(good, 1000)[:100_000]},
		{"chunks without their end", "unexpected EOF", bytes.TrimSuffix(chunked(good, 1000),
			[]byte("0\r\nTrailer: x\r\n\r\n"))},
		{"no flush", "without its final flush", sized(good[:len(good)-4])},
		{"other bytes for the flush", "a different layout",
			sized(edit(func(b []byte) []byte { copy(b[len(b)-4:], "zzzz"); return b }))},
		{"a packet for the flush", "without its final flush",
			sized(edit(func(b []byte) []byte { copy(b[len(b)-4:], "0005"); return b }))},
		{"bytes after the flush", "after the final flush", sized(append(bytes.Clone(good), "0000"...))},
		{"error band", "the server sent an error: no luck", sized(band(pktline.BandError, "no luck\n"))},
		{"unknown band", "unknown band 4", sized(band(4, "what"))},
		{"ERR", "the server sent an error: go  away", sized(pktline.AppendLine(nil, "ERR go\x1b away"))},
		{"no pack", "without a packfile section", sized(pktline.AppendFlush(pktline.AppendLine(nil, "acknowledgments")))},
		{"empty pack", "does not contain a pack", sized([]byte("000dpackfile\n0000"))},
		{"not a pack", "band 1 does not contain a pack",
			sized(edit(func(b []byte) []byte { return bytes.Replace(b, []byte("PACK"), []byte("KCAP"), 1) }))},
		{"delim in the pack", "special packet 0001", sized([]byte("000dpackfile\n00010000"))},
		{"no band", "without a band", sized([]byte("000dpackfile\n00040000"))},
		{"bad length", "bad pkt-line", sized([]byte("000dpackfile\nxxxx"))},
		{"empty body", "without its final flush", sized(nil)},
		{"not HTTP", "not an HTTP response", []byte("SSH-2.0-x\r\n")},
		{"bad chunk", "bad chunk size", []byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")},
		{"closed", "EOF", nil},
	} {
		for _, ref := range []*Reference{nil, ref} {
			want := c.want
			if want == "a different layout" && ref == nil {
				want = "bad pkt-line"
			}
			if _, err := check(t, c.response, ref); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, reference %v: error %v, want %s", c.name, ref != nil, err, want)
			}
		}
	}
}

// TestKeepAlive reads several responses from one connection.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	a := answer(pack(300_000), pktline.MaxBandData)
	ref := referenceOf(t, a)
	c := serveOnce(t, bytes.Join([][]byte{sized(a), chunked(a, 5000),
		[]byte("HTTP/1.1 429 X\r\nContent-Length: 3\r\n\r\nno\n"), sized(a)}, nil))
	for i := range 4 {
		b, err := c.Response()
		if err != nil {
			t.Fatal(i, err)
		}
		err = CheckFetch(b, ref, &Walker{})
		if wrong := err != nil; wrong != (i == 2) {
			t.Fatal(i, err)
		}
	}
	if _, err := c.Response(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// FuzzWalker parses a response as a whole, byte by byte, and with skipped bulk. The results are the same.
func FuzzWalker(f *testing.F) {
	f.Add(answer(pack(12), 5))
	f.Add(answer(pack(5000), 1000))
	f.Add([]byte("000dpackfile\n0000"))
	f.Add([]byte("000eERR denied\n0000"))
	f.Add([]byte("000e\x01packfile\n0006\x02x0006\x03y0000"))
	f.Add([]byte("0001000200030004fff1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var whole, single, skipped Walker
		verdict := func(w *Walker, err error) string {
			if err == nil {
				err = w.finish()
			}
			if err == nil {
				ref := w.reference()
				if ref.Size != int64(len(b)) || ref.tail < 0 || ref.tail >= ref.Size || ref.pack > ref.Size {
					t.Errorf("reference %+v of %d bytes", ref, len(b))
				}
			}
			return fmt.Sprint(err, w.pack, w.last)
		}
		want := verdict(&whole, whole.feed(b))
		got := verdict(&single, func() error {
			for i := range b {
				if err := single.feed(b[i : i+1]); err != nil {
					return err
				}
			}
			return nil
		}())
		if got != want {
			t.Errorf("byte by byte: %s, whole: %s", got, want)
		}
		got = verdict(&skipped, func() error {
			for rest := b; len(rest) > 0; {
				n := min(skipped.skippable(), int64(len(rest)))
				var err error
				if n > 0 {
					err = skipped.skip(n)
				} else {
					n = 1
					err = skipped.feed(rest[:1])
				}
				if err != nil {
					return err
				}
				rest = rest[n:]
			}
			return nil
		}())
		if got != want {
			t.Errorf("with skips: %s, whole: %s", got, want)
		}
	})
}
