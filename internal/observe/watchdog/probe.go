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
)

// Probe is something that a process which gets work done answers soon. An error is an answer, too, unless it is the
// context's or says that there are no more descriptors: who is refused has met somebody. Do is called again when it has
// returned, or never more if it does not.
type Probe struct {
	Name string // a label of metrics
	Do   func(context.Context) error
}

// probe is one that is asked again and again.
type probe struct {
	Probe
	made  time.Time
	since atomic.Int64 // when the first question without an answer was asked, ns after made; 0: all are answered
}

// waiting is for how long it has had no answer.
func (p *probe) waiting(now time.Time) time.Duration {
	since := p.since.Load()
	if since == 0 {
		return 0
	}
	return max(now.Sub(p.made)-time.Duration(since), 0)
}

// run asks until ctx ends, with a pause between questions, each of which is given up after a limit.
func (p *probe) run(ctx context.Context, pause, limit time.Duration) {
	for ctx.Err() == nil {
		p.since.CompareAndSwap(0, max(int64(time.Since(p.made)), 1))
		asking, cancel := context.WithTimeout(ctx, limit)
		err := p.Do(asking)
		if err == nil || asking.Err() == nil && isAnswer(err) {
			p.since.Store(0)
		}
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// isAnswer tells whether somebody was met. Who has no descriptor left, we or the whole machine, has asked nobody.
func isAnswer(err error) bool {
	return !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE)
}

// HTTP is a probe through a listener that speaks HTTP/1.1, by TLS if it does. It asks for nothing ("OPTIONS *", RFC
// 9110, section 9.3.7), which a server answers from the goroutine of the connection: the listener, the scheduler and
// the network have to work for it, and no handler counts or logs it.
func HTTP(name string, to net.Addr, overTLS bool) Probe {
	return overListener(name, to, func(conn net.Conn) error {
		if overTLS {
			// Nothing is said that a stranger may not know, and whoever answers lives.
			conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		}
		if _, err := io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		_, err := bufio.NewReader(io.LimitReader(conn, 4<<10)).ReadString('\n')
		return err
	})
}

// SSH is a probe through a listener that speaks SSH: its greeting comes without being asked for (RFC 4253, section
// 4.2), and is read. A refusal is a line, too.
func SSH(name string, to net.Addr) Probe {
	return overListener(name, to, func(conn net.Conn) error {
		_, err := bufio.NewReader(io.LimitReader(conn, 1<<10)).ReadString('\n')
		return err
	})
}

// overListener is a probe by a new connection to a listener, for as long as the probe may take.
func overListener(name string, to net.Addr, talk func(net.Conn) error) Probe {
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
		return talk(conn)
	}}
}

// Reachable is where this machine reaches a listener: one on all addresses is on the loopback ones.
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

// Readable is a probe of a directory: it is found, and its beginning read.
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

// Writable is a probe of a directory: a byte is written into a small file. The directory is made if it is not there:
// where there is none yet, a disk that hangs would not be noticed. Links are not followed, for what they lead to may be
// anybody's, and a pipe that nobody reads is no disk that hangs.
func Writable(name, dir string) Probe {
	return Probe{name, func(context.Context) error {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			return errors.Join(err, fmt.Errorf("%s is no directory", dir))
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
