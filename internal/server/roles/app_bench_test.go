package roles

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// BenchmarkApplication measures a trivial request to the application on a kept connection: through the server of
// net/http, the gateway and the proxy to a worker that answers at once. It includes the work of client and worker.
func BenchmarkApplication(b *testing.B) {
	const (
		request = "GET /ready HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\n\r\n"
		answer  = "HTTP/1.1 200 OK\r\nServer: bench\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: " +
			"text/plain\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok"
	)
	var running sync.WaitGroup
	b.Cleanup(running.Wait)
	socket := filepath.Join(b.TempDir(), "w0.sock")
	worker, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { worker.Close() })
	running.Go(func() {
		for c, err := worker.Accept(); err == nil; c, err = worker.Accept() {
			running.Go(func() {
				defer c.Close()
				buf := make([]byte, 4<<10) // a request comes at once
				for _, err := c.Read(buf); err == nil; _, err = c.Read(buf) {
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			})
		}
	})
	for _, level := range []slog.Level{slog.LevelWarn, slog.LevelInfo} {
		b.Run("log="+level.String(), func(b *testing.B) {
			log, err := observe.NewLogger(io.Discard, level, "json", false, auth.Redact)
			if err != nil {
				b.Fatal(err)
			}
			cfg := config.DefaultConfig()
			cfg.State = b.TempDir()
			cfg.App.Workers, cfg.App.Slots, cfg.App.Health = []string{"unix:" + socket}, 8, ""
			h := githttp.New(githttp.Options{Gateway: &gateway.Gateway{
				Router: router.New(nil), Pump: bulk.NewPump(bulk.PumpOptions{}),
				Lanes:  admit.NewLanes(admit.Sizes{Small: 10, Hit: 10, Cold: 10}),
				Memory: admit.NewBudget("requests", 1<<30), Metrics: gateway.NewMetrics(nil), MaxBody: 1 << 20, Log: log,
				Board: inflight.NewBoard(), SLI: inflight.NewLevels(inflight.LevelBounds(1), nil),
			}})
			reg := prometheus.NewRegistry()
			d := testDeps(b, config.RoleGateway, cfg, log, reg)
			proxy, err := newApp(d)
			if err != nil {
				b.Fatal(err)
			}
			h.Application = application{proxy}
			front, err := newHTTPPort(d, h, must(newClientListeners(d)))
			if err != nil {
				b.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			running.Go(func() { _ = front.serve(l) })
			defer func() { _ = front.shutdown(context.Background()) }()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			in := bufio.NewReader(c)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := io.WriteString(c, request); err != nil {
					b.Fatal(err)
				}
				for {
					line, err := in.ReadSlice('\n')
					if err != nil {
						b.Fatal(err)
					}
					if len(line) == len("\r\n") {
						break
					}
				}
				if _, err := in.Discard(len("ok")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
