package gitload

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
)

const syntheticFiles = 30

// Synthesize makes a bare repository with a history of commits that each change one of 30 files to random bytes.
func Synthesize(ctx context.Context, path string, commits, size int) error {
	args := []string{"-c", "fastimport.unpackLimit=0", "-c", "core.compression=0", "fast-import", "--quiet"}
	return Import(ctx, path, args, func(out *bufio.Writer) {
		random := rand.NewChaCha8([32]byte{1})
		data := make([]byte, size)
		for i := range commits {
			random.Read(data)
			fmt.Fprintf(out, "commit refs/heads/main\ncommitter Packhorse Bench <bench@localhost> %d +0000\ndata 2\nx\n",
				1_700_000_000+i)
			fmt.Fprintf(out, "M 100644 inline d%d/f%d\ndata %d\n%s\n", i%10, i%syntheticFiles, size, data)
		}
	})
}

// SynthesizePacks makes a bare repository with packs of random files of a megabyte. Each pack is a commit of main.
// Another file is on the branch other, and in the pack of the middle.
func SynthesizePacks(ctx context.Context, path string, packs, megabytes int, other string) error {
	args := []string{"-c", "fastimport.unpackLimit=0", "-c", "core.compression=0", "fast-import", "--quiet"}
	return Import(ctx, path, args, func(out *bufio.Writer) {
		random := rand.NewChaCha8([32]byte{1})
		data := make([]byte, 1e6)
		commit := func(branch string, i int) {
			fmt.Fprintf(out, "commit refs/heads/%s\ncommitter Packhorse Bench <bench@localhost> %d +0000\ndata 2\nx\n", branch,
				1_700_000_000+i)
		}
		for i := range packs {
			if commit("main", i); i > 0 {
				fmt.Fprintln(out, "from refs/heads/main^0")
			}
			for j := range megabytes {
				random.Read(data)
				fmt.Fprintf(out, "M 100644 inline d%d/f%d\ndata %d\n%s\n", i, j, len(data), data)
			}
			if i == packs/2 {
				commit("other", i)
				fmt.Fprintf(out, "M 100644 inline %s\ndata %d\n%s\n", other, len(other), other)
			}
			fmt.Fprintln(out, "checkpoint")
		}
	})
}

// Import makes a bare repository and runs git fast-import in it, with the stream that write writes.
func Import(ctx context.Context, path string, args []string, write func(out *bufio.Writer)) error {
	if _, err := RunGit(ctx, filepath.Dir(path), nil, "init", "-q", "--bare", "--initial-branch=main",
		path); err != nil {
		return err
	}
	pr, pw := io.Pipe()
	go func() {
		out := bufio.NewWriterSize(pw, 1<<20)
		write(out)
		pw.CloseWithError(out.Flush())
	}()
	_, err := RunGit(ctx, path, pr, args...)
	pr.Close() // ends the writer if git did not read all
	return err
}
