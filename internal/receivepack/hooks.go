package receivepack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// ClassHook is the class of hooks. Each runs within a push: as many as ClassReceive has slots never wait.
const ClassHook process.Class = "hook"

const (
	// maxSaid bounds what the hooks of one push may tell the client, in bytes; more is dropped. maxSaidLine bounds a
	// line of it.
	maxSaid     = 64 << 10
	maxSaidLine = 1 << 10
)

// A decision is made while git waits in a hook, with the new objects in quarantine. The hook that git runs is a script
// of ours. It knows nothing and can do nothing but ask the server that started git, on two pipes that it inherits: 4 to
// the server, 3 from it. When the server dies the pipes end, and the script refuses. The server asks the Decider and
// runs the hooks itself, with limits of their own.
//
// The script writes one line with its event and arguments; pre-receive and reference-transaction also write their input
// and a line with a dot. It reads lines to show to the client, which begin with ">", and then "yes"; anything else, and
// the end, is a no.
//
// A proc-receive hook talks with git on its standard input and output. So the script runs it itself, with the
// environment and the command that it reads by lines, which begin with "=" and "!", and tells the server of its end.
const (
	scriptStart = "#!/bin/sh\n# Made at the start of the server; asks it.\n"
	scriptEnd   = `
while IFS= read -r line <&3; do
	case $line in
	'>'*) printf '%s\n' "${line#?}" >&2 ;;
	yes) exit 0 ;;
	*) exit 1 ;;
	esac
done
exit 1
`
	procReceiveScript = scriptStart + `printf 'proc-receive\n' >&4 || exit 1
set --
while IFS= read -r line <&3; do
	case $line in
	'='*) set -- "$@" "${line#?}" ;;
	'!'*)
		env -i "$@" /bin/sh -c "${line#?}" 3<&- 4>&- 5<&-
		status=$?
		printf 'proc-receive %s\n' "$status" >&4
		exit "$status"
		;;
	*) exit 1 ;;
	esac
done
exit 1
`
)

// scripts are the hooks that git runs, by event.
func scripts() map[repo.HookEvent]string {
	return map[repo.HookEvent]string{
		repo.PreReceive: scriptStart +
			`{ printf 'pre-receive %s\n' "$GIT_QUARANTINE_PATH" && cat && printf '.\n'; } >&4 || exit 1` + scriptEnd,
		repo.Update: scriptStart + `printf 'update %s %s %s\n' "$1" "$2" "$3" >&4 || exit 1` + scriptEnd,
		repo.ReferenceTransaction: scriptStart +
			`{ printf 'reference-transaction %s\n' "$1" && cat && printf '.\n'; } >&4 || exit 1` + scriptEnd,
		repo.PushToCheckout: scriptStart +
			`printf 'push-to-checkout %s %s\n' "$1" "$GIT_WORK_TREE" >&4 || exit 1` + scriptEnd,
		repo.ProcReceive: procReceiveScript,
	}
}

// scriptDir is a directory of scripts, by what has to be asked: git runs every hook that it finds.
type scriptDir struct {
	name   string
	events []repo.HookEvent
}

const scriptsOnce = "once" // the least

// scriptDirs are the directories, from the one with the fewest events on. Each has pre-receive: that it was asked is
// checked.
func scriptDirs() []scriptDir {
	return []scriptDir{
		{scriptsOnce, []repo.HookEvent{repo.PreReceive}},
		{"each", []repo.HookEvent{repo.PreReceive, repo.Update}},
		{"all", []repo.HookEvent{
			repo.PreReceive, repo.Update, repo.ReferenceTransaction, repo.PushToCheckout, repo.ProcReceive,
		}},
	}
}

// writeScripts makes the scripts in a directory of ours.
func writeScripts(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	texts := scripts()
	for _, d := range scriptDirs() {
		if err := os.MkdirAll(filepath.Join(dir, d.name), 0o700); err != nil {
			return err
		}
		for _, event := range d.events {
			if err := os.WriteFile(filepath.Join(dir, d.name, string(event)), []byte(texts[event]), 0o700); err != nil {
				return err
			}
		}
	}
	return nil
}

// asking is what one push needs of hooks.
type asking struct {
	scripts string // core.hooksPath; "": nobody is to be asked while git runs
	events  []repo.HookEvent
	files   []*os.File
	ask     *os.File // what git's hooks write
	answer  *os.File // what they read
}

// asking finds out who is to be asked, and makes the pipes. We ask ourselves where the repository borrows objects, and
// note if we can when an atomic push was agreed to.
func (p *pushing) asking() (*asking, error) {
	a := &asking{}
	wanted := func(d scriptDir) bool {
		for event := range p.programs {
			switch event {
			case repo.PostReceive, repo.PostUpdate, repo.PreAutoGC: // git is not asked to run these
			default:
				if !slices.Contains(d.events, event) {
					return true
				}
			}
		}
		return false
	}
	dirs := scriptDirs()
	for len(dirs) > 1 && wanted(dirs[0]) {
		dirs = dirs[1:]
	}
	least := filepath.Join(p.options.Scripts, scriptsOnce, string(repo.PreReceive))
	switch {
	case len(dirs) < len(scriptDirs()), len(p.programs[repo.PreReceive]) > 0:
	case p.options.Decider != nil, p.target.borrows():
	case p.all() && p.options.Scripts != "" && unix.Access(least, unix.X_OK) == nil:
	default:
		return a, nil
	}
	if p.options.Scripts == "" {
		return nil, fault.New(fault.Unavailable,
			"the server has no directory for scripts, so that nothing can be pushed to repositories with alternates or hooks")
	}
	a.scripts, a.events = filepath.Join(p.options.Scripts, dirs[0].name), dirs[0].events
	for _, event := range a.events {
		// Git would go on without it.
		if err := unix.Access(filepath.Join(a.scripts, string(event)), unix.X_OK); err != nil {
			return nil, fault.Wrap(fault.Unavailable,
				"the server cannot run hooks from its state directory, so that no push is taken", err)
		}
	}
	return a, a.pipes()
}

// pipes makes the pipes between git's hooks and the server.
func (a *asking) pipes() error {
	theirs3, answer, err := os.Pipe()
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot make a pipe", err)
	}
	ask, theirs4, err := os.Pipe()
	if err != nil {
		theirs3.Close()
		answer.Close()
		return fault.Wrap(fault.Unavailable, "cannot make a pipe", err)
	}
	a.files, a.ask, a.answer = []*os.File{theirs3, theirs4}, ask, answer
	return nil
}

// started lets go of git's ends of the pipes.
func (a *asking) started() {
	for _, f := range a.files {
		f.Close()
	}
	a.files = nil
}

func (a *asking) close() {
	a.started()
	if a.ask != nil {
		a.ask.Close()
		a.answer.Close()
	}
}

// answerHooks answers what git's hooks ask, until git and they have ended. Stop ends git.
func (p *pushing) answerHooks(ctx context.Context, a *asking, stop func()) {
	in := bufio.NewReader(a.ask)
	for {
		line, err := readLine(in, nil)
		if err != nil {
			return
		}
		if string(line) == string(repo.ProcReceive) {
			if !p.answerProcReceive(ctx, in, a.answer, stop) {
				return
			}
			continue
		}
		say := func(text string) error { _, err := io.WriteString(a.answer, ">"+text+"\n"); return err }
		if strings.HasPrefix(string(line), string(repo.ReferenceTransaction)) { // git would not pass it on
			say = func(text string) error { p.unsaid = append(p.unsaid, text+"\n"...); return nil }
		}
		said := &speech{say: say, left: maxSaid - p.said}
		err = p.decide(ctx, string(line), in, said)
		said.end()
		p.said = maxSaid - said.left
		verdict := "yes\n"
		if err != nil {
			verdict, p.declined = "no\n", err
		}
		if _, err := io.WriteString(a.answer, verdict); err != nil {
			return
		}
	}
}

// answerProcReceive has the script run the repository's proc-receive hook, and waits for its end. It reports whether it
// came: one that takes too long ends the push.
func (p *pushing) answerProcReceive(ctx context.Context, in *bufio.Reader, answer io.Writer, stop func()) bool {
	hooks := p.programs[repo.ProcReceive]
	env, err := p.hookEnvironment(ctx, hookRun{})
	if err != nil || len(hooks) == 0 {
		_, err = io.WriteString(answer, "no\n")
		return err == nil
	}
	var text strings.Builder
	command := process.Command{Program: hooks[0].path, Env: env, Config: p.hookConfig}
	for _, setting := range p.options.Runner.Environment(command) {
		fmt.Fprintf(&text, "=%s\n", strings.ReplaceAll(setting, "\n", " "))
	}
	run := shellQuote(hooks[0].path)
	if len(hooks[0].args) > 0 { // sh -c COMMAND
		run = hooks[0].args[1]
	}
	fmt.Fprintf(&text, "!%s\n", strings.ReplaceAll(run, "\n", " "))
	if _, err := io.WriteString(answer, text.String()); err != nil {
		return false
	}
	if p.options.HookTime > 0 {
		defer time.AfterFunc(p.options.HookTime, func() {
			p.log.LogAttrs(ctx, slog.LevelInfo, "a hook failed", slog.String("hook", string(repo.ProcReceive)),
				slog.String("repository", p.push.Repo.String()), slog.String("error", "it took too long"))
			stop()
		}).Stop()
	}
	_, err = readLine(in, nil)
	return err == nil
}

// shellQuote writes a text as one word of the shell.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// maxHookLine is a line of git's hooks: two IDs and a name, or a path.
const maxHookLine = 2*64 + git.MaxRefName + 4<<10

// readLine appends a line to a buffer, without its end.
func readLine(in *bufio.Reader, line []byte) ([]byte, error) {
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxHookLine:
			return nil, errors.New("a line is too long")
		case err == nil:
			return line[:len(line)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// decide answers one question. What refuses it is told to the client.
func (p *pushing) decide(ctx context.Context, line string, in *bufio.Reader, said *speech) error {
	name, rest, _ := strings.Cut(line, " ")
	switch event := repo.HookEvent(name); event {
	case repo.PreReceive:
		updates, input, err := p.readUpdates(in)
		if err == nil {
			err = p.beforeAll(ctx, rest, updates, input, said)
		}
		if err == nil {
			err = p.agreed(updates)
		}
		return err
	case repo.Update:
		args := strings.Split(rest, " ")
		if len(args) != 3 {
			return fault.New(fault.Internal, "git asks whether to update %.80q, which is no ref with two values", rest)
		}
		if err := p.runHooks(ctx, hookRun{event: event, args: args}, said); err != nil {
			return err
		}
		p.each--
		return p.ready()
	case repo.ReferenceTransaction:
		input, err := p.readInput(in)
		if err != nil {
			return err
		}
		if err := p.runHooks(ctx, hookRun{event: event, args: []string{rest}, input: input}, said); err != nil {
			p.aborted = true
			return err
		}
		return nil
	case repo.PushToCheckout:
		id, tree, _ := strings.Cut(rest, " ")
		if !filepath.IsAbs(tree) || len(p.programs[event]) == 0 {
			return fault.New(fault.Internal, "git asks to check out into %.80q", tree)
		}
		return p.runHooks(ctx, hookRun{event: event, args: []string{id}, worktree: tree}, said)
	}
	return fault.New(fault.Internal, "the hook %.40q asks, which is not known", name)
}

// agreed is called when all has been agreed to as a whole. If git has refused a part of it, it is not to be completed
// should git die.
func (p *pushing) agreed(updates []Update) error {
	p.each = -1
	if p.entry == nil || len(p.entry.note.Olds) == 0 || len(updates) != len(p.request.commands) {
		return nil
	}
	p.each = 0
	if p.asksEach {
		p.each = len(updates)
	}
	return p.ready()
}

// ready notes that there is nothing more to ask: git sets the refs of an atomic push next.
func (p *pushing) ready() error {
	if p.each != 0 {
		return nil
	}
	if err := p.entry.agree(); err != nil {
		return fault.Wrap(fault.Unavailable, "cannot write to the state directory, so that the push is not taken", err)
	}
	return nil
}

// readUpdates reads the updates that are still to be made: git leaves away what it has refused itself. There is input
// for hooks only where they are.
func (p *pushing) readUpdates(in *bufio.Reader) (updates []Update, input []byte, err error) {
	updates = make([]Update, 0, len(p.request.commands))
	hooked := len(p.programs[repo.PreReceive]) > 0
	if hooked {
		input = make([]byte, 0, len(p.request.head))
	}
	err = p.readInputLines(in, func(line []byte) error {
		c, err := parseCommand(line, p.target.Format)
		if err != nil {
			return err
		}
		if u, ok := c.update(); ok {
			updates = append(updates, u)
		}
		if hooked {
			input = append(append(input, line...), '\n')
		}
		return nil
	})
	return updates, input, err
}

// readInput reads the input of a hook.
func (p *pushing) readInput(in *bufio.Reader) (input []byte, err error) {
	err = p.readInputLines(in, func(line []byte) error {
		if len(input) > 2*maxHead {
			return errors.New("the input of a hook is too long")
		}
		input = append(append(input, line...), '\n')
		return nil
	})
	return input, err
}

// readInputLines calls take with each line of the input of a hook. The line is good until the next call.
func (p *pushing) readInputLines(in *bufio.Reader, take func(line []byte) error) error {
	var line []byte
	for {
		var err error
		if line, err = readLine(in, line[:0]); err != nil {
			return err
		}
		if string(line) == "." {
			return nil
		}
		if err := take(line); err != nil {
			return err
		}
	}
}

// beforeAll asks the Decider, and then the hooks.
func (p *pushing) beforeAll(ctx context.Context, quarantine string, updates []Update, input []byte, said *speech) error {
	p.decided = true
	if p.target.borrows() {
		if err := p.checkBorrowed(ctx, quarantine, updates); err != nil {
			said.text([]byte(fault.Message(err) + "\n"))
			return err
		}
	}
	if p.options.Decider != nil {
		asked := *p.push
		asked.Updates = updates
		if err := p.options.Decider.Decide(ctx, &asked); err != nil {
			said.text([]byte(fault.Message(err) + "\n"))
			p.log.LogAttrs(ctx, slog.LevelInfo, "a push was refused", slog.String("repository", p.push.Repo.String()), slog.Any("error", err))
			return err
		}
	}
	return p.runHooks(ctx, hookRun{event: repo.PreReceive, input: input, quarantine: quarantine}, said)
}

// hookRun is one event at which hooks are run (githooks(5)).
type hookRun struct {
	event      repo.HookEvent
	args       []string
	input      []byte
	quarantine string // where the new objects are; "": in the repository
	worktree   string // that push-to-checkout is about
}

// runHooks runs the hooks of an event until one fails, and passes on what they say.
func (p *pushing) runHooks(ctx context.Context, h hookRun, said *speech) error {
	for _, hook := range p.programs[h.event] {
		if err := p.runHook(ctx, hook, h, said); err != nil {
			return err
		}
	}
	return nil
}

func (p *pushing) runHook(ctx context.Context, hook program, h hookRun, said *speech) error {
	if p.options.HookTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.options.HookTime)
		defer cancel()
	}
	env, err := p.hookEnvironment(ctx, h)
	if err == nil {
		var child *process.Process
		child, err = p.options.Runner.Start(ctx, process.Command{
			Class: ClassHook, Subcommand: string(h.event), Program: hook.path, Args: slices.Concat(hook.args, h.args),
			Env: env, Config: p.hookConfig, Dir: p.target.Dir, Caller: p.caller, Repository: p.target.Common,
			Stdin: bytes.NewReader(h.input), Stderr: said.text, StdoutToStderr: true,
		})
		if err == nil {
			_, err = child.Wait()
		}
	}
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		said.text(fmt.Appendf(nil, "\n%s %s hook took longer than %v\n", hook.owner, h.event, p.options.HookTime))
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "a hook failed", slog.String("hook", string(h.event)),
		slog.String("program", hook.path), slog.String("repository", p.push.Repo.String()), slog.Any("error", err))
	return err
}

// after runs the hooks that are told what was changed. Whether they succeed changes nothing, nor does a client that
// goes away, but for how long a hook may then run that has no limit.
func (p *pushing) after(client context.Context, done []Update) {
	if len(p.programs[repo.PostReceive]) == 0 && len(p.programs[repo.PostUpdate]) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(client))
	defer cancel()
	defer context.AfterFunc(client, func() {
		if p.options.HookTime == 0 {
			time.AfterFunc(settleLimit, cancel)
		}
	})()
	var input []byte
	var names []string
	for _, u := range done {
		input = fmt.Appendf(input, "%s %s %s\n", u.Old, u.New, u.Ref)
		names = append(names, string(u.Ref))
	}
	said := &speech{say: func(text string) error { return p.out.say(text + "\n") }, left: maxSaid - p.said}
	for _, h := range []hookRun{{event: repo.PostReceive, input: input}, {event: repo.PostUpdate, args: names}} {
		for _, hook := range p.programs[h.event] {
			_ = p.runHook(ctx, hook, h, said)
		}
	}
	said.end()
}
