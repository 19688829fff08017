package archive

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// abbrev is the number of digits of an abbreviated object ID. Git's own number grows with the repository.
const abbrev = 12

// bigFile is the size in bytes from which git streams a file. Such a file is not converted, except by export-subst.
// Git's default depends on its version, and its memory on the size.
const bigFile = 64 << 20

// encode writes the archive in its format.
func (m *Maker) encode(ctx context.Context, s *Spec, w io.Writer) error {
	objects, err := filepath.Abs(s.Repo.Objects)
	if err != nil {
		return fault.Wrap(fault.Internal, "cannot find the repository's objects", err)
	}
	if s.Repo.Hold != nil {
		release, err := s.Repo.Hold(ctx)
		if err != nil {
			return err
		}
		defer release()
	}
	exit, err := m.Runner.Read(ctx, process.Command{
		Class: Class, Subcommand: "archive", Args: m.arguments(s), Caller: s.Caller,
		Repository: objects, StdoutBuffer: 1 << 20,
		// Without a PATH, export-subst cannot run gpg. Before 2.40 the command does not read gpg.program.
		Env: []string{"GIT_OBJECT_DIRECTORY=" + objects, "GIT_LITERAL_PATHSPECS=1", "GIT_TEST_DATE_NOW=0", "PATH=/dev/null"},
	}, func(out io.Reader) error { return compress(w, &limitedReader{out, MaxTar}, s) })
	if problem, ok := strings.CutPrefix(exit.Message, "fatal: "); ok && strings.HasPrefix(problem, "pathspec '") {
		return fault.InField("paths", fault.New(fault.NotFound, "%.300s", strings.TrimSpace(problem)))
	}
	return err
}

// arguments returns the command line. Names of clients are only in the prefix and, after the ID, in the paths.
func (m *Maker) arguments(s *Spec) []string {
	args := []string{"--git-dir=" + m.GitDir(s.Repo.Format), "-c", "core.attributesFile=/dev/null",
		"-c", fmt.Sprint("core.abbrev=", abbrev), "-c", fmt.Sprint("core.bigFileThreshold=", bigFile)}
	if memory := m.Runner.Limits(Class).Memory; memory > 0 {
		args = append(args, "-c", fmt.Sprint("core.deltaBaseCacheLimit=", memory/8))
	}
	args = append(args, "archive", "--format=tar", "--prefix="+s.Prefix, "--end-of-options", s.Commit.String())
	return append(args, s.Paths...)
}

// limitedReader returns an error after a number of bytes.
type limitedReader struct {
	r    io.Reader
	left int64
}

func (l *limitedReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, fault.New(fault.Invalid, "the archive has more than %d bytes before compression", int64(MaxTar))
	}
	return n, err
}
