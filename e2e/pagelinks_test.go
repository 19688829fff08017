package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestPageSubmodules follows the links of submodules, and compares URLs with those that git uses.
func TestPageSubmodules(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	lib := gittest.InitAt(t, filepath.Join(root, "team/lib.git"))
	const by = "commit refs/heads/main\ncommitter a <a@example.org> "
	lib.GitIn(by+"1700000000 +0000\ndata 3\none"+
		"M 100644 inline file\ndata 2\nx\n\n"+by+"1700000001 +0000\ndata 3\ntwo"+
		"M 100644 inline file\ndata 2\ny\n", "fast-import", "--quiet")
	gittest.InitAt(t, filepath.Join(root, "team/app.git"))
	c := servePages(t, root)
	urls := map[string]string{"rel": "../lib.git", "dot": "./../../team/lib", "abs": c.base + "/team/lib.git",
		"out": "https://git.example.org/a/b.git", "ssh": "ssh://git@git.example.org/a", "js": "javascript:alert(1)",
		"spoof": "https://git.example.org@evil.example/", "up": "../../../../x", "q\"'": "../lib"}
	var modules, entries strings.Builder
	old, now := lib.Git("rev-parse", "main~"), lib.Git("rev-parse", "main")
	for name, to := range urls {
		fmt.Fprintf(&modules, "[submodule \"x %s\"]\n\tpath = %q\n\turl = %s\n", strings.ReplaceAll(name, `"`, ""),
			"m/"+name, to)
		fmt.Fprintf(&entries, "M 160000 %%s %s\n", fastImport("m/"+name))
	}
	app := gittest.At(t, filepath.Join(root, "team/app.git"))
	var script strings.Builder
	for i, id := range []string{old, now} {
		fmt.Fprintf(&script, "commit refs/heads/main\ncommitter a <a@example.org> %d +0000\ndata 1\n%d\n"+
			"M 100644 inline .gitmodules\ndata %d\n%s\n%s\n", 1700000000+i, i, modules.Len(), modules.String(),
			strings.ReplaceAll(entries.String(), "%s", id))
	}
	app.GitIn(script.String(), "fast-import", "--quiet")
	work := filepath.Join(t.TempDir(), "work")
	gittest.Run(t, "", "", "clone", "--quiet", c.base+"/team/app", work)
	gittest.Run(t, work, "", "submodule", "--quiet", "init")

	linkIn := func(page []byte, text string) (list []*html.Node) {
		return elements(t, page, func(n *html.Node) bool { return n.Data == "a" && textOf(n) == text })
	}
	tree := c.get("/team/app/-/tree/main/m")
	safe(t, "the directory", tree)
	inside := 0
	for name, to := range urls {
		used := strings.TrimSpace(gittest.Run(t, work, "", "config", "submodule.x "+strings.ReplaceAll(name, `"`, "")+".url"))
		page := c.get("/team/app/-/file/main/" + escapePath("m/"+name))
		safe(t, name, page)
		if text := string(page); !strings.Contains(text, now) || !strings.Contains(text, "This is a submodule") {
			t.Errorf("the page of %s: %s", name, text)
		}
		links := linkIn(page, to)
		switch {
		case strings.HasPrefix(used, c.base+"/team/lib"):
			inside++
			if len(links) != 1 || !strings.Contains(string(c.get(attribute(links[0], "href"))), "/-/file/"+now+"/file\"") {
				t.Errorf("%s has %d links, want one to the files of %s at %s", name, len(links), used, now)
			}
		case name == "out":
			if len(links) != 1 || attribute(links[0], "href") != used ||
				attribute(links[0], "rel") != "nofollow noopener noreferrer" {
				t.Errorf("%s has %d links, want one to %s", name, len(links), used)
			}
		case len(links) > 0:
			t.Errorf("%s, %s, is a link", name, to)
		}
	}
	if got := len(linkIn(tree, now[:10])); got != inside+1 || inside != 4 {
		t.Errorf("the directory has %d links of %d submodules here, want %d of 4", got, inside, inside+1)
	}
	diff := linkIn(c.get("/team/app/-/commit/main"), old[:10]+".."+now[:10])
	if len(diff) != inside+1 {
		t.Fatalf("the commit has %d links to changes of submodules, want %d", len(diff), inside+1)
	}
	for _, link := range diff {
		if to := attribute(link, "href"); strings.HasPrefix(to, "/") {
			compareDiff(t, to, c.get(to), lib.Git("diff", old, now))
		}
	}
	if status, _, _ := c.try("/team/app/-/file/main/m/none"); status != http.StatusNotFound {
		t.Errorf("a submodule that does not exist: status %d, want 404", status)
	}
}

// TestCloneCommands runs the commands of the clone box in a shell.
func TestCloneCommands(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("ssh is not installed")
	}
	root, dir := t.TempDir(), t.TempDir()
	const name = "team/a b'$(touch x);"
	repo := newPageRepo(t, filepath.Join(root, name+".git"))
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte("[ssh]\nanonymous = true\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c := servePages(t, root, "--ssh", "127.0.0.1:0", "--config", config)
	lines := elements(t, c.get("/"+escapePath(name)+"/"), func(n *html.Node) bool {
		return n.Data == "input" && strings.HasPrefix(attribute(n, "id"), "clone-")
	})
	if len(lines) != 3 {
		t.Fatalf("the page has %d commands, want 3", len(lines))
	}
	for _, line := range lines {
		work := t.TempDir()
		cmd := exec.Command("sh", "-c", attribute(line, "value"))
		cmd.Dir, cmd.Env = work, append(gittest.Env(), "GIT_SSH_COMMAND=ssh -F /dev/null -o StrictHostKeyChecking=no -o "+
			"UserKnownHostsFile=/dev/null -o LogLevel=ERROR")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", attribute(line, "value"), err, out)
			continue
		}
		made, err := os.ReadDir(work)
		if err != nil || len(made) != 1 {
			t.Fatalf("%s made %d files, want 1: %v", attribute(line, "value"), len(made), err)
		}
		if got, want := strings.TrimSpace(gittest.Run(t, filepath.Join(work, made[0].Name()), "", "rev-parse", "HEAD")),
			repo.Git("rev-parse", "HEAD"); got != want {
			t.Errorf("%s has HEAD %s, want %s", attribute(line, "value"), got, want)
		}
	}
}

// TestPageCompareImages: images and removed files of A...B are those of git's merge base.
func TestPageCompareImages(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := gittest.InitAt(t, filepath.Join(root, "app.git"))
	commit := func(branch, from, changes string) string {
		return "commit refs/heads/" + branch + "\ncommitter a <a@example.org> 1700000000 +0000\ndata 1\nx\n" + from + changes
	}
	image := func(text string) string { return "M 100644 inline i.png\ndata 2\n\x00" + text + "\n" }
	r.GitIn(commit("main", "", image("1")+"M 100644 inline gone\ndata 2\nx\n\n")+
		commit("a", "from refs/heads/main\n", image("2")+"D gone\n")+
		commit("b", "from refs/heads/main\n", image("3")+"D gone\n"), "fast-import", "--quiet")
	c := servePages(t, root)
	base := r.Git("merge-base", "a", "b")
	page := string(c.get("/app/-/compare/a...b"))
	for _, want := range []string{"/app/-/raw/" + base + "/i.png", "/app/-/file/" + base + "/gone"} {
		if !strings.Contains(page, `"`+want+`"`) {
			t.Errorf("the comparison has no link to %s", want)
		}
		c.get(want)
	}
}
