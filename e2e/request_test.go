package e2e

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// requestLimit bounds one request of a story.
const requestLimit = 30 * time.Second

// rawRequest is a request that is sent exactly as written.
type rawRequest struct {
	method, target string
	headers        []string
	body           []byte
	hangup         int  // bytes of the answer's body after which to close the connection; -1: never
	stuck          bool // read no more instead of closing it
}

// cmdRequest sends a request exactly as written, so that no client library corrects it, and checks the status of the
// response:
//
//	request [-H 'Name: value']... [-d FILE | -chunked FILE] [-hangup BYTES | -stuck BYTES] METHOD TARGET [STATUS]
//
// STATUS is a number, or 4xx. The file headers then has the response's headers, and the file body its body. With
// -hangup the connection is closed after so many bytes of the body. With -stuck it stays open, and the client stops
// reading.
func cmdRequest(ts *testscript.TestScript, neg bool, args []string) {
	r, want := parseRequest(ts, args)
	if neg || r == nil {
		ts.Fatalf("usage: request [-H 'Name: value']... [-d FILE | -chunked FILE] [-hangup BYTES | -stuck BYTES] METHOD " +
			"TARGET [STATUS]")
	}
	conn := dial(ts, storyOf(ts).server(ts).http)
	if r.stuck {
		ts.Check(conn.(*net.TCPConn).SetReadBuffer(4096)) // a small buffer, so that the server notices early
		storyOf(ts).stuck = append(storyOf(ts).stuck, conn)
	} else {
		defer conn.Close()
	}
	conn.SetDeadline(time.Now().Add(requestLimit))
	go r.write(conn) // the answer may come before the body was taken
	answers := bufio.NewReader(conn)
	resp, err := http.ReadResponse(answers, &http.Request{Method: r.method})
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(answers, &http.Request{Method: r.method})
	}
	ts.Check(err)
	if r.hangup >= 0 { // closing the body would read all of it
		_, err := io.CopyN(io.Discard, resp.Body, int64(r.hangup))
		ts.Check(err)
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	ts.Check(err)
	var head bytes.Buffer
	resp.Header.Write(&head)
	ts.Check(os.WriteFile(ts.MkAbs("headers"), bytes.ReplaceAll(head.Bytes(), []byte("\r"), nil), 0o644))
	ts.Check(os.WriteFile(ts.MkAbs("body"), got, 0o644))
	if status := strconv.Itoa(resp.StatusCode); status != want && want != "" && (want != "4xx" || status[0] != '4') {
		ts.Fatalf("%s %s: %s, want %s\n%.500s", r.method, r.target, resp.Status, want, got)
	}
}

func parseRequest(ts *testscript.TestScript, args []string) (r *rawRequest, status string) {
	r = &rawRequest{hangup: -1}
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-H":
			r.headers = append(r.headers, args[1])
		case "-d", "-chunked":
			text, err := os.ReadFile(ts.MkAbs(args[1]))
			ts.Check(err)
			r.body = text
			if args[0] == "-d" {
				r.headers = append(r.headers, fmt.Sprintf("Content-Length: %d", len(text)))
			} else {
				r.headers = append(r.headers, "Transfer-Encoding: chunked")
				r.body = fmt.Appendf(nil, "%x\r\n%s\r\n0\r\n\r\n", len(text), text)
			}
		case "-hangup", "-stuck":
			r.stuck = args[0] == "-stuck"
			n, err := strconv.Atoi(args[1])
			ts.Check(err)
			r.hangup = n
		default:
			return nil, ""
		}
		args = args[2:]
	}
	switch len(args) {
	case 2:
	case 3:
		status = args[2]
	default:
		return nil, ""
	}
	r.method, r.target = args[0], args[1]
	return r, status
}

func (r *rawRequest) write(w io.Writer) {
	var head bytes.Buffer
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nConnection: close\r\n", r.method, r.target)
	if !slices.ContainsFunc(r.headers, func(h string) bool { return strings.HasPrefix(h, "Host:") }) {
		fmt.Fprintf(&head, "Host: localhost\r\n")
	}
	for _, h := range r.headers {
		fmt.Fprintf(&head, "%s\r\n", h)
	}
	fmt.Fprintf(&head, "\r\n")
	w.Write(head.Bytes())
	w.Write(r.body) // an error shows in the answer
}

func dial(ts *testscript.TestScript, server string) net.Conn {
	u, err := url.Parse(server)
	ts.Check(err)
	if u.Scheme == "https" {
		return handshake(ts, u.Host)
	}
	conn, err := net.Dial("tcp", u.Host)
	ts.Check(err)
	return conn
}

func handshake(ts *testscript.TestScript, host string) *tls.Conn {
	conn, err := tls.Dial("tcp", host, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	ts.Check(err)
	return conn
}

// cmdCertificate writes a self-signed certificate and its key: certificate CERT KEY NAME.
func cmdCertificate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: certificate CERT KEY NAME")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: args[2]}, DNSNames: []string{args[2]},
		NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	ts.Check(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
}

// cmdServed connects with TLS until the server shows the certificate of NAME and, if given, TEXT is in its log: served
// NAME [TEXT]. The server checks its files at most once a second. The negotiated protocol has to be HTTP/1.1.
func cmdServed(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: served NAME [TEXT]")
	}
	p := storyOf(ts).server(ts)
	name := ""
	if !gittest.Eventually(func() bool {
		conn := handshake(ts, strings.TrimPrefix(p.http, "https://"))
		state := conn.ConnectionState()
		conn.Close()
		name = state.PeerCertificates[0].Subject.CommonName
		if state.NegotiatedProtocol != "http/1.1" {
			ts.Fatalf("the server negotiated protocol %q, want http/1.1", state.NegotiatedProtocol)
		}
		return name == args[0] && (len(args) == 1 || strings.Contains(p.logged(), args[1]))
	}) {
		ts.Fatalf("the server shows the certificate of %s, want %q\n%s", name, args, p.logged())
	}
}
