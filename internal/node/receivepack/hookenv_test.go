package receivepack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Git within a hook works: it knows a good signature, and asks the credential helpers that the administrator names.
// Programs that the repository's configuration names are not run.
func TestGitWithinHooks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("SKIPPED: no ssh-keygen here")
	}
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		dir+"/key").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	key, err := os.ReadFile(dir + "/key.pub")
	if err == nil {
		err = os.WriteFile(dir+"/allowed", append([]byte("* "), key...), 0o644)
	}
	if err == nil {
		err = os.WriteFile(dir+"/more",
			[]byte("[credential]\n\thelper = \"!f() { echo username=administrator; echo password=; }; f\"\n"), 0o644)
	}
	config := filepath.Join(dir, "config")
	if err == nil {
		err = os.WriteFile(config,
			[]byte("[gpg \"ssh\"]\n\tallowedSignersFile = "+dir+"/allowed\n[include]\n\tpath = "+
				"more\n[user]\n\tuseConfigOnly\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	evil := script(t, dir+"/evil", "touch "+dir+"/ran; exec ssh-keygen \"$@\"")
	w := newWorld(t, Options{HooksConfig: config, Hooks: hooks(t, map[string]string{"pre-receive": `
read old new ref
git verify-commit "$new" || exit 1
printf 'protocol=https\nhost=example.com\n\n' | git credential fill
git config --global --get gpg.ssh.allowedSignersFile`})})
	w.Git("config", "gpg.ssh.program", evil)
	w.Git("config", "gpg.ssh.defaultKeyCommand", evil)
	w.Git("config", "credential.helper", "!"+evil)
	w.Git("config", "credential.https://example.com.helper", "!"+evil)
	w.Git("config", "core.fsmonitor", evil)
	script(t, w.Dir+"/hooks/reference-transaction", "touch "+dir+"/ran")
	w.server.options.RepositoryHooks = IgnoreHooks
	c := w.clone()
	c.Git("config", "gpg.format", "ssh")
	c.Git("config", "user.signingKey", dir+"/key")
	signed := c.Git("commit-tree", "-S", "-m", "signed", "main^{tree}")
	out := w.mustPush(c, signed+":refs/heads/main")
	if !strings.Contains(out, `Good "git" signature`) || !strings.Contains(out, "username=administrator") ||
		!strings.Contains(out, dir+"/allowed") {
		t.Errorf("the hook says\n%s", out)
	}
	if out, err := w.push(c, "main:refs/heads/unsigned"); err == nil {
		t.Errorf("a commit without a signature was taken\n%s", out)
	}
	if _, err := os.Stat(dir + "/ran"); err == nil {
		t.Error("a program of the repository's configuration was run")
	}
	own := script(t, dir+"/own", "touch "+dir+"/chosen; exec ssh-keygen \"$@\"")
	if err := os.WriteFile(dir+"/more", []byte("[gpg \"ssh\"]\n\tprogram = "+own+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, _ = w.push(c, signed+":refs/heads/other")
	if _, err := os.Stat(dir + "/chosen"); err != nil {
		t.Error("the program that the administrator chose was not run")
	}
	if err := os.WriteFile(dir+"/more", []byte("[broken\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := w.push(c, signed+":refs/heads/third"); err == nil {
		t.Errorf("with a configuration that cannot be read a push was taken\n%s", out)
	}
}

// Git within hooks asks the credential helpers of the repository that start no program of the repository, and does not
// change their files. If the repository may run programs, it asks all of them.
func TestCredentialHelpersOfRepository(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const secret = "https://deploy:secret@example.com\n"
	if err := os.WriteFile(dir+"/file", []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	ran := "touch " + dir + "/ran"
	program := script(t, dir+"/program", ran+"; echo username=program; echo password=p")
	for name, test := range map[string]struct {
		helper, key string
		policy      RepositoryHooks
		user        string
		runs        bool
	}{
		"file":                {helper: "store --file=" + dir + "/file", user: "deploy"},
		"file of a URL":       {helper: "store --file " + dir + "/file", key: "https://example.com.", user: "deploy"},
		"file of another URL": {helper: "store --file " + dir + "/file", key: "https://example.org."},
		"program":             {helper: program},
		"shell":               {helper: "!" + program, key: "https://example.com."},
		"file and shell":      {helper: "store --file=" + dir + "/file;" + ran, policy: IgnoreHooks},
		"substitution":        {helper: "store --file=$(" + ran + ")"},
		"lines":               {helper: "store\n" + ran},
		"other helper":        {helper: "cache"},
		"allowed program":     {helper: program, policy: RunHooks, user: "program", runs: true},
		"allowed URL":         {helper: "!" + program, key: "https://example.com.", policy: RunHooks, user: "program", runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(dir + "/ran")
			w := newWorld(t, Options{RepositoryHooks: test.policy, Hooks: hooks(t, map[string]string{"post-receive": `
printf 'protocol=https\nhost=example.com\n\n' >question
git credential fill <question
printf 'protocol=https\nhost=example.com\nusername=deploy\npassword=secret\n\n' | git credential reject
git config core.sshCommand`})})
			w.Git("config", "credential."+test.key+"helper", test.helper)
			w.Git("config", "core.sshCommand", "of-the-repository")
			out := w.mustPush(w.clone(), "main")
			if got := strings.Contains(out, "username="+test.user); got != (test.user != "") {
				t.Errorf("want user %q\n%s", test.user, out)
			}
			if got := strings.Contains(out, "of-the-repository"); got != (test.policy == RunHooks) {
				t.Errorf("core.sshCommand of the repository applies: %v", got)
			}
			if _, err := os.Stat(dir + "/ran"); (err == nil) != test.runs {
				t.Errorf("a program was run: %v", err == nil)
			}
			if text, err := os.ReadFile(dir + "/file"); string(text) != secret {
				t.Errorf("the file has %q, %v", text, err)
			}
		})
	}
}
