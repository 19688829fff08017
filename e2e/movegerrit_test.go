package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestMoveOfGerrit follows move-gerrit.md. JGit pushes like Gerrit's replication plugin, with the configuration of the
// page. Debian has no Gerrit, so the site is a directory of repositories with refs as Gerrit has them.
func TestMoveOfGerrit(t *testing.T) {
	t.Parallel()
	jgit, err := filepath.Abs(filepath.Join(os.Getenv("PACKHORSE_CLIENTS"), "bin/jgit"))
	if err == nil && os.Getenv("PACKHORSE_CLIENTS") != "" {
		_, err = os.Stat(jgit)
	}
	if err != nil || os.Getenv("PACKHORSE_CLIENTS") == "" {
		t.Skipf("*** There is no JGit: replication of Gerrit is NOT tested (make clients). *** (%v)", err)
	}
	if _, err := exec.LookPath("rsync"); err != nil {
		t.Skipf("*** There is no rsync: replication of Gerrit is NOT tested. *** (%v)", err)
	}
	g := followGuide(t, "move-gerrit.md")
	site := filepath.Join(g.dir, "gerrit")
	g.words = append([]string{"root@gerrit.example:/var/gerrit/git", site, "check.sh https://gerrit.example/",
		"check.sh " + site + "/"}, g.words...)
	project := gittest.InitAt(t, filepath.Join(site, "team/app.git"), "--bare")
	set := func(ref string, parents ...string) string {
		t.Helper()
		tree := strings.TrimSpace(project.GitIn("", "mktree"))
		args := []string{"commit-tree", "-m", ref, tree}
		for _, parent := range parents {
			args = append(args, "-p", parent)
		}
		id := strings.TrimSpace(project.Git(args...))
		project.Git("update-ref", ref, id)
		return id
	}
	main := set("refs/heads/main")
	project.Git("symbolic-ref", "HEAD", "refs/heads/main")
	project.Git("tag", "-m", "one", "v1", "main")
	set("refs/heads/gone")
	set("refs/changes/01/1/1", main)
	set("refs/changes/01/1/meta")
	set("refs/meta/config")
	gittest.InitAt(t, filepath.Join(site, "All-Users.git"), "--bare")

	out := g.follow(2)
	token := regexp.MustCompile(`phk_\w+`).FindString(out)
	page, err := os.ReadFile("../docs/how-to/move-gerrit.md")
	if err != nil {
		t.Fatal(err)
	}
	setting := func(key string) []string {
		var values []string
		for _, m := range regexp.MustCompile(`(?m)^    `+key+` = (.*)$`).FindAllStringSubmatch(string(page), -1) {
			values = append(values, m[1])
		}
		return values
	}
	replicate := func(name string) string {
		t.Helper()
		url := strings.ReplaceAll(setting("url")[0], "${name}", name)
		return g.sh(strings.Join([]string{jgit, "replicate", filepath.Join(site, name+".git"), url, setting("username")[0],
			token, "'" + strings.Join(setting("push"), "' '") + "'"}, " "))
	}
	if out := replicate("team/app"); out != "" {
		t.Errorf("after the copy nothing is to be pushed: %s", out)
	}
	const url = "http://127.0.0.1:8080/team/app.git"
	if out := g.sh("git ls-remote " + url); strings.Contains(out, "refs/meta") {
		t.Errorf("permissions were copied: %s", out)
	}
	g.sh("git ls-remote http://127.0.0.1:8080/All-Users.git && exit 1 || :")

	// A change is merged, another one gets a second patch set, a branch is rewound, and one is removed.
	set("refs/changes/01/1/2", main)
	set("refs/changes/02/2/1", set("refs/heads/main", main))
	set("refs/heads/main")
	project.Git("update-ref", "-d", "refs/heads/gone")
	replicate("team/app")
	if got, want := g.sh("git ls-remote "+url), g.sh("git ls-remote "+site+
		"/team/app.git | grep -v refs/meta"); got != want {
		t.Errorf("the replica has\n%s\nwant\n%s", got, want)
	}
	g.sh("git init -q work && git -C work fetch -q " + url + " refs/changes/02/2/1")

	// A new project.
	g.sh("git clone -q --mirror " + site + "/team/app.git " + site + "/team/new.git && git -C " + site +
		"/team/new.git branch -m main trunk")
	g.follow(1)
	replicate("team/new")
	const check = "echo team/new.git | sh check.sh https://gerrit.example/ http://127.0.0.1:8080/ HEAD 'refs/heads/*'"
	if out := g.sh(check); out != "" {
		t.Errorf("the new project: %s", out)
	}

	// Hidden changes are replicated too.
	g.follow(1)
	set("refs/changes/02/2/2", main)
	set("refs/heads/main", main)
	if out := replicate("team/app"); !strings.Contains(out, "OK refs/changes/02/2/2") ||
		!strings.Contains(out, "UP_TO_DATE refs/changes/02/2/1") {
		t.Errorf("hidden refs are pushed: %s", out)
	}
	if out := g.sh("git ls-remote " + url); strings.Contains(out, "refs/changes") {
		t.Errorf("clients see hidden refs: %s", out)
	}
	if _, err := g.try("git -C work fetch -q " + url + " refs/changes/02/2/2"); err == nil {
		t.Error("clients fetch hidden refs")
	}
	if out := g.follow(1); out != "" {
		t.Errorf("the check finds %s", out)
	}
	if got, want := g.sh("git -C /srv/git/team/app.git for-each-ref"), g.sh("git -C "+site+
		"/team/app.git for-each-ref | grep -v refs/meta"); got != want {
		t.Errorf("the replica has\n%s\nwant\n%s", got, want)
	}

	// Clients fetch here and push to Gerrit.
	g.follow(1)
	g.sh("git -C work remote add origin https://gerrit.example/team/app.git")
	if out := g.sh("git -C work remote -v"); !strings.Contains(out, "http://127.0.0.1") ||
		!strings.Contains(out, "gerrit.example/team/app.git (push)") {
		t.Errorf("the URLs are %s", out)
	}
}
