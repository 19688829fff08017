package gitssh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// maxBanner is the maximum length of a client's first line, with its end (RFC 4253, section 4.2).
const maxBanner = 255

// errBanner is the error of a peer that does not speak SSH.
var errBanner = errors.New("the first line is not an SSH version 2 banner")

// errProxyHeader is the error of a proxy that is not trusted to name the client.
var errProxyHeader = errors.New("a PROXY protocol header from an address that may not send one: " +
	"name the proxy in trusted_proxies, and set ssh.proxy_protocol = true")

// wireConn is the connection below SSH. It checks the client's banner before the library does, which would read a
// thousand lines byte by byte before it gives up. It also counts bytes.
type wireConn struct {
	net.Conn
	head    []byte // the banner and the bytes received with it, until they are read
	greeted bool   // the banner was read
	bad     bool   // there was no valid banner
	version string // the banner without its line end
	silent  bool   // the peer closed the connection without a word
	bytes   atomic.Int64

	backlog  backlog
	sessions atomic.Int64
}

func (w *wireConn) Read(p []byte) (int, error) {
	if !w.greeted {
		if err := w.readBanner(); err != nil {
			return 0, err
		}
	}
	if len(w.head) > 0 {
		n := copy(p, w.head)
		w.head = w.head[n:]
		return n, nil
	}
	n, err := w.Conn.Read(p)
	w.bytes.Add(int64(n))
	if err == nil {
		err = w.backlog.received(n, w.sessions.Load())
	}
	return n, err
}

// readBanner reads the first line.
func (w *wireConn) readBanner() error {
	buf := make([]byte, maxBanner)
	for n := 0; ; {
		m, err := w.Conn.Read(buf[n:])
		n += m
		end := bytes.IndexByte(buf[:n], '\n')
		line := buf[:n]
		if end >= 0 {
			line = buf[:end]
		}
		if !couldBeBanner(line, end >= 0) || end < 0 && n == len(buf) {
			if w.bad = true; clients.IsHeader(buf[:n]) {
				_, _ = w.Conn.Write(disconnectPacket(errProxyHeader.Error()))
				return errProxyHeader
			}
			return errBanner
		}
		if end >= 0 {
			w.head, w.greeted, w.version = buf[:n], true, string(bytes.TrimSuffix(line, []byte("\r")))
			return nil
		}
		if err != nil {
			if w.silent = err == io.EOF && n == 0; err == io.EOF && n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
}

// disconnectPacket returns an unencrypted SSH_MSG_DISCONNECT (RFC 4253, sections 6 and 11.1). Clients show its text to
// their users if it comes after the server's banner and before the key exchange.
func disconnectPacket(text string) []byte {
	const protocolError = 2
	payload := ssh.Marshal(&struct {
		Reason   uint32 `sshtype:"1"`
		Text     string
		Language string
	}{Reason: protocolError, Text: text})
	const block = 8
	padding := block - (4+1+len(payload))%block
	if padding < 4 {
		padding += block
	}
	packet := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	packet = append(packet, byte(padding))
	packet = append(packet, payload...)
	return append(packet, make([]byte, padding)...)
}

// couldBeBanner reports whether a line is a banner or, if it is not complete, may become one.
func couldBeBanner(line []byte, whole bool) bool {
	for _, start := range []string{"SSH-2.0-", "SSH-1.99-"} {
		n := min(len(line), len(start))
		if string(line[:n]) != start[:n] || whole && n < len(start) {
			continue
		}
		for _, c := range bytes.TrimSuffix(line, []byte("\r")) {
			if c < ' ' || c > '~' {
				return false
			}
		}
		return true
	}
	return false
}

func (w *wireConn) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.bytes.Add(int64(n))
	return n, err
}

// A key exchange costs the server as much as hundreds of packets. A connection may have rekeyBurst of them at once, and
// then one for each second and one for each rekeyBytes transferred. Further ones are delayed.
const (
	rekeyBurst = 32
	rekeyBytes = 1 << 20
)

// rekeyLimit limits the key exchanges of a connection.
type rekeyLimit struct {
	wire  *wireConn
	ended <-chan struct{}

	mu     sync.Mutex
	tokens float64
	at     time.Time
	bytes  int64
}

// take waits until another key exchange is allowed.
func (l *rekeyLimit) take() error {
	for {
		wait := l.wait(time.Now(), l.wire.bytes.Load())
		if wait == 0 {
			return nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-l.ended:
			t.Stop()
			return net.ErrClosed
		}
	}
}

// wait takes a token, or returns how long to wait for one.
func (l *rekeyLimit) wait(now time.Time, moved int64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() {
		l.tokens = rekeyBurst
	} else {
		l.tokens = min(rekeyBurst, l.tokens+now.Sub(l.at).Seconds()+float64(moved-l.bytes)/rekeyBytes)
	}
	l.at, l.bytes = now, moved
	if l.tokens < 1 {
		return max(time.Millisecond, time.Duration((1-l.tokens)*float64(time.Second)))
	}
	l.tokens--
	return 0
}

// limitedSigner is a host key that signs no more often than the connection's limit allows. Each key exchange needs one
// signature.
type limitedSigner struct {
	ssh.MultiAlgorithmSigner
	limit *rekeyLimit
}

func (s limitedSigner) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	if err := s.limit.take(); err != nil {
		return nil, err
	}
	return s.MultiAlgorithmSigner.Sign(rand, data)
}

func (s limitedSigner) SignWithAlgorithm(rand io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	if err := s.limit.take(); err != nil {
		return nil, err
	}
	return s.MultiAlgorithmSigner.SignWithAlgorithm(rand, data, algorithm)
}
