package storage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// ClassGrep is the class of Git commands that search in a commit.
const ClassGrep process.Class = "grep"

// GrepQuery describes a search.
type GrepQuery struct {
	Commit     git.ObjectID
	Pattern    string // one line, of at most MaxPattern bytes
	Regexp     bool   // Pattern is a POSIX extended regular expression, not a fixed string
	IgnoreCase bool   // of ASCII letters
	Limit      int    // maximum number of lines, from 1 to MaxGrep
	Caller     balance.Caller
}

// GrepHit is a matching line.
type GrepHit struct {
	Path   []byte
	Line   int // from 1
	Column int // offset of the first match in bytes
	Text   []byte
	Cut    bool // the line is longer than MaxGrepLine, and Text is its beginning
}

// Limits of searches.
const (
	MaxPattern  = 16 << 10 // bytes
	MaxGrep     = 100_000  // lines
	MaxGrepLine = 16 << 10 // bytes
)

// Grep calls send with each matching line in a commit's files, ordered by path and line. The hit is valid until send
// returns. Binary files are skipped. limited reports whether there are more matches than the limit. It runs git grep in
// a slot of ClassGrep.
//
// Errors: Invalid for an invalid pattern, NotFound if the commit does not exist, Exhausted if too many searches run,
// Deadline.
func (n *Node) Grep(ctx context.Context, path git.RepoPath, q GrepQuery, send func(*GrepHit) error) (limited bool,
	err error) {
	if err := q.check(); err != nil {
		return false, err
	}
	if n.runner == nil || n.runner.Queue(ClassGrep) == nil {
		return false, fault.New(fault.Unavailable, "this node does not search in repositories")
	}
	h, err := n.acquire(ctx, path)
	if err != nil {
		return false, err
	}
	defer n.release(h)
	done, err := h.Hold(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	if err := h.Refresh(); err != nil {
		return false, err
	}
	typ, _, err := h.Objects.Header(q.Commit)
	if err == nil && typ != git.Commit {
		err = fault.New(fault.Invalid, "object %s is a %s, not a commit", q.Commit, typ)
	}
	if err != nil {
		return false, err
	}
	exit, err := n.runner.Read(ctx, process.Command{
		Class: ClassGrep, Subcommand: "grep", Args: q.args(h.Dir), Caller: q.Caller, Repository: h.Common,
		StdoutBuffer: 1 << 20,
	}, func(out io.Reader) error { return readHits(out, len(q.Commit.String())+1, q.Limit, send) })
	problem, isPattern := strings.CutPrefix(exit.Message, "fatal: -e option, ") // regcomp(3) refuses it
	switch {
	case errors.Is(err, errGrepLimit):
		return true, nil
	case exit.Status == "exit 1" && exit.Message == "": // no match
		return false, nil
	case exit.Status == "exit 128" && isPattern:
		return false, fault.New(fault.Invalid, "invalid pattern for git grep: %.300s", strings.TrimSpace(problem))
	}
	return false, err
}

// errGrepLimit ends a search whose result has the maximum length.
var errGrepLimit = errors.New("the limit is reached")

func (q *GrepQuery) check() error {
	switch {
	case q.Pattern == "" || len(q.Pattern) > MaxPattern:
		return fault.New(fault.Invalid, "invalid pattern: it has %[2]d bytes, want 1 to %[1]d", MaxPattern, len(q.Pattern))
	case strings.ContainsAny(q.Pattern, "\n\x00"):
		return fault.New(fault.Invalid, "invalid pattern: without an index it must not have line ends or NUL bytes")
	case q.Limit < 1 || q.Limit > MaxGrep:
		return fault.New(fault.Invalid, "invalid limit: want 1 to %d lines", MaxGrep)
	case q.Commit.IsZero():
		return fault.New(fault.Invalid, "no commit")
	}
	return nil
}

// args returns the arguments of Git. They override the repository's configuration.
func (q *GrepQuery) args(gitDir string) []string {
	args := []string{
		"-c", "safe.directory=*", "-c", "core.attributesFile=/dev/null", "-c", "core.quotePath=false", "--git-dir=" + gitDir,
		"grep", "--threads=1", "--no-color", "--no-recurse-submodules", "--no-textconv", "--full-name", "-I", "-z", "-n",
		"--column",
	}
	if q.Regexp {
		args = append(args, "-E")
	} else {
		args = append(args, "-F")
	}
	if q.IgnoreCase {
		args = append(args, "-i")
	}
	return append(args, "-e", q.Pattern, q.Commit.String(), "--")
}

// readHits reads "COMMIT:PATH NUL line NUL column NUL text LF". Older Git versions write ":" after the numbers. prefix
// is the length of the text before the path.
func readHits(out io.Reader, prefix, limit int, send func(*GrepHit) error) (err error) {
	r := bufio.NewReaderSize(out, MaxGrepLine)
	var hit GrepHit
	var path []byte // reused
	for n := 0; ; n++ {
		if path, err = readPath(r, path[:0]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if n == limit {
			return errGrepLimit
		}
		if len(path) <= prefix {
			return errHits
		}
		hit.Path = path[prefix:]
		if hit.Line, err = readNumber(r); err != nil {
			return err
		}
		if hit.Column, err = readNumber(r); err != nil {
			return err
		}
		hit.Column--
		line, err := r.ReadSlice('\n')
		if hit.Cut = errors.Is(err, bufio.ErrBufferFull); err != nil && !hit.Cut {
			return io.ErrUnexpectedEOF
		}
		hit.Text = bytes.TrimSuffix(line, []byte("\n"))
		if err := send(&hit); err != nil {
			return err
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
	}
}

var errHits = fault.New(fault.Internal, "git grep: invalid output")

// readPath reads up to a NUL. The error is io.EOF at the end of the output.
func readPath(r *bufio.Reader, path []byte) ([]byte, error) {
	for {
		part, err := r.ReadSlice(0)
		path = append(path, part...)
		switch {
		case err == nil:
			return path[:len(path)-1], nil
		case len(path) > maxGrepPath:
			return path, errHits
		case errors.Is(err, bufio.ErrBufferFull):
		case len(path) > 0:
			return path, io.ErrUnexpectedEOF
		default:
			return path, err
		}
	}
}

const maxGrepPath = 1 << 20 // bytes

// readNumber reads digits and the byte after them.
func readNumber(r *bufio.Reader) (int, error) {
	var digits [12]byte
	for i := range digits {
		c, err := r.ReadByte()
		if err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		if c < '0' || c > '9' {
			n, err := strconv.Atoi(string(digits[:i]))
			if err != nil || c != 0 && c != ':' {
				return 0, errHits
			}
			return n, nil
		}
		digits[i] = c
	}
	return 0, errHits
}
