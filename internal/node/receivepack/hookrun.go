package receivepack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ClassHook is the class of hooks. A hook runs within a push, so hooks never wait if there are at least as many slots
// as for ClassReceive.
const ClassHook process.Class = "hook"

// hookRun is one event for which hooks are run (githooks(5)).
type hookRun struct {
	event      repo.HookEvent
	args       []string
	input      []byte
	quarantine string // directory of the new objects; "": they are in the repository
	worktree   string // of push-to-checkout
}

// runHooks runs the hooks of an event until one fails, and passes on their output.
func (p *pushSession) runHooks(ctx context.Context, run hookRun, output *hookOutput) error {
	for _, hook := range p.hooks.programs[run.event] {
		if err := p.runHook(ctx, hook, run, output); err != nil {
			return err
		}
	}
	return nil
}

func (p *pushSession) runHook(ctx context.Context, hook program, run hookRun, output *hookOutput) error {
	if p.options.HookTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.options.HookTime)
		defer cancel()
	}
	err := p.startHook(ctx, hook, run, output)
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		output.write(fmt.Appendf(nil, "\n%s %s hook exceeded its time limit of %v\n", hook.owner, run.event,
			p.options.HookTime))
	}
	p.log.Info("a hook failed", "hook", string(run.event), "program", hook.path, "repository", p.push.Repo.String(),
		"error", err)
	return err
}

// startHook runs a hook to its end.
func (p *pushSession) startHook(ctx context.Context, hook program, run hookRun, output *hookOutput) error {
	env, err := p.hookEnvironment(ctx, run)
	if err != nil {
		return err
	}
	child, err := p.options.Runner.Start(ctx, process.Command{
		Class: ClassHook, Subcommand: string(run.event), Program: hook.path, Args: slices.Concat(hook.args, run.args),
		Env: env, Config: p.hooks.config, Dir: p.target.Dir, Caller: p.caller, Repository: p.target.Common,
		Stdin: bytes.NewReader(run.input), Stderr: output.write, StdoutToStderr: true,
	})
	if err != nil {
		return err
	}
	_, err = child.Wait()
	return err
}

// runPostHooks runs the post-receive and post-update hooks. Their failures are ignored. They continue if the client
// disconnects, but hooks without a time limit then end after finalizeTimeout.
func (p *pushSession) runPostHooks(client context.Context, updates []Update) {
	if len(p.hooks.programs[repo.PostReceive]) == 0 && len(p.hooks.programs[repo.PostUpdate]) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(client))
	defer cancel()
	defer context.AfterFunc(client, func() {
		if p.options.HookTime == 0 {
			time.AfterFunc(finalizeTimeout, cancel)
		}
	})()
	var input []byte
	var names []string
	for _, u := range updates {
		input = fmt.Appendf(input, "%s %s %s\n", u.Old, u.New, u.Ref)
		names = append(names, string(u.Ref))
	}
	output := p.newHookOutput(func(text string) error { return p.out.say(text + "\n") })
	for _, run := range []hookRun{{event: repo.PostReceive, input: input}, {event: repo.PostUpdate, args: names}} {
		for _, hook := range p.hooks.programs[run.event] {
			_ = p.runHook(ctx, hook, run, output)
		}
	}
	output.close()
}
