package roles

import (
	"strings"
	"testing"
)

// Who asks for help with a command that there is not is told so.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		code int
		want string // a part of the answer
	}{
		{"help", exitOK, "Available Commands:"},
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
