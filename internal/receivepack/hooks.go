package receivepack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// ClassHook is the class of the administrator's hooks. Each runs within a push: as many as ClassReceive has slots never wait.
const ClassHook process.Class = "hook"

const (
	preReceive  = "pre-receive"
	update      = "update"
	postReceive = "post-receive"

	// maxSaid bounds what the hooks of one push may tell the client, in bytes; more is dropped. maxSaidLine bounds a line of it.
	maxSaid     = 64 << 10
	maxSaidLine = 1 << 10

	// hookLinger is how long the output of a hook that has ended is still read.
	hookLinger = time.Second
)

// A decision is made while git waits in a hook, with the new objects in quarantine. The hook that git runs is a script of ours. It knows
// nothing and can do nothing but ask the server that started git, on two pipes that it inherits: 4 to the server, 3 from it. When the server dies
// the pipes end, and the script refuses. The server asks the Decider and runs the administrator's hooks itself, with limits of their own.
//
// The script writes one line with its name and arguments, for pre-receive also its input and a line with a dot. It reads lines to show to the
// client, which begin with ">", and then "yes"; anything else, and the end, is a no.
const (
	scriptEnd = `
while IFS= read -r line <&3; do
	case $line in
	'>'*) printf '%s\n' "${line#?}" >&2 ;;
	yes) exit 0 ;;
	*) exit 1 ;;
	esac
done
exit 1
`
	preReceiveScript = "#!/bin/sh\n# Made at the start of the server; asks it.\n" +
		`{ printf 'pre-receive %s\n' "$GIT_QUARANTINE_PATH" && cat && printf '.\n'; } >&4 || exit 1` + scriptEnd
	updateScript = "#!/bin/sh\n# Made at the start of the server; asks it.\n" +
		`printf 'update %s %s %s\n' "$1" "$2" "$3" >&4 || exit 1` + scriptEnd
)

// Scripts are in directories by what has to be asked: git runs every hook that it finds.
const (
	scriptsOnce = "once" // pre-receive alone
	scriptsEach = "each" // update as well
)

// writeScripts makes the scripts in a directory of ours.
func writeScripts(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, text := range map[string]string{
		scriptsOnce + "/" + preReceive: preReceiveScript, scriptsEach + "/" + preReceive: preReceiveScript, scriptsEach + "/" + update: updateScript,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// asking is what one push needs of hooks.
type asking struct {
	scripts string // core.hooksPath; "": nobody is to be asked while git runs
	files   []*os.File
	ask     *os.File // what git's hooks write
	answer  *os.File // what they read
}

// hook is the path of one of the administrator's hooks, "" if there is none. One that cannot be run is an error: it was meant to say no.
func (s *Server) hook(name string) (string, error) {
	if s.options.Hooks == "" {
		return "", nil
	}
	path := filepath.Join(s.options.Hooks, name)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err == nil && !info.Mode().IsRegular():
		err = errors.New(path + " is no file")
	case err == nil:
		err = unix.Access(path, unix.X_OK)
	}
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, "the server's "+name+" hook cannot be run, so that no push is taken", err)
	}
	return path, nil
}

// asking finds out who is to be asked, and makes the pipes. We ask ourselves where the repository borrows objects, and note if we can when an
// atomic push was agreed to.
func (s *Server) asking(borrows, atomic bool) (*asking, error) {
	before, err := s.hook(preReceive)
	if err != nil {
		return nil, err
	}
	each, err := s.hook(update)
	if err != nil {
		return nil, err
	}
	a := &asking{}
	switch {
	case each != "":
		a.scripts = filepath.Join(s.options.Scripts, scriptsEach)
	case before != "" || s.options.Decider != nil || borrows:
		a.scripts = filepath.Join(s.options.Scripts, scriptsOnce)
	case atomic && s.options.Scripts != "" && unix.Access(filepath.Join(s.options.Scripts, scriptsOnce, preReceive), unix.X_OK) == nil:
		a.scripts = filepath.Join(s.options.Scripts, scriptsOnce)
	default:
		return a, nil
	}
	if s.options.Scripts == "" {
		return nil, fault.New(fault.Unavailable, "the server has no directory for scripts, so that nothing can be pushed to repositories with alternates")
	}
	if err := unix.Access(filepath.Join(a.scripts, preReceive), unix.X_OK); err != nil { // git would go on without it
		return nil, fault.Wrap(fault.Unavailable, "the server cannot run hooks from its state directory, so that no push is taken", err)
	}
	theirs3, answer, err := os.Pipe()
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot make a pipe", err)
	}
	ask, theirs4, err := os.Pipe()
	if err != nil {
		theirs3.Close()
		answer.Close()
		return nil, fault.Wrap(fault.Unavailable, "cannot make a pipe", err)
	}
	a.files, a.ask, a.answer = []*os.File{theirs3, theirs4}, ask, answer
	return a, nil
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

// answerHooks answers what git's hooks ask, until git and they have ended.
func (p *pushing) answerHooks(ctx context.Context, a *asking) {
	in := bufio.NewReader(a.ask)
	for {
		line, err := readLine(in, nil)
		if err != nil {
			return
		}
		said := &speech{say: func(text string) error { _, err := io.WriteString(a.answer, ">"+text+"\n"); return err }, left: maxSaid - p.said}
		err = p.decide(ctx, string(line), in, said)
		said.end()
		p.said = maxSaid - said.left
		verdict := "yes\n"
		if err != nil {
			verdict = "no\n"
		}
		if _, err := io.WriteString(a.answer, verdict); err != nil {
			return
		}
	}
}

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
	switch name {
	case preReceive:
		updates, input, err := p.readUpdates(in)
		if err == nil {
			err = p.beforeAll(ctx, rest, updates, input, said)
		}
		if err == nil {
			err = p.agreed(updates)
		}
		return err
	case update:
		if err := p.beforeOne(ctx, rest, said); err != nil {
			return err
		}
		p.each--
		return p.ready()
	}
	return fault.New(fault.Internal, "the hook %.40q asks, which is not known", name)
}

// beforeOne runs the administrator's hook for one ref.
func (p *pushing) beforeOne(ctx context.Context, rest string, said *speech) error {
	path, err := p.hook(update)
	if err != nil || path == "" {
		return err
	}
	args := strings.Split(rest, " ")
	if len(args) != 3 {
		return fault.New(fault.Internal, "git asks whether to update %.80q, which is no ref with two values", rest)
	}
	return p.runHook(ctx, hookRun{name: update, path: path, args: args}, said)
}

// agreed is called when all has been agreed to as a whole. If git has refused a part of it, it is not to be completed should git die.
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

// readUpdates reads the updates that are still to be made: git leaves away what it has refused itself. There is input for the administrator's hook only
// where that is.
func (p *pushing) readUpdates(in *bufio.Reader) (updates []Update, input []byte, err error) {
	updates = make([]Update, 0, len(p.request.commands))
	hook, err := p.hook(preReceive)
	hooked := err != nil || hook != ""
	if hooked {
		input = make([]byte, 0, len(p.request.head))
	}
	var line []byte
	for {
		if line, err = readLine(in, line[:0]); err != nil {
			return nil, nil, err
		}
		if string(line) == "." {
			return updates, input, nil
		}
		c, err := parseCommand(line, p.target.Format)
		if err != nil {
			return nil, nil, err
		}
		if u, ok := c.update(); ok {
			updates = append(updates, u)
		}
		if hooked {
			input = append(append(input, line...), '\n')
		}
	}
}

// beforeAll asks the Decider, and then the administrator's hook.
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
	path, err := p.hook(preReceive)
	if err != nil || path == "" {
		return err
	}
	return p.runHook(ctx, hookRun{name: preReceive, path: path, input: input, quarantine: quarantine}, said)
}

// hookRun is one run of one of the administrator's hooks (githooks(5)).
type hookRun struct {
	name, path string
	args       []string
	input      []byte
	quarantine string // where the new objects are; "": in the repository
}

// runHook runs a hook and passes on what it says. Its environment is made from scratch, like that of git.
func (p *pushing) runHook(ctx context.Context, h hookRun, said *speech) error {
	if p.options.HookTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.options.HookTime)
		defer cancel()
	}
	child, err := p.options.Runner.Start(ctx, process.Command{
		Class: ClassHook, Subcommand: h.name, Program: h.path, Args: h.args, Env: p.hookEnvironment(h), Dir: p.target.Dir,
		Caller: p.caller, Repository: p.target.Common, Stdin: bytes.NewReader(h.input), Stderr: said.text,
	})
	if err == nil {
		go func() { // what it left in another session may hold its output open for as long as it lives
			<-child.Done()
			child.Stdout().SetReadDeadline(time.Now().Add(hookLinger))
		}()
		buf := make([]byte, 4<<10)
		for err == nil {
			var n int
			n, err = child.Stdout().Read(buf)
			said.text(buf[:n])
		}
		if err != io.EOF {
			child.Kill()
		}
		_, err = child.Wait()
	}
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		said.text(fmt.Appendf(nil, "\nthe server's %s hook took longer than %v\n", h.name, p.options.HookTime))
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "a hook failed", slog.String("hook", h.name), slog.String("repository", p.push.Repo.String()), slog.Any("error", err))
	return err
}

func (p *pushing) hookEnvironment(h hookRun) []string {
	env := []string{
		"GIT_DIR=.",
		"PACKHORSE_USER=" + p.push.Pusher.Name, "PACKHORSE_ADDRESS=" + p.push.Pusher.Address,
		"PACKHORSE_REPOSITORY=" + p.push.Repo.String(), "PACKHORSE_PUSH=" + p.push.ID,
		// What a hook of the administrator's wants to reach, it may.
		"GIT_ALLOW_PROTOCOL=file:git:http:https:ssh", "GIT_SSH=ssh", "GIT_SSH_COMMAND=ssh",
	}
	if len(p.push.Options) > 0 {
		env = append(env, fmt.Sprintf("GIT_PUSH_OPTION_COUNT=%d", len(p.push.Options)))
	}
	for i, option := range p.push.Options {
		env = append(env, fmt.Sprintf("GIT_PUSH_OPTION_%d=%s", i, option))
	}
	if h.quarantine != "" {
		env = append(env, "GIT_QUARANTINE_PATH="+h.quarantine, "GIT_OBJECT_DIRECTORY="+h.quarantine,
			"GIT_ALTERNATE_OBJECT_DIRECTORIES="+quotePath(filepath.Join(p.target.Common, "objects")))
	}
	return env
}

// quotePath writes a path as an element of a list of paths (git(1), GIT_ALTERNATE_OBJECT_DIRECTORIES).
func quotePath(path string) string {
	if !strings.Contains(path, ":") && !strings.HasPrefix(path, `"`) {
		return path
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(path) + `"`
}

// after runs the administrator's post-receive hook, when the refs are changed. Whether it succeeds changes nothing, nor does a client that goes
// away, but for how long a hook may then run that has no limit.
func (p *pushing) after(client context.Context, done []Update) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(client))
	defer cancel()
	defer context.AfterFunc(client, func() {
		if p.options.HookTime == 0 {
			time.AfterFunc(settleLimit, cancel)
		}
	})()
	path, err := p.hook(postReceive)
	if err != nil || path == "" {
		return
	}
	var input []byte
	for _, u := range done {
		input = fmt.Appendf(input, "%s %s %s\n", u.Old, u.New, u.Ref)
	}
	said := &speech{say: func(text string) error { return p.out.say(text + "\n") }, left: maxSaid - p.said}
	_ = p.runHook(ctx, hookRun{name: postReceive, path: path, input: input}, said)
	said.end()
}

// speech passes on what hooks say, by lines, within bounds, and without what a terminal could take for a command. Safe for concurrent use.
type speech struct {
	say func(line string) error

	mu   sync.Mutex
	left int // bytes that may still be said
	line []byte
}

func (s *speech) text(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range b {
		switch {
		case s.left <= 0:
			return
		case c == '\n':
			s.flush()
			continue
		case c < ' ' && c != '\t' || c == 0x7f:
			c = ' '
		}
		s.left--
		if s.line = append(s.line, c); len(s.line) == maxSaidLine || s.left == 0 {
			s.flush()
		}
	}
}

func (s *speech) flush() {
	if len(s.line) > 0 && s.say(string(s.line)) != nil {
		s.left = 0
	}
	s.line = s.line[:0]
}

func (s *speech) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush()
}
