package process

import (
	"cmp"
	"maps"
	"os"
	"strconv"
	"strings"
)

// overrides is configuration that overrides a repository's own (git-config(1), GIT_CONFIG_COUNT), so that no repository
// can make git run a program. Drivers by name (filter.*, diff.*, merge.*, alias.*) cannot be listed, but the commands
// that run here do not use them.
var overrides = [...][2]string{
	{"core.hooksPath", "/dev/null"},
	{"core.fsmonitor", "false"},
	{"core.alternateRefsCommand", "true"},
	{"core.sshCommand", "false"},
	{"core.gitProxy", ""},
	{"core.askPass", "false"},
	{"core.editor", "false"},
	{"core.pager", "cat"},
	{"credential.helper", ""},
	{"gpg.program", "false"},
	{"gpg.openpgp.program", "false"},
	{"gpg.x509.program", "false"},
	{"gpg.ssh.program", "false"},
	{"gpg.ssh.defaultKeyCommand", ""},
	// An empty value would be run as a command, so this is the default command.
	{"uploadpack.packObjectsHook", "env"},
	{"protocol.allow", "never"},
	{"gc.auto", "0"},
	{"maintenance.auto", "false"},
}

// environment is the environment of git commands, without Command.Env and Command.Config. See git(1), "Environment
// variables".
func environment(tempDir string) map[string]string {
	env := programEnvironment(tempDir)
	maps.Copy(env, map[string]string{
		"HOME": "/nonexistent",

		"GIT_ASKPASS":            "false",
		"GIT_SSH":                "false",
		"GIT_SSH_COMMAND":        "false",
		"GIT_ALLOW_PROTOCOL":     "none", // overrides every protocol.*.allow; no transport has this name
		"GIT_PROTOCOL_FROM_USER": "0",
	})
	addConfig(env, overrides[:])
	return env
}

// ObjectsEnv returns the environment of commands that write to one object directory and read another one, too (git(1)).
func ObjectsEnv(dir, alternate string) []string {
	if strings.Contains(alternate, ":") || strings.HasPrefix(alternate, `"`) {
		alternate = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(alternate) + `"`
	}
	return []string{"GIT_OBJECT_DIRECTORY=" + dir, "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + alternate}
}

// programEnvironment is the environment of the operator's programs, such as hooks. It does not restrict git in them.
func programEnvironment(tempDir string) map[string]string {
	if tempDir == "" {
		tempDir = os.TempDir()
	}
	return map[string]string{
		"PATH":   cmp.Or(os.Getenv("PATH"), "/usr/local/bin:/usr/bin:/bin"),
		"HOME":   cmp.Or(os.Getenv("HOME"), "/nonexistent"),
		"TMPDIR": tempDir,
		"LC_ALL": "C",
		"TZ":     "UTC",

		"GIT_CONFIG_GLOBAL":      "/dev/null",
		"GIT_CONFIG_SYSTEM":      "/dev/null",
		"GIT_CONFIG_NOSYSTEM":    "1",
		"GIT_ATTR_NOSYSTEM":      "1",
		"GIT_TERMINAL_PROMPT":    "0",
		"SSH_ASKPASS":            "false",
		"GIT_EDITOR":             "false",
		"GIT_PAGER":              "cat",
		"GIT_NO_LAZY_FETCH":      "1",
		"GIT_NO_REPLACE_OBJECTS": "1",
		"GIT_OPTIONAL_LOCKS":     "0",
		"GIT_ADVICE":             "0",
	}
}

// addConfig adds configuration to an environment. It overrides a repository's own; later values override earlier ones.
func addConfig(env map[string]string, config [][2]string) {
	n, _ := strconv.Atoi(env["GIT_CONFIG_COUNT"])
	for _, c := range config {
		env["GIT_CONFIG_KEY_"+strconv.Itoa(n)], env["GIT_CONFIG_VALUE_"+strconv.Itoa(n)] = c[0], c[1]
		n++
	}
	env["GIT_CONFIG_COUNT"] = strconv.Itoa(n)
}

// Environment returns the whole environment of a command.
func (r *Runner) Environment(c Command) []string {
	env := r.env
	if c.Program != "" {
		env = r.programEnv
	}
	if len(c.Config) > 0 {
		env = maps.Clone(env)
		addConfig(env, c.Config)
	}
	return withEnv(env, c.Env)
}

// withEnv returns base with KEY=VALUE pairs added or replaced.
func withEnv(base map[string]string, more []string) []string {
	env := make([]string, 0, len(base)+len(more))
	set := make(map[string]bool, len(more))
	for i := len(more) - 1; i >= 0; i-- { // the last value of a key applies
		if key, _, ok := strings.Cut(more[i], "="); ok && !set[key] {
			set[key] = true
			env = append(env, more[i])
		}
	}
	for key, value := range base {
		if !set[key] {
			env = append(env, key+"="+value)
		}
	}
	return env
}
