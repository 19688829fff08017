package store

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// Progress is called with the work that is done, its total or 0 if that is not known, and what is being done. Calls may
// overlap.
type Progress func(done, total int64, what string)

func (p Progress) report(done, total int64, what string) {
	if p != nil {
		p(done, total, what)
	}
}

// Problem is a repository or an object that an administrator has to look after.
type Problem struct {
	Path   string `json:"path"`             // of the repository, or its ID if it has no path
	Key    string `json:"key,omitempty"`    // of the object
	Text   string `json:"text"`             // the problem
	Remedy string `json:"remedy,omitempty"` // what to do
}

// openTemporary opens the store of a bucket for a command, with a local cache in a temporary directory below parent.
func openTemporary(ctx context.Context, b bucket.Bucket, parent, node string) (s *Store, end func(), err error) {
	id, err := ReadIdentity(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	root, err := os.MkdirTemp(parent, ".packhorse-store-")
	if err != nil {
		return nil, nil, err
	}
	s, err = open(Options{Bucket: b, Cache: hydrate.Options{Root: root, Wait: 24 * time.Hour}, Node: node}, id,
		nil)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(root))
	}
	return s, func() {
		_ = s.Close()
		_ = os.RemoveAll(root)
	}, nil
}

// classAdmin is the class of Git commands that administrators' commands run.
const classAdmin process.Class = "store"

// gitRunner runs git for an administrator's command.
type gitRunner struct{ *process.Runner }

func newGitRunner() (gitRunner, error) {
	r, err := process.New(process.Options{Log: slog.New(slog.DiscardHandler),
		Classes: map[process.Class]process.Limits{classAdmin: {Slots: importParallel, Queue: 1000, PerRepository: -1}}})
	return gitRunner{r}, err
}

func (g gitRunner) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = g.Close(ctx)
}

// run runs git in a repository and returns its output. The repository may belong to another user.
func (g gitRunner) run(ctx context.Context, dir string, stdin io.Reader, args ...string) (string, error) {
	var out strings.Builder
	err := g.pipe(ctx, dir, stdin, &out, args...)
	return out.String(), err
}

func (g gitRunner) pipe(ctx context.Context, dir string, stdin io.Reader, out io.Writer, args ...string) error {
	p, err := g.Start(ctx, process.Command{Class: classAdmin, Subcommand: args[0], Args: args, Dir: dir,
		Env: []string{"GIT_DIR=" + dir}, Stdin: stdin, Config: [][2]string{{"safe.directory", "*"}}})
	if err != nil {
		return err
	}
	_, copyErr := io.Copy(out, p.Stdout())
	if copyErr != nil {
		p.Kill()
	}
	_, err = p.Wait()
	return errors.Join(err, copyErr)
}
