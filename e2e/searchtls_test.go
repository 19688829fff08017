package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSearchTLS has a gateway, a node and a search process authenticate each other by certificates. A process without
// one, or with a wrong one, gets no data.
func TestSearchTLS(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t), newAuthority(t)
	p := &pair{T: t, dir: t.TempDir(), base: map[*serverProcess]int{}}
	if err := os.CopyFS(filepath.Join(p.dir, "repos", "one.git"), os.DirFS(blobs(t).Dir)); err != nil {
		t.Fatal(err)
	}
	p.write("git", "#!/bin/sh\nexec git \"$@\"\n", 0o755)
	p.write("ca.pem", string(ours.pem), 0o600)
	for who, a := range map[string]*authority{"node": ours, "search": ours, "gate": ours, "stranger": others} {
		cert, key := a.sign(-time.Hour)
		p.write(who+".pem", cert, 0o600)
		p.write(who+".key", key, 0o600)
	}
	file := func(name string) string { return fmt.Sprintf("%q", filepath.Join(p.dir, name)) }
	own := func(who string) string {
		return "tls_cert = " + file(who+".pem") + "\ntls_key = " + file(who+".key") + "\n"
	}
	to := func(address, who string) string {
		return fmt.Sprintf("address = %q\nserver_name = \"node.test\"\ntls_ca = %s\n", address, file("ca.pem")) + own(who)
	}
	p.nodeConfig = p.write("node.toml", "[storage]\nclient_ca = "+file("ca.pem")+"\n"+own("node"), 0o600)
	p.startNode("127.0.0.1:0")
	table := func(who string) string { return "[[node]]\nname = \"one\"\n" + to(p.node.listen, who) }
	search := p.start("search", "--config", p.write("search.toml",
		"[search]\nclient_ca = "+file("ca.pem")+"\n"+own("search")+table("search"), 0o600),
		"--state", filepath.Join(p.dir, "search"), "--listen", "127.0.0.1:0")

	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: hostileLimit}
	ask := func(at string) (int, string) {
		answer, err := client.Get(at)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return 0, err.Error()
		}
		return answer.StatusCode, string(text)
	}
	begin := func(who string) {
		p.gatewayConfig = p.write(who+".toml", table("gate")+"[search]\n"+to(search.listen, who), 0o600)
		p.gateway = p.start("gateway", "--config", p.gatewayConfig, "--state", filepath.Join(p.dir, "gateway-"+who), "--http",
			"127.0.0.1:0")
	}
	const query = "/-/api/v1/search?q=repo:one"
	begin("gate")
	eventually(t, "the search process answers the gateway", func() bool {
		status, text := ask(p.gateway.http + query)
		return status == http.StatusOK && strings.Contains(text, `"repository":"one"`) &&
			strings.Contains(text, `"unindexed":[]`)
	})
	begin("stranger")
	if status, text := ask(p.gateway.http + query); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "cannot reach the search process") {
		t.Errorf("with another's certificate: %d %s", status, text)
	}
	for _, at := range []string{"http://" + search.listen, "https://" + search.listen} {
		if status, text := ask(at + query); strings.Contains(text, `"one"`) || status == http.StatusOK {
			t.Errorf("without a certificate: %d %s", status, text)
		}
	}
	if log := search.logged() + p.gateway.logged(); strings.Contains(log, "PRIVATE KEY") {
		t.Error("a log contains a private key")
	}
}
