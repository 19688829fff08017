package migrate

import (
	"errors"
	"fmt"
	"html"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	return path
}

// notes returns the lines and the beginnings of the texts of notes.
func notes(r *Result) (list []string) {
	for _, n := range r.Notes {
		list = append(list, fmt.Sprintf("%s:%d %s", filepath.Base(n.File), n.Line, n.Text))
	}
	return list
}

func checkNotes(t *testing.T, r *Result, want ...string) {
	t.Helper()
	got := notes(r)
	if len(got) != len(want) {
		t.Fatalf("%d notes, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range got {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("note %q, want %q", got[i], want[i])
		}
	}
}

// Each line of gitolite.conf without an equivalent has a note, and permits nothing.
func TestGitoliteNotes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := write(t, filepath.Join(dir, "conf/gitolite.conf"), strings.Join([]string{
		`config core.x = 1`,
		`@g = alice @g @h # a comment`,
		`@h = @g bob`,
		`include "more/*.conf"`,
		`include "missing.conf"`,
		`subconf "sub.conf"`,
		`repo app`,
		`    RW feature/[a-z]+ = alice`,
		`    - secret/[0-9] = alice`,
		`    RW = alice`,
		`    RW VREF/NAME/doc/ = alice`,
		`    - VREF/COUNT/3 = @h`,
		`    RW+M = alice gitweb WRITERS`,
		`    option mirror.master = x`,
		`    config hooks.emailprefix = x`,
		`    C = alice`,
		`repo users/CREATOR/..*`,
		`    RW+ = CREATOR`,
		`repo x[0-9]+`,
		`    R = @all`,
		`nonsense`,
		`repo app @norepos`,
		`    - @norefs = alice`,
		`    RW = @nogroup @k`,
		`@k = @nested`,
	}, "\n"))
	write(t, filepath.Join(dir, "conf/more/a.conf"), "repo included\n    R = dave\n")
	write(t, filepath.Join(dir, "conf/sub.conf"), "include \"gitolite.conf\"\n")
	write(t, filepath.Join(dir, "keydir/alice.pub"), "ssh-ed25519 AAAA alice\n")
	write(t, filepath.Join(dir, "keydir/work/alice@laptop.pub"), "ssh-ed25519 BBBB\n")
	write(t, filepath.Join(dir, "keydir/bob@example.com.pub"), "ssh-ed25519 CCCC\n")
	write(t, filepath.Join(dir, "keydir/-x.pub"), "ssh-ed25519 DDDD\n")
	r, err := Gitolite(dir)
	if err != nil {
		t.Fatal(err)
	}
	checkNotes(t, r, "gitolite.conf:1 it has no equivalent", "gitolite.conf:5 no such file: missing.conf",
		"gitolite.conf:6 subconf is read as include", `gitolite.conf:8 "feature/[a-z]+" has no equivalent: the rule is left out`,
		`gitolite.conf:9 "secret/[0-9]" has no equivalent: these callers are denied`,
		`gitolite.conf:11 "VREF/NAME/doc/" has no equivalent`, `gitolite.conf:12 "VREF/COUNT/3" has no equivalent`,
		"gitolite.conf:13 M is ignored", "gitolite.conf:13 gitweb is ignored", "gitolite.conf:13 WRITERS is ignored",
		"gitolite.conf:14 it has no equivalent", "gitolite.conf:15 it has no equivalent",
		"gitolite.conf:16 pushes create repositories by", "gitolite.conf:18 CREATOR is ignored",
		"gitolite.conf:21 it has no equivalent", "gitolite.conf:23 @norefs is ignored",
		"-x.pub:0 the key is left out", `gitolite.conf:17 repositories "users/CREATOR/..*" have no equivalent`,
		`gitolite.conf:19 repositories "x[0-9]+" have no equivalent`, "gitolite.conf:22 @norepos is ignored: no line defines",
		"gitolite.conf:24 @nogroup is ignored: no line defines", "gitolite.conf:24 @nested is ignored")
	text := r.Access()
	for _, never := range []string{"create", "write", "x[0-9]", "CREATOR"} {
		if strings.Contains(text, never) {
			t.Errorf("the rules have %q:\n%s", never, text)
		}
	}
	keys := map[string]string{"alice": "ssh-ed25519 AAAA alice\nssh-ed25519 BBBB\n",
		"bob@example.com": "ssh-ed25519 CCCC\n"}
	if !maps.Equal(r.Keys, keys) {
		t.Errorf("keys %q, want %q", r.Keys, keys)
	}

	out := filepath.Join(dir, "out")
	if err := r.Write(out); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(out, "keys/alice")); err != nil || string(text) != r.Keys["alice"] {
		t.Errorf("keys/alice is %q, %v", text, err)
	}
	if err := r.Write(out); err == nil || !strings.Contains(err.Error(), "exists, and nothing is replaced") {
		t.Errorf("second write: %v", err)
	}
	for _, path := range []string{conf + "x", filepath.Join(dir, "keydir")} {
		if _, err := Gitolite(path); err == nil || !strings.Contains(err.Error(), "a clone of gitolite-admin") {
			t.Errorf("%s: %v, want an error that names what to read", path, err)
		}
	}
}

// Descriptions and owners are quoted in the script of commands.
func TestCommands(t *testing.T) {
	t.Parallel()
	r := newResult()
	*r.repository("-x.git") = Repository{"-x.git", "/d ir", `it's $(id)`, "`id`", "", false}
	got := r.Commands()
	for _, want := range []string{`-- '-x' '/d ir'`, `--description 'it'\''s $(id)' -- '-x'`, "--owner '`id`' -- '-x'"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

// Notes have nothing of the lines of files that other files name. Files may name each other.
func TestIncludedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := write(t, filepath.Join(dir, "secret.conf"), "password=hunter2\nroot:hunter2:0\nhunter2\nrepo.x=hunter2\n")
	rc := write(t, filepath.Join(dir, "cgitrc"), "include="+secret+"\ninclude="+dir+"/cgitrc\nrepo.url=a\n")
	web := write(t, filepath.Join(dir, "gitweb.conf"), "$projectroot = '"+dir+"';\n$projects_list = '"+secret+"';\n")
	lite := write(t, filepath.Join(dir, "lite/conf/gitolite.conf"), "repo a\n include '../../secret.conf'\n")
	for path, read := range map[string]func(string) (*Result, error){rc: Cgit, web: Gitweb, lite: Gitolite} {
		r, err := read(path)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(notes(r), "\n") + r.Commands(); strings.Contains(text, "hunter2") ||
			!strings.Contains(text, "secret.conf:3 it ") {
			t.Errorf("%s: the notes have lines of a file, or not its name:\n%s", path, text)
		}
	}
	for i := range maxFiles + 1 {
		next := filepath.Join(dir, fmt.Sprint("rc", i+1))
		write(t, filepath.Join(dir, fmt.Sprint("rc", i)), "include="+next+"\ninclude="+next+"\n")
	}
	if _, err := Cgit(filepath.Join(dir, "rc0")); err == nil || !strings.Contains(err.Error(), "more than 1000 files") {
		t.Errorf("1001 files: %v", err)
	}
}

func cgi(t *testing.T, program, pkg string, env ...string) string {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		t.Skipf("SKIPPED: there is no %s here (Debian's package %s)", program, pkg)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), append(env, "REQUEST_METHOD=GET", "GATEWAY_INTERFACE=CGI/1.1", "SERVER_NAME=x",
		"SCRIPT_NAME=/x")...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	return string(out)
}

// The page of cgit has all that is imported of a cgitrc.
func TestCgit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"app.git", "b/tool.git"} {
		gittest.InitAt(t, filepath.Join(dir, name), "--bare")
	}
	write(t, filepath.Join(dir, "more"), "repo.url=tools/tool\nrepo.path="+dir+"/b/tool.git\nrepo.owner=Bob\n"+
		"repo.hide=0\nrepo.section=two & more\nrepo.url=hidden\nrepo.path="+dir+"/app.git\nrepo.hide=1\n")
	rc := write(t, filepath.Join(dir, "cgitrc"), "# comment\ncss=/cgit.css\nroot-title=x\nabout-filter=y\nsection=one\n"+
		"repo.url=app\nrepo.path="+dir+"/app.git\nrepo.desc=An app\nrepo.owner=Alice A.\nrepo.module-link=x\nunknown=1\n"+
		"include="+dir+"/more\nproject-list=/list\nscan-path=/none\n")
	r, err := Cgit(rc)
	if err != nil {
		t.Fatal(err)
	}
	checkNotes(t, r, "cgitrc:2 set pages.style", "cgitrc:3 set pages.title", "cgitrc:4 it has no equivalent",
		"cgitrc:10 it has no equivalent", "cgitrc:11 it has no equivalent", "cgitrc:13 the file /list is ignored",
		"cgitrc:14 repositories below /none")
	want := []Repository{{"app", dir + "/app.git", "An app", "Alice A.", "one", false},
		{"hidden", dir + "/app.git", "", "", "one", true},
		{"tools/tool", dir + "/b/tool.git", "", "Bob", "two & more", false}}
	for i, repo := range r.Repositories {
		if *repo != want[i] {
			t.Errorf("repository %v, want %v", *repo, want[i])
		}
	}
	page := cgi(t, "/usr/lib/cgit/cgit.cgi", "cgit", "CGIT_CONFIG="+rc, "PATH_INFO=/", "QUERY_STRING=")
	for _, repo := range r.Repositories {
		for _, text := range []string{">" + repo.Path + "</a>", repo.Description, repo.Owner,
			html.EscapeString(repo.Category)} {
			if shown := strings.Contains(page, text); !shown && !repo.Unlisted || shown && text == ">hidden</a>" {
				t.Errorf("cgit shows %q: %v\n%s", text, shown, page)
			}
		}
	}
}

// The list of gitweb has all that is imported of its configuration.
func TestGitweb(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"app.git", "with space.git"} {
		gittest.InitAt(t, filepath.Join(dir, "git", name), "--bare")
	}
	write(t, filepath.Join(dir, "git/app.git/description"), "An app\n")
	write(t, filepath.Join(dir, "projects"), "app.git Alice+%C3%89.\nwith%20space.git\n../out.git Eve\n")
	conf := write(t, filepath.Join(dir, "gitweb.conf"), "# comment\nour $projectroot = \""+dir+"/git\";\n"+
		"$projects_list = '"+dir+"/projects';\n$site_name = \"x\";\n$feature{'blame'}{'default'} = [1];\n"+
		"system(\"touch "+dir+"/hacked\");\n1;\n")
	r, err := Gitweb(conf)
	if err != nil {
		t.Fatal(err)
	}
	checkNotes(t, r, "gitweb.conf:4 set pages.title", "gitweb.conf:5 it is not a plain assignment",
		"gitweb.conf:6 it is not a plain assignment", "projects:3 it is not a repository below $projectroot")
	if _, err := os.Stat(filepath.Join(dir, "hacked")); err == nil {
		t.Error("the configuration was run")
	}
	want := Repository{"app.git", dir + "/git/app.git", "An app", "Alice É.", "", false}
	if len(r.Repositories) != 2 || *r.Repositories[0] != want {
		t.Errorf("repositories %v", r.Repositories)
	}
	list := cgi(t, "/usr/share/gitweb/gitweb.cgi", "gitweb", "GITWEB_CONFIG="+write(t, filepath.Join(dir, "plain.conf"),
		"our $projectroot = \""+dir+"/git\";\n$projects_list = '"+dir+"/projects';\n1;\n"), "QUERY_STRING=")
	for _, text := range []string{"app.git", "An app", "Alice É."} {
		if !strings.Contains(html.UnescapeString(list), text) {
			t.Errorf("gitweb does not show %q:\n%s", text, list)
		}
	}
	none, err := Gitweb(write(t, filepath.Join(dir, "none.conf"), "$projectroot = '/srv/git';\n"))
	if err != nil {
		t.Fatal(err)
	}
	checkNotes(t, none, "none.conf:0 without $projects_list there is no list: serve /srv/git")
}
