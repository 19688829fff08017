package clients

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

func trust(networks ...string) (p Proxies) {
	for _, n := range networks {
		p = append(p, netip.MustParsePrefix(n))
	}
	return p
}

// TestOf determines the client: the nearest address that is not a trusted proxy. Addresses before it are ignored.
func TestOf(t *testing.T) {
	t.Parallel()
	proxies := trust("10.0.0.0/8", "127.0.0.0/8")
	for _, c := range []struct{ peer, forwarded, client, hops string }{
		{"192.0.2.1:5", "6.6.6.6", "192.0.2.1", ""},
		{"10.0.0.1:5", "", "10.0.0.1", ""},
		{"[::ffff:10.0.0.1]:5", "192.0.2.1", "192.0.2.1", "10.0.0.1"},
		{"10.0.0.1:5", "6.6.6.6, 192.0.2.1, 10.0.0.2", "192.0.2.1", "10.0.0.2 10.0.0.1"},
		{"10.0.0.1:5", "6.6.6.6, nonsense", "10.0.0.1", ""},
		{"10.0.0.1:5", "[2001:db8::1]:443", "2001:db8::1", "10.0.0.1"},
		{"@", "6.6.6.6", "invalid IP", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.peer
		if c.forwarded != "" {
			r.Header.Set("X-Forwarded-For", c.forwarded)
		}
		r.Header.Set("Forwarded", "for=6.6.6.6")
		at := proxies.Of(r)
		hops := make([]string, len(at.Hops))
		for i, h := range at.Hops {
			hops[i] = h.String()
		}
		if at.Client.String() != c.client || strings.Join(hops, " ") != c.hops {
			t.Errorf("%v: client = %s, hops = %v, want %s and %s", c, at.Client, hops, c.client, c.hops)
		}
	}
}

// proxiedWorld is a listener that reads PROXY headers.
type proxiedWorld struct {
	t   *testing.T
	l   net.Listener
	log bytes.Buffer
}

func newProxied(t *testing.T, p ProxyProtocol) *proxiedWorld {
	t.Helper()
	w := &proxiedWorld{t: t}
	if p.Proxies == nil {
		p.Proxies = trust("127.0.0.0/8")
	}
	p.Answer = func(bad string) []byte { return []byte("bad: " + bad + "\n") }
	p.Log = slog.New(slog.NewTextHandler(&w.log, nil))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.l = p.Listen(l)
	t.Cleanup(func() { w.l.Close() })
	return w
}

func (w *proxiedWorld) send(text string) net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *proxiedWorld) accept() net.Conn {
	w.t.Helper()
	c, err := w.l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

func version2(t *testing.T, h proxyproto.Header) string {
	t.Helper()
	h.Version = 2
	b, err := h.Format()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	w := newProxied(t, ProxyProtocol{})
	client := &net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 5555}
	server := &net.TCPAddr{IP: net.ParseIP("2001:db8::8"), Port: 443}
	for name, c := range map[string]struct{ header, client string }{
		"version 1":          {"PROXY TCP4 192.0.2.7 192.0.2.8 5555 80\r\n", "192.0.2.7:5555"},
		"version 1, IPv6":    {"PROXY TCP6 2001:db8::7 2001:db8::8 5555 443\r\n", "[2001:db8::7]:5555"},
		"version 1, unknown": {"PROXY UNKNOWN\r\n", ""},
		"version 2": {version2(t, proxyproto.Header{Command: proxyproto.PROXY, TransportProtocol: proxyproto.TCPv6,
			SourceAddr: client, DestinationAddr: server}), "[2001:db8::7]:5555"},
		"version 2, local": {version2(t, proxyproto.Header{Command: proxyproto.LOCAL,
			TransportProtocol: proxyproto.UNSPEC}), ""},
		"health check": {string(trust("127.0.0.0/8").LocalHeader(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})), ""},
	} {
		out := w.send(c.header + "hello")
		in := w.accept()
		want := c.client
		if want == "" { // the proxy's own
			want = out.LocalAddr().String()
		}
		if got := in.RemoteAddr().String(); got != want {
			t.Errorf("%s: the client is %s, want %s", name, got, want)
		}
		io.WriteString(out, " world")
		got := make([]byte, len("hello world"))
		if _, err := io.ReadFull(in, got); err != nil || string(got) != "hello world" {
			t.Errorf("%s: read = %q, error = %v, want %q", name, got, err, "hello world")
		}
	}
}

// TestBadHeaders has a trusted proxy that sends invalid headers. It gets an error, and others do not wait for it.
func TestBadHeaders(t *testing.T) {
	t.Parallel()
	w := newProxied(t, ProxyProtocol{Timeout: 300 * time.Millisecond}) // the good ones need some of it on a busy machine
	silent, half := w.send(""), w.send("PROXY TCP4 192")
	for _, c := range []struct {
		conn net.Conn
		want string
	}{
		{w.send("GET / HTTP/1.1\r\n\r\n"), "has to begin with a header"},
		{w.send("PROXY TCP4 nonsense\r\n"), "proxyproto: "},
		{w.send("PROXY TCP4 " + strings.Repeat("1", 200)), "107 bytes or less"},
		{half, "read version 1"}, {silent, "timeout"},
	} {
		_ = c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer, _ := bufio.NewReader(c.conn).ReadString('\n')
		if !strings.HasPrefix(answer, "bad: ") || !strings.Contains(answer, c.want) {
			t.Errorf("the proxy is told %q, want %q", answer, c.want)
		}
	}
	good := w.send("PROXY TCP4 192.0.2.7 192.0.2.8 5555 80\r\n")
	defer good.Close()
	if got := w.accept().RemoteAddr().String(); got != "192.0.2.7:5555" {
		t.Errorf("next client = %s, want 192.0.2.7:5555", got)
	}
	w.l.Close()
	if n := strings.Count(w.log.String(), "no valid PROXY protocol header"); n != 1 {
		t.Errorf("lines in the log = %d, want 1:\n%s", n, w.log.String())
	}
}

// TestStrangers: what others send is passed on as it is, header or not.
func TestStrangers(t *testing.T) {
	t.Parallel()
	proxies := trust("192.0.2.0/24")
	w := newProxied(t, ProxyProtocol{Proxies: proxies})
	if header := proxies.LocalHeader(w.l.Addr()); header != nil {
		t.Errorf("LocalHeader of a stranger = %q, want none", header)
	}
	const header = "PROXY TCP4 192.0.2.7 192.0.2.8 5555 80\r\n"
	out := w.send(header)
	in := w.accept()
	if got := in.RemoteAddr().String(); got != out.LocalAddr().String() {
		t.Errorf("client = %s, want %s", got, out.LocalAddr())
	}
	got := make([]byte, len(header))
	if _, err := io.ReadFull(in, got); err != nil || string(got) != header || !IsHeader(got) {
		t.Errorf("read = %q, error = %v, want the header", got, err)
	}
}

// failing is a listener without descriptors.
type failing struct {
	net.Listener
	asked int
}

var errNoFiles = errors.New("too many open files")

func (f *failing) Accept() (net.Conn, error) {
	f.asked++
	return nil, errNoFiles
}

// TestNoSpin has an accept that fails. The caller gets the error, and no further accept is made before its next call.
func TestNoSpin(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &failing{Listener: inner}
	p := ProxyProtocol{Proxies: trust("127.0.0.0/8"), Log: slog.New(slog.DiscardHandler)}
	l := p.Listen(f)
	for range 3 {
		if _, err := l.Accept(); err != errNoFiles {
			t.Error(err)
		}
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: error = %v, want %v", err, net.ErrClosed)
	}
	if f.asked > 5 {
		t.Errorf("calls of accept = %d, want at most 5", f.asked)
	}
}

// TestKernelPath: a file goes to a client behind a proxy without passing through user space.
func TestKernelPath(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("sendfile is used on Linux alone")
	}
	w := newProxied(t, ProxyProtocol{})
	l := bulk.Listen(w.l, bulk.NewPump(bulk.PumpOptions{}), time.Minute)
	name := filepath.Join(t.TempDir(), "pack")
	if err := os.WriteFile(name, make([]byte, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := w.send("PROXY TCP4 192.0.2.7 192.0.2.8 5555 80\r\n")
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	section := &bulk.Section{File: file, N: 100_000}
	if n, err := in.(io.ReaderFrom).ReadFrom(section); err != nil || n != 100_000 || section.KernelBytes() != n {
		t.Errorf("bytes sent = %d, by the kernel %d, error = %v, want 100000 by the kernel", n, section.KernelBytes(), err)
	}
	if _, err := io.CopyN(io.Discard, out, 100_000); err != nil {
		t.Errorf("CopyN error = %v, want none", err)
	}
}
