package receivepack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// ClassReceive is the class of git commands that take pushes.
const ClassReceive process.Class = "receive"

// Options says how pushes are taken.
type Options struct {
	Runner *process.Runner // with limits for ClassReceive, and for ClassHook if there are hooks or alternates; nil: no push is taken
	Agent  string          // how the server names itself

	MaxSize     int64 // bytes of a pack; 0: no limit. A repository's own lower limit holds.
	MaxMemory   int64 // bytes that git may ask for in one piece, as for an object made of deltas; 0: no limit
	MaxCommands int   // refs that one push may change; 0: 100,000
	MaxOptions  int   // push options; 0: none may be sent
	SessionID   bool  // where a repository says nothing: whether sessions have IDs

	Fsck map[string]string // severities ("error", "warn", "ignore") of git's checks of objects, by their names; see ValidateFsck

	Hooks           string          // the administrator's directory of hooks; "": there are none
	HooksConfig     string          // the global git configuration of hooks, an absolute path; "": none
	HookTime        time.Duration   // how long a hook may run; 0: as long as the push
	RepositoryHooks RepositoryHooks // "": RefuseHooks
	Scripts         string          // a directory of ours alone for what git runs to ask for decisions; "": neither Hooks nor a Decider can be, nor pushes to repositories with alternates
	Journal         string          // a directory of ours alone, which says after a crash what pushes have left; "": nothing is removed after them

	Decider  Decider  // nil: nobody else is asked
	Recorder Recorder // nil: nothing is recorded

	Metrics *Metrics     // nil: not counted
	Log     *slog.Logger // nil: none
}

// Server takes pushes. Safe for concurrent use.
type Server struct {
	options Options
	metrics *Metrics
	log     *slog.Logger
	sweeper *sweeper                // nil: none
	heads   chan int64              // one token: the bytes that requests hold
	sync    func(path string) error // syncDir; another one in tests
	env     []string                // added to git's environment; of tests
	started func(pid int)           // unless nil, of tests
}

// New makes a Server. What Scripts has from an earlier run is removed.
func New(o Options) (*Server, error) {
	if o.MaxCommands == 0 {
		o.MaxCommands = 100_000
	}
	s := &Server{options: o, metrics: o.Metrics, log: o.Log, heads: make(chan int64, 1), sync: syncDir}
	if s.metrics == nil {
		s.metrics = NewMetrics()
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.heads <- 0
	if o.Scripts != "" {
		if err := writeScripts(o.Scripts); err != nil {
			return nil, fmt.Errorf("write the scripts that git runs as hooks: %w", err)
		}
	} else if o.Hooks != "" || o.Decider != nil || o.RepositoryHooks == RunHooks {
		return nil, errors.New("hooks and deciders need a directory for scripts")
	}
	s.tellUnused()
	if o.Journal != "" {
		s.sweeper = newSweeper(o.Journal, o.Runner, s.log, s.metrics)
	}
	return s, nil
}

// Start begins to remove what pushes to a server before this one have left. Claim, unless nil, keeps maintenance from a repository, by its common
// directory, until released; it fails while the repository is being maintained. To be called once, before the first push.
func (s *Server) Start(claim func(common string) (release func(), err error)) error {
	if s.sweeper == nil {
		return nil
	}
	s.sweeper.claim = claim
	return s.sweeper.begin()
}

// Settle waits until pushes to a server before this one change no refs any more, but no longer than ctx, and gives the IDs of those that still may:
// git outlives a server that was killed. To be called after Start.
func (s *Server) Settle(ctx context.Context) (alive []string) {
	if s.sweeper == nil {
		return nil
	}
	return s.sweeper.settle(ctx, func(*entry) bool { return true })
}

// Complete waits until atomic pushes to a server before this one are done, or not begun, so that nobody sees half of one, but no longer than ctx,
// and gives the IDs of those of which that is not certain. To be called after Start.
func (s *Server) Complete(ctx context.Context) (left []string) {
	if s.sweeper == nil {
		return nil
	}
	return s.sweeper.settle(ctx, func(e *entry) bool { return len(e.note.Olds) > 0 })
}

// NoteHead notes that HEAD of a repository is about to be locked: if this process is killed before released is called, the next
// one removes the lock, which would keep pushes from the branch that HEAD names. The error is Unavailable if that cannot be noted.
func (s *Server) NoteHead(dir, common string) (released func(), err error) {
	if s.sweeper == nil {
		return func() {}, nil
	}
	e, err := s.sweeper.start(note{Dir: dir, Common: common, Start: time.Now().UnixNano(), Head: true}, rand.Text())
	if err != nil {
		return nil, err
	}
	return func() { s.sweeper.end(e, true) }, nil
}

// Close ends what runs in the background. No push may be running.
func (s *Server) Close() {
	if s.sweeper != nil {
		s.sweeper.close()
	}
}

// RepositoryHooks says what becomes of the hooks that repositories have themselves.
func (s *Server) RepositoryHooks() RepositoryHooks {
	return cmp.Or(s.options.RepositoryHooks, RefuseHooks)
}

// BeforeMaintenance runs the repository's own pre-auto-gc hooks, if hooks of repositories are run at all. Git receive-pack does so before
// it maintains a repository after a push, which is left to the caller here. An error says that the repository is not to be maintained now.
func (s *Server) BeforeMaintenance(ctx context.Context, r *repo.Repo, path git.RepoPath) error {
	if s.options.RepositoryHooks != RunHooks {
		return nil
	}
	programs, err := s.programs(r)
	if err != nil {
		return err
	}
	p := &pushing{Server: s, target: Target{Repo: r, Path: path}, programs: programs, push: &Push{ID: rand.Text(), Repo: path}}
	return p.runHooks(ctx, hookRun{event: repo.PreAutoGC}, &speech{})
}

// Target is a repository that is pushed to.
type Target struct {
	*repo.Repo
	Path git.RepoPath // as the client named it
	// Changed, unless nil, is told which refs came to be changed, before the client is.
	Changed func(ctx context.Context, done []Update)
}

// hidden lists the paths that no client sees: of the repository, and of those that it borrows objects from.
func (t Target) hidden() []string {
	paths := []string{t.Common + "/"}
	for _, path := range t.Objects.AlternatePaths() {
		if lender, ok := strings.CutSuffix(path, "/objects"); ok && lender != "" {
			path = lender + "/"
		}
		paths = append(paths, path)
	}
	return paths
}

// Serve takes one push: all that a client says after the advertisement. An error that comes before anything was written can be rendered as
// the transport likes; after a node.ReportedError the client knows; after any other error what was sent is no whole answer.
//
// In a session with state the request is read until the client has said all, and who serves it ends the stream after Serve returns: a Read
// may be pending until then. In one without state nothing is read after the return, and nothing written before the request was read to its end.
func (s *Server) Serve(ctx context.Context, t Target, session node.Session, pusher node.Pusher, request io.Reader, reply node.ResponseWriter) (
	outcome node.Outcome, err error) {
	start := time.Now()
	defer func() {
		if err != nil && outcome.Reason == "" {
			outcome.Reason = reasonOf(ctx, err)
		}
		s.metrics.done(err, outcome.Reason, time.Since(start))
	}()
	if s.options.Runner == nil {
		return outcome, errOff()
	}
	policy, err := t.PushPolicy()
	if err != nil {
		return outcome, err
	}
	in := s.newReader(request)
	defer in.release()
	asked, err := in.read(t.Format, s.offersOptions(policy))
	outcome.Parse = time.Since(start)
	if err != nil {
		return outcome, err
	}
	if len(asked.commands) == 0 { // the probe of a client that is about to send much, or nothing to push
		if session.Stateless {
			reply.SetLength(0)
		}
		return outcome, nil
	}
	outcome.Command, outcome.Agent, outcome.Session = node.CommandPush, asked.agent, asked.session
	outcome.Refs = len(asked.commands)
	transport := "ssh"
	if session.Stateless {
		transport = "http"
	}
	p := &pushing{
		Server: s, target: t, policy: policy, request: asked, outcome: &outcome,
		caller: balance.Caller(session.Caller),
		push:   &Push{ID: rand.Text(), Repo: t.Path, Pusher: pusher, Options: asked.options, Updates: asked.updates(), Trace: inflight.TraceParent(ctx)},
		out:    output{reply: reply, sideband: asked.sideband, report: asked.report, hidden: t.hidden()},
	}
	if p.programs, err = s.programs(t.Repo); err != nil {
		p.account(nil, true)
		return outcome, p.out.fail(err)
	}
	p.committer[0], p.committer[1] = committer(pusher, transport)
	request, p.pack = in.rest(asked)
	p.out.heard = &p.complaints
	err = p.serve(ctx, request, session.Stateless)
	if outcome.Updates == nil { // git was not asked
		p.account(nil, true)
	}
	return outcome, err
}

// syncDir brings a directory's entries to the disk.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
