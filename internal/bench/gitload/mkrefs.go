package gitload

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func MakeRefsCommand(env loadgen.Env) *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use:   "mkrefs REPO",
		Short: "Make the test case of \"packhorse-bench refs\": a bare repository with very many refs",
		Long: `Makes a bare repository with COUNT packed refs of one commit. Half of them are in directories of a thousand
(refs/heads/bench/012/012345), the other half are like those of code review (refs/pull/12345/head).`,
		Example: `  packhorse-bench mkrefs /srv/git/refs.git --count 200000
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().IntVar(&count, "count", 200000, "number of refs to make")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if count < 1 || count > maxMkrefs {
			return fmt.Errorf("--count %d: from 1 to %d", count, maxMkrefs)
		}
		ctx := cmd.Context()
		began := time.Now()
		if err := MakeRefs(ctx, env, args[0], count); err != nil {
			return loadgen.Interrupted(ctx, err)
		}
		_, err := fmt.Fprintf(env.Stdout, "%s has %d refs for the test, such as %s and %s (%v)\n", args[0], count, refName(0),
			refName(1), time.Since(began).Round(10*time.Millisecond))
		return err
	}
	return cmd
}

const maxMkrefs = 10_000_000

// refName is the name of the test's i-th ref.
func refName(i int) string {
	if i%2 == 1 {
		return fmt.Sprintf("refs/pull/%d/head", i)
	}
	return fmt.Sprintf("refs/heads/bench/%03d/%06d", i/1000, i)
}

// MakeRefs makes a bare repository by cloning a bundle (gitformat-bundle(5)) whose header has all the refs. A clone
// writes packed refs directly, which takes seconds. A file for each ref would take minutes.
func MakeRefs(ctx context.Context, env loadgen.Env, repo string, count int) error {
	defer loadgen.Progress(ctx, env.Stderr, func() string { return fmt.Sprintf("making %d refs", count) })()
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	seed, bundle := filepath.Join(dir, "seed.git"), filepath.Join(dir, "refs.bundle")
	if err := Synthesize(ctx, seed, 1, 100); err != nil {
		return err
	}
	commit, err := RunGit(ctx, seed, nil, "rev-parse", "main")
	if err != nil {
		return err
	}
	pack, err := RunGit(ctx, seed, strings.NewReader(commit), "pack-objects", "-q", "--revs", "--stdout")
	if err != nil {
		return err
	}
	if err := writeBundle(bundle, strings.TrimSpace(commit), count, pack); err != nil {
		return err
	}
	if _, err := RunGit(ctx, "", nil, "clone", "-q", "--mirror", "--", bundle, repo); err != nil {
		return err
	}
	if _, err := RunGit(ctx, repo, nil, "symbolic-ref", "HEAD", "refs/heads/main"); err != nil {
		return err
	}
	// The bundle is temporary, and not a remote.
	_, err = RunGit(ctx, repo, nil, "config", "--remove-section", "remote.origin")
	return err
}

func writeBundle(path, commit string, count int, pack string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 64<<10)
	fmt.Fprintf(w, "# v2 git bundle\n%s HEAD\n%s refs/heads/main\n", commit, commit)
	for i := range count {
		fmt.Fprintf(w, "%s %s\n", commit, refName(i))
	}
	w.WriteString("\n" + pack)
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}
