package matrix

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
)

// fakeRole imitates a role of packhorse for `packhorse-bench matrix`. The node is git http-backend, and the gateway a
// reverse proxy.
func fakeRole(role string, args []string) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	config := map[string]string{}
	section := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]") + "."
			continue
		}
		key, value, _ := strings.Cut(line, " = ")
		config[section+key] = strings.Trim(value, `"`)
	}
	for i, arg := range args {
		if arg == "--root" || arg == "--state" {
			config[arg[2:]] = args[i+1]
		}
	}
	if strings.Contains(config["root"], "broken") {
		return errors.New("fake: the root is broken")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var handler http.Handler
	listen := "127.0.0.1:0"
	switch role {
	case "gateway":
		network, addr := "tcp", config["node.address"]
		if path, ok := strings.CutPrefix(addr, "unix:"); ok {
			network, addr = "unix", path
		}
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "node"})
		proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}}
		if t := config["node.transport"]; t != "channel" && t != "inband" {
			return fmt.Errorf("fake: transport %q", t)
		}
		handler = proxy
	case "storage", "serve":
		if handler, err = gitload.BackendHandler(ctx, config["root"]); err != nil {
			return err
		}
		if role == "storage" {
			listen = config["storage.listen"]
		}
	default:
		return fmt.Errorf("fake: no role %q", role)
	}
	network := "tcp"
	if path, ok := strings.CutPrefix(listen, "unix:"); ok {
		network, listen = "unix", path
	}
	l, err := net.Listen(network, listen)
	if err != nil {
		return err
	}
	ops, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var looks atomic.Int64
	go http.Serve(ops, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			n := looks.Add(1)
			fmt.Fprintf(w, "go_memstats_alloc_bytes_total %d\ngo_cpu_classes_gc_total_cpu_seconds_total "+
				"0.%d\npackhorse_copy_bytes_total{path=\"kernel\"} %d\n",
				n*1000, n, n)
			return
		}
		fmt.Fprintln(w, r.URL)
	}))
	addresses, _ := json.Marshal(map[string]string{"http": "http://" + l.Addr().String(), "listen": l.Addr().String(),
		"ops": "http://" + ops.Addr().String()})
	if err := os.MkdirAll(config["state"], 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(config["state"], role+".json"), addresses, 0o600); err != nil {
		return err
	}
	go http.Serve(l, handler)
	<-ctx.Done()
	return nil
}
