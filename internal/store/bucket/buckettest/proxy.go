package buckettest

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"testing"

	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// Proxy is a toxiproxy between a client and a server.
type Proxy struct {
	Address string // to connect to

	t   testing.TB
	api string
}

// Toxiproxy starts a proxy for the server at an address.
func Toxiproxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	program := findProgram(t, "toxiproxy", "store-servers")
	address := freeAddress(t)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	command := exec.Command(program, "-host", host, "-port", port, "-seed", "34")
	command.Stdout, command.Stderr = &log, &log
	endWithUs(command)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	t.Cleanup(stop)
	waitForHTTP(t, address, func() string { stop(); return log.String() })
	p := &Proxy{t: t, api: "http://" + address + "/proxies"}
	var created struct {
		Listen string `json:"listen"`
	}
	p.call(http.MethodPost, "", map[string]any{
		"name": "store", "listen": "127.0.0.1:0", "upstream": upstream, "enabled": true,
	}, &created)
	p.Address = created.Listen
	return p
}

// Bucket returns a bucket of a server, behind the proxy.
func (p *Proxy) Bucket(s *Server, prefix string) *bucket.S3 {
	p.t.Helper()
	o := s.Options(prefix)
	o.Endpoint = "http://" + p.Address
	return Open(p.t, o)
}

// Add adds a toxic to a share of connections (toxicity, from 0 to 1). The stream is "upstream" or "downstream". Types
// and attributes are toxiproxy's, such as "latency" with {"latency": 100} in milliseconds, "reset_peer" with
// {"timeout": 0}, "limit_data" with {"bytes": 1000}, "timeout" with {"timeout": 0}, which lets nothing through.
func (p *Proxy) Add(name, typ, stream string, toxicity float64, attributes map[string]any) {
	p.t.Helper()
	p.call(http.MethodPost, "/store/toxics", map[string]any{
		"name": name, "type": typ, "stream": stream, "toxicity": toxicity, "attributes": attributes,
	}, nil)
}

// Remove removes a toxic.
func (p *Proxy) Remove(name string) {
	p.t.Helper()
	p.call(http.MethodDelete, "/store/toxics/"+name, nil, nil)
}

// SetEnabled lets connections through, or closes all and refuses new ones.
func (p *Proxy) SetEnabled(enabled bool) {
	p.t.Helper()
	p.call(http.MethodPost, "/store", map[string]any{"enabled": enabled}, nil)
}

func (p *Proxy) call(method, path string, body, result any) {
	p.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.api+path, bytes.NewReader(text))
	if err != nil {
		p.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err == nil && result != nil {
		err = json.Unmarshal(got, result)
	}
	if err != nil || answer.StatusCode >= http.StatusMultipleChoices {
		p.t.Fatalf("toxiproxy %s %s = %s %s, %v", method, path, answer.Status, got, err)
	}
}
