package bulk

import (
	"context"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// pacing is the congestion control with pacing that kernels have.
const pacing = "bbr"

// controlOf is a socket's congestion control.
func controlOf(t *testing.T, c syscall.Conn) (name string) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP,
				unix.TCP_CONGESTION)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// having is the Control of a net.ListenConfig or net.Dialer that sets a congestion control.
func having(control string) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) (err error) {
		if cerr := raw.Control(func(fd uintptr) { err = setControl(fd, control) }); cerr != nil {
			return cerr
		}
		return err
	}
}

// listenHaving skips the test if this system does not permit the congestion control.
func listenHaving(t *testing.T, control string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{Control: having(control)}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Skipf("no congestion control %q here: %v", control, err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// accept gives both ends of a new connection.
func accept(t *testing.T, l net.Listener, control func(network, address string, raw syscall.RawConn) error) (dialed,
	accepted *net.TCPConn) {
	t.Helper()
	d, err := (&net.Dialer{Control: control}).Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	if c, ok := a.(*Conn); ok {
		a = c.Socket
	}
	return d.(*net.TCPConn), a.(*net.TCPConn)
}

func TestUnpaced(t *testing.T) {
	t.Parallel()
	l := listenHaving(t, pacing)
	_, accepted := accept(t, Listen(l, NewPump(PumpOptions{}), 0), nil)
	if got := controlOf(t, accepted); got != plain {
		t.Errorf("a connection within this machine has %q, want %q", got, plain)
	}
}

func TestUnpacedElsewhere(t *testing.T) {
	t.Parallel()
	l, ok := Unpaced(listenHaving(t, pacing)).(*unpaced)
	if !ok {
		t.Fatalf("a listener that has %q is left as it is", pacing)
	}
	l.within = func(local, remote net.Addr) bool { return false }
	_, accepted := accept(t, l, nil)
	if got := controlOf(t, accepted); got != pacing {
		t.Errorf("a connection to elsewhere has %q, want %q", got, pacing)
	}
}

func TestUnpacedRoute(t *testing.T) {
	t.Parallel()
	_, accepted := accept(t, listenHaving(t, "cubic"), nil)
	restore(accepted, pacing)
	if got := controlOf(t, accepted); got != "cubic" {
		t.Errorf("a connection whose route has chosen has %q, want %q", got, "cubic")
	}
}

func TestUnpacedLeavesOthers(t *testing.T) {
	t.Parallel()
	l := listenHaving(t, plain)
	if Unpaced(l) != l {
		t.Error("a listener without pacing was wrapped, want it unchanged")
	}
	unixListener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer unixListener.Close()
	if Unpaced(unixListener) != unixListener {
		t.Error("a Unix socket was wrapped, want it unchanged")
	}
	hidden := struct{ net.Listener }{l}
	if Unpaced(hidden) != net.Listener(hidden) {
		t.Error("a listener without a descriptor was wrapped, want it unchanged")
	}
}

func TestUnpacedDial(t *testing.T) {
	t.Parallel()
	l := listenHaving(t, pacing)
	dialed, _ := accept(t, l, func(network, address string, raw syscall.RawConn) error {
		if err := having(pacing)(network, address, raw); err != nil {
			return err
		}
		if err := UnpacedDial(network, "192.0.2.1:80", raw); err != nil {
			return err
		}
		var elsewhere string
		if err := raw.Control(func(fd uintptr) {
			elsewhere, _ = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP,
				unix.TCP_CONGESTION)
		}); err != nil {
			return err
		}
		if elsewhere != pacing {
			t.Errorf("a connection to elsewhere has %q, want %q", elsewhere, pacing)
		}
		return UnpacedDial(network, address, raw)
	})
	if got := controlOf(t, dialed); got != plain {
		t.Errorf("a connection within this machine has %q, want %q", got, plain)
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for _, c := range []struct {
		local, remote net.Addr
		want          bool
	}{
		{tcp("127.0.0.1"), tcp("127.0.0.1"), true},
		{tcp("127.0.0.1"), tcp("127.0.0.9"), true},
		{tcp("::1"), tcp("::1"), true},
		{tcp("10.0.0.1"), tcp("10.0.0.1"), true},
		{tcp("10.0.0.1"), tcp("::ffff:10.0.0.1"), true},
		{tcp("10.0.0.1"), tcp("10.0.0.2"), false},
		{tcp("fd00::1"), tcp("fd00::2"), false},
		{&net.TCPAddr{}, &net.TCPAddr{}, false},
		{nil, nil, false},
		{&net.UnixAddr{Name: "a"}, &net.UnixAddr{Name: "a"}, false},
	} {
		if got := within(c.local, c.remote); got != c.want {
			t.Errorf("within(%v, %v) = %v, want %v", c.local, c.remote, got, c.want)
		}
	}
}
