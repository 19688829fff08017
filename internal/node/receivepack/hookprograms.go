package receivepack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// RepositoryHooks is the policy for the hooks of repositories.
type RepositoryHooks string

// RunHooks is the only policy with which the configuration and files of a repository can run programs.
const (
	RefuseHooks RepositoryHooks = "refuse" // a repository with hooks rejects pushes; the default
	RunHooks    RepositoryHooks = "run"    // hooks run after the administrator's
	IgnoreHooks RepositoryHooks = "ignore" // hooks do not run
)

// program is one hook of an event.
type program struct {
	event repo.HookEvent
	owner string // for messages: "the server's", "the repository's"
	path  string
	args  []string // precede the arguments of the event
}

// programs are the hooks of a push by event, in the order in which they run.
type programs map[repo.HookEvent][]program

// programs returns the hooks of a push to a repository: the administrator's, and after them the repository's own if
// they are enabled. The error is Denied if the policy does not allow pushes to a repository with hooks, and Unavailable
// if a hook of the administrator cannot be executed.
func (s *Server) programs(r *repo.Repo) (programs, error) {
	all := make(programs)
	for _, event := range []repo.HookEvent{
		repo.PreReceive, repo.Update, repo.ReferenceTransaction, repo.PostReceive, repo.PostUpdate,
	} {
		path, err := s.serverHook(event)
		if err != nil {
			return nil, err
		}
		if path != "" {
			all[event] = append(all[event], program{event: event, owner: "the server's", path: path})
		}
	}
	own, err := s.repositoryHooks(r)
	if err != nil {
		return nil, err
	}
	for _, h := range own {
		p := program{event: h.Event, owner: "the repository's", path: h.File}
		if h.File == "" { // a configured command runs in a shell, as with Git
			p.path, p.args = "/bin/sh", []string{"-c", h.Command + ` "$@"`, h.Command}
		}
		all[h.Event] = append(all[h.Event], p)
	}
	return all, nil
}

// repositoryHooks returns the repository's own hooks that have to run. The error is Denied if the policy does not allow
// pushes to a repository with hooks.
func (s *Server) repositoryHooks(r *repo.Repo) ([]repo.Hook, error) {
	policy := s.hookPolicy(r)
	if policy == IgnoreHooks {
		return nil, nil
	}
	hooks, err := r.Hooks()
	if err != nil || len(hooks) == 0 || policy == RunHooks {
		return hooks, err
	}
	return nil, fault.New(fault.Denied,
		"pushes to this repository are refused, because it has a hook that this server does not run: %s. "+
			`The administrator can set push.repository_hooks to "run" or "ignore", or remove the hook`, hookNames(hooks))
}

// hookNames lists up to three hooks for people.
func hookNames(hooks []repo.Hook) string {
	const most = 3
	var names []string
	for _, h := range hooks[:min(len(hooks), most)] {
		names = append(names, fmt.Sprintf("%.80s", h.Name))
	}
	text := strings.Join(names, ", ")
	if more := len(hooks) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// serverHook returns the path of one of the administrator's hooks; "" if there is none. It is an error if the hook
// cannot be executed, because it might reject the push.
func (s *Server) serverHook(event repo.HookEvent) (string, error) {
	if s.options.Hooks == "" {
		return "", nil
	}
	path := filepath.Join(s.options.Hooks, string(event))
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err == nil && !info.Mode().IsRegular():
		err = fmt.Errorf("%s: not a regular file", path)
	case err == nil:
		if err = unix.Access(path, unix.X_OK); err != nil {
			err = &fs.PathError{Op: "execute", Path: path, Err: err}
		}
	}
	if err != nil {
		return "", fault.Wrap(fault.Unavailable,
			"push not accepted: the server cannot execute its "+string(event)+" hook", err)
	}
	return path, nil
}

// logUnusedHooks logs hooks in the administrator's directory that do not run, because only a repository can have a hook
// for their event.
func (s *Server) logUnusedHooks() {
	for _, event := range []repo.HookEvent{repo.ProcReceive, repo.PushToCheckout, repo.PreAutoGC} {
		if path, err := s.serverHook(event); err == nil && path != "" {
			s.log.Warn("a hook in the hooks directory does not run", "hook", string(event), "path", path)
		}
	}
}
