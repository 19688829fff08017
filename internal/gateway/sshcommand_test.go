package gateway

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
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
	} {
		c, err := parseSSHCommand(in)
		if err != nil || c.String() != want {
			t.Errorf("%s: %s, %v; want %s", in, c, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "git", "git ", "sh", "id", "git-upload-pack", "git-upload-pack ", "git-upload-pack app", "git-upload-pack 'app", "git-upload-pack app'",
		"git-upload-pack  'app'", "git-upload-pack 'app' ", "git-upload-pack 'app';id", "git-upload-pack 'app' 'b'", "git-upload-pack 'app' --strict",
		"git-upload-pack --strict 'app'", "git-upload-pack '--upload-pack=x'", "git-upload-pack '-x'", "git-upload-pack 'a\nb'", "git-upload-pack 'a\x00b'",
		"git-upload-pack 'app'\n", "\ngit-upload-pack 'app'", "git-upload-pack \"app\"", `git-upload-pack \'app\'`, `git-upload-pack 'app'\a''`,
		`git-upload-pack 'app'\'`, `git-upload-pack 'app'\''`, "git-upload-pack ''", "git-upload-pack '/'", "git-upload-pack '../app'", "git-upload-pack 'a/../b'",
		"git-upload-pack '/-/x'", `git-upload-pack 'a\b'`, "git-upload-archive 'app'", "git-lfs-authenticate app download", "git upload-pack", "git  upload-pack 'a'",
		"GIT_TRACE=1 git-upload-pack 'app'", "/usr/bin/git-upload-pack 'app'", "git -c x=y upload-pack 'app'", "git-upload-pack 'app' && id",
		"git-upload-pack '" + strings.Repeat("a", git.MaxRepoPath+1) + "'", strings.Repeat("a", 1<<20),
	} {
		if c, err := parseSSHCommand(in); err == nil {
			t.Errorf("%.80q is taken for %s", in, c)
		}
	}
}

func TestSSHCommandWithAToken(t *testing.T) {
	t.Parallel()
	token, _, err := auth.NewTokenFile(filepath.Join(t.TempDir(), "tokens")).Create(auth.TokenRequest{Name: "ci"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseSSHCommand("git-upload-pack '" + token + "/app'")
	if !fault.Is(err, fault.NotFound) || strings.Contains(err.Error()+c.String(), token) {
		t.Errorf("%v, %v", c, err)
	}
}

// What is taken is written in one form, and read again the same.
func FuzzSSHCommand(f *testing.F) {
	for _, s := range []string{
		"git-upload-pack 'team/app'", "git receive-pack '/app'", `git-upload-pack 'it'\''s'\!''`, "git-upload-pack '--upload-pack=x'", "git-upload-pack 'a'; id",
		"git-upload-pack 'a\nb'", "git-upload-pack ''", "git-lfs-authenticate app download", `git-upload-pack '\''`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		c, err := parseSSHCommand(in)
		if err != nil {
			return
		}
		if strings.ContainsAny(c.repo.String(), "\x00\n\r\\") || strings.HasPrefix(c.repo.String(), "../") {
			t.Errorf("%q names %q", in, c.repo)
		}
		again, err := parseSSHCommand(c.String())
		if strings.HasPrefix(c.repo.String(), "-") { // a path that was given as /-x
			return
		}
		if err != nil || again != c {
			t.Errorf("%q became %q: %v, %v", in, c, again, err)
		}
	})
}
