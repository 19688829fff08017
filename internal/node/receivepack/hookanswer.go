package receivepack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// hookState is what a push knows about its hooks. While Git runs, only the goroutine of answerHooks uses it.
type hookState struct {
	programs  programs
	config    [][2]string // configuration for Git within hooks; nil until it is needed
	active    bool        // Git runs our scripts
	hasUpdate bool        // also for each ref
	pending   int         // updates that the update hook has to accept; negative: Git itself has refused some

	checkedLFS bool // the push was checked for missing LFS objects
	missingLFS bool // and refused

	asksRules bool                   // the rules of the pusher may refuse updates
	ruled     map[git.RefName]string // and why they do

	consulted         bool  // Git has run the pre-receive script
	ranProcReceive    bool  // Git has run the proc-receive hook
	transactionFailed bool  // a reference-transaction hook has failed, which can make Git exit
	rejection         error // of the last question that was answered with no
	outputBytes       int   // bytes of output that the client got
}

// hookQuestions are the questions that Git's hook scripts ask the server.
type hookQuestions struct {
	scripts string // core.hooksPath; "": Git runs no hooks
	// checks reports that the scripts only check LFS objects. They exist once the pack may have a pointer file.
	checks bool
	events []repo.HookEvent
	files  []*os.File // Git's ends of the pipes
	in     *os.File   // what the scripts write
	out    *os.File   // what they read
}

// prepareHooks chooses the scripts that Git runs, and creates the pipes. Scripts also run without hooks: to check
// borrowed and LFS objects, to ask the Decider, and if the destination of the push needs them.
func (p *pushSession) prepareHooks(hasScripts bool) (*hookQuestions, error) {
	q := &hookQuestions{}
	dirs := scriptDirs()
	isSplit := p.hooks.asksRules && len(p.push.Updates) > 1 // some updates may be made, and others not
	for len(dirs) > 1 && (!p.hooks.programs.runIn(dirs[0]) || isSplit && !slices.Contains(dirs[0].events, repo.Update)) {
		dirs = dirs[1:]
	}
	switch {
	case len(dirs) < len(scriptDirs()), len(p.hooks.programs[repo.PreReceive]) > 0:
	case p.options.Decider != nil, p.target.borrows(), p.hooks.asksRules, len(p.target.Purged()) > 0:
	case hasScripts:
	case p.target.Shadow == nil && p.checksLFS():
		dirs, q.checks = []scriptDir{checkScript}, true
	default:
		return q, nil
	}
	q.scripts, q.events = filepath.Join(p.options.Scripts, dirs[0].name), dirs[0].events
	for _, event := range q.events {
		// Git would ignore a script that it cannot execute.
		if err := unix.Access(filepath.Join(q.scripts, string(event)), unix.X_OK); err != nil {
			return nil, fault.Wrap(fault.Unavailable,
				"push not accepted: the server cannot execute hooks in its state directory", err)
		}
	}
	if q.checks {
		q.scripts = filepath.Join(p.options.Scripts, "check-"+p.push.ID)
	}
	return q, q.openPipes()
}

// runIn reports whether a directory has a script for each hook that Git has to run.
func (p programs) runIn(d scriptDir) bool {
	for event := range p {
		switch event {
		case repo.PostReceive, repo.PostUpdate, repo.PreAutoGC: // run by the server itself
		default:
			if !slices.Contains(d.events, event) {
				return false
			}
		}
	}
	return true
}

func (q *hookQuestions) openPipes() error {
	childIn, out, err := os.Pipe()
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot create a pipe", err)
	}
	in, childOut, err := os.Pipe()
	if err != nil {
		childIn.Close()
		out.Close()
		return fault.Wrap(fault.Unavailable, "cannot create a pipe", err)
	}
	q.files, q.in, q.out = []*os.File{childIn, childOut}, in, out
	return nil
}

// closeChildFiles closes Git's ends of the pipes in this process.
func (q *hookQuestions) closeChildFiles() {
	for _, f := range q.files {
		f.Close()
	}
	q.files = nil
}

func (q *hookQuestions) close() {
	if q.checks {
		_ = os.Remove(q.scripts) // if it was made
	}
	q.closeChildFiles()
	if q.in != nil {
		q.in.Close()
		q.out.Close()
	}
}

// answerHooks answers the questions of Git's hooks until all have ended. kill ends Git.
func (p *pushSession) answerHooks(ctx context.Context, q *hookQuestions, kill func()) {
	in := bufio.NewReader(q.in)
	for {
		line, err := readLine(in, nil)
		if err != nil {
			return
		}
		if string(line) == string(repo.ProcReceive) {
			if !p.answerProcReceive(ctx, in, q.out, kill) {
				return
			}
			continue
		}
		write := func(text string) error { _, err := io.WriteString(q.out, ">"+text+"\n"); return err }
		switch name, _, _ := strings.Cut(string(line), " "); repo.HookEvent(name) {
		case repo.ReferenceTransaction, repo.PushToCheckout: // Git would not send it to the client
			write = p.out.hookText
		}
		output := p.newHookOutput(write)
		err = p.answerQuestion(ctx, string(line), in, output)
		output.close()
		p.hooks.outputBytes = maxHookOutput - output.remaining
		answer := "yes\n"
		if err != nil {
			answer, p.hooks.rejection = "no\n", err
		}
		if _, err := io.WriteString(q.out, answer); err != nil {
			return
		}
	}
}

// answerProcReceive has the script run the repository's proc-receive hook, and waits for its end. A hook that takes too
// long ends the push. It reports whether the script can ask more questions.
func (p *pushSession) answerProcReceive(ctx context.Context, in *bufio.Reader, out io.Writer, kill func()) bool {
	hooks := p.hooks.programs[repo.ProcReceive]
	env, err := p.hookEnvironment(ctx, hookRun{})
	if err != nil || len(hooks) == 0 {
		_, err = io.WriteString(out, "no\n")
		return err == nil
	}
	p.hooks.ranProcReceive = true
	var text strings.Builder
	command := process.Command{Program: hooks[0].path, Env: env, Config: p.hooks.config}
	for _, setting := range p.options.Runner.Environment(command) {
		fmt.Fprintf(&text, "=%s\n", strings.ReplaceAll(setting, "\n", " "))
	}
	run := shellQuote(hooks[0].path)
	if len(hooks[0].args) > 0 { // sh -c COMMAND
		run = hooks[0].args[1]
	}
	fmt.Fprintf(&text, "!%s\n", strings.ReplaceAll(run, "\n", " "))
	if _, err := io.WriteString(out, text.String()); err != nil {
		return false
	}
	if p.options.HookTime > 0 {
		defer time.AfterFunc(p.options.HookTime, func() {
			p.log.Info("a hook failed", "hook", string(repo.ProcReceive), "repository", p.push.Repo.String(),
				"error", "it exceeded its time limit")
			kill()
		}).Stop()
	}
	_, err = readLine(in, nil)
	return err == nil
}

// shellQuote quotes a text as one word of the shell.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// answerQuestion answers one question. An error means no, and is shown to the client.
func (p *pushSession) answerQuestion(ctx context.Context, line string, in *bufio.Reader, output *hookOutput) error {
	name, args, _ := strings.Cut(line, " ")
	switch event := repo.HookEvent(name); event {
	case repo.PreReceive:
		updates, input, err := p.readHookUpdates(in)
		if err == nil {
			err = p.decide(ctx, args, slices.Clone(updates), input, output)
		}
		if err == nil {
			p.hooks.pending = len(updates) - len(p.request.commands)
			if p.hooks.hasUpdate && p.hooks.pending == 0 {
				p.hooks.pending = len(updates)
			}
			err = p.accepted()
		}
		return err
	case objectsQuestion:
		p.hooks.consulted = true
		return p.checkLFS(ctx, args, func(text string) { output.write([]byte(text)) })
	case repo.Update:
		fields := strings.Split(args, " ")
		if len(fields) != 3 {
			return fault.New(fault.Internal, "update hook: got arguments %.80q, want a ref and two object IDs", args)
		}
		if reason := p.hooks.ruled[git.RefName(fields[0])]; reason != "" {
			return fault.New(fault.Denied, "%s: %s", fault.Short(fields[0]), reason)
		}
		if err := p.runHooks(ctx, hookRun{event: event, args: fields}, output); err != nil {
			return err
		}
		p.hooks.pending--
		return p.accepted()
	case repo.ReferenceTransaction:
		input, err := readHookInput(in)
		if err != nil {
			return err
		}
		if err := p.runHooks(ctx, hookRun{event: event, args: []string{args}, input: input}, output); err != nil {
			p.hooks.transactionFailed = true
			return err
		}
		return nil
	case repo.PushToCheckout:
		id, tree, _ := strings.Cut(args, " ")
		if !filepath.IsAbs(tree) || len(p.hooks.programs[event]) == 0 {
			return fault.New(fault.Internal, "push-to-checkout hook: unexpected working tree %.80q", tree)
		}
		return p.runHooks(ctx, hookRun{event: event, args: []string{id}, worktree: tree}, output)
	}
	return fault.New(fault.Internal, "unknown hook %.40q", name)
}

// accepted calls agreed of the destination when hooks have accepted all updates.
func (p *pushSession) accepted() error {
	if p.hooks.pending != 0 {
		return nil
	}
	return p.destination.agreed()
}

// decide compares the push with the rules of its user, checks what it borrows and its LFS objects, asks the Decider,
// runs the pre-receive hooks, and passes the gate.
func (p *pushSession) decide(ctx context.Context, quarantine string, updates []Update, input []byte,
	output *hookOutput) error {
	p.hooks.consulted = true
	if err := p.checkRules(ctx, quarantine, updates); err != nil {
		if len(p.hooks.ruled) == 0 { // the report has the reasons
			output.write([]byte(fault.Message(err) + "\n"))
		}
		return err
	}
	updates = slices.DeleteFunc(updates, func(u Update) bool { return p.hooks.ruled[u.Ref] != "" })
	if p.target.borrows() {
		if err := p.checkBorrowed(ctx, quarantine, updates); err != nil {
			output.write([]byte(fault.Message(err) + "\n"))
			return err
		}
	}
	if err := p.checkPurged(ctx, quarantine, updates); err != nil {
		output.write([]byte(fault.Message(err) + "\n"))
		return err
	}
	if err := p.checkLFS(ctx, quarantine, func(text string) { output.write([]byte(text)) }); err != nil {
		return err
	}
	if p.options.Decider != nil {
		push := *p.push
		var err error
		if push.Updates, err = p.classifyQuarantined(ctx, quarantine, updates); err == nil {
			err = p.options.Decider.Decide(ctx, &push)
		}
		if err != nil {
			output.write([]byte(fault.Message(err) + "\n"))
			p.log.Info("a push was refused", "repository", p.push.Repo.String(), "error", err)
			return err
		}
	}
	err := p.runHooks(ctx, hookRun{event: repo.PreReceive, input: input, quarantine: quarantine}, output)
	if err == nil {
		if err = p.pass(ctx, quarantine, updates); err != nil {
			output.write([]byte(fault.Message(err) + "\n"))
		}
	}
	return err
}

// maxHookLine is the maximum length of a line of a hook in bytes: two IDs and a name, or a path.
const maxHookLine = 2*64 + git.MaxRefName + 4<<10

// readLine appends a line to a buffer, without its newline.
func readLine(in *bufio.Reader, line []byte) ([]byte, error) {
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxHookLine:
			return nil, errors.New("hook input: a line is too long")
		case err == nil:
			return line[:len(line)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// readHookUpdates reads the updates that Git has not refused itself. The input is for the hooks, and nil if there are
// none.
func (p *pushSession) readHookUpdates(in *bufio.Reader) (updates []Update, input []byte, err error) {
	updates = make([]Update, 0, len(p.request.commands))
	hasHooks := len(p.hooks.programs[repo.PreReceive]) > 0
	if hasHooks {
		input = make([]byte, 0, len(p.request.head))
	}
	err = readInputLines(in, func(line []byte) error {
		c, err := parseCommand(line, p.target.Format)
		if err != nil {
			return err
		}
		if u, ok := c.update(); ok {
			updates = append(updates, u)
		}
		if hasHooks {
			input = append(append(input, line...), '\n')
		}
		return nil
	})
	return updates, input, err
}

func readHookInput(in *bufio.Reader) (input []byte, err error) {
	err = readInputLines(in, func(line []byte) error {
		if len(input) > 2*maxHead {
			return errors.New("hook input: too long")
		}
		input = append(append(input, line...), '\n')
		return nil
	})
	return input, err
}

// readInputLines calls fn with each line of a hook's input. A line is valid until the next one is read.
func readInputLines(in *bufio.Reader, fn func(line []byte) error) error {
	var line []byte
	for {
		var err error
		if line, err = readLine(in, line[:0]); err != nil {
			return err
		}
		if string(line) == "." {
			return nil
		}
		if err := fn(line); err != nil {
			return err
		}
	}
}
