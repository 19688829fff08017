package cold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
)

const (
	minObjects, maxObjects = 1000, 100_000_000
	// treesOfCommit is the number of objects of a synthetic commit that are not files: itself and three trees.
	treesOfCommit = 4
	// fanOut is the number of directories in a directory.
	fanOut = 100
)

// synthesize makes a bare repository of about n small objects. Each commit of its branch adds a directory of small
// files with random text, two levels below the root.
func synthesize(ctx context.Context, path string, n int) error {
	if _, err := gitload.RunGit(ctx, filepath.Dir(path), nil, "init", "-q", "--bare", "--initial-branch=main",
		path); err != nil {
		return err
	}
	for _, setting := range [][]string{{"gc.auto", "0"}, {"pack.compression", "1"}} {
		if _, err := gitload.RunGit(ctx, path, nil, "config", setting[0], setting[1]); err != nil {
			return err
		}
	}
	pr, pw := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeHistory(pw, n)
		pw.CloseWithError(err)
		written <- err
	}()
	_, err := gitload.RunGit(ctx, path, pr, "fast-import", "--quiet", "--depth=0")
	pr.CloseWithError(io.ErrClosedPipe)
	if bad := <-written; bad != nil && !errors.Is(bad, io.ErrClosedPipe) {
		err = errors.Join(err, bad)
	}
	return err
}

// writeHistory writes the input of git fast-import (git-fast-import(1)).
func writeHistory(w io.Writer, n int) error {
	out := bufio.NewWriterSize(w, 1<<20)
	commits := min(max(n/1000, 10), fanOut*fanOut)
	rng := rand.New(rand.NewPCG(uint64(n), 0))
	made := 0
	for i := range commits {
		message := fmt.Sprintf("commit %d\n", i)
		fmt.Fprintf(out, "commit refs/heads/main\ncommitter Packhorse Bench <bench@localhost> %d +0000\ndata %d\n%s",
			1_700_000_000+i, len(message), message)
		files := n*(i+1)/commits - made - treesOfCommit
		made += files + treesOfCommit
		for f := range files {
			text := fmt.Sprintf("file %d of commit %d\n%016x%016x\n", f, i, rng.Uint64(), rng.Uint64())
			fmt.Fprintf(out, "M 100644 inline %02d/%02d/%04d.txt\ndata %d\n%s\n", i/fanOut, i%fanOut, f, len(text), text)
		}
	}
	return out.Flush()
}
