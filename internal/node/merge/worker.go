package merge

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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
// before the last NUL of the answer (diff_warn_rename_limit). So a second request follows each one: the merge of a
// commit with itself, whose answer pushes out that NUL. A warning about renames is between the messages and that NUL,
// because standard error is the same pipe.
type worker struct {
	key     workerKey
	process *process.Process
	input   *io.PipeWriter
	dir     *scratch.Dir
	work    string // working tree with files .gitattributes; "": none
	began   time.Time
	reused  bool
	idle    *time.Timer
	labels  *strings.Replacer     // of the commits in names and messages; nil: none
	written map[git.ObjectID]bool // objects in dir, as far as they are known

	mu      sync.Mutex
	output  []byte        // that was not read yet
	tooLong bool          // more than maxAnswer was not read
	arrived chan struct{} // has an element if there is new output
}

// workerKey is what all merges of a worker have in common.
type workerKey struct {
	incarnation, objects string
	attributes           string
}

// answer is the answer of Git to one merge.
type answer struct {
	clean       bool
	tree        git.ObjectID
	conflicts   []Conflict
	more        bool // there are more conflicts
	renameLimit bool
}

func (m *Merger) start(ctx context.Context, key workerKey, r *repo.Repo, a attributes) (w *worker, err error) {
	w = &worker{key: key, began: time.Now(), written: make(map[git.ObjectID]bool), arrived: make(chan struct{}, 1)}
	if w.dir, err = m.space.Open(r); err != nil {
		return nil, err
	}
	env := w.dir.Env()
	if len(a) > 0 {
		w.work = filepath.Join(w.dir.Path, "work")
		env = append(env, "GIT_WORK_TREE="+w.work)
		if err = a.write(w.work); err != nil {
			w.dir.Close()
			return nil, err
		}
	}
	var input *io.PipeReader
	input, w.input = io.Pipe()
	w.process, err = m.runner.Start(context.WithoutCancel(ctx), process.Command{
		Class: Class, Subcommand: "merge-tree", Repository: r.Common, Dir: w.work, Env: env, Config: m.config,
		Args:  []string{"merge-tree", "--write-tree", "--messages", "--stdin", "-z"},
		Stdin: input, StdoutToStderr: true, Stderr: w.receive,
	})
	if err != nil {
		w.dir.Close()
		return nil, err
	}
	m.workers.Add(1)
	m.workers.Go(func() {
		<-w.process.Done()
		input.Close() // ends a write
	})
	return w, nil
}

// receive receives output of Git.
func (w *worker) receive(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.output)+len(b) > maxAnswer {
		w.tooLong = true
	} else {
		w.output = append(w.output, b...)
	}
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

// close ends a worker and removes its files.
func (m *Merger) close(w *worker) {
	defer m.workers.Done()
	w.process.Kill()
	w.input.Close()
	_, _ = w.process.Wait()
	w.dir.Close()
}

// merge merges two commits. After an error the worker cannot be used any more.
func (w *worker) merge(ctx context.Context, a, b git.ObjectID, format git.ObjectFormat) (found answer, err error) {
	defer context.AfterFunc(ctx, w.process.Kill)()
	_, err = fmt.Fprintf(w.input, "%s %s\n%s %s\n", a, b, a, a)
	if err == nil {
		found, err = w.answer(format)
	}
	if err == nil {
		var self answer
		if self, err = w.head(format); err == nil { // the NUL after its messages, of which there are none, may come later
			err = w.stages(nil, self.clean)
		}
	}
	if err == nil {
		return found, nil
	}
	if ctx.Err() != nil {
		return found, ctx.Err()
	}
	w.process.Kill() // it may have ended by itself
	usage, ended := w.process.Wait()
	switch {
	case usage.Exit == "signal: aborted": // an assertion of Git, which fails again
		return found, fault.Wrap(fault.Internal, "git merge-tree cannot merge these commits", ended)
	case ended != nil && !fault.Is(ended, fault.Cancelled):
		return found, ended
	}
	return found, err
}

// token reads up to a NUL.
func (w *worker) token() (string, error) {
	for from := 0; ; {
		w.mu.Lock()
		at := bytes.IndexByte(w.output[from:], 0)
		if at >= 0 {
			token := string(w.output[:from+at])
			w.output = w.output[from+at+1:]
			w.mu.Unlock()
			return token, nil
		}
		from = len(w.output)
		tooLong := w.tooLong
		w.mu.Unlock()
		if tooLong {
			return "", fault.New(fault.Invalid, "the conflicts of the merge have more than %d bytes", maxAnswer)
		}
		select {
		case <-w.arrived:
		case <-w.process.Done():
			select {
			case <-w.arrived:
			default:
				return "", io.ErrUnexpectedEOF
			}
		}
	}
}

// head reads the beginning of an answer: whether the merge is clean, and the tree.
func (w *worker) head(format git.ObjectFormat) (a answer, err error) {
	status := ""
	for status == "" { // after the last NUL of the previous answer
		if status, err = w.token(); err != nil {
			return a, err
		}
	}
	status = status[strings.LastIndexByte(status, '\n')+1:] // warnings can be before it
	tree, err := w.token()
	if err != nil {
		return a, err
	}
	if a.tree, err = git.ParseObjectID(tree); err != nil || status != "0" && status != "1" || a.tree.Format() != format {
		return a, errOutput
	}
	a.clean = status == "1"
	return a, nil
}

// answer reads one answer (git-merge-tree(1), "OUTPUT").
func (w *worker) answer(format git.ObjectFormat) (a answer, err error) {
	if a, err = w.head(format); err != nil {
		return a, err
	}
	c := conflicts{byPath: make(map[string]int)}
	if err := w.stages(&c, a.clean); err != nil {
		return a, err
	}
	a.renameLimit, err = w.messages(&c)
	a.conflicts, a.more = c.list, c.more
	return a, err
}

var errOutput = fault.New(fault.Internal, "git merge-tree: invalid output")

// stages reads "MODE ID STAGE TAB PATH" up to an empty token.
func (w *worker) stages(c *conflicts, clean bool) error {
	for {
		token, err := w.token()
		if err != nil || token == "" {
			return err
		}
		info, path, ok := strings.Cut(token, "\t")
		fields := strings.Fields(info)
		if !ok || len(fields) != 3 || clean {
			return errOutput
		}
		mode, err := strconv.ParseUint(fields[0], 8, 32)
		if err != nil {
			return errOutput
		}
		id, err := git.ParseObjectID(fields[1])
		if err != nil || len(fields[2]) != 1 || fields[2] < "1" || fields[2] > "3" {
			return errOutput
		}
		if at := c.at(w.labeled(path)); at != nil {
			at.Stages[fields[2][0]-'1'] = Stage{uint32(mode), id}
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

// finish makes a closed or reusable worker available again.
func (m *Merger) finish(w *worker, isUsable bool) {
	defer func() { <-m.busy }()
	if !isUsable || time.Since(w.began) > WorkerAge {
		m.close(w)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	w.reused = true
	w.idle = time.AfterFunc(workerIdle, func() {
		if m.take(func(other *worker) bool { return other == w }) != nil {
			m.close(w)
		}
	})
	m.idle = append(m.idle, w)
}

// take removes the oldest idle worker that fits; nil: there is none.
func (m *Merger) take(fits func(*worker) bool) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, w := range m.idle {
		if fits(w) {
			m.idle = append(m.idle[:i:i], m.idle[i+1:]...)
			w.idle.Stop()
			return w
		}
	}
	return nil
}

func anyWorker(*worker) bool { return true }

// reserve waits until another command of Class may run. The caller releases it by a receive from m.busy.
func (m *Merger) reserve(ctx context.Context) error {
	select {
	case m.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// makeRoom ends an idle worker if all slots of Class are in use.
func (m *Merger) makeRoom() {
	m.mu.Lock()
	isFull := len(m.idle)+len(m.busy) > cap(m.busy)
	m.mu.Unlock()
	if isFull {
		if old := m.take(anyWorker); old != nil {
			m.close(old)
		}
	}
}

// worker returns a worker, which the caller has to finish.
func (m *Merger) worker(ctx context.Context, r *repo.Repo, a attributes, fresh bool) (*worker, error) {
	if err := m.reserve(ctx); err != nil {
		return nil, err
	}
	key := workerKey{r.Incarnation, r.Common, a.key()}
	if w := m.take(func(w *worker) bool { return w.key == key && !fresh }); w != nil {
		return w, nil
	}
	m.makeRoom()
	w, err := m.start(ctx, key, r, a)
	if err != nil {
		<-m.busy
	}
	return w, err
}
