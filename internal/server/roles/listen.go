package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// listeners are the listeners of a process. Some are nil, depending on the role.
type listeners struct {
	public  net.Listener // clients
	ssh     net.Listener // clients
	node    net.Listener // gateways, control API
	private net.Listener // metrics, health, profiles
	admin   net.Listener // admin socket
}

// openListeners opens the listeners of a role, or takes them from the inherited sockets. After an error all are closed.
func openListeners(role config.Role, cfg config.Config, inherited sockets) (l listeners, err error) {
	defer func() {
		if err != nil {
			l.close()
			inherited.close()
		}
	}()
	tcp := func(name, address, flag string) (net.Listener, error) {
		return inherited.listen(name, func() (net.Listener, error) { return listen(address, flag) })
	}
	node := func(address string, mode config.FileMode) (net.Listener, error) {
		return inherited.listen(nodeSocket, func() (net.Listener, error) { return listenNode(address, os.FileMode(mode)) })
	}
	if role.FacesClients() {
		if l.public, err = tcp(httpSocket, cfg.HTTP.Address, "--http"); err != nil {
			return l, err
		}
		if cfg.SSH.Address != "" {
			if l.ssh, err = tcp(sshSocket, cfg.SSH.Address, "--ssh"); err != nil {
				return l, err
			}
		}
	}
	if role.OwnsRepositories() && cfg.Storage.Listen != "" {
		if l.node, err = node(cfg.Storage.Listen, cfg.Storage.SocketMode); err != nil {
			return l, err
		}
	}
	if role == config.RoleSearch {
		if l.node, err = node(cfg.Search.Listen, cfg.Search.SocketMode); err != nil {
			return l, err
		}
	}
	if cfg.Ops.Address != "" {
		if l.private, err = tcp(opsSocket, cfg.Ops.Address, "--ops"); err != nil {
			return l, err
		}
	}
	if err = inherited.unused(role); err != nil {
		return l, err
	}
	// The process has locked the state directory, so this socket belongs to a process that was killed.
	if err = os.Remove(config.AdminSocket(cfg.State)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l, fmt.Errorf("remove the old admin socket: %w", err)
	}
	l.admin, err = listenUnix(config.AdminSocket(cfg.State), 0o600)
	if err != nil && role != config.RoleGateway { // for example on a file system without sockets; a node can do without
		l.admin, err = nil, nil
	}
	return l, err
}

// close closes all listeners. It may be called again.
func (l listeners) close() {
	for _, one := range []net.Listener{l.public, l.ssh, l.node, l.private, l.admin} {
		if one != nil {
			one.Close()
		}
	}
}

func listen(address, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: stop the program that uses the address, or set another one with %s", err, flag)
	}
	return l, nil
}

// listenNode opens the port of a node. A Unix socket of a process that was killed is replaced.
func listenNode(address string, mode os.FileMode) (net.Listener, error) {
	file, isUnix := strings.CutPrefix(address, config.UnixPrefix)
	if !isUnix {
		return listen(address, "--listen")
	}
	if info, err := os.Lstat(file); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("%s exists and is not a socket: remove it, or set another path with --listen", file)
		}
		if answers(file) {
			return nil, fmt.Errorf("another process listens at %s: stop it, or set another path with --listen", file)
		}
		if err := os.Remove(file); err != nil {
			return nil, fmt.Errorf("remove the socket of a killed process: %w", err)
		}
	}
	return listenUnix(file, mode)
}

// answers reports whether a process listens at a Unix socket, even if it is too busy to accept the connection.
func answers(file string) bool {
	conn, err := net.DialTimeout("unix", file, time.Second)
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}

// listenUnix makes a socket with the given mode, which applies from the start. The socket is removed when it is closed.
//
// On Linux the file gets the mode of the socket that is bound. Elsewhere a socket has no mode, and the umask of the
// process is changed for a moment.
func listenUnix(file string, mode os.FileMode) (net.Listener, error) {
	var config net.ListenConfig
	if runtime.GOOS == "linux" {
		config.Control = func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), uint32(mode)) })
			return cmp.Or(err, failed)
		}
	} else {
		old := unix.Umask(0o777 &^ int(mode))
		defer unix.Umask(old)
	}
	l, err := config.Listen(context.Background(), "unix", file)
	if err != nil {
		return nil, fmt.Errorf("%w: the directory must exist and be writable", err)
	}
	if err := os.Chmod(file, mode); err != nil { // the umask may have removed bits
		l.Close()
		return nil, err
	}
	return l, nil
}
