package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// make makes the content of a fixture with the programs in a directory.
func (u *upgrade) make(programs string) {
	u.Helper()
	if u.bucket == nil && !u.hasTables() {
		u.Fatalf("a fixture has reftables: name a git of 2.46 or later in %s", newerGit)
	}
	origin := gittest.InitAt(u, u.path("origin/up.git"))
	origin.Git("update-ref", "refs/heads/main", origin.Commit("of the origin").String())
	u.notes.Objects = map[string]int{}
	config := fmt.Sprintf("state = %q\n[[webhook]]\nname = \"configured\"\nurl = %q\nallow_private = true\n"+
		"[ssh]\naddress = \"127.0.0.1:0\"\nanonymous = true\n[push]\nprivate_webhooks = true\n", u.path("state"), u.hook.URL)
	if u.bucket == nil {
		script := "#!/bin/sh\n[ \"$1\" != prepared ] || [ ! -e " + u.path("stick") + " ] || { touch " + u.path("sticks") +
			"; sleep 600; }\n"
		for name, mode := range map[string]os.FileMode{"hooks": 0o755, "repos": 0o700} {
			if err := os.Mkdir(u.path(name), mode); err != nil {
				u.Fatal(err)
			}
		}
		if err := os.WriteFile(u.path("hooks/reference-transaction"), []byte(script), 0o755); err != nil {
			u.Fatal(err)
		}
		config = fmt.Sprintf("root = %q\n%shooks_dir = %q\n[[mirror]]\nfrom = %q\nto = \"origin\"\n", u.path("repos"), config,
			u.path("hooks"), u.origin.URL+"/")
	} else {
		o := u.bucket.Options("git")
		write(u.T, u.path("credentials"), fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n",
			u.bucket.AccessKey, u.bucket.SecretKey))
		config = fmt.Sprintf("root = %q\n%s[auth]\nshared = true\n[store]\nurl = %q\nendpoint = %q\ncredentials_file = %q\n"+
			"node = \"one\"\n", u.path("root"), config, o.URL, o.Endpoint, u.path("credentials"))
	}
	write(u.T, u.path("config.toml"), config)
	run := func(args ...string) string {
		u.Helper()
		cmd := exec.Command(filepath.Join(programs, "packhorse"), append(args, "--config", u.path("config.toml"))...)
		cmd.Env = gittest.Env()
		out, err := cmd.Output()
		if err != nil {
			u.Fatalf("packhorse %q: %v\n%s%s", args, err, out, err.(*exec.ExitError).Stderr)
		}
		return strings.TrimSpace(string(out))
	}
	if u.bucket != nil {
		run("store", "init")
		u.start(programs) // which makes the first token
	}
	u.notes.Token = run("token", "create", "ada", "--scope", "admin")
	if u.bucket == nil {
		u.start(programs)
	}
	u.notes.Reader = run("token", "create", "rob", "--scope", "read", "--repo", "team/**")
	u.notes.Revoked = run("token", "create", "eve", "--scope", "admin")
	run("token", "revoke", "eve")

	u.call("POST", "/-/api/v1/repos", `{"repository": "team/full", "settings": {"quota_bytes": 1}}`)
	for name, format := range upgradeRepos {
		if format == "reftable" {
			if u.hasTables() {
				cmd := exec.Command(os.Getenv(newerGit), "init", "-q", "--bare", "-b", "main", "--ref-format=reftable",
					u.path("repos/team/"+name+".git"))
				cmd.Env = gittest.Env()
				if out, err := cmd.CombinedOutput(); err != nil {
					u.Fatalf("%v\n%s", err, out)
				}
			}
			continue
		}
		u.call("POST", "/-/api/v1/repos", fmt.Sprintf(`{"repository": "team/%s", "object_format": %q, "settings": {"description": "Of %s",
			"owner": "ada", "quota_bytes": 100000000, "lfs_quota_bytes": 100000000, "labels": {"tier": "1"}, "category": "tools"}}`, name, format, name))
	}
	u.call("PUT", "/-/api/v1/rules", `{"set": {"rules": [{"who": ["ada"], "repositories": ["**"], "may": "admin"},
		{"who": ["rob"], "repositories": ["team/app"], "may": "read"}]}}`)
	var first struct{ Events []struct{ Position string } }
	u.get("/-/api/v1/events?limit=1", &first)
	u.notes.Position = first.Events[0].Position
	u.call("POST", "/-/api/v1/repos/team/app/commits",
		`{"branch": "main", "create": true, "message": "First", "changes": [{"put": {"path": "notes.txt", "text": "zebra\n"}}]}`)
	u.call("POST", "/-/api/v1/repos/team/app/forks", `{"target": "team/fork"}`)
	u.change("first")
	u.call("PATCH", "/-/api/v1/repos/team/app", `{"settings": {"hidden_refs": ["refs/tags/v-first"]}}`)
	u.finds("zebra-first") // the index is in the fixture
	for _, repo := range u.repos() {
		u.clone(repo) // the packs are
	}
	work := gittest.Init(u) // a force push leaves a former value
	work.Git("update-ref", "refs/heads/main", work.Commit("other").String())
	u.git(work.Dir, "push", "-q", "-f", u.http+"/team/app", "main:refs/heads/first")
	u.hears("forced")
	u.mu.Lock()
	u.isHookDown = true
	u.mu.Unlock()
	u.git(work.Dir, "push", "-q", u.http+"/team/app", "main:refs/heads/late") // a delivery that waits
	u.notes.Seen = u.observe()
	u.stop()

	if u.bucket == nil { // a push that is killed while it has locks
		u.start(programs)
		write(u.T, u.path("stick"), "")
		pushing := make(chan struct{})
		go func() {
			defer close(pushing)
			_, _ = clientGit(u.T, basicHeader("x", u.notes.Token), work.Dir, "push", "-q", u.http+"/team/stuck",
				"+main:refs/heads/stick")
		}()
		eventually(u.T, "the push has locks", func() bool { _, err := os.Stat(u.path("sticks")); return err == nil })
		children := childrenOf(u.cmd.Process.Pid) // they would remove the locks if they learned of the end
		_ = u.cmd.Process.Signal(syscall.SIGSTOP)
		for _, pid := range children {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
		u.kill()
		<-pushing
		for _, name := range []string{"stick", "sticks"} {
			if err := os.Remove(u.path(name)); err != nil {
				u.Fatal(err)
			}
		}
		if _, err := os.Stat(u.path("repos/team/stuck.git/refs/heads/stick.lock")); err != nil {
			u.Error(err)
		}
	}
	text, err := json.MarshalIndent(u.notes, "", " ")
	if err != nil {
		u.Fatal(err)
	}
	write(u.T, u.path("notes.json"), string(text))
	commit, err := exec.Command("git", "-c", "safe.directory=*", "rev-parse",
		cmp.Or(os.Getenv("PACKHORSE_PREVIOUS"), "HEAD")).Output()
	if err == nil {
		err = os.WriteFile(previousCommit, bytes.TrimSpace(commit), 0o644)
	}
	if err != nil {
		u.Fatal(err)
	}
}
