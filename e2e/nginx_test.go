package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// nginx is a running nginx in front of another server.
type nginx struct {
	dir     string
	address string
	cmd     *exec.Cmd
	ended   chan error
	stderr  bytes.Buffer
}

// nginxProgram returns the path of nginx, or "".
func nginxProgram() string {
	for _, name := range []string{"nginx", "/usr/sbin/nginx"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

const nginxConfig = `
daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
events { worker_connections 1024; }
http {
	client_body_temp_path DIR/t1; proxy_temp_path DIR/t2; fastcgi_temp_path DIR/t3; uwsgi_temp_path DIR/t4; scgi_temp_path DIR/t5;
	access_log DIR/access.log;
	client_max_body_size 0;
	proxy_http_version 1.1;
	proxy_set_header Host $http_host;
	proxy_buffering off;
	proxy_read_timeout 1h;
	SERVERS
}
`

// freeAddress returns an address of the loopback interface whose port is free.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// cmdAddress sets a variable to a free address of the loopback interface: address VARIABLE.
func cmdAddress(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: address VARIABLE")
	}
	address, err := freeAddress()
	ts.Check(err)
	ts.Setenv(args[0], address)
}

// startNginx starts nginx in a new directory, on a free port, with these locations.
func startNginx(dir, locations string) (*nginx, error) {
	return startNginxWith(dir, "server {\n\t\tlisten ADDRESS;\n\t\t"+locations+"\n\t}")
}

// startNginxWith is startNginx with the content of the http block. ADDRESS in it is replaced.
func startNginxWith(dir, servers string) (*nginx, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	n := &nginx{dir: dir, address: address, ended: make(chan error, 1)}
	config := strings.ReplaceAll(nginxConfig, "SERVERS", servers)
	config = strings.NewReplacer("DIR", dir, "ADDRESS", n.address).Replace(config)
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	n.cmd = exec.Command(nginxProgram(), "-p", dir, "-c", filepath.Join(dir, "conf"))
	n.cmd.Stderr = &n.stderr
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { n.ended <- n.cmd.Wait() }()
	if !gittest.Eventually(func() bool {
		conn, err := net.Dial("tcp", n.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}) {
		n.stop()
		return nil, fmt.Errorf("nginx does not listen at %s:\n%s", n.address, &n.stderr)
	}
	return n, nil
}

func (n *nginx) stop() {
	n.cmd.Process.Signal(syscall.SIGTERM)
	<-n.ended
}
