package merge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
)

const (
	// maxAnswer is the maximum size of the answer of Git to one merge in bytes.
	maxAnswer = 64 << 20
	// WorkerAge is the age after which a command gets no more merges. The time limit of Class has to be longer.
	WorkerAge = time.Minute
	// workerIdle is how long a worker waits for another merge.
	workerIdle = 10 * time.Second
)

// worker is a `git merge-tree --stdin` that stays for the merges of a repository. It is used by one goroutine.
//
// Git writes its answers through a buffer. With --messages it flushes the buffer after the messages of an answer,
// before the last NUL of the answer (diff_warn_rename_limit). So a second request follows each one: the merge of an
// empty commit with itself, whose answer pushes out that NUL. A warning about renames is between the messages and that
// NUL, because standard error is the same pipe.
type worker struct {
	key     workerKey
	process *process.Process
	input   *io.PipeWriter
	output  *io.PipeReader
	limit   io.LimitedReader // of output, in bytes of one merge
	tokens  *bufio.Reader    // of limit
	dir     *scratch.Dir
	began   time.Time
	idle    *time.Timer
	labels  *strings.Replacer // of the commits in names and messages; nil: none
	empty   git.ObjectID      // a commit without files
}

// workerKey is what all merges of a worker have in common.
type workerKey struct {
	incarnation, objects string
	attributes           string
}

func (m *Merger) start(ctx context.Context, key workerKey, r *repo.Repo, a attributes) (w *worker, err error) {
	w = &worker{key: key, began: time.Now()}
	if w.dir, err = m.space.Open(r); err != nil {
		return nil, err
	}
	w.empty, err = w.commit(emptyTree(r.Format), "", 0)
	env, work := w.dir.Env(), ""
	for dir, text := range a {
		work = filepath.Join(w.dir.Path, "work")
		err = errors.Join(err, w.dir.Write("work/"+dir+attributesFile, []byte(text)))
	}
	if work != "" {
		env = append(env, "GIT_WORK_TREE="+work)
	}
	input, feed := io.Pipe()
	output, print := io.Pipe()
	if err == nil {
		w.process, err = m.runner.Start(context.WithoutCancel(ctx), process.Command{
			Class: Class, Subcommand: "merge-tree", Repository: r.Common, Dir: work, Env: env, Config: m.config,
			Args:  []string{"merge-tree", "--write-tree", "--messages", "--allow-unrelated-histories", "--stdin", "-z"},
			Stdin: input, StdoutToStderr: true, Stderr: func(b []byte) { _, _ = print.Write(b) },
		})
	}
	if err != nil {
		w.dir.Close()
		return nil, err
	}
	w.input, w.output, w.limit.R = feed, output, output
	w.tokens = bufio.NewReader(&w.limit)
	m.workers.Add(1)
	m.workers.Go(func() {
		<-w.process.Silent() // it has ended, perhaps in the middle of a merge
		input.Close()
		print.Close()
	})
	return w, nil
}

// end ends the process.
func (w *worker) end() (process.Usage, error) {
	w.process.Kill() // it may have ended by itself
	w.input.Close()
	w.output.Close()
	return w.process.Wait()
}

// close ends a worker and removes its files.
func (m *Merger) close(w *worker) {
	defer m.workers.Done()
	_, _ = w.end()
	w.dir.Close()
}

// merge merges two commits. After an error the worker cannot be used any more.
func (w *worker) merge(ctx context.Context, a, b git.ObjectID, format git.ObjectFormat) (found Check, err error) {
	defer context.AfterFunc(ctx, w.process.Kill)()
	w.limit.N = maxAnswer
	_, err = fmt.Fprintf(w.input, "%s %s\n%s %s\n", a, b, w.empty, w.empty)
	if err == nil {
		found, err = w.answer(format)
	}
	if err == nil {
		var isClean bool
		if isClean, _, err = w.head(format); err == nil {
			err = w.stages(nil, isClean) // there are no messages, and the NUL after them may come later
		}
	}
	if err == nil {
		return found, nil
	}
	if ctx.Err() != nil {
		return found, ctx.Err()
	}
	usage, ended := w.end()
	switch {
	case usage.Exit == "signal: aborted": // an assertion of Git, which fails again
		return found, fault.Wrap(fault.Internal, "git merge-tree has failed", ended)
	case ended != nil && !fault.Is(ended, fault.Cancelled):
		return found, ended
	}
	return found, err
}

// token reads up to a NUL.
func (w *worker) token() (string, error) {
	token, err := w.tokens.ReadString(0)
	if err == io.EOF && w.limit.N <= 0 {
		err = fault.New(fault.Invalid, "the conflicts of the merge have more than %d bytes", maxAnswer)
	}
	return strings.TrimSuffix(token, "\x00"), err
}

// head reads the beginning of an answer: whether the merge is clean, and the tree.
func (w *worker) head(format git.ObjectFormat) (isClean bool, tree git.ObjectID, err error) {
	status := ""
	for status == "" { // after the last NUL of the previous answer
		if status, err = w.token(); err != nil {
			return false, tree, err
		}
	}
	status = status[strings.LastIndexByte(status, '\n')+1:] // warnings can be before it
	text, err := w.token()
	if err != nil {
		return false, tree, err
	}
	tree, err = git.ParseObjectID(text)
	if err != nil || status != "0" && status != "1" || tree.Format() != format {
		return false, tree, errOutput
	}
	return status == "1", tree, nil
}

// answer reads one answer (git-merge-tree(1), "OUTPUT").
func (w *worker) answer(format git.ObjectFormat) (found Check, err error) {
	isClean, tree, err := w.head(format)
	if err != nil {
		return found, err
	}
	c := conflicts{byPath: make(map[string]int)}
	if err := w.stages(&c, isClean); err != nil {
		return found, err
	}
	found.RenameLimit, err = w.messages(&c)
	if found.Conflicts, found.More = c.list, c.more; isClean {
		found.Tree = tree
	}
	return found, err
}

var errOutput = fault.New(fault.Internal, "git merge-tree: invalid output")

// stages reads stages up to an empty token.
func (w *worker) stages(c *conflicts, clean bool) error {
	for {
		token, err := w.token()
		if err != nil || token == "" {
			return err
		}
		path, side, stage, err := ParseStage(token)
		if err != nil || clean {
			return errOutput
		}
		if at := c.at(w.labeled(path)); at != nil {
			at.Stages[side] = stage
		}
	}
}

// messages reads "COUNT NUL PATHS NUL TYPE NUL MESSAGE NUL" up to an empty token, or one with warnings.
func (w *worker) messages(c *conflicts) (renameLimit bool, err error) {
	for {
		token, err := w.token()
		if err != nil {
			return false, err
		}
		n, err := strconv.Atoi(token)
		if err != nil {
			return strings.Contains(token, "merge.renamelimit"), nil
		}
		if n < 0 || n > maxAnswer/2 {
			return false, errOutput
		}
		fields := make([]string, 0, min(n, 16)+2)
		for range n + 2 {
			field, err := w.token()
			if err != nil {
				return false, err
			}
			fields = append(fields, w.labeled(field))
		}
		c.message(fields[:n], fields[n], fields[n+1])
	}
}

// labeled returns a name or a message with the IDs of the real commits.
func (w *worker) labeled(text string) string {
	if w.labels == nil {
		return text
	}
	return w.labels.Replace(text)
}

// finish keeps a worker for the next merge, or closes it. Idle workers have at most half of the slots of Class.
func (m *Merger) finish(w *worker, isUsable bool) {
	if !isUsable || time.Since(w.began) > WorkerAge {
		m.close(w)
		return
	}
	m.mu.Lock()
	w.idle = time.AfterFunc(workerIdle, func() {
		if m.take(func(other *worker) bool { return other == w }) != nil {
			m.close(w)
		}
	})
	m.idle = append(m.idle, w)
	isFull := len(m.idle) > m.runner.Slots(Class)/2
	m.mu.Unlock()
	if isFull {
		if oldest := m.take(anyWorker); oldest != nil {
			m.close(oldest)
		}
	}
}

// take removes the oldest idle worker that fits; nil: there is none.
func (m *Merger) take(fits func(*worker) bool) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.IndexFunc(m.idle, fits)
	if at < 0 {
		return nil
	}
	w := m.idle[at]
	m.idle = slices.Delete(m.idle, at, at+1)
	w.idle.Stop()
	return w
}

func anyWorker(*worker) bool { return true }
