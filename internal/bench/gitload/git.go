package gitload

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	gitpack "github.com/packhorse-git/packhorse/internal/git/pack"
)

// Mirror clones a repository or a bundle with all its refs, but without a tip pack.
func Mirror(ctx context.Context, repo, mirror string) error {
	if _, err := RunGit(ctx, filepath.Dir(mirror), nil, "clone", "-q", "--mirror", "--", Absolute(repo),
		mirror); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(mirror, "objects", gitpack.TipDir)); err != nil { // git copies all files
		return err
	}
	_, err := RunGit(ctx, mirror, nil, "config", "gc.auto", "0")
	return err
}

// Absolute returns the absolute path.
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
		return "", fmt.Errorf("git %s: %w: %s", name, err, loadgen.Clean(errs.Bytes()))
	}
	return out.String(), nil
}
