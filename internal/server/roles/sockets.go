package roles

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// Names of sockets that a service manager opens for the process (sd_listen_fds(3), FileDescriptorName= in
// systemd.socket(5)).
const (
	httpSocket = "http"
	sshSocket  = "ssh"
	nodeSocket = "node"
	opsSocket  = "ops"
)

// sockets are the listening sockets from the service manager that no part of the process uses yet, by name. The manager
// keeps them open when the process closes its own, so that the kernel queues connections for the next process.
type sockets map[string]net.Listener

// InheritedSockets returns the files of LISTEN_FDS if they are for this process. It unsets the variables.
func InheritedSockets() []*os.File { return activation.Files(true) }

// inherit makes listeners from inherited files, and closes the files.
func inherit(files []*os.File) (s sockets, err error) {
	s = sockets{}
	for _, f := range files {
		if err == nil {
			err = s.add(f)
		}
		f.Close()
	}
	if err != nil {
		s.close()
	}
	return s, err
}

func (s sockets) add(f *os.File) error {
	name := f.Name()
	if names := []string{httpSocket, sshSocket, nodeSocket, opsSocket}; !slices.Contains(names, name) {
		return fmt.Errorf("inherited socket %q: unknown name: set FileDescriptorName= of the socket unit to one of %s",
			name, strings.Join(names, ", "))
	}
	if s[name] != nil {
		return fmt.Errorf("inherited socket %q: the name occurs twice: use one ListenStream= in the socket unit", name)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("inherited socket %q: not a listening stream socket: %w", name, err)
	}
	s[name] = l
	return nil
}

// addressed returns the configuration with the addresses of the inherited sockets. It checks that they do not give
// access to more machines than the configuration permits. Unix sockets change nothing.
func (s sockets) addressed(cfg config.Config, role config.Role) (config.Config, error) {
	if len(s) == 0 {
		return cfg, nil
	}
	for name, addresses := range map[string][]*string{
		httpSocket: {&cfg.HTTP.Address}, sshSocket: {&cfg.SSH.Address}, opsSocket: {&cfg.Ops.Address},
		nodeSocket: {&cfg.Storage.Listen, &cfg.Search.Listen},
	} {
		l := s[name]
		if l == nil {
			continue
		}
		at, ok := l.Addr().(*net.TCPAddr)
		for _, address := range addresses {
			if ok && *address != "" {
				*address = at.String()
			}
		}
	}
	err := cfg.Check()
	if role.FacesClients() {
		err = errors.Join(err, cfg.CheckOpen())
	}
	if err != nil {
		return cfg, fmt.Errorf("with the addresses of the inherited sockets: %w", err)
	}
	return cfg, nil
}

// listen returns the inherited socket with a name, or else the result of open.
func (s sockets) listen(name string, open func() (net.Listener, error)) (net.Listener, error) {
	if l := s[name]; l != nil {
		delete(s, name)
		return l, nil
	}
	return open()
}

// unused returns an error if a socket is not used by the role, because its clients would wait forever.
func (s sockets) unused(role config.Role) error {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		return fmt.Errorf("inherited socket %q: packhorse %s does not use it: set the address in the configuration, or "+
			"remove the socket unit", name, role)
	}
	return nil
}

func (s sockets) close() {
	for _, l := range s {
		l.Close()
	}
}
