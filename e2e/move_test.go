package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// guide is a page about a move whose commands a test runs, with other paths and addresses. All of them have to be run.
type guide struct {
	*testing.T
	page   string
	dir    string   // where the commands run, and the home of their user
	blocks []string // of commands that have not run yet
	words  []string // in the commands, and by what they are replaced
	env    []string
	server *serverProcess
}

var shellBlocks = regexp.MustCompile("(?ms)^( *)```sh\n(.*?)^ *```$")

// followGuide begins with check.sh of docs/how-to/move.md. The directories /srv, /etc and /var/lib are below dir.
func followGuide(t *testing.T, page string, words ...string) *guide {
	t.Helper()
	g := &guide{T: t, page: page, dir: t.TempDir(), words: words}
	for _, name := range []string{"etc", "srv/git", "var"} {
		if err := os.MkdirAll(filepath.Join(g.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g.words = append(g.words, "--chown=packhorse:packhorse ", "", "-o packhorse -g packhorse ", "", "/srv/", g.dir+"/srv/",
		"/etc/", g.dir+"/etc/", "/var/lib/packhorse", g.dir+"/var/packhorse", `":2222"`, `"127.0.0.1:0"`,
		`"127.0.0.1:8080"`, `"127.0.0.1:0"`)
	g.env = append(gittest.Env(), "HOME="+g.dir, "GIT_CONFIG_GLOBAL="+filepath.Join(g.dir, "gitconfig"),
		"PATH="+filepath.Join(g.dir, "bin")+":"+binDir+":"+os.Getenv("PATH"))
	for _, name := range []string{"move.md", page} {
		text, err := os.ReadFile("../docs/how-to/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range shellBlocks.FindAllStringSubmatch(string(text), -1) {
			g.blocks = append(g.blocks, strings.ReplaceAll("\n"+m[2], "\n"+m[1], "\n")[1:])
		}
	}
	g.follow(1)
	t.Cleanup(func() {
		g.stop()
		if len(g.blocks) > 0 && !t.Failed() {
			t.Errorf("the test does not run all commands of %s: %q", page, g.blocks)
		}
	})
	return g
}

// servers matches a command that starts a server.
var servers = regexp.MustCompile(`(?m)^packhorse ((?:serve|mirror) .*)\n`)

// follow runs the next n blocks of commands and returns their output. A server that they start runs until the next one.
func (g *guide) follow(n int) (out string) {
	g.Helper()
	if len(g.blocks) < n {
		g.Fatalf("%s has not enough commands", g.page)
	}
	for _, block := range g.blocks[:n] {
		if at := servers.FindStringSubmatchIndex(block); at != nil {
			out += g.sh(block[:at[0]])
			g.serve(block[at[2]:at[3]])
			block = block[at[1]:]
		}
		out += g.sh(block)
	}
	g.blocks = g.blocks[n:]
	return out
}

// sh runs commands.
func (g *guide) sh(script string) string {
	g.Helper()
	out, err := g.try(script)
	if err != nil {
		g.Fatalf("%s: %v\n%s\n%s", g.page, err, script, out)
	}
	return out
}

func (g *guide) try(script string) (string, error) {
	cmd := exec.Command("sh", "-euc", strings.NewReplacer(g.words...).Replace(script))
	cmd.Dir, cmd.Env = g.dir, g.env
	out, err := cmd.CombinedOutput()
	g.Logf("%s%s", script, out)
	return string(out), err
}

// serve starts a server with the arguments of the page. Its addresses replace those of the page.
func (g *guide) serve(args string) {
	g.Helper()
	g.stop()
	p, err := startServer(g.dir, g.env, append(strings.Fields(strings.NewReplacer(g.words...).Replace(args)), "--http",
		"127.0.0.1:0", "--ops", "127.0.0.1:0"))
	if err != nil {
		g.Fatal(err)
	}
	_, ssh, _ := strings.Cut(p.ssh, "://")
	g.server = p
	g.words = append([]string{"http://127.0.0.1:8080", p.http, "http://127.0.0.1:9090", p.ops, "packhorse:8080",
		strings.TrimPrefix(p.http, "http://"), "@127.0.0.1:8080", "@" + strings.TrimPrefix(p.http, "http://"),
		"git.example:2222", ssh, "https://git.example", p.http}, g.words...)
}

func (g *guide) stop() {
	if g.server != nil {
		g.server.cmd.Process.Signal(syscall.SIGTERM) // a killed one leaves an indexer that writes for a moment
		g.server.wait()
		killAll(g.T, g.server)
	}
	g.server = nil
}

// tip returns the object ID of a ref.
func (g *guide) tip(repository, ref string) string {
	g.Helper()
	id, _, _ := strings.Cut(g.sh("git ls-remote "+repository+" "+ref), "\t")
	return id
}

// TestMoveOfGitDaemon follows move-git-daemon.md with a real git-daemon.
func TestMoveOfGitDaemon(t *testing.T) {
	t.Parallel()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	g := followGuide(t, "move-git-daemon.md", "git://git.example/", "git://"+address+"/")
	root := filepath.Join(g.dir, "srv/git")
	for _, name := range []string{"app.git", "team/lib.git", "team/private.git"} {
		r := gittest.InitAt(t, filepath.Join(root, name), "--bare")
		r.Git("update-ref", "refs/heads/trunk", r.Commit(name).String())
		r.Git("symbolic-ref", "HEAD", "refs/heads/trunk")
		r.Git("tag", "-m", "one", "v1", "trunk")
		if name != "team/private.git" {
			write(t, filepath.Join(root, name, "git-daemon-export-ok"), "")
		}
	}
	host, port, _ := strings.Cut(address, ":")
	daemon := exec.Command("git", "daemon", "--base-path="+root, "--listen="+host, "--port="+port, "--reuseaddr")
	daemon.Env = g.env
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Process.Kill(); daemon.Wait() })
	if !gittest.Eventually(func() bool { _, err := g.try("git ls-remote git://git.example/app.git"); return err == nil }) {
		t.Fatal("git-daemon does not serve app.git")
	}

	// Names that would be patterns, two names, or a rule of their own.
	find := g.blocks[0]
	for _, name := range []string{"x\", \"**", "*", "{name}", "a\nteam/private.git",
		"git-daemon-export-ok\n" + root + "/x"} {
		odd := filepath.Join(root, "odd", name)
		if err := os.MkdirAll(odd, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(odd, "git-daemon-export-ok"), "")
		out, err := g.try(find)
		names, _ := os.ReadFile(filepath.Join(g.dir, "names"))
		if err == nil || !strings.Contains(out, "rename these") || string(names) != "app.git\nteam/lib.git\n" {
			t.Errorf("the directory %q is exported: %v, %s, names %q", name, err, out, names)
		}
		if err := os.RemoveAll(filepath.Join(root, "odd")); err != nil {
			t.Fatal(err)
		}
	}

	out := g.follow(3)
	if !strings.Contains(out, "phk_") || strings.Contains(out, "differs") {
		t.Errorf("the commands print %s", out)
	}
	for _, url := range []string{"git://git.example/team/private.git", "http://127.0.0.1:8080/team/private.git"} {
		if out, err := g.try("git ls-remote " + url); err == nil {
			t.Errorf("%s, which is not exported, has %s", url, out)
		}
	}
	g.follow(1)
	if got, want := g.tip("git://git.example/app.git", "refs/heads/trunk"), g.tip("http://127.0.0.1:8080/app.git",
		"refs/heads/trunk"); got != want || !strings.Contains(g.sh("git config --global --list"), "insteadof") {
		t.Errorf("with the old URL trunk is %s, want %s", got, want)
	}
	// A push with the token is in the repository that git-daemon serves.
	token := regexp.MustCompile(`phk_\w+`).FindString(out)
	g.sh("git clone -q http://127.0.0.1:8080/app.git work && git -C work commit -q --allow-empty -m pushed &&" +
		"git -C work -c http.extraHeader='" + basicHeader("alice", token) + "' push -q origin trunk")
	if got, want := g.tip("http://127.0.0.1:8080/app.git", "refs/heads/trunk"), strings.TrimSpace(g.sh(
		"git -C work rev-parse trunk")); got != want {
		t.Errorf("trunk is %s, want the pushed commit %s", got, want)
	}
	if got := g.sh("GIT_CONFIG_GLOBAL=/dev/null sh check.sh git://git.example/ http://127.0.0.1:8080/ <names"); got != "" {
		t.Errorf("after a push the check says %s", got)
	}
	g.sh("git -C /srv/git/app.git update-ref -d refs/tags/v1 && cp -r /srv/git/app.git other.git &&" +
		"git -C other.git update-ref refs/heads/more trunk")
	if got, err := g.try("echo .git | sh check.sh other http://127.0.0.1:8080/app"); err == nil || got != "differs: .git\n" {
		t.Errorf("the check of different repositories says %v: %s", err, got)
	}
}

// TestMoveOfCgit follows move-cgit.md with lists and addresses of a real cgit and a real gitweb.
func TestMoveOfCgit(t *testing.T) {
	t.Parallel()
	for program, configure := range map[string]func(g *guide) (site cgiSite, start string){
		"cgit": func(g *guide) (cgiSite, string) {
			write(t, filepath.Join(g.dir, "etc/cgitrc"), fmt.Sprintf("virtual-root=/cgit/\ncache-size=0\n"+
				"enable-index-links=1\nsection=Tools\nrepo.url=team/app.git\nrepo.path=%[1]s/srv/git/team/app.git\n"+
				"repo.desc=An app\nrepo.owner=Ann\nrepo.url=tool.git\nrepo.path=%[1]s/elsewhere/tool.git\n", g.dir))
			env := []string{"CGIT_CONFIG=" + g.dir + "/etc/cgitrc"}
			return cgiSite{g.T, "/usr/lib/cgit/cgit.cgi", env, "/cgit"}, "/cgit/"
		},
		"gitweb": func(g *guide) (cgiSite, string) {
			write(t, filepath.Join(g.dir, "srv/git/team/app.git/description"), "An app\n")
			write(t, filepath.Join(g.dir, "projects"), "team/app.git Ann\n")
			config := filepath.Join(g.dir, "etc/gitweb.conf")
			write(t, config, fmt.Sprintf("$projectroot = '%[1]s/srv/git';\n$projects_list = '%[1]s/projects';\n"+
				"our $my_uri = '/gitweb';\n$feature{'pathinfo'}{'default'} = [1];\n", g.dir))
			g.words = append([]string{"import cgit /etc/cgitrc", "import gitweb " + config}, g.words...)
			env := []string{"GITWEB_CONFIG=" + config}
			return cgiSite{g.T, "/usr/share/gitweb/gitweb.cgi", env, "/gitweb"}, "/gitweb"
		},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			g := followGuide(t, "move-cgit.md", "/var/log/nginx/access.log", "access.log")
			newOldRepo(t, filepath.Join(g.dir, "work"))
			g.sh("git clone -q --bare work /srv/git/team/app.git && git clone -q --bare work elsewhere/tool.git")
			site, start := configure(g)
			if _, err := os.Stat(site.program); err != nil {
				t.Skipf("*** There is no %s: moving from it is NOT tested. *** (%v)", program, err)
			}
			if page := string(site.get(start, "")); !strings.Contains(page, "An app") || !strings.Contains(page, "Ann") {
				t.Fatalf("%s shows %s", program, page)
			}
			log := ""
			for _, address := range site.crawl(start, 60) {
				log += `192.0.2.7 - - [01/Nov/2026:10:00:00 +0000] "GET ` + address + ` HTTP/1.1" 200 100 "-" "-"` + "\n"
			}
			write(t, filepath.Join(g.dir, "access.log"), log)

			g.follow(2)
			if out := g.follow(2); out != "" {
				t.Errorf("refs differ, or these addresses lead to no page:\n%s", out)
			}
			var page string
			if !gittest.Eventually(func() bool { // settings may show after ten seconds
				page = g.sh("curl -s http://127.0.0.1:8080/")
				return strings.Contains(page, "An app") && strings.Contains(page, "Ann")
			}) {
				t.Errorf("the list does not show description and owner:\n%s", page)
			}
			if program == "cgit" && g.tip("http://127.0.0.1:8080/tool", "HEAD") == "" {
				t.Error("the repository that was elsewhere is not served")
			}
			url := "http://127.0.0.1:8080" + site.place + "/team/app.git"
			if out := g.sh("git ls-remote " + url); !strings.Contains(out, "main") {
				t.Errorf("%s has %s", url, out)
			}
		})
	}
}
