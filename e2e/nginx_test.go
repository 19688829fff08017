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

	"github.com/packhorse-git/packhorse/internal/gittest"
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
	server {
		listen ADDRESS;
		location / { proxy_pass http://BEHIND; }
		PRIVATE
	}
}
`

// startNginx starts nginx in a new directory, on a free port, in front of a server. The private prefixes need one of
// the users in their files (setUsers).
func startNginx(dir, behind string, private []string) (*nginx, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &nginx{dir: dir, address: free.Addr().String(), ended: make(chan error, 1)}
	free.Close()
	var locations strings.Builder
	for _, prefix := range private {
		fmt.Fprintf(&locations, "location ~ ^/%s(\\.git)?/ { auth_basic origin; auth_basic_user_file %s; proxy_pass http://%s; }\n",
			prefix, n.usersFile(prefix), behind)
	}
	config := strings.NewReplacer("DIR", dir, "ADDRESS", n.address, "BEHIND", behind, "PRIVATE", locations.String()).
		Replace(nginxConfig)
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

func (n *nginx) usersFile(prefix string) string {
	return filepath.Join(n.dir, "users-"+strings.ReplaceAll(prefix, "/", "-"))
}

// setUsers writes the users of a private prefix, in the format of htpasswd. nginx reads the file at each request.
func (n *nginx) setUsers(prefix, lines string) error {
	return os.WriteFile(n.usersFile(prefix), []byte(lines), 0o600)
}
