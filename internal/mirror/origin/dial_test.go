package origin

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"https://github.com", "https://github.com/", "http://forge.example:8080/base/x/",
		"ssh://git@github.com/", "ssh://github.com:2222/base", "https://[2001:db8::1]/", "https://localhost"} {
		u, err := ParseURL(s)
		if err != nil {
			t.Errorf("ParseURL(%q) error = %v, want none", s, err)
			continue
		}
		if o, err := New(Options{URL: u, SSH: &SSHOptions{}}); err == nil {
			_ = o.Close()
		} else if u.Scheme != "ssh" {
			t.Errorf("New(%q) error = %v, want none", s, err)
		}
	}
	for _, s := range []string{"", "github.com", "//github.com", "file:///etc/passwd", "ext::sh -c id", "git://host/",
		"https:///x",
		"https://user@host/", "https://user:password@host/", "ssh://user:password@host/", "https://-oProxyCommand=x/",
		"ssh://-oProxyCommand=x/", "ssh://-x@host/", "https://host/?q", "https://host/#f", "https://host/a/../b/",
		"https://host/a//b", "https://host/%00/", "https://host/a%0ab/", "https:host", "https://host/%2e%2e/"} {
		if u, err := ParseURL(s); err == nil {
			t.Errorf("ParseURL(%q) = %v, want an error", s, u)
		} else if strings.Contains(err.Error(), "password@") {
			t.Errorf("ParseURL(%q) error %q contains the password", s, err)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("New without a URL has no error, want one")
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	o := open(t, "http://127.0.0.1:1")
	for _, path := range []string{"", "/a", "a/", "a//b", ".", "a/../b", "..", "a\nb", "a\x00", `a\b`,
		strings.Repeat("a", 3000)} {
		if _, err := o.Refs(t.Context(), path, none, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("Refs(%.20q) error = %v, want invalid", path, err)
		}
	}
	c := &call{path: "a b/c?d#e%2f.git", service: "git-upload-pack"}
	if got, want := o.url(c).String(), "http://127.0.0.1:1/a%20b/c%3Fd%23e%252f.git/info/refs?service=git-upload-pack"; got != want {
		t.Errorf("URL = %s, want %s", got, want)
	}
}

func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
		"0.0.0.0",
		"0.1.2.3", "100.64.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::1", "::", "fe80::1",
		"fe80::1%eth0",
		"fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::a00:1",
		"64:ff9b::7f00:1", "2002:7f00:1::", "fec0::1"} {
		if !isPrivate(netip.MustParseAddr(s)) {
			t.Errorf("isPrivate(%s) = false, want true", s)
		}
	}
	for _, s := range []string{"140.82.121.4", "2606:50c0:8000::154", "64:ff9b::8c52:7904", "::ffff:140.82.121.4"} {
		if isPrivate(netip.MustParseAddr(s)) {
			t.Errorf("isPrivate(%s) = true, want false", s)
		}
	}
}

// nameServer returns a resolver whose answers come from a function.
func nameServer(t *testing.T, answer func(query int32) [4]byte) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = server.Close(); <-done })
	go func() {
		defer close(done)
		var queries atomic.Int32
		b := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) == 0 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body: &dnsmessage.AResource{A: answer(queries.Add(1))}}}
			}
			if reply, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(reply, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// A name that has a public address when it is checked and a private one when it is used is not reached.
func TestRebinding(t *testing.T) {
	t.Parallel()
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := target.Accept(); err == nil {
			t.Errorf("a connection from %v arrived, want none", c.RemoteAddr())
			_ = c.Close()
		}
	}()
	dialer := NewDialer(false)
	check := dialer.Control
	dialer.Control = func(network, address string, c syscall.RawConn) error {
		return cmp.Or(check(network, address, c), errors.New("not dialed in tests"))
	}
	dialer.Resolver = nameServer(t, func(query int32) [4]byte {
		if query%2 == 1 {
			return [4]byte{203, 0, 113, 1}
		}
		return [4]byte{127, 0, 0, 1}
	})
	_, port, _ := net.SplitHostPort(target.Addr().String())
	refused := 0
	for range 4 {
		c, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("rebind.example", port))
		if err == nil {
			t.Errorf("connected to %v, want an error", c.RemoteAddr())
			_ = c.Close()
		}
		if fault.Is(err, fault.Denied) {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("%d of 4 connections were refused, want the 2 to the private address", refused)
	}

	u := &url.URL{Scheme: "http", Host: net.JoinHostPort("rebind.example", port)}
	o, err := New(Options{URL: u})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	private := NewDialer(false)
	private.Resolver = nameServer(t, func(int32) [4]byte { return [4]byte{127, 0, 0, 1} })
	o.transport.DialContext = private.DialContext
	for range 2 * failures {
		_, err = o.Refs(t.Context(), "a", none, nil)
		if !fault.Is(err, fault.Denied) || IsDown(err) || !strings.Contains(err.Error(), "private = true") {
			t.Errorf("error = %v, want denied with advice and no outage", err)
		}
	}
	_ = target.Close()
	<-done
}

func TestMissingHost(t *testing.T) {
	t.Parallel()
	u := &url.URL{Scheme: "http", Host: "missing.example"}
	o, err := New(Options{URL: u})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	o.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "missing.example", IsNotFound: true}
	}
	_, err = o.Refs(t.Context(), "a", none, nil)
	if _, ok := errors.AsType[*net.DNSError](err); !IsDown(err) || !ok ||
		fault.Message(err) != "origin missing.example does not answer" {
		t.Errorf("error = %v, want an outage with its cause", err)
	}
}
