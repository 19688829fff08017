package receivepack

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/repo"
)

const (
	// grace is how long git has for removing its locks and its quarantine when a push is given up.
	grace     = 10 * time.Second
	retryPush = 5 * time.Second
)

// pushing is one push on its way.
type pushing struct {
	*Server
	target   Target
	policy   *repo.PushPolicy
	request  *asked
	push     *Push
	caller   balance.Caller // whom the work counts for
	out      output
	outcome  *node.Outcome
	before   *refs.Snapshot // nil until git is about to run
	pack     *packStart     // what follows the request's head
	dir      fs.FileInfo    // the repository's common directory then
	began    time.Time      // then
	asks     bool           // hooks are to be asked while git runs
	asksEach bool           // and one more time for each ref
	decided  bool           // and were
	aborted  bool           // a reference-transaction hook has failed: git may die of that
	entry    *entry         // in the journal; nil: there is none
	each     int            // updates that git has still to ask about; used by those who answer it
	said     int            // bytes that hooks have told the client
	unsaid   []byte         // of that, what is told it when git has ended

	programs   programs
	committer  [2]string   // the pusher's name and e-mail address, for git
	hookConfig [][2]string // for git within hooks; nil until it is needed

	declined   error      // why a hook's question was answered with no; once git has ended
	complaints complaints // of git
	report     report     // git's, once it has ended
}

// serve runs git receive-pack and sends its report once what it did is on disk and everybody knows of it.
func (p *pushing) serve(ctx context.Context, request io.Reader, stateless bool) error {
	var record Record
	if p.options.Recorder != nil {
		var err error
		if record, err = p.options.Recorder.Begin(p.push); err != nil {
			return fault.Wrap(fault.Unavailable, "the push cannot be recorded, so it is not taken", err)
		}
	}
	usage, err := p.run(ctx, request, stateless)
	p.outcome.Wait, p.outcome.ChildCPU, p.outcome.ChildMaxRSS = usage.Queue, usage.User+usage.System, usage.MaxRSS
	// From here on the push is done or not, whether the client waits for it or has gone.
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	done, failed := p.settle(settle, record, err)
	if err == nil {
		err = failed
	}
	if len(done) > 0 {
		p.after(ctx, done)
	}
	if err != nil {
		return p.out.fail(err)
	}
	reason, refused := p.refusal()
	if err := p.explain(reason); err != nil {
		return err
	}
	if err := p.out.finish(); err != nil || refused == nil {
		return err
	}
	p.outcome.Reason = reason
	return &node.ReportedError{Err: refused}
}

// settleLimit bounds what is done after git has ended.
const settleLimit = time.Minute

// settle sees to it that what was done is on disk, recorded, and known.
func (p *pushing) settle(ctx context.Context, record Record, failed error) ([]Update, error) {
	done, err := p.done(ctx, failed)
	known := err == nil
	p.account(done, known)
	if len(done) > 0 && p.asks && !p.decided { // it cannot be; should it be, it must not go unnoticed
		p.log.LogAttrs(ctx, slog.LevelError, "git changed refs and asked no hook", slog.String("repository", p.push.Repo.String()))
	}
	if err == nil && len(done) > 0 {
		err = p.persist(ctx, done)
	}
	refused := max(len(p.request.commands)-len(done), 0)
	done = p.real(done)
	if record != nil && known { // else it stays open, for the next start
		if ended := record.End(done); ended != nil && err == nil {
			err = fault.Wrap(fault.Unavailable, "the refs were changed, but what has to follow could not be recorded", ended)
		}
	}
	p.metrics.updates.WithLabelValues("changed").Add(float64(len(done)))
	p.metrics.updates.WithLabelValues("refused").Add(float64(refused))
	if len(done) > 0 && p.target.Changed != nil {
		p.target.Changed(ctx, done)
	}
	return done, err
}

// run runs git to its end and keeps its report.
func (p *pushing) run(ctx context.Context, request io.Reader, stateless bool) (process.Usage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, err := p.target.Refs.Snapshot(ctx)
	if err != nil {
		return process.Usage{}, err
	}
	if p.dir, err = os.Stat(p.target.Common); err != nil {
		return process.Usage{}, errGone(err)
	}
	hooks, err := p.asking()
	if err != nil {
		return process.Usage{}, err
	}
	defer hooks.close()
	e, err := p.journal(ctx, before.Unhidden())
	if err != nil {
		return process.Usage{}, err
	}
	p.entry = e
	f := newFeed(request)
	p.began = time.Now()
	child, err := p.options.Runner.Start(ctx, process.Command{
		Class: ClassReceive, Subcommand: "receive-pack", Args: p.arguments(hooks.scripts), Env: p.environment(), Stdin: f.out,
		Config: p.target.HooksOff(), Stderr: func(b []byte) { _, _ = p.complaints.Write(b) }, Files: slices.Concat(hooks.files, e.files()), Grace: grace,
		Caller: p.caller, Repository: p.target.Common,
	})
	hooks.started()
	if err != nil {
		p.settled(ctx, e, true)
		return process.Usage{}, err
	}
	p.before = before.Unhidden()
	if p.started != nil {
		p.started(child.Pid())
	}
	go f.run()
	if stateless {
		p.out.after = f.done // nothing may be written while the request is being read
	}
	usage, exit, err := p.attend(ctx, cancel, child, f, hooks)
	p.unkeep(child.Pid())
	p.settled(ctx, e, exit == nil)
	if stateless {
		<-f.done // a client that sends on is heard out, for as long as it may take for that
	}
	p.metrics.bytes.Add(float64(f.n.Load()))
	if p.request.sideband {
		err = cmp.Or(err, p.out.pieces(p.unsaid))
	}
	return usage, p.result(f, exit, err)
}

// attend passes on what git says and answers its hooks, until it has ended: well, or with exit. The error is of what was passed on.
func (p *pushing) attend(ctx context.Context, cancel func(), child *process.Process, f *feed, hooks *asking) (_ process.Usage, exit, err error) {
	var answering sync.WaitGroup
	if p.asks = hooks.scripts != ""; p.asks {
		p.asksEach = slices.Contains(hooks.events, repo.Update)
		answering.Go(func() { p.answerHooks(ctx, hooks, child.Kill) })
	}
	if err = p.out.copy(child.Stdout()); err != nil {
		child.Kill()
	}
	f.out.Close() // git reads no more
	usage, exit := child.Wait()
	cancel() // hooks that nobody waits for any more
	hooks.close()
	answering.Wait()
	return usage, exit, err
}

// result is the error of a git that was attended to.
func (p *pushing) result(f *feed, exit, err error) error {
	if _, broken := errors.AsType[*node.ClientConnError](err); broken || exit == nil {
		return err
	}
	if err := f.failed(); err != nil { // which says more than that git was ended
		return err
	}
	if p.aborted {
		p.outcome.Reason = reasonHook
		return fault.Wrap(fault.Denied, "the reference-transaction hook refused the push", exit)
	}
	return exitError(exit)
}

// all tells whether the push is one of several refs of which all are to change or none. What a proc-receive hook does instead nobody knows.
func (p *pushing) all() bool {
	return len(p.programs[repo.ProcReceive]) == 0 && p.sweeper != nil && p.request.atomic && p.policy.Atomic && len(p.push.Updates) > 1
}

// journal notes that git is about to run, when nothing is in its way that a push before it has left.
func (p *pushing) journal(ctx context.Context, before *refs.Snapshot) (*entry, error) {
	if p.sweeper == nil {
		return nil, nil
	}
	updates := p.push.Updates
	n, err := newNote(p.target.Dir, p.target.Common, updates, before)
	if err == nil && p.all() {
		err = n.atomic(updates, before)
		n.Identity = p.identity()
		for _, c := range p.target.HooksOff() {
			n.Off = append(n.Off, strconv.QuoteToASCII(c[0]))
		}
	}
	if err != nil {
		return nil, err
	}
	p.sweeper.beforeBoot(n)
	if err := p.sweeper.wait(ctx, n); err != nil {
		return nil, err
	}
	return p.sweeper.start(n, p.push.ID)
}

// settled notes that git has ended, and waits until no lock of it is left.
func (p *pushing) settled(ctx context.Context, e *entry, well bool) {
	if e == nil {
		return
	}
	p.sweeper.end(e, well)
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepPatience)
	defer cancel()
	select {
	case <-e.unlocked:
	case <-e.blocked:
	case <-patience.Done():
	}
}

// exitError keeps of what git said when it failed only what a client may see.
func exitError(err error) error {
	if kind := fault.KindOf(err); kind == fault.Internal {
		return &fault.Error{Kind: kind, Msg: "git could not take the push; the server's log says more", Err: err}
	}
	return err
}

// arguments is the command line. Nothing in it comes from a client.
//
// What git keeps of a push is on disk before a ref names it, and the ref is before the report: core.fsync. A pack is kept as it is, and never
// unpacked into loose objects (receive.unpackLimit): two files to sync instead of up to a hundred in as many directories, of which git
// syncs none; maintenance packs many small packs into one. What comes is checked unless the repository turns that off, and a working tree is never
// written to: its filters are programs.
func (p *pushing) arguments(hooks string) []string {
	var args []string
	set := func(key, value string) { args = append(args, "-c", key+"="+value) }
	set("safe.directory", "*") // whose repositories these are is the operator's business
	set("core.fsync", "objects,derived-metadata,reference")
	set("core.fsyncMethod", "fsync")
	p.fsckArguments(set)
	set("receive.unpackLimit", "1")
	set("transfer.unpackLimit", "1") // git before 2.43 takes this one's word
	set("receive.autogc", "false")
	set("receive.maxInputSize", strconv.FormatInt(p.maxSize(), 10))
	set("receive.advertisePushOptions", strconv.FormatBool(p.offersOptions(p.policy)))
	if hooks != "" {
		set("core.hooksPath", hooks)
	}
	if p.policy.UpdateCurrent && len(p.programs[repo.PushToCheckout]) == 0 {
		set("receive.denyCurrentBranch", "refuse")
	}
	return append(args, "receive-pack", "--stateless-rpc", p.target.Dir)
}

// environment is added to what every command has. A pack of some KB can claim objects of many GB: git gives up where it would ask for more.
func (p *pushing) environment() []string {
	env := slices.Concat(p.env, p.identity()) // for reflogs
	if p.options.MaxMemory > 0 {
		env = append(env, "GIT_ALLOC_LIMIT="+strconv.FormatInt(p.options.MaxMemory, 10))
	}
	return env
}

func (p *pushing) maxSize() int64 {
	limit, own := p.options.MaxSize, p.policy.MaxSize
	if limit == 0 || own > 0 && own < limit {
		return own
	}
	return limit
}

// feed reads the request on a goroutine of its own, as git may end while a client still sends.
type feed struct {
	source io.Reader
	in     *io.PipeWriter
	out    *io.PipeReader // what git reads
	n      atomic.Int64   // bytes that git was given
	done   chan struct{}  // closed when nothing is read any more
	err    error          // of source; once done is closed
}

func newFeed(source io.Reader) *feed {
	f := &feed{source: source, done: make(chan struct{})}
	f.out, f.in = io.Pipe()
	return f
}

func (f *feed) run() {
	defer close(f.done)
	source := &source{r: f.source}
	_, err := io.CopyBuffer(f, source, make([]byte, readSize))
	f.err = source.err
	f.in.CloseWithError(err) // nil is the end
}

// source remembers why reading failed.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && err != io.EOF {
		err = cutOff(err)
		s.err = err
	}
	return n, err
}

// Write is for run.
func (f *feed) Write(b []byte) (int, error) {
	n, err := f.in.Write(b)
	f.n.Add(int64(n))
	return n, err
}

// failed is the error that the source ended with, if it has.
func (f *feed) failed() error {
	select {
	case <-f.done:
		return f.err
	default:
		return nil
	}
}

// done tells which updates came to be: what the report says, and where there is none, what the refs say.
func (p *pushing) done(ctx context.Context, failed error) ([]Update, error) {
	if p.before == nil {
		return nil, nil
	}
	if dir, err := os.Stat(p.target.Common); err != nil || !os.SameFile(dir, p.dir) { // git has not noticed: it works in the directory that it has open
		return nil, errGone(err)
	}
	asked := p.push.Updates
	p.report = readReport(p.out.kept)
	if failed == nil && p.report.whole {
		done := make([]Update, 0, len(asked))
		for _, u := range asked {
			for _, r := range p.report.changed[string(u.Ref)] {
				done = append(done, r.of(u, p.target.Format))
			}
		}
		return done, nil
	}
	after, err := p.target.Refs.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	done := make([]Update, 0, len(asked))
	for _, u := range asked {
		was, err := value(p.before, u.Ref)
		if err != nil {
			return nil, err
		}
		is, err := value(after.Unhidden(), u.Ref)
		if err != nil {
			return nil, err
		}
		if was != is && (is == u.New || is.IsZero() && u.New.IsZero()) {
			done = append(done, u)
		}
	}
	return done, nil
}

// real leaves deletions away of refs that were not there, of which git reports that they are done: hooks and others are not told of them.
func (p *pushing) real(done []Update) []Update {
	return slices.DeleteFunc(done, func(u Update) bool {
		if !u.New.IsZero() {
			return false
		}
		_, was, err := p.before.Lookup(u.Ref)
		if was || err != nil {
			return false
		}
		// What somebody else has made meanwhile git deletes only if it is what the client says it is.
		there, err := false, error(nil)
		if !u.Old.IsZero() {
			there, err = p.target.Objects.Has(u.Old)
		}
		return !there && err == nil
	})
}

func errGone(err error) error {
	return fault.Wrap(fault.NotFound, "the repository was removed while it was pushed to", cmp.Or(err, fs.ErrNotExist))
}

// value is what a ref names; zero if there is none.
func value(snapshot *refs.Snapshot, name git.RefName) (git.ObjectID, error) {
	ref, ok, err := snapshot.Lookup(name)
	if err != nil || !ok {
		return git.ObjectID{}, err
	}
	return ref.ID, nil
}
