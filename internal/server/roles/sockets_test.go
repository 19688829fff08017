package roles

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

func TestInherit(t *testing.T) {
	t.Parallel()
	file := func(name string) *os.File {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		other, err := dupAs(f, name)
		if err != nil {
			t.Fatal(err)
		}
		return other
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	noSocket, err := dupAs(plain, "http")
	if err != nil {
		t.Fatal(err)
	}
	for says, files := range map[string][]*os.File{
		`"packhorse.socket": unknown name: set FileDescriptorName=`: {file("http"), file("packhorse.socket")},
		`"http": the name occurs twice`:                             {file("http"), file("http")},
		`"http": not a listening stream socket`:                     {noSocket},
	} {
		if _, err := inherit(files); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
	s, err := inherit([]*os.File{file("http"), file("ssh")})
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.DefaultConfig()
	cfg.State, cfg.Ops.Address = t.TempDir(), ""
	if _, err := openListeners(config.RoleGateway, cfg, s); err == nil ||
		!strings.Contains(err.Error(), `"ssh": packhorse gateway does not use it`) {
		t.Errorf("unused socket: error = %v, want that the role does not use it", err)
	}
	if s, err = inherit([]*os.File{file("http")}); err != nil {
		t.Fatal(err)
	}
	want := s[httpSocket].Addr().String()
	l, err := openListeners(config.RoleGateway, cfg, s)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if got := l.public.Addr().String(); got != want {
		t.Errorf("listening at %s instead of the inherited %s", got, want)
	}
}

// at is a listener with an address, without a socket.
type at struct {
	net.Listener
	address string
}

func (l at) Addr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(l.address)) }

// TestInheritedAddresses: what is refused for the address of a configuration is refused for that of a socket, too.
func TestInheritedAddresses(t *testing.T) {
	t.Parallel()
	const reads, deletes = "could read every repository", "could read and delete every repository"
	as := func(*config.Config) {}
	for name, test := range map[string]struct {
		role    config.Role
		socket  string
		address string
		change  func(*config.Config)
		says    string // "": it is taken
	}{
		"everybody may read": {config.RoleServe, httpSocket, "192.0.2.1:80", as, reads},
		"all addresses":      {config.RoleServe, httpSocket, "[::]:80", as, reads},
		"public": {config.RoleServe, httpSocket, "192.0.2.1:80",
			func(c *config.Config) { c.HTTP.PublicRead = true }, ""},
		"loopback": {config.RoleServe, httpSocket, "127.0.0.1:80", as, ""},
		"profiles": {config.RoleGateway, opsSocket, "192.0.2.1:90", as, "serves profiles without authentication"},
		"anonymous SSH": {config.RoleServe, sshSocket, "192.0.2.1:22", func(c *config.Config) {
			c.SSH.Address, c.SSH.Anonymous = "127.0.0.1:22", true
		}, reads},
		"a node": {config.RoleStorage, nodeSocket, "192.0.2.1:91",
			func(c *config.Config) { c.Storage.Listen = "unix:/node.sock" }, deletes},
		"a node with a secret": {config.RoleStorage, nodeSocket, "192.0.2.1:91", func(c *config.Config) {
			c.Storage.Listen, c.Storage.SecretFile = "127.0.0.1:91", "/secret"
		}, ""},
		"a search process": {config.RoleSearch, nodeSocket, "192.0.2.1:92", func(c *config.Config) {
			c.Search.Listen = "127.0.0.1:92"
		}, reads},
	} {
		cfg := config.DefaultConfig()
		cfg.State = t.TempDir()
		test.change(&cfg)
		before := cfg.HTTP.Address
		got, err := sockets{test.socket: at{address: test.address}}.addressed(cfg, test.role)
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: error = %v, want %q", name, err, test.says)
		}
		if test.socket == httpSocket && got.HTTP.Address != test.address || cfg.HTTP.Address != before {
			t.Errorf("%s: http.address = %s and the original %s, want %s and %s", name, got.HTTP.Address, cfg.HTTP.Address,
				test.address, before)
		}
	}
}

// TestAcceptedConnectionsAreServed connects before a shutdown and sends a request after its start, which is answered.
func TestAcceptedConnectionsAreServed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{}, 1)
	h := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				accepted <- struct{}{}
			}
		},
	}
	closed := make(chan struct{})
	p := newPort(h, func(l net.Listener) net.Listener { return tellClose{l, closed} })
	served, ended := make(chan error, 1), make(chan error, 1)
	go func() { served <- p.serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-accepted
	go func() { ended <- p.shutdown(t.Context()) }()
	<-closed
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	if response, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("response = %v, error = %v, want 200", response, err)
	}
	if err := errors.Join(<-ended, <-served); err != nil {
		t.Errorf("Join error = %v, want none", err)
	}
}

// tellClose reports the end of Accept.
type tellClose struct {
	net.Listener
	closed chan struct{}
}

func (l tellClose) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		close(l.closed)
	}
	return c, err
}

// TestSocketUnits: the socket units have the names that a server knows, belong to its unit, and listen where its
// configuration does.
func TestSocketUnits(t *testing.T) {
	t.Parallel()
	for role, file := range map[config.Role]string{config.RoleGateway: "../examples/gateway.toml",
		config.RoleServe: "../deploy/packages/serve.toml"} {
		cfg := exampleConfig(t, role, file)
		for name, address := range map[string]string{httpSocket: cfg.HTTP.Address, sshSocket: cfg.SSH.Address,
			opsSocket: cfg.Ops.Address} {
			unit := "packhorse-" + string(role) + "-" + name + ".socket"
			text, err := os.ReadFile("../../../deploy/systemd/" + unit)
			if err != nil {
				t.Fatal(err)
			}
			for key, want := range map[string]string{"FileDescriptorName": name, "ListenStream": address,
				"Service": "packhorse-" + string(role) + ".service"} {
				all := regexp.MustCompile(`(?m)^`+key+`=(.*)$`).FindAllSubmatch(text, -1)
				if len(all) != 1 || want != "" && string(all[0][1]) != want {
					t.Errorf("%s: lines of %s = %q, want one with %s", unit, key, all, want)
				}
			}
		}
	}
}

// dupAs is another descriptor of a file, under another name, as a service manager passes it.
func dupAs(f *os.File, name string) (*os.File, error) {
	fd, err := unix.Dup(int(f.Fd()))
	return os.NewFile(uintptr(fd), name), err
}
