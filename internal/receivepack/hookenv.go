package receivepack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// hookConfig is configuration for git within hooks. What a repository's own configuration names as a program to be run
// has git's default in its place, and after that the administrator's choice (Options.HooksConfig). Drivers by name
// (filter.*, diff.*, merge.*, alias.*) cannot be listed.
func hookConfig() [][2]string {
	return [][2]string{
		{"core.fsmonitor", "false"},
		{"core.alternateRefsCommand", "true"},
		{"core.sshCommand", "ssh"},
		{"core.gitProxy", ""},
		{"core.askPass", "false"},
		{"credential.helper", ""}, // none of those before it
		{"gpg.program", "gpg"},
		{"gpg.openpgp.program", "gpg"},
		{"gpg.x509.program", "gpgsm"},
		{"gpg.ssh.program", "ssh-keygen"},
		{"gpg.ssh.defaultKeyCommand", ""},
		{"gc.auto", "0"},
		{"maintenance.auto", "false"},
	}
}

// hookKeys is what of the administrator's configuration has to stand after hookConfig, as an extended regular
// expression for git config.
const hookKeys = `^(core\.(hookspath|fsmonitor|alternaterefscommand|sshcommand|gitproxy|askpass)|` +
	`gpg\.(.*\.)?(program|defaultkeycommand)|credential\..*|gc\.auto|maintenance\.auto)$`

// maxHooksConfig bounds what is read of the administrator's configuration, in bytes.
const maxHooksConfig = 1 << 20

// hookSettings is the configuration for git within the hooks of this push.
func (p *pushing) hookSettings(ctx context.Context) ([][2]string, error) {
	config := hookConfig()
	if p.options.RepositoryHooks != RunHooks { // else git within a hook runs them as it does elsewhere
		config = append(config, [2]string{"core.hooksPath", "/dev/null"})
		config = append(config, p.target.HooksOff()...)
	}
	if p.options.HooksConfig == "" {
		return config, nil
	}
	chosen, err := p.chosenSettings(ctx)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable,
			"the git configuration of the server's hooks cannot be read, so that no push is taken", err)
	}
	return append(config, chosen...), nil
}

// chosenSettings reads the administrator's configuration. Git does: it may include files, also by conditions on the
// repository.
func (p *pushing) chosenSettings(ctx context.Context) ([][2]string, error) {
	child, err := p.options.Runner.Start(ctx, process.Command{
		Class: ClassHook, Subcommand: "config", Caller: p.caller, Repository: p.target.Common,
		Env: []string{"HOME=" + cmp.Or(os.Getenv("HOME"), "/nonexistent")},
		Args: []string{
			"-c", "safe.directory=*", "--git-dir=" + p.target.Dir,
			"config", "--file", p.options.HooksConfig, "--includes", "-z", "--get-regexp", hookKeys,
		},
	})
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(child.Stdout(), maxHooksConfig+1))
	if err != nil || len(text) > maxHooksConfig {
		child.Kill()
	}
	usage, exit := child.Wait()
	switch {
	case len(text) > maxHooksConfig:
		return nil, errors.New("it is too long")
	case usage.Exit == "exit 1" && len(text) == 0: // it has none of these keys
		return nil, nil
	case err != nil || exit != nil:
		return nil, cmp.Or(err, exit)
	}
	var settings [][2]string
	for setting := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00"), "\x00") {
		key, value, ok := strings.Cut(setting, "\n")
		if !ok {
			value = "true" // a key without a value
		}
		settings = append(settings, [2]string{key, value})
	}
	return settings, nil
}

// hookEnvironment is added to the environment of hooks, which is made from scratch like that of git.
func (p *pushing) hookEnvironment(ctx context.Context, h hookRun) ([]string, error) {
	if p.hookConfig == nil {
		config, err := p.hookSettings(ctx)
		if err != nil {
			return nil, err
		}
		p.hookConfig = config
	}
	pusher := p.push.Pusher
	env := []string{
		"GIT_DIR=.",
		"PACKHORSE_USER=" + pusher.Name, "PACKHORSE_ADDRESS=" + pusher.Address,
		"PACKHORSE_REPOSITORY=" + p.push.Repo.String(), "PACKHORSE_PUSH=" + p.push.ID,
		"REMOTE_USER=" + pusher.Name, "REMOTE_ADDR=" + pusher.Address, // as with git http-backend
		// What a hook wants to reach, it may.
		"GIT_ALLOW_PROTOCOL=file:git:http:https:ssh",
	}
	env = append(env, p.identity()...)
	if p.options.HooksConfig != "" {
		env = append(env, "GIT_CONFIG_GLOBAL="+p.options.HooksConfig)
	}
	if len(p.push.Options) > 0 {
		env = append(env, fmt.Sprintf("GIT_PUSH_OPTION_COUNT=%d", len(p.push.Options)))
	}
	for i, option := range p.push.Options {
		env = append(env, fmt.Sprintf("GIT_PUSH_OPTION_%d=%s", i, option))
	}
	if h.worktree != "" {
		env = append(env, "GIT_DIR="+p.target.Dir, "GIT_WORK_TREE="+h.worktree)
	}
	if h.quarantine != "" {
		env = append(env, "GIT_QUARANTINE_PATH="+h.quarantine, "GIT_OBJECT_DIRECTORY="+h.quarantine,
			"GIT_ALTERNATE_OBJECT_DIRECTORIES="+quotePath(filepath.Join(p.target.Common, "objects")))
	}
	return env, nil
}

// identity is who pushes, for git.
func (p *pushing) identity() []string {
	if p.committer[0] == "" {
		return nil
	}
	return []string{"GIT_COMMITTER_NAME=" + p.committer[0], "GIT_COMMITTER_EMAIL=" + p.committer[1]}
}

// quotePath writes a path as an element of a list of paths (git(1), GIT_ALTERNATE_OBJECT_DIRECTORIES).
func quotePath(path string) string {
	if !strings.Contains(path, ":") && !strings.HasPrefix(path, `"`) {
		return path
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(path) + `"`
}
