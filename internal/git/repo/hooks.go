package repo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// HookEvent is an event at which git runs hooks, by its name in githooks(5).
type HookEvent string

// The events of a push, in the order in which git receive-pack reaches them.
const (
	PreReceive           HookEvent = "pre-receive"
	ProcReceive          HookEvent = "proc-receive"
	Update               HookEvent = "update"
	PushToCheckout       HookEvent = "push-to-checkout"
	ReferenceTransaction HookEvent = "reference-transaction"
	PostReceive          HookEvent = "post-receive"
	PostUpdate           HookEvent = "post-update"
	PreAutoGC            HookEvent = "pre-auto-gc"
)

// Hook is a repository's program for an event: a file, or a command of its configuration.
type Hook struct {
	Event   HookEvent
	File    string // absolute path; "" if Command is set
	Command string // for sh -c
	// Name is its name in messages, without the path of the repository: "hooks/update", "hook.lint.command: update".
	Name string
}

// Hooks lists the repository's own hooks that git receive-pack would run on a push, in the order in which it would run
// them. Files that are not executable, such as the samples of git init, are not hooks. It costs one system call for
// each event. Errors: Denied for a core.hooksPath that cannot be resolved, Corrupt for a configuration that git would
// refuse, Unavailable if the disk fails.
func (r *Repo) Hooks() ([]Hook, error) {
	events, err := r.pushEvents()
	if err != nil {
		return nil, err
	}
	dir, name, err := r.hooksDir()
	if err != nil {
		return nil, err
	}
	configured, err := r.configuredHooks()
	if err != nil {
		return nil, err
	}
	var hooks []Hook
	for _, event := range events {
		for _, h := range configured {
			if h.Event == event {
				hooks = append(hooks, h)
			}
		}
		path := filepath.Join(dir, string(event))
		if err := unix.Access(path, unix.X_OK); err == nil { // as in git
			hooks = append(hooks, Hook{Event: event, File: path, Name: name + string(event)})
		} else if err := CannotTell(err); err != nil {
			return nil, fault.Wrap(fault.Unavailable, "cannot look for hooks of the repository", err)
		}
	}
	return hooks, nil
}

// PushHooks is Repo.Hooks for the repository at path, without opening it. The errors are also those of Open.
func PushHooks(path string, o Options) ([]Hook, error) {
	r, err := readSettings(path, o)
	if err != nil {
		return nil, err
	}
	return r.Hooks()
}

// readSettings returns a Repo that has only the configuration of the repository at path.
func readSettings(path string, o Options) (*Repo, error) {
	l, err := locate(path, o)
	if err != nil {
		return nil, err
	}
	r := &Repo{Dir: l.gitDir, Common: l.commonDir, options: o, layout: l}
	return r, r.configure()
}

// ReadConfig returns the configuration of the repository at path, and the directory that has it, without opening the
// repository. The errors are those of Open.
func ReadConfig(path string, o Options) (dir string, c Config, err error) {
	r, err := readSettings(path, o)
	if err != nil {
		return "", c, err
	}
	return r.Common, r.settings, nil
}

// pushEvents returns the events that a push to the repository can reach. It omits events that the configuration turns
// off: proc-receive without receive.procReceiveRefs, push-to-checkout without receive.denyCurrentBranch =
// updateInstead, and pre-auto-gc without receive.autogc.
func (r *Repo) pushEvents() ([]HookEvent, error) {
	events := []HookEvent{PreReceive}
	if refs, ok := r.settings.Get("receive.procreceiverefs"); ok && refs != "" {
		events = append(events, ProcReceive)
	}
	events = append(events, Update)
	if value, _ := r.settings.Get("receive.denycurrentbranch"); strings.EqualFold(value, "updateInstead") {
		events = append(events, PushToCheckout)
	}
	events = append(events, ReferenceTransaction, PostReceive, PostUpdate)
	autoGC, err := r.settings.Bool("receive.autogc", true)
	if err != nil {
		return nil, err
	}
	if autoGC {
		events = append(events, PreAutoGC)
	}
	return events, nil
}

// hooksDir returns the directory of the repository's hooks, and the prefix of a hook's name in messages (git-config(1),
// core.hooksPath).
func (r *Repo) hooksDir() (dir, name string, err error) {
	const key = "core.hookspath"
	value, ok := r.settings.Get(key)
	if !ok {
		return filepath.Join(r.Common, "hooks"), "hooks/", nil
	}
	switch rest, home := strings.CutPrefix(value, "~/"); {
	case home:
		dir, err := os.UserHomeDir()
		if err != nil {
			return "", "", fault.Wrap(fault.Denied,
				"the repository's core.hooksPath begins with ~/, and the server has no home directory", err)
		}
		value = filepath.Join(dir, rest)
	case strings.HasPrefix(value, "~") || strings.HasPrefix(value, "%("):
		return "", "", fault.New(fault.Denied,
			"the repository's core.hooksPath (%.80q) cannot be resolved: use a path without ~USER and %%(prefix)",
			value)
	case value == "":
		value = "/" // as in git
	}
	return relativeTo(r.Dir, value), "core.hooksPath: ", nil
}

// configuredHooks returns the commands that the configuration names for events (git-hook(1)), in its order.
func (r *Repo) configuredHooks() ([]Hook, error) {
	var hooks []Hook
	commands, disabled := make(map[string]string), make(map[string]bool)
	for _, v := range r.settings.variables {
		name, key, ok := hookKey(v.key)
		if !ok {
			continue
		}
		switch key {
		case "command":
			commands[name] = v.value
		case "enabled":
			on := true
			if err := v.readBool(&on); err != nil {
				return nil, err
			}
			disabled[name] = !on
		case "event": // the last mention determines the order
			hooks = slices.DeleteFunc(hooks, func(h Hook) bool {
				return h.Name == name && (v.value == "" || h.Event == HookEvent(v.value))
			})
			if v.value != "" {
				hooks = append(hooks, Hook{Event: HookEvent(v.value), Name: name})
			}
		}
	}
	running := hooks[:0]
	for _, h := range hooks {
		command, ok := commands[h.Name]
		if ok && !disabled[h.Name] && !disabled[string(h.Event)] {
			h.Command, h.Name = command, "hook."+h.Name+".command: "+string(h.Event)
			running = append(running, h)
		}
	}
	return running, nil
}

// hookKey splits hook.NAME.KEY.
func hookKey(full string) (name, key string, ok bool) {
	rest, ok := strings.CutPrefix(full, "hook.")
	dot := strings.LastIndexByte(rest, '.')
	if !ok || dot < 0 {
		return "", "", false
	}
	return rest[:dot], rest[dot+1:], true
}

// HooksOff returns configuration that keeps git from running the commands that the repository's configuration names for
// events, which core.hooksPath does not affect. It is nil if there are none.
func (r *Repo) HooksOff() [][2]string {
	var off [][2]string
	seen := make(map[string]bool)
	for _, v := range r.settings.variables {
		if name, _, ok := hookKey(v.key); ok && !seen[name] {
			seen[name] = true
			off = append(off, [2]string{"hook." + name + ".enabled", "false"})
		}
	}
	return off
}
