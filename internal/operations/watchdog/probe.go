package watchdog

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// Probe is an operation that a process with progress answers soon. An error is an answer, too, unless it is that of the
// context or a lack of descriptors. Do is not called again before it returns.
type Probe struct {
	Name string // a label of metrics
	Do   func(context.Context) error
}

// probe is a Probe that is repeated.
type probe struct {
	Probe
	made  time.Time
	since atomic.Int64 // when the first question without an answer was asked, ns after made; 0: all are answered
}

// waiting returns the time without an answer.
func (p *probe) waiting(now time.Time) time.Duration {
	since := p.since.Load()
	if since == 0 {
		return 0
	}
	return max(now.Sub(p.made)-time.Duration(since), 0)
}

// run repeats the probe until ctx ends, with a pause in between. Each attempt has a time limit.
func (p *probe) run(ctx context.Context, pause, limit time.Duration) {
	for ctx.Err() == nil {
		p.since.CompareAndSwap(0, max(int64(time.Since(p.made)), 1))
		asking, cancel := context.WithTimeout(ctx, limit)
		err := p.Do(asking)
		if err == nil || asking.Err() == nil && isAnswer(err) {
			p.since.Store(0)
		}
		cancel()
		_ = retry.Sleep(ctx, pause)
	}
}

// isAnswer reports whether an error shows that the process answered. A lack of descriptors does not.
func isAnswer(err error) bool {
	return !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE)
}

// Preface returns what a connection from an address has to send first, such as a header of the PROXY protocol.
type Preface func(from net.Addr) []byte

// HTTP returns a probe over a listener that speaks HTTP/1.1, with TLS if it does. The request "OPTIONS *" (RFC 9110,
// section 9.3.7) is answered by the connection's goroutine. The listener, the scheduler and the network have to work
// for it, and no handler counts or logs it.
func HTTP(name string, to net.Addr, first Preface, overTLS bool) Probe {
	return overListener(name, to, first, func(conn net.Conn) error {
		if overTLS {
			// The probe reveals nothing, and any answer shows that the process is alive.
			conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		}
		if _, err := io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		_, err := bufio.NewReader(io.LimitReader(conn, 4<<10)).ReadString('\n')
		return err
	})
}

// SSH returns a probe over a listener that speaks SSH. The server sends its greeting first (RFC 4253, section 4.2), and
// the probe reads it. A refusal is a line as well.
func SSH(name string, to net.Addr, first Preface) Probe {
	return overListener(name, to, first, func(conn net.Conn) error {
		_, err := bufio.NewReader(io.LimitReader(conn, 1<<10)).ReadString('\n')
		return err
	})
}

// overListener returns a probe over a new connection to a listener. A nil Preface sends nothing. The
// deadline is that of the probe.
func overListener(name string, to net.Addr, first Preface, talk func(net.Conn) error) Probe {
	return Probe{name, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, to.Network(), Reachable(to))
		if err != nil {
			return err
		}
		defer conn.Close()
		if deadline, ok := ctx.Deadline(); ok {
			conn.SetDeadline(deadline)
		}
		defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
		if first != nil {
			if _, err := conn.Write(first(conn.LocalAddr())); err != nil {
				return err
			}
		}
		return talk(conn)
	}}
}

// Reachable returns the address of a listener for this machine: a loopback address if it listens on all.
func Reachable(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	loopback := net.IPv4(127, 0, 0, 1)
	if tcp.IP.To4() == nil {
		loopback = net.IPv6loopback
	}
	return (&net.TCPAddr{IP: loopback, Port: tcp.Port}).String()
}

// Readable returns a probe that opens a directory and reads its first entry.
func Readable(name, dir string) Probe {
	return Probe{name, func(context.Context) error {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.ReadDir(1)
		return err
	}}
}

// Writable returns a probe that writes a byte into a small file of a directory. It creates a missing directory, because
// a disk that hangs would not be noticed otherwise. It does not follow links, because their target may belong to
// another user, and a pipe without a reader is not a disk that hangs.
func Writable(name, dir string) Probe {
	return Probe{name, func(context.Context) error {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			return errors.Join(err, fmt.Errorf("%s is not a directory", dir))
		}
		f, err := os.OpenFile(filepath.Join(dir, "probe"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK,
			0o600)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte{'\n'})
		return errors.Join(err, f.Close())
	}}
}
