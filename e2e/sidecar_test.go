package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdSidecar starts a server beside the origin, on the same repositories, and nginx in front of both with the
// configuration of docs/how-to/sidecar.md: sidecar [FLAGS]. It sets $URL of the server, and $FRONT and $FRONT_HOST of
// nginx.
func cmdSidecar(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if neg || s.running != nil || s.origin == nil {
		ts.Fatalf("usage: sidecar [FLAGS], after origin, where no server runs")
	}
	config := s.write(ts, "sidecar.toml", fmt.Sprintf(`
trusted_proxies = ["127.0.0.1"]
push.enabled = false
maintenance.enabled = false
search.enabled = false
auth.ttl = "50ms"
[auth.origin]
url = %q
fold_case = true
`, s.origin.url()+"/"))
	state := ts.MkAbs("state")
	p, err := s.start(ts, append([]string{"serve"}, args...), map[string]string{
		"--root": ts.Getenv("REPOS"), "--state": state, "--config": config, "--http": "127.0.0.1:0",
		"--ops": "127.0.0.1:0", "--log-format": "json", "--log-level": "debug",
	})
	ts.Check(err)
	s.running, p.state = p, state
	front, err := startFront(filepath.Join(s.sockets, "front"), s.origin.link.Addr(),
		strings.TrimPrefix(p.http, "http://"))
	ts.Check(err)
	ts.Defer(front.stop)
	ts.Setenv("URL", p.http)
	ts.Setenv("OPS", p.ops)
	ts.Setenv("STATE", state)
	ts.Setenv("FRONT", "http://"+front.address)
	ts.Setenv("FRONT_HOST", front.address)
}

// startFront starts nginx in front of a forge and of Packhorse, with the configuration of docs/how-to/sidecar.md.
func startFront(dir, forge, packhorse string) (*nginx, error) {
	page, err := os.ReadFile("../docs/how-to/sidecar.md")
	if err != nil {
		return nil, err
	}
	snippet := regexp.MustCompile("(?s)```nginx\n(.*?)```").FindSubmatch(page)
	if snippet == nil {
		return nil, errors.New("docs/how-to/sidecar.md has no configuration of nginx")
	}
	return startNginxWith(dir, strings.NewReplacer("listen 443 ssl;", "listen ADDRESS;", "127.0.0.1:3000", forge,
		"127.0.0.1:8080", packhorse).Replace(string(snippet[1])))
}
