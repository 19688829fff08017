package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestMoveOfGitea follows move-gitea.md with a real Gitea.
func TestMoveOfGitea(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for _, program := range []string{"curl", "jq", "rsync", "ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("*** There is no %s: moving from Gitea is NOT tested. ***", program)
		}
	}
	forge := behindNginx(t, func(dir, forge string) (*nginx, error) {
		return startNginx(dir, "location / { proxy_pass http://"+forge+"; }")
	})
	g := followGuide(t, "move-gitea.md", "https://gitea.example", forge.url, "/var/lib/gitea/data/gitea-repositories",
		filepath.Join(forge.dir, "repositories"), "/var/lib/gitea/data/lfs", filepath.Join(forge.dir, "lfs"),
		"--chown=git:git ", "")
	g.env = append(g.env, "TOKEN="+forge.tokens["owner"])
	const description = "An app, it's 'good'; $(false)"
	repo := linear(t)
	forge.create("App", false, repo)
	forge.create("secret", true, repo)
	forge.api(http.MethodPatch, "repos/owner/App", map[string]any{"description": description})
	forge.api(http.MethodPost, "repos/owner/App/wiki/new", map[string]any{"title": "Home", "content_base64": "aGVsbG8="})
	forge.api(http.MethodPost, "orgs", map[string]any{"username": "Inner", "visibility": "limited"})
	forge.api(http.MethodPost, "orgs/Inner/repos", map[string]any{"name": "plans", "auto_init": true})
	key := strings.TrimSpace(g.sh("ssh-keygen -q -t ed25519 -N '' -f key >/dev/null; cat key.pub"))
	forge.api(http.MethodPost, "user/keys", map[string]any{"title": "key", "key": key})
	for _, name := range []string{"root", "gone", "barred"} {
		user := map[string]any{"username": name, "email": name + "@example.org", "password": name + "-password",
			"login_name": name, "source_id": 0, "must_change_password": false}
		forge.api(http.MethodPost, "admin/users", user)
		g.sh("ssh-keygen -q -t ed25519 -N '' -f key-" + name)
		key := strings.TrimSpace(g.sh("cat key-" + name + ".pub"))
		forge.api(http.MethodPost, "admin/users/"+name+"/keys", map[string]any{"title": "key", "key": key})
		user["active"], user["prohibit_login"] = name != "gone", name == "barred"
		forge.api(http.MethodPatch, "admin/users/"+name, user)
	}
	if out, err := g.try(`curl -sf -H "Authorization: token $TOKEN" -d username=admin@here -d email=a@example.org ` +
		"-d password=a-password " + forge.url + "/api/v1/admin/users"); err == nil {
		t.Errorf("a user of the forge can be named admin@here: %s", out)
	}
	oid := ""
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Logf("*** There is no git-lfs: moving objects of Git LFS is NOT tested. *** (%v)", err)
	} else {
		g.sh("git clone -q " + forge.as("owner", forge.url+"/owner/App") + ` work
cd work
git lfs install --skip-repo
git lfs track '*.bin'
printf 'a large file' >large.bin
git add .
git commit -q -m 'a large file'
git push -q origin HEAD:main`)
		oid = strings.Fields(g.sh("git -C work lfs ls-files --long"))[0]
	}
	g.sh("git -C " + repo.Dir + " push -q " + forge.as("owner", forge.url+"/owner/App") + " main~1:refs/heads/topic")
	forge.api(http.MethodPost, "repos/owner/App/pulls", map[string]any{"head": "topic", "base": "old", "title": "A title"})
	if !gittest.Eventually(func() bool {
		out, _ := forge.lsRemote("owner", forge.url+"/owner/App")
		return strings.Contains(out, "refs/pull/1/head")
	}) {
		t.Fatal("the pull request has no ref")
	}

	if out := g.follow(3); strings.Contains(out, "differs") {
		t.Error("the check finds differences")
	}
	token := strings.TrimSpace(g.sh("packhorse token create owner --root /srv/git 2>/dev/null"))
	for _, name := range []string{"App", "secret", "App.wiki"} {
		want, err := forge.lsRemote("owner", forge.url+"/owner/"+name+".git")
		got := g.sh("git ls-remote http://x:" + token + "@127.0.0.1:8080/owner/" + strings.ToLower(name))
		if err != nil || got != want || got == "" {
			t.Errorf("the refs of %s are\n%s\nwant\n%s, %v", name, got, want, err)
		}
	}
	if out := g.sh("git ls-remote http://127.0.0.1:8080/owner/app"); !strings.Contains(out, "refs/pull/1/head") {
		t.Errorf("anybody sees %s of a public repository", out)
	}
	for _, name := range []string{"owner/secret", "inner/plans"} {
		if out, err := g.try("git ls-remote http://127.0.0.1:8080/" + name); err == nil {
			t.Errorf("anybody sees %s of %s", out, name)
		}
	}
	if out := g.sh("packhorse repo info owner/app --root /srv/git"); !strings.Contains(out, description) {
		t.Errorf("the description is lost:\n%s", out)
	}
	push := func(key, repository string) (string, error) {
		return g.try("git -C " + repo.Dir + " -c core.sshCommand='ssh -F /dev/null -o StrictHostKeyChecking=no -o " +
			"UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes -i " + g.dir + "/" + key + "' push -q " +
			"ssh://git@git.example:2222/" + repository + " main:refs/heads/pushed")
	}
	if out, err := push("key", "owner/app"); err != nil {
		t.Fatalf("the owner cannot push: %v, %s", err, out)
	}
	if out, err := push("key-root", "owner/secret"); err == nil || !strings.Contains(out, "no repository") {
		t.Errorf("a user named root can push: %v, %s", err, out)
	}
	for _, name := range []string{"gone", "barred"} {
		if out, err := push("key-"+name, "owner/app"); err == nil || !strings.Contains(out, "Permission denied") {
			t.Errorf("a user who may not sign in has a key: %v, %s", err, out)
		}
	}
	if oid != "" {
		lfs := filepath.Join(g.dir, "srv/git/owner/app.git/lfs/objects", oid[:2], oid[2:4], oid)
		if text, err := os.ReadFile(lfs); err != nil || string(text) != "a large file" {
			t.Errorf("the object of Git LFS is %q, %v", text, err)
		}
	}

	g.stop()
	g.follow(1)
	out, err := forge.lsRemote("owner", forge.url+"/owner/App")
	if err != nil || !strings.Contains(out, "refs/heads/pushed") {
		t.Errorf("back at Gitea: %v, %s", err, out)
	}
}
