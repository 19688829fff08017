package receivepack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/pushrecovery"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// pushSession is one push.
type pushSession struct {
	*Server
	target   Target
	policy   *repo.PushPolicy
	request  *pushRequest
	pack     *packStart     // follows the commands
	pointers *pointerSearch // of the pack; nil: not needed
	push     *Push
	caller   balance.Caller // for fair queues
	author   identity       // of the pusher, for Git
	out      output
	outcome  *node.Outcome

	destination destination
	before      *refs.Snapshot // refs before the push, hidden ones too; nil until Git is started
	visible     *refs.Snapshot // the same, without hidden refs
	passage     *Passage       // nil: objects are never removed
	hooks       hookState
	gitErrors   gitErrors // error messages of Git
	report      report    // of Git, after it has ended

	refusals    map[string]*Refusal // by ref: of the commit, which Git's own report does not have
	record      pushrecovery.Record // of the push in the journal
	lockMessage string              // about a lock file of another process
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
	if t.Shadow != nil {
		t.Repo = t.Shadow.Repo()
	}
	policy, err := t.PushPolicy()
	if err != nil {
		return outcome, err
	}
	reader := s.newRequestReader(body)
	defer reader.release()
	request, err := reader.read(t.Format, s.offersOptions(policy))
	outcome.Push.Parse = time.Since(start)
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
			Trace: inflight.TraceParent(ctx), Incarnation: t.Incarnation,
		},
		out: output{response: response, sideband: request.sideband, report: request.report, hidden: t.hiddenPaths()},
	}
	p.out.copyTo = &p.gitErrors
	p.destination = newDestination(p)
	if p.hooks.programs, err = s.programs(t.Repo); err != nil {
		p.setResults(nil, true)
		return outcome, p.out.fail(err)
	}
	body, p.pack = reader.rest(request)
	err = p.serve(ctx, body, session.Stateless)
	if outcome.Push.Updates == nil { // Git was not started
		p.setResults(nil, true)
	}
	return outcome, err
}

// finalizeTimeout is the time limit of the work after Git has ended. This work does not stop if the client disconnects.
const finalizeTimeout = time.Minute

// serve runs git receive-pack, and sends its report when the changes are on disk and visible to all requests.
func (p *pushSession) serve(ctx context.Context, body io.Reader, stateless bool) error {
	if r := p.options.Recorder; r != nil {
		if err := r.Begin(p.push); err != nil {
			return fault.Wrap(fault.Unavailable, "push not accepted: its event cannot be recorded", err)
		}
	}
	if p.target.Shadow == nil {
		var err error
		if p.passage, err = p.target.Gates.Enter(ctx, p.target.Common); err != nil {
			return err
		}
	}
	defer p.passage.Leave()
	if p.passage != nil && !p.target.IsThere() {
		return fault.New(fault.Unavailable, "the repository was renamed or deleted meanwhile; try again")
	}
	usage, gitErr := p.receive(ctx, body, stateless)
	p.outcome.Push.Wait = usage.Queue
	updates, err := p.finalize(ctx, gitErr)
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
	setup, err := p.destination.begin(ctx, before)
	if err != nil {
		return process.Usage{}, err
	}
	p.hooks.asksRules = p.mayRefuse(before)
	questions, err := p.prepareHooks(setup.hasScripts || p.passage.MustPass())
	if err != nil {
		p.destination.ended(ctx, 0, true)
		return process.Usage{}, err
	}
	defer questions.close()
	child, f, err := p.startGit(ctx, body, setup, questions)
	if err != nil {
		p.destination.ended(ctx, 0, true)
		return process.Usage{}, err
	}
	p.before, p.visible = before, snapshot
	if p.started != nil {
		p.started(child.Pid())
	}
	go f.run()
	if stateless {
		p.out.after = f.done // nothing may be written while the request is being read
	}
	usage, exit, err := p.supervise(ctx, cancel, child, f, questions)
	p.destination.ended(ctx, child.Pid(), exit == nil)
	if stateless {
		<-f.done // the client may still be sending
	}
	return usage, p.gitError(f, exit, err)
}

// isAtomic reports whether several refs change, all or none. A proc-receive hook is not bound to that.
func (p *pushSession) isAtomic() bool {
	return len(p.hooks.programs[repo.ProcReceive]) == 0 && p.request.atomic && p.policy.Atomic && len(p.push.Updates) > 1
}

// finalize makes the changes durable, records them and makes them visible. It returns the updates that were made.
func (p *pushSession) finalize(ctx context.Context, gitErr error) ([]Update, error) {
	var updates []Update
	var err error
	isKnown := true
	if p.before != nil { // Git was started
		if p.hooks.missingLFS {
			p.out.kept = renameReason(p.out.kept, "pre-receive hook declined", reasonMissingLFS)
		}
		if len(p.hooks.ruled) > 0 {
			p.out.kept = p.reportRules(p.out.kept)
		}
		p.out.kept = renameReason(p.out.kept, badPack, badPack+reasonCollected)
		p.report = readReport(p.out.kept)
		updates, isKnown, err = p.destination.apply(ctx, gitErr)
	}
	p.passage.Leave() // what follows may take long
	p.setResults(updates, isKnown)
	if len(updates) > 0 && p.hooks.active && !p.hooks.consulted { // a bug, which must be noticed
		p.log.Error("git changed refs without running hooks", "repository", p.push.Repo.String())
	}
	if p.options.Recorder != nil {
		endErr := p.options.Recorder.End(Result{Push: p.push, Made: updates, IsUnknown: !isKnown})
		err = cmp.Or(err, unrecorded(endErr))
	}
	if len(updates) > 0 && p.target.Changed != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
		defer cancel()
		p.target.Changed(ctx, updates)
	}
	return updates, err
}

// unrecorded is the error of Recorder.End for clients.
func unrecorded(err error) error {
	return fault.Wrap(fault.Unavailable, "refs were changed, but the event cannot be recorded yet", err)
}

// reportedUpdates returns the updates that Git's report says were made.
func (p *pushSession) reportedUpdates() []Update {
	updates := make([]Update, 0, len(p.push.Updates))
	for _, u := range p.push.Updates {
		for _, r := range p.report.changed[string(u.Ref)] {
			updates = append(updates, r.apply(u, p.target.Format))
		}
	}
	return updates
}

// value returns the object ID of a ref; zero if the ref does not exist.
func value(snapshot *refs.Snapshot, name git.RefName) (git.ObjectID, error) {
	ref, ok, err := snapshot.Lookup(name)
	if err != nil || !ok {
		return git.ObjectID{}, err
	}
	return ref.ID, nil
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
	if _, names, found := strings.Cut(strings.Replace(exit.Error(), "extensions found:", "extension found:", 1),
		"extension found:"); found { // setup.c of Git, verify_repository_format
		p.outcome.Reason = reasonDisabled
		return fault.Wrap(fault.Unavailable, "push not accepted: the git of the server does not support extensions of this "+
			"repository ("+clean(strings.Trim(names, " ;?"), maxReason)+"); its administrator can install a newer git", exit)
	}
	if kind := fault.KindOf(exit); kind == fault.Internal { // the client must not see more
		return &fault.Error{Kind: kind, Msg: "git failed; see the server's log", Err: exit}
	}
	return exit
}
