// Package receivepack serves git push. Serve, in serve.go, shows one push from its commands to its report. git
// receive-pack takes the objects into quarantine, hooks and webhooks decide, the refs change, and everything is synced.
// Only then does the client get the report. Package pushrecovery cleans up if Git is killed.
package receivepack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/pushrecovery"
)

// ClassReceive is the class of Git commands that receive pushes.
const ClassReceive process.Class = "receive"

// Options configure a Server. Runner, Scripts and Journal are required.
type Options struct {
	Runner *process.Runner // runs Git, with limits for ClassReceive and ClassHook
	Agent  string          // how the server names itself to clients

	MaxSize     int64 // maximum size of a pack in bytes, unless the repository's own limit is lower; 0: no limit
	MaxMemory   int64 // maximum size in bytes of one allocation by Git, for example for an object; 0: no limit
	MaxCommands int   // maximum number of refs in one push. Zero means 100,000.
	MaxOptions  int   // maximum number of push options. Zero means 100; if it is negative, they are not offered.

	Fsck map[string]string // severity ("error", "warn" or "ignore") of Git's object checks, by name; see ValidateFsck

	Hooks           string          // directory of the administrator's hooks; "": there are none
	HooksConfig     string          // absolute path of the global Git configuration of hooks; "": none
	HookTime        time.Duration   // maximum run time of a hook; 0: as long as the push
	RepositoryHooks RepositoryHooks // "": RefuseHooks
	Scripts         string          // directory for the hook scripts that Git runs, which only this server uses
	Journal         string          // directory of the push journal, which only this server uses

	MissingLFS LFSPolicy // "": RefuseMissingLFS

	Decider  Decider  // decides about pushes besides the hooks; may be nil
	Recorder Recorder // records pushes for later delivery; may be nil

	Registerer prometheus.Registerer // of metrics; may be nil
	Log        *slog.Logger          // nil: not logged
}

// Server serves pushes. It is safe for concurrent use.
type Server struct {
	options  Options
	metrics  *metrics
	log      *slog.Logger
	recovery *pushrecovery.Recovery
	memory   chan int64              // has one value: the bytes that the requests in memory need
	sync     func(path string) error // disk.SyncDir, except in tests
	env      []string                // added to Git's environment by tests
	started  func(pid int)           // called by tests when Git was started; may be nil
}

// New creates a Server. It replaces the content of Options.Scripts.
func New(o Options) (*Server, error) {
	if o.Runner == nil || o.Scripts == "" || o.Journal == "" {
		return nil, errors.New("receivepack: Runner, Scripts and Journal are required")
	}
	o.MaxCommands, o.MaxOptions = cmp.Or(o.MaxCommands, 100_000), cmp.Or(o.MaxOptions, 100)
	o.RepositoryHooks = cmp.Or(o.RepositoryHooks, RefuseHooks)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := writeScripts(o.Scripts); err != nil {
		return nil, fmt.Errorf("cannot write the hook scripts: %w", err)
	}
	s := &Server{options: o, metrics: newMetrics(o.Registerer), log: o.Log, memory: make(chan int64, 1),
		sync: disk.SyncDir}
	s.memory <- 0
	s.logUnusedHooks()
	s.recovery = pushrecovery.New(pushrecovery.Options{
		Journal: o.Journal, Runner: o.Runner, Class: ClassReceive, Log: s.log, Removed: s.metrics.recovered,
	})
	return s, nil
}

// Recovery returns what cleans up after killed pushes. Its Start has to be called before the first push.
func (s *Server) Recovery() *pushrecovery.Recovery { return s.recovery }

// MaxSize returns Options.MaxSize.
func (s *Server) MaxSize() int64 { return s.options.MaxSize }

// Close ends the work in the background. No push may be running.
func (s *Server) Close() { s.recovery.Close() }

// RepositoryHooks returns what happens to the hooks of repositories outside of a store.
func (s *Server) RepositoryHooks() RepositoryHooks { return s.options.RepositoryHooks }

// hookPolicy returns what happens to the hooks of a repository. Those in local copies of a store never run: users who
// can write to the bucket could run programs on all nodes.
func (s *Server) hookPolicy(r *repo.Repo) RepositoryHooks {
	if r.IsCopy() {
		return IgnoreHooks
	}
	return s.options.RepositoryHooks
}

// BeforeMaintenance runs the repository's own pre-auto-gc hooks, if hooks of repositories are run at all, as git
// receive-pack does before automatic maintenance. After an error the repository must not be maintained now.
func (s *Server) BeforeMaintenance(ctx context.Context, r *repo.Repo, path git.RepoPath) error {
	if s.hookPolicy(r) != RunHooks {
		return nil
	}
	programs, err := s.programs(r)
	if err != nil {
		return err
	}
	p := &pushSession{Server: s, target: Target{Repo: r, Path: path}, push: &Push{ID: rand.Text(), Repo: path}}
	p.hooks.programs = programs
	return p.runHooks(ctx, hookRun{event: repo.PreAutoGC}, &hookOutput{})
}

// Target is a repository that receives a push.
type Target struct {
	*repo.Repo
	Path        git.RepoPath // as the client named it
	Incarnation string       // that of git.Version
	// Changed is called with the updates that were made, before the client gets the report. It may be nil.
	Changed func(ctx context.Context, updates []Update)
	// Shadow is where Git runs the push, instead of Repo. Nil: in Repo.
	Shadow Shadow
	// LFS returns the states of LFS objects of the repository, in the order of the batch. If it is nil, pushes are not
	// checked for missing LFS objects.
	LFS func(ctx context.Context, b lfs.Batch) ([]lfs.Status, error)
	// Head is the branch of HEAD, which Server.Update needs to remove the locks of a killed Git; "": not known.
	Head git.RefName
	// Gates keep objects that the push needs from being removed. Nil: no object is removed.
	Gates *Gates
}

// hiddenPaths returns the paths that no client may see: of the repository, and of those whose objects it borrows.
func (t Target) hiddenPaths() []string {
	paths := []string{t.Common + "/"}
	for _, path := range t.Objects.AlternatePaths() {
		if lender, ok := strings.CutSuffix(path, "/objects"); ok && lender != "" {
			path = lender + "/"
		}
		paths = append(paths, path)
	}
	return paths
}
