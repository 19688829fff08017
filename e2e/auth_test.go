package e2e

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestAuth tells who is let in, and who learns what, with real git clients and their credential helpers: in one process, and in two.
func TestAuth(t *testing.T) {
	templates := makeTemplates(t)
	scripts, err := filepath.Glob("testdata/auth/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	for _, s := range []shape{{}, {between: "unix"}} {
		t.Run("between="+s.between, func(t *testing.T) {
			t.Parallel()
			runStoriesIn(t, s, "", templates, "", scripts...)
		})
	}
}

// cmdToken makes a token and sets a variable to it: token VARIABLE ARGUMENTS of "packhorse token create"...
func cmdToken(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: token VARIABLE NAME [FLAGS]")
	}
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), append([]string{"token", "create"}, args[1:]...)...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = []string{"HOME=" + ts.Getenv("HOME"), "GORACE=" + ts.Getenv("GORACE")}
	out, err := cmd.Output()
	ts.Check(err)
	ts.Setenv(args[0], strings.TrimSpace(string(out)))
}

// cmdStore gives git's credential helper "store" a user name and a password for $URL, in the place of what it had: store [USER PASSWORD].
func cmdStore(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 && len(args) != 2 {
		ts.Fatalf("usage: store [USER PASSWORD]")
	}
	home := ts.Getenv("HOME")
	ts.Check(os.MkdirAll(home, 0o755))
	line := ""
	if len(args) == 2 {
		u, err := url.Parse(ts.Getenv("URL"))
		ts.Check(err)
		u.User = url.UserPassword(args[0], args[1])
		line = fmt.Sprintln(u)
	}
	ts.Check(os.WriteFile(filepath.Join(home, ".git-credentials"), []byte(line), 0o600))
	ts.Setenv("GIT_TERMINAL_PROMPT", "0")
	ts.Setenv("GIT_CONFIG_PARAMETERS", "'credential.helper=store'")
}
