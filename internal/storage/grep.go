package storage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// ClassGrep is the class of git commands that search in a commit. Its limits bound how many, how long, and out of whose way.
const ClassGrep process.Class = "grep"

// GrepQuery says what is to be found.
type GrepQuery struct {
	Commit     git.ObjectID
	Pattern    string // one line, of at most MaxPattern bytes
	Regexp     bool   // POSIX extended; else a fixed string
	IgnoreCase bool   // of ASCII letters
	Limit      int    // lines, from 1 to MaxGrep
	Caller     balance.Caller
}

// GrepHit is a line that was found.
type GrepHit struct {
	Path   []byte
	Line   int // from 1
	Column int // from 0, in bytes: where the first match begins
	Text   []byte
	Cut    bool // the line is longer than MaxGrepLine: Text is its beginning
}

const (
	MaxPattern  = 16 << 10 // bytes
	MaxGrep     = 100_000  // lines
	MaxGrepLine = 16 << 10 // bytes
)

// Grep calls send with the lines of a commit's files that match, in the order of git grep: by path and line; what it gets is good during the call
// only. Files that are binary are left out. It runs git, in a slot of ClassGrep, which is killed once there are enough lines. limited: there are more.
//
// Errors: Invalid for a pattern that none can be, NotFound if there is no such commit, Exhausted while too many search, Deadline.
func (n *Node) Grep(ctx context.Context, path git.RepoPath, q GrepQuery, send func(*GrepHit) error) (limited bool, err error) {
	if err := q.check(); err != nil {
		return false, err
	}
	if n.runner == nil || n.runner.Queue(ClassGrep) == nil {
		return false, fault.New(fault.Unavailable, "this node searches in no repositories")
	}
	h, err := n.acquire(path)
	if err != nil {
		return false, err
	}
	defer n.release(h)
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
	var complaint bytes.Buffer
	p, err := n.runner.Start(ctx, process.Command{
		Class: ClassGrep, Subcommand: "grep", Args: q.args(h.Dir), Caller: q.Caller, Repository: h.Common, StdoutBuffer: 1 << 20,
		Stderr: func(b []byte) { complaint.Write(b[:min(len(b), maxComplaint-min(maxComplaint, complaint.Len()))]) },
	})
	if err != nil {
		return false, err
	}
	limited, readErr := readHits(p.Stdout(), len(q.Commit.String())+1, q.Limit, send)
	if limited || readErr != nil {
		p.Kill()
	}
	usage, err := p.Wait()
	switch {
	case readErr != nil && !errors.Is(readErr, io.ErrUnexpectedEOF):
		return false, readErr
	case limited, err == nil:
		return limited, nil
	case usage.Exit == "exit 1" && complaint.Len() == 0: // nothing was found
		return false, nil
	case usage.Exit == "exit 128" && strings.HasPrefix(complaint.String(), "fatal: -e option, "): // what regcomp(3) does not like
		return false, fault.New(fault.Invalid, "git grep cannot search for the pattern: %.300s",
			strings.TrimSpace(strings.TrimPrefix(complaint.String(), "fatal: -e option, ")))
	}
	return false, err
}

// maxComplaint is how much of git's standard error is kept, in bytes.
const maxComplaint = 4 << 10

func (q *GrepQuery) check() error {
	switch {
	case q.Pattern == "" || len(q.Pattern) > MaxPattern:
		return fault.New(fault.Invalid, "a pattern has from 1 to %d bytes, not %d", MaxPattern, len(q.Pattern))
	case strings.ContainsAny(q.Pattern, "\n\x00"):
		return fault.New(fault.Invalid, "a pattern that is looked for without an index has no line ends and no NUL")
	case q.Limit < 1 || q.Limit > MaxGrep:
		return fault.New(fault.Invalid, "the limit has to be from 1 to %d lines", MaxGrep)
	case q.Commit.IsZero():
		return fault.New(fault.Invalid, "a commit is needed")
	}
	return nil
}

// args are git's. What the repository's configuration could change is said.
func (q *GrepQuery) args(gitDir string) []string {
	args := []string{
		"-c", "safe.directory=*", "-c", "core.attributesFile=/dev/null", "-c", "core.quotePath=false", "--git-dir=" + gitDir,
		"grep", "--threads=1", "--no-color", "--no-recurse-submodules", "--no-textconv", "--full-name", "-I", "-z", "-n", "--column",
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

// readHits reads "COMMIT:PATH NUL line NUL column NUL text LF"; older gits write ":" behind the numbers. prefix is what stands before the path, in bytes.
func readHits(out io.Reader, prefix, limit int, send func(*GrepHit) error) (limited bool, err error) {
	r := bufio.NewReaderSize(out, MaxGrepLine)
	var hit GrepHit
	var path []byte // used again
	for n := 0; ; n++ {
		if path, err = readPath(r, path[:0]); errors.Is(err, io.EOF) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		if n == limit {
			return true, nil
		}
		if len(path) <= prefix {
			return false, errHits
		}
		hit.Path = path[prefix:]
		if hit.Line, err = readNumber(r); err != nil {
			return false, err
		}
		if hit.Column, err = readNumber(r); err != nil {
			return false, err
		}
		hit.Column--
		line, err := r.ReadSlice('\n')
		if hit.Cut = errors.Is(err, bufio.ErrBufferFull); err != nil && !hit.Cut {
			return false, io.ErrUnexpectedEOF
		}
		hit.Text = bytes.TrimSuffix(line, []byte("\n"))
		if err := send(&hit); err != nil {
			return false, err
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
	}
}

var errHits = fault.New(fault.Internal, "git grep says what cannot be understood")

// readPath reads up to a NUL; io.EOF: there is nothing more.
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

// readNumber reads digits and the byte behind them.
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
