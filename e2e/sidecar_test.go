package e2e

import (
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
	page, err := os.ReadFile("../docs/how-to/sidecar.md")
	ts.Check(err)
	snippet := regexp.MustCompile("(?s)```nginx\n(.*?)```").FindSubmatch(page)
	if snippet == nil {
		ts.Fatalf("docs/how-to/sidecar.md has no configuration of nginx")
	}
	front, err := startNginxWith(filepath.Join(s.sockets, "front"), strings.NewReplacer("listen 443 ssl;",
		"listen ADDRESS;", "127.0.0.1:3000", s.origin.link.Addr(), "127.0.0.1:8080", strings.TrimPrefix(p.http, "http://")).
		Replace(string(snippet[1])))
	ts.Check(err)
	ts.Defer(front.stop)
	ts.Setenv("URL", p.http)
	ts.Setenv("OPS", p.ops)
	ts.Setenv("STATE", state)
	ts.Setenv("FRONT", "http://"+front.address)
	ts.Setenv("FRONT_HOST", front.address)
}
