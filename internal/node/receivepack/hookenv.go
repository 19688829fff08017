package receivepack

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// hookConfig returns configuration for Git within hooks. It replaces the programs that a repository's own configuration
// names by Git's defaults, before the administrator's configuration (Options.HooksConfig) is added. Programs for
// connections to other servers stay if the repository may run programs. Drivers by name (filter.*, diff.*, merge.*,
// alias.*) cannot be listed.
func hookConfig(runsPrograms bool) [][2]string {
	var connections [][2]string
	if !runsPrograms {
		connections = [][2]string{{"core.sshCommand", "ssh"}, {"core.gitProxy", ""}, {"core.askPass", "false"}}
	}
	return append(connections, [][2]string{
		{"core.fsmonitor", "false"},
		{"core.alternateRefsCommand", "true"},
		{"credential.helper", ""}, // resets the list
		{"gpg.program", "gpg"},
		{"gpg.openpgp.program", "gpg"},
		{"gpg.x509.program", "gpgsm"},
		{"gpg.ssh.program", "ssh-keygen"},
		{"gpg.ssh.defaultKeyCommand", ""},
		{"gc.auto", "0"},
		{"maintenance.auto", "false"},
	}...)
}

// storeHelper matches the credential helpers of a repository that need no permission to run programs: Git's own, with a
// path that a shell does not interpret.
var storeHelper = regexp.MustCompile(`^store( +--file[= ](~/)?[\w./@:+,=-]+)?$`)

// credentialHelpers returns the credential helpers of the repository (gitcredentials(7)) that Git within hooks asks.
// Without permission to run programs, these are files of git credential-store, which are only read.
func (p *pushSession) credentialHelpers(runsPrograms bool) (helpers [][2]string) {
	for key, value := range p.target.Config().All() {
		switch {
		case !strings.HasPrefix(key, "credential.") || !strings.HasSuffix(key, ".helper"):
			continue
		case runsPrograms || value == "":
		case storeHelper.MatchString(value):
			value = `!f() { test "$1" != get || git credential-` + value + ` get; }; f`
		default:
			p.log.Info("hooks do not use a credential helper", "repository", p.push.Repo.String(), "keys", key)
			continue
		}
		helpers = append(helpers, [2]string{key, value})
	}
	return helpers
}

// hookKeys matches the keys of the administrator's configuration that have to follow hookConfig. It is an extended
// regular expression for git config.
const hookKeys = `^(core\.(hookspath|fsmonitor|alternaterefscommand|sshcommand|gitproxy|askpass)|` +
	`gpg\.(.*\.)?(program|defaultkeycommand)|credential\..*|gc\.auto|maintenance\.auto)$`

// maxHooksConfig is the maximum size of the administrator's configuration in bytes.
const maxHooksConfig = 1 << 20

// hookSettings returns the configuration for Git within the hooks of this push.
func (p *pushSession) hookSettings(ctx context.Context) ([][2]string, error) {
	runsPrograms := p.hookPolicy(p.target.Repo) == RunHooks
	config, helpers := hookConfig(runsPrograms), p.credentialHelpers(runsPrograms)
	if !runsPrograms { // otherwise Git within a hook runs hooks as usual
		config = append(config, [2]string{"core.hooksPath", "/dev/null"})
		config = append(config, p.target.HooksOff()...)
	}
	if p.options.HooksConfig == "" {
		return append(config, helpers...), nil
	}
	own, err := p.administratorSettings(ctx)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable,
			"push not accepted: cannot read the Git configuration of the server's hooks", err)
	}
	return slices.Concat(config, own, helpers), nil
}

// administratorSettings has Git read the administrator's configuration, because it may include files, also by
// conditions on the repository.
func (p *pushSession) administratorSettings(ctx context.Context) ([][2]string, error) {
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
		return nil, fmt.Errorf("%s: the file is too long", p.options.HooksConfig)
	case usage.Exit == "exit 1" && len(text) == 0: // the file has none of these keys
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

// hookEnvironment returns variables for the environment of hooks, which otherwise is the same as Git's.
func (p *pushSession) hookEnvironment(ctx context.Context, run hookRun) ([]string, error) {
	if p.hooks.config == nil {
		config, err := p.hookSettings(ctx)
		if err != nil {
			return nil, err
		}
		p.hooks.config = config
	}
	pusher := p.push.Pusher
	env := []string{
		"GIT_DIR=.",
		"PACKHORSE_USER=" + pusher.Name, "PACKHORSE_ADDRESS=" + pusher.Address,
		"PACKHORSE_REPOSITORY=" + p.push.Repo.String(), "PACKHORSE_PUSH=" + p.push.ID,
		"REMOTE_USER=" + pusher.Name, "REMOTE_ADDR=" + pusher.Address, // as with git http-backend
		"GIT_ALLOW_PROTOCOL=file:git:http:https:ssh", // hooks may fetch and push
	}
	env = append(env, p.author.environment()...)
	if p.options.HooksConfig != "" {
		env = append(env, "GIT_CONFIG_GLOBAL="+p.options.HooksConfig)
	}
	if len(p.push.Options) > 0 {
		env = append(env, fmt.Sprintf("GIT_PUSH_OPTION_COUNT=%d", len(p.push.Options)))
	}
	for i, option := range p.push.Options {
		env = append(env, fmt.Sprintf("GIT_PUSH_OPTION_%d=%s", i, option))
	}
	if run.worktree != "" {
		env = append(env, "GIT_DIR="+p.target.Dir, "GIT_WORK_TREE="+run.worktree)
	}
	if run.quarantine != "" {
		env = append(append(env, "GIT_QUARANTINE_PATH="+run.quarantine),
			process.ObjectsEnv(run.quarantine, filepath.Join(p.target.Common, "objects"))...)
	}
	return env, nil
}
