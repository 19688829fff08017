package gitload

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// OwnServer is a Packhorse server that a benchmark has started.
type OwnServer struct {
	*loadgen.Child
	URL, Ops string // URL is that of the served copy, or of the root
	Repo     string // the served copy; empty for a root
	State    string // the state directory

	program string
}

// StartServer serves a mirror of a repository. settings is the text of its configuration file; "" for none.
func StartServer(ctx context.Context, dir, repo, program string, args []string, settings string) (*OwnServer, error) {
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o777); err != nil {
		return nil, err
	}
	mirror := filepath.Join(root, "bench.git")
	if err := Mirror(ctx, repo, mirror); err != nil {
		return nil, err
	}
	s, err := ServeRoot(ctx, dir, root, program, args, settings)
	if err != nil {
		return nil, err
	}
	s.URL, s.Repo = s.URL+"/bench.git", mirror
	return s, nil
}

// Mirror clones a repository or a bundle with all its refs.
func Mirror(ctx context.Context, repo, mirror string) error {
	if _, err := RunGit(ctx, filepath.Dir(mirror), nil, "clone", "-q", "--mirror", "--", Absolute(repo),
		mirror); err != nil {
		return err
	}
	_, err := RunGit(ctx, mirror, nil, "config", "gc.auto", "0")
	return err
}

// ServeRoot serves the repositories below a root. The configuration file, the log and the state are in dir.
func ServeRoot(ctx context.Context, dir, root, program string, args []string, settings string) (*OwnServer, error) {
	s := &OwnServer{State: filepath.Join(dir, "state"), program: program}
	if settings != "" {
		config := filepath.Join(dir, "packhorse.toml")
		if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--config", config)
	}
	args = append([]string{"serve"}, append(args, "--public-read", "--root", root, "--state", s.State, "--http",
		"127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json")...)
	var err error
	if s.Child, err = loadgen.StartChild(ctx, "the server", program, args, filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	a, err := s.Addresses(ctx, s.State)
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	s.URL, s.Ops = a.HTTP, a.Ops
	return s, nil
}

// PushAccess makes a token of the server and returns the environment with which git pushes to it.
func (s *OwnServer) PushAccess(ctx context.Context) ([]string, error) {
	token, err := CreateToken(ctx, s.program, s.State)
	if err != nil {
		return nil, err
	}
	return []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader",
		"GIT_CONFIG_VALUE_0=Authorization: Bearer " + token}, nil
}

// CreateToken makes a token for pushes to the server with this state directory.
func CreateToken(ctx context.Context, program, state string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "token", "create", "bench", "--scope", "write", "--state",
		state).Output()
	token := tokenText.FindString(string(out))
	if err != nil || token == "" {
		return "", fmt.Errorf("make a token for pushes: %w", cmp.Or(err, errors.New("no token was printed")))
	}
	return token, nil
}

var tokenText = regexp.MustCompile(`phk_[0-9A-Za-z]+`)

// Server is the packhorse program of the servers that a benchmark starts.
type Server struct{ Program string }

func (s *Server) Flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.Program, "packhorse", "",
		"the server `PROGRAM` to start (default: packhorse beside this program, or in the PATH)")
}

// Find finds the program, unless it is given.
func (s *Server) Find() (err error) {
	if s.Program != "" {
		return nil
	}
	if self, err := os.Executable(); err == nil {
		s.Program = filepath.Join(filepath.Dir(self), "packhorse")
		if _, err := os.Stat(s.Program); err == nil {
			return nil
		}
	}
	if s.Program, err = exec.LookPath("packhorse"); err != nil {
		return fmt.Errorf("no packhorse program to start as a server: set --packhorse: %w", err)
	}
	return nil
}

// Start starts a process of packhorse in a role, as "serve". Its configuration, its state and its log are in dir, which
// is made. The caller stops the child.
func (s *Server) Start(ctx context.Context, dir, role, settings string, args ...string) (child *loadgen.Child,
	a loadgen.Addresses, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, a, err
	}
	config, state := filepath.Join(dir, "packhorse.toml"), filepath.Join(dir, "state")
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		return nil, a, err
	}
	args = append([]string{role, "--config", config, "--state", state, "--ops", "127.0.0.1:0", "--log-format", "json"},
		args...)
	child, err = loadgen.StartChild(ctx, "packhorse "+role, s.Program, args, filepath.Join(dir, "log"))
	if err != nil {
		return nil, a, err
	}
	if a, err = child.Addresses(ctx, state); err != nil {
		return nil, a, errors.Join(err, child.Stop())
	}
	return child, a, nil
}

func Absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// RunGit runs git without configuration except for the repository's, and returns its output.
func RunGit(ctx context.Context, dir string, stdin io.Reader, args ...string) (string, error) {
	return RunGitWith(ctx, nil, dir, stdin, args...)
}

// RunGitWith is RunGit with additional environment variables.
func RunGitWith(ctx context.Context, env []string, dir string, stdin io.Reader, args ...string) (string, error) {
	settings := []string{"-c", "protocol.version=2", "-c", "fetch.unpackLimit=1", "-c", "gc.auto=0", "-c",
		"maintenance.auto=false",
		"-c", "core.fsync=none", "-c", "protocol.file.allow=always", "-c", "http.followRedirects=false"}
	cmd := exec.CommandContext(ctx, "git", append(settings, args...)...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, append(gitEnv(), env...), stdin
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		name := args[0]
		if name == "-c" {
			name = args[2]
		}
		if text := loadgen.Clean(errs.Bytes()); text != "" {
			return "", fmt.Errorf("git %s: %w: %s", name, err, text)
		}
		return "", fmt.Errorf("git %s: %w", name, err)
	}
	return out.String(), nil
}

// AwaitIndex waits until the server has made its search index, as a server in use has. The first index costs more than
// all later pushes.
func (s *OwnServer) AwaitIndex(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, indexPatience,
		fmt.Errorf("the server made no search index within %v: --no-search turns search off", indexPatience))
	defer cancel()
	metrics := &loadgen.Scraper{URL: s.Ops + "/metrics", Wanted: true}
	for {
		c, err := metrics.Read(ctx)
		select {
		case <-s.Ended:
			return errors.New("the server ended while it made its search index" + s.LastWords())
		default:
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case c.Failed > 0: // its retries would disturb the measurement
			return errors.New("the server cannot make its search index: --no-search turns search off" + s.LastWords())
		case !c.Searches || c.Indexed > 0 && c.Unindexed == 0:
			return nil
		}
		loadgen.Sleep(ctx, 100*time.Millisecond)
	}
}

// indexPatience is the timeout of the first index.
const indexPatience = 10 * time.Minute
