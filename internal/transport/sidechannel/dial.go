package sidechannel

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

const (
	handshakeLimit = 10 * time.Second // if the context has no earlier deadline
	maxHead        = 8 << 10          // bytes of the head of a response
	maxRefusal     = 1 << 10          // bytes of a refusal's text
)

// opening is a channel that a node has opened.
type opening struct {
	socket
	name  string
	files bool
}

// dial connects to the node and requests a channel. If the context ends before, it closes the connection.
func (p *Pool) dial(ctx context.Context) (*opening, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	opened, err := p.dialOnce(ctx)
	if errors.Is(err, bulk.ErrFileLost) {
		p.suspendFiles(err)
		opened, err = p.dialOnce(ctx) // without files
	}
	if err != nil {
		return nil, p.dialError(ctx, err)
	}
	return opened, nil
}

func (p *Pool) dialOnce(ctx context.Context) (*opening, error) {
	conn, err := p.o.Dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	opened, err := p.handshake(ctx, conn)
	if !stop() && err == nil {
		err = context.Cause(ctx) // closed meanwhile
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return opened, nil
}

func (p *Pool) dialError(ctx context.Context, err error) error {
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		return err
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return ctx.Err()
	}
	return fault.Wrap(fault.Unavailable, "no side channel to the node can be opened; try again", err)
}

// handshake requests a channel.
func (p *Pool) handshake(ctx context.Context, conn net.Conn) (*opening, error) {
	if t, ok := conn.(*tls.Conn); ok {
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		if chosen := t.ConnectionState().NegotiatedProtocol; chosen != "http/1.1" && chosen != "" {
			return nil, fmt.Errorf("the node has chosen %q where http/1.1 is needed", chosen)
		}
	}
	sock, err := newSocket(conn, &p.limits)
	if err != nil {
		return nil, err
	}
	files := p.takesFiles() && bulk.CanHand(conn)
	if _, err := conn.Write(p.request(files)); err != nil {
		return nil, err
	}
	head, proved, err := readHead(&sock, files)
	if err != nil {
		return nil, fmt.Errorf("read the answer to a request for a side channel: %w", err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return nil, refusal(head, conn)
	}
	name := answer.Header.Get(nameHeader)
	if random, err := hex.DecodeString(name); !hasToken(answer.Header, "Upgrade", protocol) || err != nil ||
		len(random) != nameLength/2 {
		return nil, errors.New("the node's answer opens something else than a side channel")
	}
	files = files && answer.Header.Get(fileHeader) == fileVersion
	if files && !proved {
		return nil, fmt.Errorf("the node hands files over, but something stands between it and this gateway: %w",
			bulk.ErrFileLost)
	}
	return &opening{sock, name, files}, nil
}

// request is the request for a channel.
func (p *Pool) request(files bool) []byte {
	header := http.Header{}
	if p.o.Header != nil {
		header = p.o.Header().Clone()
	}
	header.Set("Connection", "Upgrade")
	header.Set("Upgrade", protocol)
	if files {
		header.Set(fileHeader, fileVersion)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\n", Path, cmp.Or(p.o.Host, "node"))
	_ = header.Write(&b) // never fails
	b.WriteString("\r\n")
	return b.Bytes()
}

// readHead reads the head of a response and not a byte more: the bytes after it belong to the channel. proved reports
// whether a file came with it, if one may.
func readHead(s *socket, files bool) (head []byte, proved bool, err error) {
	head = make([]byte, 0, 256)
	if files {
		n, f, err := s.kernel.Take(head[:1])
		if f != nil {
			proved = true
			f.Close()
		}
		if err != nil {
			return nil, false, unexpected(err)
		}
		head = head[:n]
	}
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		if len(head) == maxHead {
			return nil, false, errors.New("its head is too long")
		}
		head = append(head, 0)
		if _, err := io.ReadFull(s.Conn, head[len(head)-1:]); err != nil {
			return nil, false, unexpected(err)
		}
	}
	return head, proved, nil
}

// refusal returns the error for a response other than 101, whose body was not read yet.
func refusal(head []byte, conn net.Conn) error {
	answer, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), conn)), nil)
	if err != nil {
		return err
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxRefusal))
	answer.Body.Close()
	said := strings.TrimSpace(strings.ToValidUTF8(string(text), "?"))
	cause := fmt.Errorf("the node answered %s: %q", answer.Status, said)
	switch answer.StatusCode {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
		return &fault.Error{
			Kind: fault.Exhausted, Msg: "the node opens no more side channels now; try again", Err: cause,
			RetryAfter: time.Duration(min(max(seconds, 1), 3600)) * time.Second,
		}
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Wrap(fault.Denied, "the node does not know this gateway", cause)
	}
	return fault.Wrap(fault.Unavailable, "the node opens no side channels", cause)
}
