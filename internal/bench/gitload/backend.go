package gitload

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func BackendCommand(env loadgen.Env) *cobra.Command {
	var addr string
	cmd := &cobra.Command{
		Use:   "backend DIR",
		Short: "Serve a directory with git http-backend, the peer to compare with",
		Long: `Serves the repositories below DIR read-only with git's own CGI program, git http-backend. Like a web server in front
of plain git, it starts git upload-pack and git pack-objects for each fetch. The processes are descendants of this one,
so that --server-pid with its process ID counts their CPU time too.

It runs until it is interrupted.`,
		Example: `  packhorse-bench backend /srv/git --http 127.0.0.1:8081 &
  packhorse-bench ci http://127.0.0.1:8081/demo.git --repo /srv/git/demo.git --server-pid PID
  packhorse-bench fetch http://127.0.0.1:8081/demo.git --server-pid PID`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&addr, "http", "127.0.0.1:8081", "address to listen on; port 0 chooses a free one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		root, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		handler, err := BackendHandler(cmd.Context(), root)
		if err != nil {
			return err
		}
		return serve(cmd.Context(), env, addr, false, handler, root+" with git http-backend")
	}
	return cmd
}

// BackendHandler runs git http-backend for each request (git-http-backend(1)), with additional environment.
func BackendHandler(ctx context.Context, root string, environment ...string) (http.Handler, error) {
	path, err := RunGit(ctx, root, nil, "--exec-path")
	if err != nil {
		return nil, err
	}
	program := filepath.Join(strings.TrimSpace(path), "git-http-backend")
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("this git has no http-backend: %w", err)
	}
	settings := append([]string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}, environment...)
	for _, name := range []string{"PATH", "HOME"} {
		if v, ok := os.LookupEnv(name); ok {
			settings = append(settings, name+"="+v)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := &cgi.Handler{Path: program, Env: settings[:len(settings):len(settings)], Stderr: io.Discard,
			Logger: log.New(io.Discard, "", 0)} // of clients that hang up
		if v := r.Header.Get("Git-Protocol"); v != "" {
			h.Env = append(h.Env, "GIT_PROTOCOL="+v)
		}
		h.ServeHTTP(w, r)
	}), nil
}
