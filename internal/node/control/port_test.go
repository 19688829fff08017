package control

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// patience is for what has to come.
const patience = time.Minute

// realPort serves a root with one repository, app, on a separate port. It sets missing options.
func realPort(t *testing.T, network string, o Options) (s *Server, address string) {
	t.Helper()
	root := t.TempDir()
	r := gittest.InitAt(t, filepath.Join(root, "app.git"))
	r.Git("update-ref", "refs/heads/main", r.Commit("x").String())
	node, err := storage.New(uploadpack.New(nil, uploadpack.Options{}), storage.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	o.Node, o.Pump = node, bulk.NewPump(bulk.PumpOptions{})
	if o.Lanes.Small == nil {
		o.Lanes = admit.NewLanes(admit.Sizes{Small: 10, Hit: 10, Cold: 10, Push: 10})
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s = New(o)
	address = "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	h := s.HTTPServer()
	go h.Serve(l)
	t.Cleanup(func() { h.Close() })
	return s, l.Addr().String()
}

// http2Client makes clients' connections to an address.
func http2Client(t *testing.T, network, address string) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A page that a browser shows on the node's machine can neither call the node by its address nor by a name of its own.
func TestWebPagesAreRefused(t *testing.T) {
	t.Parallel()
	const secret = "sesame-sesame-sesame"
	for _, test := range []struct {
		network, host string
		secret        bool
		header        [2]string
		status        int
	}{
		{"tcp", "", false, [2]string{}, 200},
		{"tcp", "localhost:1", false, [2]string{}, 200},
		{"tcp", "evil.example", false, [2]string{}, 403},
		{"tcp", "evil.example:80", true, [2]string{}, 200}, // a page has no secret
		{"unix", "evil.example", false, [2]string{}, 200},  // and reaches no socket
		{"tcp", "", false, [2]string{"Sec-Fetch-Site", "none"}, 200},
		{"tcp", "", false, [2]string{"Sec-Fetch-Site", "same-site"}, 403},
		{"tcp", "", true, [2]string{"Origin", "http://evil.example"}, 403},
		{"unix", "", false, [2]string{"Origin", "null"}, 403},
	} {
		var trust Trust
		if test.secret {
			trust.Secret = func() string { return secret }
		}
		s, address := realPort(t, test.network, Options{Trust: trust})
		h1 := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, test.network, address)
		}}
		t.Cleanup(h1.CloseIdleConnections)
		for version, client := range map[string]*http.Client{"HTTP/1.1": {Transport: h1},
			"HTTP/2": http2Client(t, test.network, address)} {
			for _, url := range []string{"http://localhost" + packhorsev1connect.RefServiceResolveProcedure,
				"http://localhost/packhorse/nothing"} {
				request, err := http.NewRequest("POST", url, strings.NewReader(`{"repository": "app", "name": "HEAD"}`))
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Content-Type", "application/json")
				request.Header.Set("Authorization", "Bearer "+secret)
				if test.header[0] != "" {
					request.Header.Set(test.header[0], test.header[1])
				}
				request.Host = test.host
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(response.Body)
				response.Body.Close()
				status := test.status
				if status == 200 && strings.HasSuffix(url, "nothing") {
					status = 404
				}
				if response.StatusCode != status {
					t.Errorf("%s %s %+v: %d %s", version, url, test, response.StatusCode, body)
				}
			}
		}
		_ = s
	}
}

// A refused caller who never sends the body that he announced costs no connection for long.
func TestRefusedCallersAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	_, address := realPort(t, "tcp", Options{Trust: Trust{Secret: func() string { return "sesame-sesame-sesame" }}})
	for _, path := range []string{"/", packhorsev1connect.RefServiceResolveProcedure} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "+
			"1000\r\n\r\n", path)
		answer, err := io.ReadAll(conn)
		if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 401 ")) ||
			!bytes.Contains(answer, []byte("\r\nConnection: close\r\n")) {
			t.Errorf("%s: %v after %s", path, err, answer)
		}
	}
}

// TestNothingIsSmuggledBehindChunks checks that bytes after a chunked request are not another request, even if a proxy
// in front saw another length.
func TestNothingIsSmuggledBehindChunks(t *testing.T) {
	t.Parallel()
	_, address := realPort(t, "tcp", Options{})
	for _, lengths := range []string{"Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked"} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		const head = "POST " + packhorsev1connect.RefServiceResolveProcedure +
			" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
		fmt.Fprintf(conn, head+"%s\r\n\r\n2\r\n{}\r\n0\r\n\r\n"+head+"Content-Length: 2\r\n\r\n{}", lengths)
		answer, _ := io.ReadAll(conn) // the rest may make a reset of the end
		if n := bytes.Count(answer, []byte("HTTP/1.1 ")); n != 1 ||
			!bytes.Contains(answer, []byte("\r\nConnection: close\r\n")) {
			t.Errorf("%s: %d answers: %s", lengths, n, answer)
		}
	}
}

// TestTooManyStrangers checks that unidentified connections only displace each other, never identified ones.
func TestTooManyStrangers(t *testing.T) {
	t.Parallel()
	s, address := realPort(t, "tcp", Options{})
	s.unidentified.mu.Lock()
	s.unidentified.max = 3
	s.unidentified.mu.Unlock()
	known := packhorsev1connect.NewRefServiceClient(http2Client(t, "tcp", address), "http://"+address, connect.WithGRPC())
	ask := func() {
		t.Helper()
		if _, err := known.Resolve(t.Context(), connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "app",
			Name: "HEAD"})); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	var conns []net.Conn
	for range 5 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	for i, conn := range conns[:2] {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("stranger %d stays: %v", i, err)
		}
	}
	for _, conn := range conns[2:] {
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
		if answer, err := io.ReadAll(conn); err != nil || !bytes.Contains(answer, []byte(" 404 ")) {
			t.Errorf("%v after %s", err, answer)
		}
	}
	ask()
	s.unidentified.mu.Lock()
	defer s.unidentified.mu.Unlock()
	if n := s.unidentified.conns.Len(); n != 0 {
		t.Errorf("%d strangers are left", n)
	}
}

// Calls whose requests are not read do not stop the others of their connection.
func TestUnreadCallsStopNoOthers(t *testing.T) {
	t.Parallel()
	s, address := realPort(t, "tcp", Options{})
	blocked, free := make(chan struct{}, 8), make(chan struct{})
	s.mux.HandleFunc("/deaf", func(http.ResponseWriter, *http.Request) {
		blocked <- struct{}{}
		<-free
	})
	client := http2Client(t, "tcp", address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer close(free)
	for range cap(blocked) {
		go func() {
			request, _ := http.NewRequestWithContext(ctx, "POST", "http://"+address+"/deaf", zeros{})
			if response, err := client.Do(request); err == nil {
				response.Body.Close()
			}
		}()
	}
	for range cap(blocked) {
		<-blocked
	}
	refs := packhorsev1connect.NewRefServiceClient(client, "http://"+address, connect.WithGRPC())
	for range 100 { // while the streams fill
		limit, end := context.WithTimeout(ctx, patience)
		if _, err := refs.Resolve(limit, connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "app",
			Name: strings.Repeat("x", 1000)})); connect.CodeOf(err) != connect.CodeNotFound {
			t.Fatal(err)
		}
		end()
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// issue makes a certificate, of parent or of its own.
func issue(t *testing.T, name string, parent *tls.Certificate, until time.Time) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		IsCA: parent == nil, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	by, signer := template, any(key)
	if parent != nil {
		by, signer = parent.Leaf, parent.PrivateKey
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

// TestCertificatesAreCheckedAgain checks that a certificate that was revoked during a connection ends its permission.
func TestCertificatesAreCheckedAgain(t *testing.T) {
	t.Parallel()
	pool := func(of *tls.Certificate) *x509.CertPool {
		p := x509.NewCertPool()
		p.AddCert(of.Leaf)
		return p
	}
	later := time.Now().Add(time.Hour)
	ours, other := issue(t, "ours", nil, later), issue(t, "other", nil, later)
	good, old := issue(t, "caller", ours, later), issue(t, "caller", ours, time.Now().Add(-time.Minute))
	now := pool(ours)
	trust := Trust{Certificates: true, Authorities: func() *x509.CertPool { return now }}
	c := new(connection)
	call := func(with *tls.Certificate) error {
		chain := []*x509.Certificate{with.Leaf, ours.Leaf}
		r := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: chain[:1],
			VerifiedChains: [][]*x509.Certificate{chain}}}
		_, err := trust.identify(r.WithContext(context.WithValue(t.Context(), connectionKey{}, c)))
		return err
	}
	if err := call(good); err != nil || c.verified.Load() != now {
		t.Errorf("a good certificate: %v", err)
	}
	if err := call(old); err != expired {
		t.Errorf("an expired one: %v", err)
	}
	now = pool(other)
	if err := call(good); err != notVerified {
		t.Errorf("one whose authority is not trusted any more: %v", err)
	}
	now = pool(ours)
	if err := call(good); err != nil {
		t.Errorf("one whose authority is trusted again: %v", err)
	}
}

// uploadPack begins a transfer by a separate connection.
func uploadPack(t *testing.T, address string,
	data *internalv1.RequestData,
) *connect.BidiStreamForClient[internalv1.SessionRequest, internalv1.SessionResponse] {
	t.Helper()
	client := internalv1connect.NewSessionServiceClient(http2Client(t, "tcp", address), "http://"+address,
		connect.WithGRPC())
	stream := client.UploadPack(t.Context())
	start := &internalv1.SessionStart{Repository: "app", Session: &internalv1.Session{Version: 2}, Data: data}
	if err := stream.Send(
		&internalv1.SessionRequest{Part: &internalv1.SessionRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestRequestsWithoutAnEnd checks that a request without an end occupies no lane, and that its call ends.
func TestRequestsWithoutAnEnd(t *testing.T) {
	t.Parallel()
	lanes := admit.NewLanes(admit.Sizes{Small: 1})
	_, address := realPort(t, "tcp", Options{Lanes: lanes, Stall: 300 * time.Millisecond})
	for _, data := range []*internalv1.RequestData{nil, {Data: []byte("0014command=ls-refs\n")},
		{Data: make([]byte, 200<<10)}} {
		stream := uploadPack(t, address, data)
		seat, err := lanes.Small.Enter("")
		if err != nil {
			t.Fatal("the lane is taken by who has sent nothing")
		}
		_, err = stream.Receive()
		if err == nil || connect.CodeOf(err) == connect.CodeResourceExhausted {
			t.Errorf("after %d bytes: %v", len(data.GetData()), err)
		}
		seat.Leave()
	}
}

// All large requests together have their share of memory.
func TestLargeRequestsShareMemory(t *testing.T) {
	t.Parallel()
	memory := admit.NewBudget("requests", 400<<10)
	_, address := realPort(t, "tcp", Options{Memory: memory})
	first := uploadPack(t, address, &internalv1.RequestData{Data: make([]byte, 200<<10)})
	waitFor(t, "memory is used", func() bool { return memory.Used() > 0 })
	second := uploadPack(t, address, &internalv1.RequestData{Data: make([]byte, 200<<10), Last: true})
	if _, err := second.Receive(); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("beside another: %v", err)
	}
	small := uploadPack(t, address, &internalv1.RequestData{Data: []byte("0014command=ls-refs\n0000"), Last: true})
	if _, err := small.Receive(); err != nil {
		t.Errorf("a small one: %v", err)
	}
	last := &internalv1.SessionRequest_Data{Data: &internalv1.RequestData{Last: true}}
	if err := first.Send(&internalv1.SessionRequest{Part: last}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Receive(); connect.CodeOf(err) == connect.CodeResourceExhausted {
		t.Error(err)
	}
	waitFor(t, "memory comes back", func() bool { return memory.Used() == 0 })
}

// A reader that takes nothing is given up even if each message is short.
func TestShortMessagesToStalledReader(t *testing.T) {
	t.Parallel()
	s, address := realPort(t, "tcp", Options{Stall: 100 * time.Millisecond})
	for path, flush := range map[string]bool{"/mute": false, "/flushed": true} { // the headers or the body may be blocked
		failed := make(chan error, 1)
		s.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1000)); err != nil {
					failed <- err
					return
				}
				if flush {
					w.(http.Flusher).Flush()
				}
			}
		})
		response, err := http2Client(t, "tcp", address).Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		select {
		case <-failed:
		case <-time.After(patience):
			t.Errorf("%s still writes", path)
		}
	}
}

// Programs that speak gRPC-Web are answered, over HTTP/1.1, too.
func TestGRPCWeb(t *testing.T) {
	t.Parallel()
	_, address := realPort(t, "tcp", Options{})
	h1 := new(http.Transport)
	t.Cleanup(h1.CloseIdleConnections)
	refs := packhorsev1connect.NewRefServiceClient(&http.Client{Transport: h1}, "http://"+address, connect.WithGRPCWeb())
	ask := func(name string) (*connect.Response[packhorsev1.ResolveResponse], error) {
		return refs.Resolve(t.Context(), connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "app", Name: name}))
	}
	if r, err := ask("refs/heads/main"); err != nil || r.Msg.GetRef().GetOid() == "" {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := ask("refs/heads/none"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a ref that is not there: %v", err)
	}
	list, err := refs.List(t.Context(), connect.NewRequest(&packhorsev1.RefServiceListRequest{Repository: "app"}))
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	if !list.Receive() || len(list.Msg().GetRefs()) == 0 {
		t.Errorf("%v, %v", list.Msg(), list.Err())
	}
}

// While the node drains, answers of HTTP/1.1 end their connection; those of HTTP/2 go on.
func TestDrainingEndsConnections(t *testing.T) {
	t.Parallel()
	s, address := realPort(t, "tcp", Options{})
	ask := func() *http.Response {
		t.Helper()
		response, err := http.Post("http://"+address+"/packhorse.v1.RefService/Resolve", "application/json",
			strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response
	}
	if ask().Close {
		t.Error("a connection ends before the drain")
	}
	s.Drain()
	if !ask().Close {
		t.Error("a connection goes on during the drain")
	}
}
