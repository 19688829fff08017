package receivepack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/pushjournal"
	"github.com/packhorse-git/packhorse/internal/pushrecovery"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// pushSession is one push.
type pushSession struct {
	*Server
	target  Target
	policy  *repo.PushPolicy
	request *pushRequest
	pack    *packStart // follows the commands
	push    *Push
	caller  balance.Caller // for fair queues
	author  identity       // of the pusher, for Git
	out     output
	outcome *node.Outcome

	before    *refs.Snapshot // refs before the push, hidden ones too; nil until Git is started
	directory fs.FileInfo    // of the repository when Git was started
	record    pushjournal.Record
	journaled *pushrecovery.Push
	hooks     hookState
	gitErrors gitErrors // error messages of Git
	report    report    // of Git, after it has ended

	lockMessage string // about a lock file of another process
}

// Serve serves one push: everything that a client sends after the advertisement. If nothing was written yet, the
// transport has to report the error to the client. After a node.ReportedError the client has the error. After any other
// error the response is incomplete.
//
// In a stateful session the request is read until the client has sent everything, and the caller closes the stream
// after Serve returns: a Read may be pending until then. In a stateless one nothing is read after Serve returns, and
// nothing is written before the request was read to its end.
func (s *Server) Serve(ctx context.Context, t Target, session node.Session, pusher node.Pusher, body io.Reader,
	response node.ResponseWriter) (outcome node.Outcome, err error) {
	start := time.Now()
	defer func() {
		if err != nil && outcome.Reason == "" {
			outcome.Reason = reasonOf(ctx, err)
		}
		s.metrics.observe(err, outcome.Reason, time.Since(start))
	}()
	policy, err := t.PushPolicy()
	if err != nil {
		return outcome, err
	}
	reader := s.newRequestReader(body)
	defer reader.release()
	request, err := reader.read(t.Format, s.offersOptions(policy))
	outcome.Parse = time.Since(start)
	if err != nil {
		return outcome, err
	}
	if len(request.commands) == 0 { // the probe of a client that is about to send much, or nothing to push
		if session.Stateless {
			response.SetLength(0)
		}
		return outcome, nil
	}
	outcome.Command, outcome.Agent, outcome.Session = node.CommandPush, request.agent, request.session
	outcome.Refs = len(request.commands)
	transport := "ssh"
	if session.Stateless {
		transport = "http"
	}
	p := &pushSession{
		Server: s, target: t, policy: policy, request: request, outcome: &outcome,
		caller: balance.Caller(session.Caller), author: newIdentity(pusher, transport),
		push: &Push{
			ID: rand.Text(), Repo: t.Path, Pusher: pusher, Options: request.options, Updates: request.updates(),
			Trace: inflight.TraceParent(ctx),
		},
		out: output{response: response, sideband: request.sideband, report: request.report, hidden: t.hiddenPaths()},
	}
	p.out.copyTo = &p.gitErrors
	if p.hooks.programs, err = s.programs(t.Repo); err != nil {
		p.setResults(nil, true)
		return outcome, p.out.fail(err)
	}
	body, p.pack = reader.rest(request)
	err = p.serve(ctx, body, session.Stateless)
	if outcome.Updates == nil { // Git was not started
		p.setResults(nil, true)
	}
	return outcome, err
}

// finalizeTimeout is the time limit of the work after Git has ended.
const finalizeTimeout = time.Minute

// serve runs git receive-pack, and sends its report when the changes are on disk and visible to all requests.
func (p *pushSession) serve(ctx context.Context, body io.Reader, stateless bool) error {
	var record Record
	if p.options.Recorder != nil {
		var err error
		if record, err = p.options.Recorder.Begin(p.push); err != nil {
			return fault.Wrap(fault.Unavailable, "push not accepted: it cannot be recorded for webhooks", err)
		}
	}
	usage, gitErr := p.receive(ctx, body, stateless)
	p.outcome.Wait, p.outcome.ChildCPU, p.outcome.ChildMaxRSS = usage.Queue, usage.User+usage.System, usage.MaxRSS
	// Git has ended. The remaining work does not stop if the client disconnects.
	finalizing, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
	defer cancel()
	updates, err := p.finalize(finalizing, record, gitErr)
	if len(updates) > 0 {
		p.runPostHooks(ctx, updates)
	}
	if err := cmp.Or(gitErr, err); err != nil {
		return p.out.fail(err)
	}
	reason, refusal := p.refusal()
	if err := p.explain(reason); err != nil {
		return err
	}
	if err := p.out.finish(); err != nil || refusal == nil {
		return err
	}
	p.outcome.Reason = reason
	return &node.ReportedError{Err: refusal}
}

// receive runs Git to its end and keeps its report.
func (p *pushSession) receive(ctx context.Context, body io.Reader, stateless bool) (process.Usage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	snapshot, err := p.target.Refs.Snapshot(ctx)
	if err != nil {
		return process.Usage{}, err
	}
	before := snapshot.Unhidden()
	if p.directory, err = os.Stat(p.target.Common); err != nil {
		return process.Usage{}, errRepositoryGone(err)
	}
	questions, err := p.prepareHooks()
	if err != nil {
		return process.Usage{}, err
	}
	defer questions.close()
	if p.record, err = p.newRecord(before); err != nil {
		return process.Usage{}, err
	}
	if p.journaled, err = p.recovery.Begin(ctx, p.record, p.push.ID); err != nil {
		return process.Usage{}, err
	}
	child, f, err := p.startGit(ctx, body, questions)
	if err != nil {
		p.recovery.End(ctx, p.journaled, true)
		return process.Usage{}, err
	}
	p.before = before
	if p.started != nil {
		p.started(child.Pid())
	}
	go f.run()
	if stateless {
		p.out.after = f.done // nothing may be written while the request is being read
	}
	usage, exit, err := p.supervise(ctx, cancel, child, f, questions)
	if p.request.hasPack() {
		p.recovery.RemoveKeepFile(p.target.Common, child.Pid(), p.record.Start)
	}
	p.recovery.End(ctx, p.journaled, exit == nil)
	if stateless {
		<-f.done // the client may still be sending
	}
	p.metrics.bytes.Add(float64(f.n.Load()))
	if p.request.sideband {
		err = cmp.Or(err, p.out.text(p.hooks.lateOutput))
	}
	return usage, p.gitError(f, exit, err)
}

// newRecord describes the push for the journal. Refs are listed by their own names, and symbolic ones also by their
// targets.
func (p *pushSession) newRecord(before *refs.Snapshot) (pushjournal.Record, error) {
	updates := p.push.Updates
	r := pushjournal.Record{
		GitDir: p.target.Dir, CommonDir: p.target.Common, Start: time.Now(),
		Refs: make(map[git.RefName]git.ObjectID, len(updates)),
	}
	for _, u := range updates {
		r.Refs[u.Ref] = u.New
		ref, ok, err := before.Lookup(u.Ref)
		if err != nil {
			return r, err
		}
		if ok && ref.Target != "" {
			r.Refs[ref.Target] = u.New
		}
	}
	_, r.LocksHead = r.Refs[before.Head().Target]
	if !p.isAtomic() {
		return r, nil
	}
	r.Committer = p.author.environment()
	for _, setting := range p.target.HooksOff() {
		r.DisabledConfig = append(r.DisabledConfig, setting[0])
	}
	old := make(map[git.RefName]git.ObjectID, len(updates))
	for _, u := range updates {
		current, err := value(before, u.Ref)
		if err != nil || current != u.Old && !(current.IsZero() && u.Old.IsZero()) {
			return r, err // Git is going to refuse the push
		}
		old[u.Ref] = u.Old
	}
	r.Old = old
	return r, nil
}

// isAtomic reports whether several refs change, all or none. A proc-receive hook is not bound to that.
func (p *pushSession) isAtomic() bool {
	return len(p.hooks.programs[repo.ProcReceive]) == 0 && p.request.atomic && p.policy.Atomic && len(p.push.Updates) > 1
}

// finalize makes the changes durable, records them and makes them visible. It returns the updates that were made.
func (p *pushSession) finalize(ctx context.Context, record Record, gitErr error) ([]Update, error) {
	updates, err := p.changes(ctx, gitErr)
	isKnown := err == nil
	p.setResults(updates, isKnown)
	if len(updates) > 0 && p.hooks.active && !p.hooks.consulted { // a bug, which must be noticed
		p.log.Error("git changed refs without running hooks", "repository", p.push.Repo.String())
	}
	if err == nil && len(updates) > 0 {
		err = p.persist(ctx, updates)
	}
	refused := max(len(p.request.commands)-len(updates), 0)
	updates = p.withoutNoopDeletions(updates)
	if record != nil && isKnown { // otherwise the record stays open until the next start
		if endErr := record.End(updates); endErr != nil && err == nil {
			err = fault.Wrap(fault.Unavailable, "refs were changed, but the deliveries of webhooks cannot be recorded", endErr)
		}
	}
	p.metrics.updates.WithLabelValues("changed").Add(float64(len(updates)))
	p.metrics.updates.WithLabelValues("refused").Add(float64(refused))
	if len(updates) > 0 && p.target.Changed != nil {
		p.target.Changed(ctx, updates)
	}
	return updates, err
}

// changes returns the updates that were made: those in Git's report, or without a complete report those that the refs
// show.
func (p *pushSession) changes(ctx context.Context, gitErr error) ([]Update, error) {
	if p.before == nil {
		return nil, nil
	}
	// Git does not notice this, because it works in the directory that it has open.
	if directory, err := os.Stat(p.target.Common); err != nil || !os.SameFile(directory, p.directory) {
		return nil, errRepositoryGone(err)
	}
	updates := make([]Update, 0, len(p.push.Updates))
	p.report = readReport(p.out.kept)
	if gitErr == nil && p.report.complete {
		for _, u := range p.push.Updates {
			for _, r := range p.report.changed[string(u.Ref)] {
				updates = append(updates, r.apply(u, p.target.Format))
			}
		}
		return updates, nil
	}
	after, err := p.target.Refs.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	for _, u := range p.push.Updates {
		old, err := value(p.before, u.Ref)
		if err != nil {
			return nil, err
		}
		current, err := value(after.Unhidden(), u.Ref)
		if err != nil {
			return nil, err
		}
		if old != current && (current == u.New || current.IsZero() && u.New.IsZero()) {
			updates = append(updates, u)
		}
	}
	return updates, nil
}

// withoutNoopDeletions removes deletions of refs that did not exist. Git reports them as done, but hooks and webhooks
// do not get them.
func (p *pushSession) withoutNoopDeletions(updates []Update) []Update {
	return slices.DeleteFunc(updates, func(u Update) bool {
		if !u.New.IsZero() {
			return false
		}
		_, existed, err := p.before.Lookup(u.Ref)
		if existed || err != nil {
			return false
		}
		// Git deletes a ref that another process has created meanwhile only if it has the old value.
		hasOld, err := false, error(nil)
		if !u.Old.IsZero() {
			hasOld, err = p.target.Objects.Has(u.Old)
		}
		return !hasOld && err == nil
	})
}

// value returns the object ID of a ref; zero if the ref does not exist.
func value(snapshot *refs.Snapshot, name git.RefName) (git.ObjectID, error) {
	ref, ok, err := snapshot.Lookup(name)
	if err != nil || !ok {
		return git.ObjectID{}, err
	}
	return ref.ID, nil
}

func errRepositoryGone(err error) error {
	return fault.Wrap(fault.NotFound, "the repository was removed during the push", cmp.Or(err, fs.ErrNotExist))
}

// gitError returns the error of a Git process that has ended. err is the error of passing on its output.
func (p *pushSession) gitError(f *feed, exit, err error) error {
	if _, broken := errors.AsType[*node.ClientConnError](err); broken || exit == nil {
		return err
	}
	if err := f.failed(); err != nil { // Git ended because of this error
		return err
	}
	if p.hooks.transactionFailed {
		p.outcome.Reason = reasonHook
		return fault.Wrap(fault.Denied, "the reference-transaction hook refused the push", exit)
	}
	if kind := fault.KindOf(exit); kind == fault.Internal { // the client must not see more
		return &fault.Error{Kind: kind, Msg: "git failed; see the server's log", Err: exit}
	}
	return exit
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
// core.fsync: objects are on disk before a ref names them, and refs are before the report.
// receive.unpackLimit: a pack is kept and never unpacked into loose objects. It has two files to sync instead of up to
// a hundred in as many directories, which Git does not sync. Maintenance combines small packs.
// receive.denyCurrentBranch: a working tree is never written to, because its filters are programs.
func (p *pushSession) arguments(scripts string) []string {
	var args []string
	set := func(key, value string) { args = append(args, "-c", key+"="+value) }
	set("safe.directory", "*") // the operator decides whose repositories are served
	set("core.fsync", "objects,derived-metadata,reference")
	set("core.fsyncMethod", "fsync")
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
