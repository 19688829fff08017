package cold

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// TestMain is also the server program that the benchmark starts.
func TestMain(m *testing.M) {
	fakes := map[string]func([]string) error{"serve": fakeServer, "token": fakeToken}
	if len(os.Args) > 1 && fakes[os.Args[1]] != nil {
		if err := fakes[os.Args[1]](os.Args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	benchtest.Main(m, func(env loadgen.Env) []*cobra.Command { return []*cobra.Command{Command(env)} })
}

func fakeToken([]string) error {
	_, err := fmt.Println("phk_fake")
	return err
}

// admin imitates the admin socket.
type admin struct {
	packhorsev1connect.UnimplementedRepositoryServiceHandler
}

func (admin) DropPacks(context.Context, *connect.Request[packhorsev1.DropPacksRequest]) (
	*connect.Response[packhorsev1.DropPacksResponse], error) {
	return connect.NewResponse(&packhorsev1.DropPacksResponse{}), nil
}

// fakeServer imitates `packhorse serve` with git http-backend. Every pack is a miss, made by git.
func fakeServer(args []string) error {
	flag := func(name string) string {
		i := slices.Index(args, name)
		if i < 0 {
			return ""
		}
		return args[i+1]
	}
	state := flag("--state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	allow := "[http]\n\treceivepack = true\n[uploadpack]\n\tallowFilter = true\n"
	if err := os.WriteFile(filepath.Join(state, ".gitconfig"), []byte(allow), 0o600); err != nil {
		return err
	}
	os.Setenv("HOME", state)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	git, err := gitload.BackendHandler(ctx, flag("--root"))
	if err != nil {
		return err
	}
	var misses atomic.Int64
	front := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if bytes.Contains(body, []byte("command=fetch")) {
			misses.Add(1)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		git.ServeHTTP(w, r)
	})
	ops := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := misses.Load()
		fmt.Fprintf(w, `packhorse_cache_requests_total{result="miss"} %d
packhorse_git_commands_total{subcommand="pack-objects"} %d
packhorse_git_cpu_seconds_total{subcommand="pack-objects"} %d
packhorse_pack_fallbacks_total{reason="estimate"} %d
`, n, n, n, n)
	})
	mux := http.NewServeMux()
	mux.Handle(packhorsev1connect.NewRepositoryServiceHandler(admin{}))
	addresses := map[string]string{}
	for name, handler := range map[string]http.Handler{"http": front, "ops": ops, "admin": mux} {
		network, address := "tcp", "127.0.0.1:0"
		if name == "admin" {
			network, address = "unix", filepath.Join(state, "admin.sock")
		}
		l, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		s := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		go s.Serve(l)
		addresses[name] = "http://" + l.Addr().String()
	}
	text, err := json.Marshal(addresses)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(state, "serve.json"), text, 0o600); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
