package roles

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// guarded is a gateway as clients see it, with a node and an application.
type guarded struct {
	t       *testing.T
	address string
	secure  bool
	log     *lockedLog

	mu   sync.Mutex
	seen []string // the first bytes of each connection to the application's worker
}

// serveGuarded starts a gateway whose application worker answers each connection once with answer, and then sends the
// bytes that it receives.
func serveGuarded(t *testing.T, secure bool, answer string) *guarded {
	t.Helper()
	dir := socketDir(t)
	g := &guarded{t: t, secure: secure, log: &lockedLog{}}
	text := fmt.Sprintf("state = %q\n[app]\nworkers = [\"unix:%s/w0.sock\"]\n[http]\n", dir, dir)
	if secure {
		certificate, key := writeCertificate(t)
		text += fmt.Sprintf("tls_cert = %q\ntls_key = %q\n", certificate, key)
	}
	cfg, err := loadTextAs(t, config.RoleGateway, text)
	if err != nil {
		t.Fatal(err)
	}
	worker, err := net.Listen("unix", dir+"/w0.sock")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := worker.Accept()
			if err != nil {
				return
			}
			running.Go(func() { g.work(c, answer) })
		}
	})

	log := slog.New(slog.NewTextHandler(g.log, nil))
	routes := router.New(nil)
	if err := routes.Set([]router.Route{{Replicas: []*router.Replica{{Name: "local", Node: answering{}}}}}); err != nil {
		t.Fatal(err)
	}
	d := testDeps(t, config.RoleGateway, cfg, log, prometheus.NewRegistry())
	handler := newGitHandler(d, routes, nil, nil)
	handler.Application = application{must(newApp(d))}
	front, err := newHTTPPort(d, handler, must(newClientListeners(d)))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.address = listener.Addr().String()
	running.Go(func() {
		if err := front.serve(listener); err != nil {
			t.Errorf("serve error = %v, want none", err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := front.shutdown(ctx); err != nil {
			t.Errorf("shutdown error = %v, want none", err)
		}
		if err := d.life.close(); err != nil {
			t.Errorf("close error = %v, want none", err)
		}
		worker.Close()
		running.Wait()
	})
	return g
}

// work is the application.
func (g *guarded) work(c net.Conn, answer string) {
	defer c.Close()
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	g.mu.Lock()
	g.seen = append(g.seen, r.Method+" "+r.URL.Path)
	g.mu.Unlock()
	if _, err := io.WriteString(c, answer); err == nil {
		_, _ = io.Copy(c, in)
	}
}

// dial connects. Reads and writes have no deadline before the end of the test.
func (g *guarded) dial() net.Conn {
	g.t.Helper()
	c, err := net.Dial("tcp", g.address)
	if err == nil && g.secure {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	return c
}

// writeCertificate writes a self-signed certificate.
func writeCertificate(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, about, about, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

// headShapes are what a request's head must not be. PATH is the target, REST headers that the path needs.
var headShapes = []struct{ reason, request string }{
	{"length_and_encoding", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nContent-Length: 5\r\nTransfer-Encoding: " +
		"chunked\r\n\r\n0\r\n\r\n"},
	{"length_and_encoding", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\ntransfer-encoding: CHUNKED\r\ncontent-length: " +
		"5\r\n\r\n0\r\n\r\n"},
	{"length", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nContent-Length: 4\r\nContent-Length: 0\r\n\r\n0000"},
	{"length", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nContent-Length: 4, 4\r\n\r\n0000"},
	{"encoding", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"},
	{"encoding", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n"},
	{"folded", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nContent-Length: 4\r\nX: a\r\n Transfer-Encoding: " +
		"chunked\r\n\r\n0000"},
	{"header_name", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nTransfer-Encoding : chunked\r\n" +
		"Content-Length: 4\r\n\r\n0000"},
	{"line_end", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nX: a\rContent-Length: 4\r\n\r\n0000"},
	{"line_end", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nX: a\nContent-Length: 4\r\n\r\n0000"},
	{"control", "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nX: \x00\r\nContent-Length: 4\r\n\r\n0000"},
	{"target", "POST http://aPATH HTTP/1.1\r\nHost: a\r\nREST\r\nContent-Length: 4\r\n\r\n0000"},
	{"target", "CONNECT a:80 HTTP/1.1\r\nHost: a\r\nREST\r\n\r\n"},
	{"host", "POST PATH HTTP/1.1\r\nHost: a\r\nHost: b\r\nREST\r\nContent-Length: 4\r\n\r\n0000"},
	{"host", "POST PATH HTTP/1.1\r\nHost:\r\nREST\r\nContent-Length: 4\r\n\r\n0000"},
	{"request_line", "POST PATH  HTTP/1.1\r\nHost: a\r\nREST\r\nContent-Length: 4\r\n\r\n0000"},
}

// bodyShapes are what chunks must not be.
var bodyShapes = []struct{ reason, body string }{
	{"chunk", "-4\r\n0000\r\n0\r\n\r\n"},
	{"chunk", "0x4\r\n0000\r\n0\r\n\r\n"},
	{"chunk", "4 \r\n0000\r\n0\r\n\r\n"},
	{"chunk", "10000000000000004\r\n0000\r\n0\r\n\r\n"},
	{"chunk", "000000004\r\n0000\r\n0\r\n\r\n"},
	{"chunk", "4\n0000\n0\n\n"},
	{"chunk", "4;" + strings.Repeat("x", 3000) + "\r\n0000\r\n0\r\n\r\n"},
	{"chunk", "4\r\n00000\r\n0\r\n\r\n"},
	{"trailer", "4\r\n0000\r\n0\r\nContent-Length: 4\r\n\r\n"},
}

const chunkedHead = "POST PATH HTTP/1.1\r\nHost: a\r\nREST\r\nTransfer-Encoding: chunked\r\n"

// TestMalformedRequests sends requests that two servers could interpret differently, on all paths and at each position
// in a connection. They are refused with their reason. The application gets neither them nor later requests.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	const good, hidden = "GET /-/nothing HTTP/1.1\r\nHost: a\r\n\r\n", "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, secure := range []bool{false, true} {
		g := serveGuarded(t, secure, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		want := map[string]bool{}
		refused := func(name, reason string, c net.Conn, r *bufio.Reader) {
			t.Helper()
			want[reason] = true
			response, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Errorf("%s: error = %v, want a response", name, err)
				return
			}
			text, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != http.StatusBadRequest || !response.Close || len(text) < 20 ||
				!strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") {
				t.Errorf("%s: error = %v, status = %s, header = %v, text = %q, want a 400 that closes", name, err, response.Status,
					response.Header, text)
			}
			if response.Close { // else nothing ends it
				if rest, _ := io.ReadAll(r); len(rest) > 0 {
					t.Errorf("%s: bytes after the response = %q, want none", name, rest)
				}
			}
			c.Close()
		}
		begin := func(position string, request string) (net.Conn, *bufio.Reader) {
			t.Helper()
			c := g.dial()
			r := bufio.NewReader(c)
			answered := func() {
				response, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusNotFound {
					t.Errorf("error = %v, status = %s, text = %q, want 404", err, response.Status, text)
				}
			}
			switch position {
			case "first":
				_, _ = io.WriteString(c, request)
			case "second":
				_, _ = io.WriteString(c, good)
				answered()
				_, _ = io.WriteString(c, request)
			case "pipelined":
				_, _ = io.WriteString(c, good+good+request)
				answered()
				answered()
			}
			return c, r
		}
		for _, path := range []struct{ target, headers string }{
			{"/team/app/git-upload-pack", "Content-Type: application/x-git-upload-pack-request"}, {"/-/api/v1/resolve", "X: y"},
			{"/users/1", "X: y"},
		} {
			at := strings.NewReplacer("PATH", path.target, "REST", path.headers)
			for _, position := range []string{"first", "second", "pipelined"} {
				for _, shape := range headShapes {
					c, r := begin(position, at.Replace(shape.request)+hidden)
					refused(fmt.Sprintf("%q, %s", at.Replace(shape.request), position), shape.reason, c, r)
				}
				for _, shape := range bodyShapes {
					request := at.Replace(chunkedHead) + "\r\n" + shape.body
					c, r := begin(position, request+hidden)
					refused(fmt.Sprintf("%q, %s", request, position), shape.reason, c, r)
					// The same once the request is being answered.
					c, r = begin(position, at.Replace(chunkedHead)+"Expect: 100-continue\r\n\r\n")
					if response, err := http.ReadResponse(r, nil); err != nil || response.StatusCode != http.StatusContinue {
						t.Fatal(err, response)
					}
					_, _ = io.WriteString(c, shape.body+hidden)
					refused(fmt.Sprintf("%q, %s, later", request, position), shape.reason, c, r)
				}
			}
		}
		g.mu.Lock()
		if len(g.seen) > 0 {
			t.Errorf("requests at the application = %q, want none", g.seen)
		}
		g.mu.Unlock()
		log := g.log.String()
		for reason := range want {
			if !strings.Contains(log, "reason="+reason+" ") {
				t.Errorf("the log has no refusal for %s, want one", reason)
			}
		}
	}
}

// TestUpgradesAreNotFollowed upgrades a connection. The guard passes all later bytes, which reach the worker.
func TestUpgradesAreNotFollowed(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		g := serveGuarded(t, secure, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		for _, early := range []string{"", "\x81", " \x00 no request \n\n"} {
			c := g.dial()
			_, _ = io.WriteString(c, "GET /-/nothing HTTP/1.1\r\nHost: a\r\n\r\nGET /socket HTTP/1.1\r\nHost: "+
				"a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"+early)
			r := bufio.NewReader(c)
			for _, status := range []int{404, 101} {
				response, err := http.ReadResponse(r, nil)
				if err != nil || response.StatusCode != status {
					t.Fatalf("error = %v, response = %+v, want status %d", err, response, status)
				}
				if status == 404 {
					_, _ = io.Copy(io.Discard, response.Body)
				}
			}
			const late = "Content-Length: 1, 2\n\x00\r\n\r\n"
			_, _ = io.WriteString(c, late)
			got := make([]byte, len(early+late))
			if _, err := io.ReadFull(r, got); err != nil || string(got) != early+late {
				t.Errorf("after %q: error = %v, read = %q, want %q", early, err, got, early+late)
			}
			c.Close()
		}
	}
}

// TLS begins as it does without a guard.
func TestGuardedTLS(t *testing.T) {
	t.Parallel()
	g := serveGuarded(t, true, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	c := g.dial()
	_, _ = io.WriteString(c, "GET /team/app HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n") // the application's
	if all, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200 OK\r\n") {
		t.Errorf("error = %v, response = %q, want 200", err, all)
	}
	state := c.(*tls.Conn).ConnectionState()
	if state.NegotiatedProtocol != "" && state.NegotiatedProtocol != "http/1.1" {
		t.Errorf("TLS state = %+v, want protocol http/1.1 or none", state)
	}
	for begin, want := range map[string]string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n": "this port needs HTTPS",
		"SSH-2.0-x\r\n\r\n\r\n\r\n": ""} {
		c, err := net.Dial("tcp", g.address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, begin)
		if all, _ := io.ReadAll(c); !strings.Contains(string(all), want) {
			t.Errorf("response to %q = %q, want %q", begin, all, want)
		}
		c.Close()
	}
}
