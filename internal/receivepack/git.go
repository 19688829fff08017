package receivepack

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// gracePeriod is how long Git has to remove its locks and its quarantine when a push is cancelled.
const gracePeriod = 10 * time.Second

// startGit starts git receive-pack.
func (p *pushSession) startGit(ctx context.Context, body io.Reader, q *hookQuestions) (*process.Process, *feed, error) {
	f := newFeed(body)
	child, err := p.options.Runner.Start(ctx, process.Command{
		Class: ClassReceive, Subcommand: "receive-pack", Args: p.arguments(q.scripts), Env: p.environment(), Stdin: f.out,
		Config: p.target.HooksOff(), Stderr: func(b []byte) { _, _ = p.complaints.Write(b) },
		Files: slices.Concat(q.files, p.journaled.Files()), Grace: gracePeriod, Caller: p.caller, Repository: p.target.Common,
	})
	q.closeChildFiles()
	return child, f, err
}

// attend passes on Git's output and answers its hooks until it has ended. exit is nil if Git succeeded. err is the
// error of passing on the output.
func (p *pushSession) attend(ctx context.Context, cancel func(), child *process.Process, f *feed,
	q *hookQuestions) (_ process.Usage, exit, err error) {
	var answering sync.WaitGroup
	if p.hooks.active = q.scripts != ""; p.hooks.active {
		p.hooks.hasUpdate = slices.Contains(q.events, repo.Update)
		answering.Go(func() { p.answerHooks(ctx, q, child.Kill) })
	}
	if err = p.out.copy(child.Stdout()); err != nil {
		child.Kill()
	}
	f.out.Close() // Git reads no more
	usage, exit := child.Wait()
	cancel() // ends hooks that Git no longer waits for
	q.close()
	answering.Wait()
	return usage, exit, err
}

// feed copies the request to Git in its own goroutine, because Git may end while a client still sends.
type feed struct {
	body io.Reader
	in   *io.PipeWriter
	out  *io.PipeReader // read by Git
	n    atomic.Int64   // bytes that Git has read
	done chan struct{}  // closed when nothing is read any more
	err  error          // of body; valid when done is closed
}

func newFeed(body io.Reader) *feed {
	f := &feed{body: body, done: make(chan struct{})}
	f.out, f.in = io.Pipe()
	return f
}

func (f *feed) run() {
	defer close(f.done)
	body := &errorKeeper{r: f.body}
	_, err := io.CopyBuffer(f, body, make([]byte, readSize))
	f.err = body.err
	f.in.CloseWithError(err) // nil is the end
}

// errorKeeper keeps the error of a reader, except the end.
type errorKeeper struct {
	r   io.Reader
	err error
}

func (k *errorKeeper) Read(b []byte) (int, error) {
	n, err := k.r.Read(b)
	if err != nil && err != io.EOF {
		err = errCutOff(err)
		k.err = err
	}
	return n, err
}

// Write is called by run.
func (f *feed) Write(b []byte) (int, error) {
	n, err := f.in.Write(b)
	f.n.Add(int64(n))
	return n, err
}

// failed returns the error of the body if it has ended with one.
func (f *feed) failed() error {
	select {
	case <-f.done:
		return f.err
	default:
		return nil
	}
}
