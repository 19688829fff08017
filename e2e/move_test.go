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

// movePage runs the commands of a section of docs/how-to/move.md in a directory, with other paths. It leaves out the
// server.
func movePage(t *testing.T, dir, section string, paths ...string) {
	t.Helper()
	page, err := os.ReadFile("../docs/how-to/move.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## "+section+"\n")
	_, text, _ = strings.Cut(text, "```sh\n")
	script, _, ok := strings.Cut(text, "```")
	script, _, serves := strings.Cut(script, "packhorse serve ")
	if !ok || section == "Gitea and Forgejo" && !serves {
		t.Fatalf("the page has no commands for %s", section)
	}
	cmd := exec.Command("sh", "-euxc", strings.NewReplacer(paths...).Replace(script))
	cmd.Dir = dir
	cmd.Env = append(gittest.Env(), "PATH="+binDir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the commands for %s: %v\n%s", section, err, out)
	}
}

// serveMoved starts a server of the imported repositories.
func serveMoved(t *testing.T, args ...string) *serverProcess {
	t.Helper()
	p, err := startServer(t.TempDir(), gittest.Env(), append([]string{"serve", "--http", "127.0.0.1:0", "--ops",
		"127.0.0.1:0"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killAll(t, p) })
	return p
}

// TestMoveOfGitea moves the repositories on the disk of a real Gitea, with the commands of the page.
func TestMoveOfGitea(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	g := behindNginx(t, func(dir, forge string) (*nginx, error) {
		return startNginx(dir, "location / { proxy_pass http://"+forge+"; }")
	})
	repo := linear(t)
	g.create("app", true, repo)
	g.api(http.MethodPost, "repos/owner/app/wiki/new", map[string]any{"title": "Home", "content_base64": "aGVsbG8="})
	work, oid := filepath.Join(g.dir, "work"), ""
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", work}, args...)...)
		cmd.Env = append(gittest.Env(), "GIT_CONFIG_GLOBAL="+filepath.Join(g.dir, "gitconfig"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Logf("*** There is no git-lfs: moving objects of Git LFS is NOT tested. *** (%v)", err)
	} else {
		gittest.Run(t, "", "", "clone", "--quiet", g.as("owner", g.url+"/owner/app"), work)
		git("lfs", "install", "--skip-repo")
		git("lfs", "track", "*.bin")
		if err := os.WriteFile(filepath.Join(work, "large.bin"), []byte("a large file"), 0o600); err != nil {
			t.Fatal(err)
		}
		git("add", ".")
		git("commit", "--quiet", "-m", "a large file")
		git("push", "--quiet", "origin", "HEAD:main")
		oid = strings.Fields(git("lfs", "ls-files", "--long"))[0]
	}
	root := filepath.Join(g.dir, "root")
	movePage(t, g.dir, "Gitea and Forgejo", "/var/lib/gitea/data/gitea-repositories", filepath.Join(g.dir, "repositories"),
		"/var/lib/gitea/data/lfs", filepath.Join(g.dir, "lfs"), "/srv/git", root)
	p := serveMoved(t, "--root", root)
	for _, name := range []string{"app", "app.wiki"} {
		got, want := gittest.Run(t, "", "", "ls-remote", p.http+"/owner/"+name), ""
		if out, err := g.lsRemote("owner", g.url+"/owner/"+name+".git"); err == nil {
			want = out
		}
		if got = strings.TrimSpace(got); got != strings.TrimSpace(want) || got == "" {
			t.Errorf("the refs of %s are\n%s\nwant\n%s", name, got, want)
		}
	}
	if oid != "" {
		lfs := filepath.Join(root, "owner/app.git/lfs/objects", oid[:2], oid[2:4], oid)
		if text, err := os.ReadFile(lfs); err != nil || string(text) != "a large file" {
			t.Errorf("the object of Git LFS is %q, %v", text, err)
		}
	}
}

// TestMoveOfGitolite moves a real gitolite with the commands of the page. Its users keep their keys and rights.
func TestMoveOfGitolite(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for _, program := range []string{"gitolite", "ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("*** There is no %s: moving from gitolite is NOT tested. ***", program)
		}
	}
	home, dir := t.TempDir(), t.TempDir()
	run := func(in string, env []string, name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = in, append(gittest.Env(), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(in string, env []string, name string, args ...string) {
		t.Helper()
		if out, err := run(in, env, name, args...); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	gitolite := []string{"HOME=" + home, "USER=git", "GL_BYPASS_ACCESS_CHECKS=1",
		"GL_BINDIR=/usr/share/gitolite3", "GL_LIBDIR=/usr/share/gitolite3/lib"}
	for _, user := range []string{"alice", "bob"} {
		must(dir, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", user, "-f", user)
	}
	must(dir, gitolite, "gitolite", "setup", "-pk", "alice.pub")
	must(home, nil, "sed", "-i", "s/GIT_CONFIG_KEYS  *=>  *''/GIT_CONFIG_KEYS => '.*'/", ".gitolite.rc") // permits desc
	must(dir, nil, "git", "clone", "--quiet", filepath.Join(home, "repositories/gitolite-admin.git"), "admin")
	conf := "repo gitolite-admin\n RW+ = alice\nrepo team/app\n desc = \"An app\"\n RW+ = alice\n RW dev/ = bob\n" +
		" R = bob\n"
	text, err := os.ReadFile(filepath.Join(dir, "bob.pub"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "admin/keydir/bob.pub"), text, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "admin/conf/gitolite.conf"), []byte(conf), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	must(dir, nil, "git", "-C", "admin", "add", ".")
	must(dir, nil, "git", "-C", "admin", "commit", "--quiet", "-m", "an app")
	must(dir, gitolite, "git", "-C", "admin", "push", "--quiet")
	repo := linear(t)
	must(repo.Dir, gitolite, "git", "push", "--quiet", "--mirror", filepath.Join(home, "repositories/team/app.git"))

	etc := filepath.Join(dir, "etc")
	err = os.Mkdir(etc, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "serve.toml"), []byte("root = '"+dir+"/git'\n[ssh]\naddress = '127.0.0.1:0'\n"+
			"authorized_keys = '"+etc+"/keys'\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	movePage(t, dir, "gitolite", "git@old.example:gitolite-admin", filepath.Join(home, "repositories/gitolite-admin.git"),
		"/home/git", home, "/srv/git", filepath.Join(dir, "git"), "/tmp/gitolite", filepath.Join(dir, "import"),
		"/etc/packhorse", etc)
	p := serveMoved(t, "--config", filepath.Join(etc, "serve.toml"))
	as := func(user string, args ...string) error {
		out, err := run(repo.Dir, []string{"GIT_SSH_COMMAND=ssh -F /dev/null -o StrictHostKeyChecking=no -o " +
			"UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes -o BatchMode=yes -i " + dir + "/" + user}, "git", args...)
		t.Logf("%s: git %q: %v\n%s", user, args, err, out)
		return err
	}
	url := strings.Replace(p.ssh, "://", "://git@", 1) + "/team/app"
	for _, test := range []struct {
		user, ref string
		may       bool
	}{{"alice", "main", true}, {"alice", "dev/x", true}, {"bob", "dev/y", true}, {"bob", "other", false}} {
		if err := as(test.user, "ls-remote", url); err != nil {
			t.Errorf("%s may not read: %v", test.user, err)
		}
		if err := as(test.user, "push", url, "main:refs/heads/"+test.ref); (err == nil) != test.may {
			t.Errorf("%s pushes %s: %v, want a push: %v", test.user, test.ref, err, test.may)
		}
	}
	if err := as("bob", "ls-remote", strings.Replace(url, "team/app", "gitolite-admin", 1)); err == nil {
		t.Error("bob may read gitolite-admin")
	}
	if out := runPackhorse(t, dir, "repo", "info", "team/app", "--root", filepath.Join(dir, "git")); !strings.Contains(out,
		"An app") {
		t.Errorf("the description is lost:\n%s", out)
	}
}

// TestMoveOfCgit runs the commands of the page for cgit and gitweb.
func TestMoveOfCgit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"app.git", "web.git"} {
		r := gittest.InitAt(t, filepath.Join(dir, "old", name), "--bare")
		r.Git("update-ref", "refs/heads/main", r.Commit(name).String())
	}
	for name, text := range map[string]string{
		"cgitrc":      "repo.url=team/app\nrepo.path=" + dir + "/old/app.git\nrepo.desc=An app\nrepo.owner=Ann\n",
		"gitweb.conf": "$projectroot = '" + dir + "/old';\n$projects_list = '" + dir + "/projects';\n",
		"projects":    "web.git Bob\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ from, path, owner string }{{"cgit", "team/app", "Ann"}, {"gitweb", "web", "Bob"}} {
		into := filepath.Join(dir, "of-"+test.from)
		movePage(t, dir, "cgit and gitweb", "/etc", dir, "ROOT=/srv/git sh /tmp/cgit",
			"ROOT="+into+"/git sh "+into+"/"+test.from, "/srv/git", into+"/git", "/tmp", into)
		out := runPackhorse(t, dir, "repo", "info", test.path, "--root", into+"/git")
		if !strings.Contains(out, test.owner) {
			t.Errorf("the owner of %s is not %s:\n%s", test.path, test.owner, out)
		}
	}
}
