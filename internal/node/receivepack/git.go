package receivepack

import (
	"context"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// gracePeriod is how long Git has to remove its locks and its quarantine when a push is cancelled.
const gracePeriod = 10 * time.Second

// startGit starts git receive-pack.
func (p *pushSession) startGit(ctx context.Context, body io.Reader, setup gitSetup, q *hookQuestions) (
	*process.Process, *feed, error) {
	if q.checks {
		p.pointers = &pointerSearch{body: body, found: func() error {
			return fault.Wrap(fault.Unavailable, "push not accepted: the server cannot write to its state directory",
				os.Symlink(checkScript.name, q.scripts))
		}}
		body = p.pointers
	}
	f := newFeed(body)
	env, files := p.environment(), slices.Concat(q.files, setup.files)
	if setup.trace != nil {
		const first = 3 // descriptor of files
		env = append(env, "GIT_TRACE2_EVENT="+strconv.Itoa(first+len(files)))
		files = append(files, setup.trace)
	}
	child, err := p.options.Runner.Start(ctx, process.Command{
		Class: ClassReceive, Subcommand: "receive-pack", Args: p.arguments(setup, q.scripts), Env: env, Stdin: f.out,
		Config: p.target.HooksOff(), Stderr: func(b []byte) { _, _ = p.gitErrors.Write(b) },
		Files: files, Grace: gracePeriod, Caller: p.caller, Repository: p.target.Common,
	})
	q.closeChildFiles()
	return child, f, err
}

// maxPackSize returns the lower limit of the server and the repository; 0: no limit.
func (p *pushSession) maxPackSize() int64 {
	server, own := p.options.MaxSize, p.policy.MaxSize
	if server == 0 || own > 0 && own < server {
		return own
	}
	return server
}

// arguments returns the command line of Git. Nothing in it comes from a client.
//
// receive.unpackLimit: a pack is kept and never unpacked into loose objects. It has two files to sync instead of up to
// a hundred in as many directories, which Git does not sync. Maintenance combines small packs.
// receive.denyCurrentBranch: a working tree is never written to, because its filters are programs.
func (p *pushSession) arguments(setup gitSetup, scripts string) []string {
	var args []string
	set := func(key, value string) { args = append(args, "-c", key+"="+value) }
	set("safe.directory", "*") // the operator decides whose repositories are served
	for _, c := range setup.config {
		set(c[0], c[1])
	}
	p.fsckArguments(set)
	set("receive.unpackLimit", "1")
	set("transfer.unpackLimit", "1") // takes precedence before Git 2.43
	set("receive.autogc", "false")
	set("receive.maxInputSize", strconv.FormatInt(p.maxPackSize(), 10))
	set("receive.advertisePushOptions", strconv.FormatBool(p.offersOptions(p.policy)))
	if scripts != "" {
		set("core.hooksPath", scripts)
	}
	if p.policy.UpdateCurrent && len(p.hooks.programs[repo.PushToCheckout]) == 0 {
		set("receive.denyCurrentBranch", "refuse")
	}
	return append(args, "receive-pack", "--stateless-rpc", p.target.Dir)
}

// environment returns the environment variables added for Git. A pack of some KB can claim objects of many GB: Git
// fails when it would allocate more than the limit.
func (p *pushSession) environment() []string {
	env := slices.Concat(p.env, p.author.environment()) // for reflogs
	if p.options.MaxMemory > 0 {
		env = append(env, "GIT_ALLOC_LIMIT="+strconv.FormatInt(p.options.MaxMemory, 10))
	}
	return env
}

// supervise passes on Git's output and answers its hooks until it has ended. exit is nil if Git succeeded. err is the
// error of passing on the output.
func (p *pushSession) supervise(ctx context.Context, cancel func(), child *process.Process, f *feed,
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
	if q.checks {
		p.hooks.active = p.pointers.isFound.Load()
	}
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
	done chan struct{}  // closed when run ends
	err  error          // of body; valid when done is closed
}

func newFeed(body io.Reader) *feed {
	f := &feed{body: body, done: make(chan struct{})}
	f.out, f.in = io.Pipe()
	return f
}

// run copies until the body ends, or Git has ended.
func (f *feed) run() {
	defer close(f.done)
	for buf := make([]byte, readSize); ; {
		n, err := f.body.Read(buf)
		if err != nil && err != io.EOF {
			err = errCutOff(err)
			f.err = err // also if Git reads no more
		}
		if n > 0 { // an empty write would wait for a reader too
			if _, failed := f.in.Write(buf[:n]); failed != nil {
				return
			}
		}
		if err != nil {
			f.in.CloseWithError(err)
			return
		}
	}
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
