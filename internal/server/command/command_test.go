package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHelp checks the help of commands, and the errors of help with unknown commands.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		code int
		want string // a part of the answer
	}{
		{"", exitOK, "packhorse demo "},
		{"help", exitOK, "Running servers:"},
		{"help serve", exitOK, "Serve answers fetches"},
		{"help config check", exitOK, "Check reads a configuration file"},
		{"help nope", exitUsage, `packhorse has no command "nope"`},
		{"help serv", exitUsage, `did you mean "serve"?`},
		{"help config nope", exitUsage, `packhorse config has no command "nope"`},
		{"nope", exitUsage, `packhorse has no command "nope"`},
	} {
		code, out, errs := runMain(strings.Fields(test.args)...)
		answer := out
		if test.code != exitOK {
			answer = errs
		}
		if code != test.code || !strings.Contains(answer, test.want) {
			t.Errorf("packhorse %s exits with %d: %s%s; want %d and %q", test.args, code, out, errs, test.code, test.want)
		}
	}
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	dir, empty := t.TempDir(), filepath.Join(t.TempDir(), "empty.toml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string // of standard error
	}{
		{[]string{"serve", dir}, `did you mean "packhorse serve --root ` + dir + `"?`},
		{[]string{"serve", dir, "--http", "127.0.0.1:1"}, `did you mean "packhorse serve --root ` + dir +
			` --http=127.0.0.1:1"?`},
		{[]string{"serve", "/no/such.toml"}, `did you mean "packhorse serve --config /no/such.toml"?`},
		{[]string{"gateway", "a=127.0.0.1:9100"}, `did you mean "packhorse gateway --node a=127.0.0.1:9100"?`},
		{[]string{"repo", "list", dir}, `did you mean "packhorse repo list --root ` + dir + `"?`},
		{[]string{"repo", "info", "app", dir}, `did you mean "packhorse repo info app --root ` + dir + `"?`},
		{[]string{"token", "create", "me", dir}, `did you mean "packhorse token create me --root ` + dir + `"?`},
		{[]string{"serve", "--rot", "x"}, "unknown flag: --rot; did you mean --root?"},
		{[]string{"serve", "-root", "x"}, "did you mean --root?"},
		{[]string{"token", "create", "me", "--expire", "9d"}, "did you mean --expires?"},
		{[]string{"repo", "lsit"}, `packhorse repo has no command "lsit"; did you mean "list"?`},
		{[]string{"repo", "import", "x", dir, "--entirely-different", "x"}, "unknown flag: --entirely-different\nRun"},
		{[]string{"repo", "list", "--config", empty}, "empty.toml has no root: add --root DIR, or a node with --node"},
		{[]string{"lfs", "list", "--config", empty}, "empty.toml has no root: add --root DIR\n"},
		{[]string{"lfs", "gc"}, "with --root DIR or --config FILE\n"},
		{[]string{"lfs", "import", "app"}, "takes a PATH and a DIR, got 1 argument\n"},
		{[]string{"lfs", "verify", "a", "b"}, "takes at most one PATH, got 2 arguments\n"},
		{[]string{"serve", "--entirely-different"}, "unknown flag: --entirely-different\n"},
	} {
		code, _, errs := runMain(test.args...)
		if code != exitUsage || !strings.Contains(errs, test.want) {
			t.Errorf("packhorse %q exits with %d: %s; want %s", test.args, code, errs, test.want)
		}
	}
}
