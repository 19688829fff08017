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
	"github.com/packhorse-git/packhorse/internal/repo"
)

// RepositoryHooks says what becomes of the hooks that a repository has itself.
type RepositoryHooks string

// A repository's configuration and files run programs of its choice only with RunHooks.
const (
	RefuseHooks RepositoryHooks = "refuse" // a repository that has some takes no pushes; the default
	RunHooks    RepositoryHooks = "run"    // they are run after the administrator's
	IgnoreHooks RepositoryHooks = "ignore" // they are not run
)

// program is one hook that is run for an event.
type program struct {
	event repo.HookEvent
	owner string   // for messages: "the server's", "the repository's"
	path  string   // of the program
	args  []string // before those of the hook
}

// programs are the hooks of a push by event, in the order in which they are run.
type programs map[repo.HookEvent][]program

// programs finds the hooks of a push to a repository: the administrator's, and after them the repository's own if they
// are run. Errors: Denied if the repository has hooks and they are neither run nor ignored, Unavailable if one of the
// administrator's cannot be run.
func (s *Server) programs(r *repo.Repo) (programs, error) {
	all := make(programs)
	for _, event := range []repo.HookEvent{
		repo.PreReceive, repo.Update, repo.ReferenceTransaction, repo.PostReceive, repo.PostUpdate,
	} {
		path, err := s.hook(event)
		if err != nil {
			return nil, err
		}
		if path != "" {
			all[event] = append(all[event], program{event: event, owner: "the server's", path: path})
		}
	}
	own, err := s.ownHooks(r)
	if err != nil {
		return nil, err
	}
	for _, h := range own {
		p := program{event: h.Event, owner: "the repository's", path: h.File}
		if h.File == "" { // as git runs them: the arguments of the hook follow
			p.path, p.args = "/bin/sh", []string{"-c", h.Command + ` "$@"`, h.Command}
		}
		all[h.Event] = append(all[h.Event], p)
	}
	return all, nil
}

// ownHooks are the repository's own hooks that are to be run. Where some are that are neither to be run nor ignored,
// the error is Denied.
func (s *Server) ownHooks(r *repo.Repo) ([]repo.Hook, error) {
	if s.options.RepositoryHooks == IgnoreHooks {
		return nil, nil
	}
	hooks, err := r.Hooks()
	if err != nil || len(hooks) == 0 || s.options.RepositoryHooks == RunHooks {
		return hooks, err
	}
	return nil, fault.New(fault.Denied,
		"pushes to this repository are refused, because it has a hook that this server does not run: %s; "+
			`its administrator can set push.repository_hooks to "run" or "ignore", or remove the hook`, hookNames(hooks))
}

// hookNames names some hooks for people.
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

// hook is the path of one of the administrator's hooks, "" if there is none. One that cannot be run is an error: it was
// meant to say no.
func (s *Server) hook(event repo.HookEvent) (string, error) {
	if s.options.Hooks == "" {
		return "", nil
	}
	path := filepath.Join(s.options.Hooks, string(event))
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err == nil && !info.Mode().IsRegular():
		err = errors.New(path + " is no file")
	case err == nil:
		if err = unix.Access(path, unix.X_OK); err != nil {
			err = &fs.PathError{Op: "execute", Path: path, Err: err}
		}
	}
	if err != nil {
		return "", fault.Wrap(fault.Unavailable,
			"the server's "+string(event)+" hook cannot be run, so that no push is taken", err)
	}
	return path, nil
}

// tellUnused tells the log of hooks in the administrator's directory that are run in repositories' own alone.
func (s *Server) tellUnused() {
	for _, event := range []repo.HookEvent{repo.ProcReceive, repo.PushToCheckout, repo.PreAutoGC} {
		if path, err := s.hook(event); err == nil && path != "" {
			s.log.Warn("a hook of the hooks directory is not run", "hook", string(event), "path", path)
		}
	}
}
