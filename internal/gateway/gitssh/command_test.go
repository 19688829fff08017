package gitssh

import (
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
)

func TestParseSSHCommand(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"git-upload-pack 'team/app'":          "git-upload-pack 'team/app'",
		"git-upload-pack '/team/app.git/'":    "git-upload-pack 'team/app.git'",
		"git upload-pack '/team/app'":         "git-upload-pack 'team/app'",
		"git-receive-pack 'app'":              "git-receive-pack 'app'",
		"git receive-pack 'app'":              "git-receive-pack 'app'",
		`git-upload-pack 'it'\''s'\!''`:       `git-upload-pack 'it'\''s'\!''`,
		`git-upload-pack 'a;b $(c) ` + "`d`'": `git-upload-pack 'a;b $(c) ` + "`d`'",
		"git-upload-pack '/~user/app'":        "git-upload-pack '~user/app'",

		"git-lfs-authenticate app download":         "git-lfs-authenticate 'app' download",
		"git-lfs-transfer '/team/a b.git' 'upload'": "git-lfs-transfer 'team/a b.git' upload",
	} {
		c, err := parseCommand(in)
		if err != nil || c.String() != want {
			t.Errorf("%s: %s, %v; want %s", in, c, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "git", "git ", "sh", "id", "git-upload-pack", "git-upload-pack ", "git-upload-pack 'app",
		"git-upload-pack app'",
		"git-upload-pack 'app';id", "git-upload-pack 'app' 'b'", "git-upload-pack 'app' --strict",
		"git-upload-pack --strict 'app'", "git-upload-pack '--upload-pack=x'", "git-upload-pack '-x'",
		"git-upload-pack 'a\nb'", "git-upload-pack 'a\x00b'",
		"git-upload-pack 'app'\n", "\ngit-upload-pack 'app'", "git-upload-pack \"app",
		`git-upload-pack 'app'\''`, "git-upload-pack ''", "git-upload-pack '/'", "git-upload-pack '../app'",
		"git-upload-pack 'a/../b'",
		"git-upload-pack '/-/x'", `git-upload-pack 'a\b'`, "git-upload-archive '-x'",
		"git-lfs-authenticate app", "git-lfs-transfer app lock", "git-lfs-transfer app upload x",
		"git-upload-pack app upload",
		"git-lfs-transfer upload", "git-lfs-transfer -x upload", "git upload-pack",
		"GIT_TRACE=1 git-upload-pack 'app'", "/usr/bin/git-upload-pack 'app'", "git -c x=y upload-pack 'app'",
		"git-upload-pack 'app' && id",
		"git-upload-pack '" + strings.Repeat("a", git.MaxRepoPath+1) + "'", strings.Repeat("a", 1<<20),
	} {
		if c, err := parseCommand(in); err == nil {
			t.Errorf("parseCommand(%.80q) = %s, want an error", in, c)
		}
	}
}

// TestParseSSHCommandQuoting: words are quoted as for a shell, of which nothing else is there.
func TestParseSSHCommandQuoting(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"git-upload-pack /team/app.git":       "team/app.git",
		"git-upload-pack app":                 "app",
		"git-upload-pack /~user/app":          "~user/app",
		`git-upload-pack "/team/app"`:         "team/app",
		`git-upload-pack "it's \$x \"a\" !"`:  `it's $x "a" !`,
		`git-upload-pack te'am'/"a p"p\ .git`: "team/a pp .git",
		"  git-upload-pack\t 'app' ":          "app",
		`'git-upload-pack' "app"`:             "app",
		`git-upload-pack \'app\'`:             "'app'",
		"git  upload-pack 'a'":                "a",
		"git-upload-pack été":                 "été",
	} {
		c, err := parseCommand(in)
		if err != nil || c.repo.String() != want {
			t.Errorf("%s: %q, %v; want %q", in, c.repo, err, want)
		}
	}
	for in, want := range map[string]string{
		"git-upload-pack $HOME":           `'$' without quotes`,
		"git-upload-pack `id`":            "'`' without quotes",
		`git-upload-pack "$HOME"`:         `'$' in double quotes`,
		"git-upload-pack \"`id`\"":        "'`' in double quotes",
		"git-upload-pack $'app'":          `'$' without quotes`,
		"git-upload-pack ~":               `'~' without quotes`,
		"git-upload-pack ~/app":           `'~' without quotes`,
		"git-upload-pack a:~":             `'~' without quotes`,
		"git-upload-pack a=~":             `'=' without quotes`,
		"git-upload-pack *":               `'*' without quotes`,
		"git-upload-pack a?":              `'?' without quotes`,
		"git-upload-pack a[b]":            `'[' without quotes`,
		"git-upload-pack {a,b}":           `'{' without quotes`,
		"git-upload-pack app;id":          `';' without quotes`,
		"git-upload-pack app&":            `'&' without quotes`,
		"git-upload-pack app|id":          `'|' without quotes`,
		"git-upload-pack app>x":           `'>' without quotes`,
		"git-upload-pack <app":            `'<' without quotes`,
		"git-upload-pack (app)":           `'(' without quotes`,
		"git-upload-pack app #b":          `'#' without quotes`,
		"git-upload-pack !x":              `'!' without quotes`,
		"git-upload-pack app\nid":         `'\n' without quotes`,
		"git-upload-pack app\rid":         `'\r' without quotes`,
		"git-upload-pack a\x00b":          `'\x00' without quotes`,
		`git-upload-pack "app`:            "a quote is not closed",
		`git-upload-pack 'app`:            "a quote is not closed",
		`git-upload-pack app\`:            "a line ends with a backslash",
		"git-upload-pack \"app\\\nb\"":    "a line ends with a backslash",
		"git-upload-pack app\\\nb":        "a line ends with a backslash",
		"git-upload-pack app b":           "takes one path and no options",
		"git-upload-pack --strict app":    "takes one path and no options",
		"git-upload-pack -- app":          "takes one path and no options",
		"git-upload-pack":                 "takes one path and no options",
		`git-upload-pack \-x`:             "takes no options",
		`git-upload-pack "--strict"`:      "takes no options",
		"git-upload-pack --upload-pack":   "takes no options",
		`git-upload-pack ""`:              "no such repository",
		"git-upload-pack 'a\nb'":          "no such repository",
		"GIT_TRACE=1 git-upload-pack app": "unknown command",
		"$(id) git-upload-pack app":       "unknown command",
		"git-upload-pack$IFS'app'":        "unknown command",
		"git-upload-pack;id":              "unknown command",
	} {
		if c, err := parseCommand(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v; want %s", in, c, err, want)
		}
	}
}

// TestShellWords compares words with those of the shell, for commands at random; none of them has the shell do more.
func TestShellWords(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	parts := []string{
		"'", "'", `"`, `"`, `\`, "a", "b c", "/", "~", "$x", "$(id)", "`id`", "*", ";", "&", "|", "#", "=", "-", ".",
		"\t", " ", "\n", "!", "é",
		"{a,b}", ">f", "%s", "(", "^", ":",
	}
	var commands, want []string
	var script strings.Builder
	for len(commands) < 3000 {
		command := ""
		for range 1 + random.IntN(8) {
			command += parts[random.IntN(len(parts))]
		}
		words, err := shellWords(command)
		if err != nil {
			continue
		}
		commands, want = append(commands, command), append(want, strings.Join(append(words, ""), "\x01"))
		script.WriteString("set -- " + command + "\nfor w; do printf '%s\\001' \"$w\"; done; printf '\\002'\n")
	}
	shell := exec.Command("sh", "-s")
	shell.Dir, shell.Env = t.TempDir(), []string{"HOME=/home", "x=expanded", "LC_ALL=C"}
	shell.Stdin = strings.NewReader(script.String())
	out, err := shell.Output()
	if err != nil {
		t.Fatalf("seed %d: error = %v, want none", seed, err)
	}
	got := strings.Split(string(out), "\x02")
	if len(got) != len(commands)+1 {
		t.Fatalf("seed %d: answers of the shell = %d, want %d", seed, len(got)-1, len(commands))
	}
	for i, command := range commands {
		if got[i] != want[i] {
			t.Errorf("seed %d: %q has the words %q, of the shell %q", seed, command, want[i], got[i])
		}
	}
}

func TestSSHCommandWithAToken(t *testing.T) {
	t.Parallel()
	token, _, err := auth.AccessInFile(auth.NewTokenFile(filepath.Join(t.TempDir(), "tokens"))).Mint(t.Context(),
		auth.TokenRequest{Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseCommand("git-upload-pack '" + token + "/app'")
	if !fault.Is(err, fault.NotFound) || strings.Contains(err.Error()+c.String(), token) {
		t.Errorf("command = %v, error = %v, want kind %v without the token", c, err, fault.NotFound)
	}
}

// FuzzSSHCommand writes valid commands in their canonical form and parses that again.
func FuzzSSHCommand(f *testing.F) {
	for _, s := range []string{
		"git-upload-pack 'team/app'", "git receive-pack '/app'", `git-upload-pack 'it'\''s'\!''`,
		"git-upload-pack '--upload-pack=x'", "git-upload-pack 'a'; id",
		"git-upload-pack 'a\nb'", "git-upload-pack ''", "git-lfs-authenticate app download", `git-upload-pack '\''`,
		"git-upload-pack /app.git", `git-upload-pack "a b\"\$c"`,
		"git-upload-pack $HOME", `git-upload-pack a\ b`, "git-upload-pack ~/a", "git-upload-pack a;id",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		c, err := parseCommand(in)
		if err != nil {
			return
		}
		if strings.ContainsAny(c.repo.String(), "\x00\n\r\\") || strings.HasPrefix(c.repo.String(), "../") {
			t.Errorf("repository of %q = %q, want a safe path", in, c.repo)
		}
		again, err := parseCommand(c.String())
		if strings.HasPrefix(c.repo.String(), "-") { // a path that was given as /-x
			return
		}
		if err != nil || again != c {
			t.Errorf("%q parsed again = %q, %v, want %v", in, again, err, c)
		}
	})
}
