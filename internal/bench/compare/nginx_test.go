package compare

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

const nginxConf = `
daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
events { worker_connections 64; }
http {
	client_body_temp_path DIR/t1; proxy_temp_path DIR/t2; fastcgi_temp_path DIR/t3; uwsgi_temp_path DIR/t4; scgi_temp_path DIR/t5;
	log_format timed escape=json '{"time_iso8601":"$time_iso8601","request_method":"$request_method","request_uri":"$request_uri","status":"$status",'
		'"request_time":"$request_time","upstream_response_time":"$upstream_response_time","agent":"$http_user_agent"}';
	log_format plain '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_time';
	access_log DIR/json.log timed;
	access_log DIR/plain.log plain;
	server {
		listen unix:DIR/sock;
		location / { return 200 "ok"; }
		location /missing { return 404; }
		location /broken { return 502; }
	}
}
`

// startNginx starts nginx in a new directory. It returns a client, and a function that ends nginx.
func startNginx(t *testing.T) (dir string, client *http.Client, stop func()) {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		if _, err = os.Stat("/usr/sbin/nginx"); err == nil {
			program = "/usr/sbin/nginx"
		} else if os.Getenv("CI") != "" {
			t.Fatal("nginx is not installed")
		} else {
			t.Skip("*** There is no nginx: its logs are NOT compared. ***")
		}
	}
	dir, err = os.MkdirTemp("/tmp", "nginx") // sockets' names are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	conf := filepath.Join(dir, "conf")
	if err := os.WriteFile(conf, []byte(strings.ReplaceAll(nginxConf, "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command(program, "-p", dir, "-c", conf)
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
			t.Logf("nginx had ended: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("nginx: %v\n%s", err, &said)
		}
	}
	t.Cleanup(stop)
	socket := filepath.Join(dir, "sock")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	if !gittest.Eventually(func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}) {
		t.Fatalf("nginx does not listen at %s:\n%s", socket, &said)
	}
	return dir, &http.Client{Transport: transport}, stop
}

// Two logs of the same requests that nginx wrote in two formats are alike.
func TestRealNginx(t *testing.T) {
	t.Parallel()
	dir, client, stop := startNginx(t)
	for i := range 240 {
		target := []string{fmt.Sprintf("/team/app%d.git/info/refs?service=git-upload-pack", i), fmt.Sprintf("/issues/%d", i),
			"/a%22b%5c%1b[2J\xc3\xa9", "/missing", "/broken"}[i%5]
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.URL.Opaque = target // not normalized
		request.Header.Set("User-Agent", "a \"quoted\" \x80 agent 0.5")
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	client.CloseIdleConnections()
	stop()
	r := run(t, options(filepath.Join(dir, "json.log"), filepath.Join(dir, "plain.log")))
	if r.Inputs[0].Format != Nginx || r.Inputs[1].Format != Common || r.Inputs[0].malformed()+r.Inputs[1].malformed() > 0 {
		t.Fatalf("%+v", r.Inputs)
	}
	routes := map[string]bool{}
	for _, row := range r.Rows {
		routes[row.Route] = true
		if row.A != row.B || row.A.Requests != 48 {
			t.Errorf("%s: %+v and %+v", row.Route, row.A, row.B)
		}
		for _, c := range row.Cells {
			if c.Verdict == Slower || c.Verdict == Faster || c.A != c.B && row.A.Compared > 0 {
				t.Errorf("%s: %+v", row.Route, c)
			}
		}
	}
	for _, want := range []string{"GET /{repo}/info/refs", "GET /issues/{id}", "GET /missing", "GET /broken"} {
		if !routes[want] {
			t.Errorf("there is no %s among %v", want, routes)
		}
	}
	if s := r.Sides[0]; s.Failed != 48 || s.Refused != 48 || s.Answered != 144 || r.StepMS != 1 {
		t.Errorf("%+v, steps of %g ms", s, r.StepMS)
	}
}
