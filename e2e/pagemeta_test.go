package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestPageSettings compares the list with what gitweb and cgit read of repositories, and ages with git's answer.
func TestPageSettings(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(file, text string) {
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	web, plain := gittest.InitAt(t, filepath.Join(root, "web.git")), gittest.InitAt(t, filepath.Join(root, "plain.git"))
	gittest.InitAt(t, filepath.Join(root, "cgit.git"))
	gittest.InitAt(t, filepath.Join(root, "hidden.git"))
	web.Git("config", "gitweb.owner", "Wanda <w@example.org>")
	web.Git("config", "gitweb.category", "of the config")
	write("web.git/description", "for the web <b>\n")
	write("web.git/category", "Tools & more\n")
	write("web.git/cgitrc", "owner=nobody\n")
	write("cgit.git/description", "Unnamed repository; edit this file 'description' to name the repository.\n")
	write("cgit.git/cgitrc", "# of cgit\ndesc=for cgit \xff\u202e\nowner=Carl\nsection=Libraries\nhide=0\n"+
		"source-filter=/bin/sh\n")
	write("hidden.git/cgitrc", "ignore=1\n")
	gittest.InitAt(t, filepath.Join(root, "pipe.git"))
	if err := errors.Join(syscall.Mkfifo(filepath.Join(root, "pipe.git/cgitrc"), 0o666),
		syscall.Mkfifo(filepath.Join(root, "pipe.git/category"), 0o666)); err != nil {
		t.Fatal(err)
	}
	gittest.InitAt(t, filepath.Join(root, "large.git"))
	write("large.git/cgitrc", strings.Repeat("#\n", 1<<20)+"desc=too late\n")
	for i, branch := range []string{"b", "a", "c"} {
		plain.GitIn(fmt.Sprintf("commit refs/heads/%s\nauthor a <a@example.org> 1800000000 +0000\n"+
			"committer a <a@example.org> %d +0000\ndata 1\nx\n", branch, []int{1500000000, 1700000000, 1600000000}[i]),
			"fast-import", "--quiet")
	}
	c := servePages(t, root)
	row := func(name string) (cells []string, at string) {
		t.Helper()
		page := c.get("/")
		safe(t, "the list", page)
		for _, tr := range elements(t, page, func(n *html.Node) bool { return n.Data == "tr" }) {
			if cells = nil; !strings.HasPrefix(textOf(tr), name) {
				continue
			}
			for n := range tr.Descendants() {
				if n.Data == "td" {
					cells = append(cells, textOf(n))
				} else if n.Data == "time" {
					at = attribute(n, "datetime")
				}
			}
			return cells, at
		}
		return nil, ""
	}
	for name, want := range map[string]string{"web": "web|Tools & more for the web <b>|Wanda <w@example.org>|",
		"pipe": "pipe|||", "large": "large|||", "cgit": "cgit|Libraries for cgit \ufffdU+202E|Carl|"} {
		if cells, _ := row(name); strings.Join(cells, "|") != want {
			t.Errorf("the list has %q, want %q", strings.Join(cells, "|"), want)
		}
	}
	if cells, _ := row("hidden"); cells != nil {
		t.Errorf("the list has %q, which cgit ignores", cells)
	}
	if status, _, _ := c.try("/hidden/"); status != http.StatusOK {
		t.Errorf("the page of a repository that is not listed: status %d, want 200", status)
	}
	front := string(c.get("/web/"))
	if !strings.Contains(front, "for the web &lt;b&gt;") {
		t.Errorf("the page of the repository has no description: %s", front)
	}
	newest := func() string {
		seconds, err := strconv.ParseInt(plain.Git("for-each-ref", "--sort=-committerdate", "--count=1",
			"--format=%(committerdate:unix)", "refs/heads"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Unix(seconds, 0).UTC().Format(time.RFC3339)
	}
	if _, at := row("plain"); at != newest() {
		t.Errorf("the last change was at %s, git says %s", at, newest())
	}
	plain.GitIn("commit refs/heads/d\ncommitter a <a@example.org> 1750000000 +0000\ndata 1\ny\n", "fast-import",
		"--quiet")
	if _, at := row("plain"); at != newest() {
		t.Errorf("after a change by git, the last change was at %s, git says %s", at, newest())
	}
	runPackhorse(t, "", "repo", "set", "web", "--category", "New", "--unlisted=false", "--root", root, "--state", c.state)
	if cells, _ := row("web"); strings.Join(cells, "|") != "web|New for the web <b>|Wanda <w@example.org>|" {
		t.Errorf("after a change of the category, the list has %q", cells)
	}
	runPackhorse(t, "", "repo", "set", "web", "--unlisted", "--root", root, "--state", c.state)
	if cells, _ := row("web"); cells != nil {
		t.Errorf("the list has %q, which is unlisted", cells)
	}
	write("cgit.git/cgitrc", "desc=changed\n")
	if cells, _ := row("cgit"); strings.Join(cells, "|") != "cgit|changed||" {
		t.Errorf("after a change of cgitrc, the list has %q", cells)
	}
}

// TestPageLanguages compares shares with the sizes that git lists.
func TestPageLanguages(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := gittest.InitAt(t, filepath.Join(root, "app.git"))
	script := "commit refs/heads/main\ncommitter a <a@example.org> 1700000000 +0000\ndata 1\nx\n"
	for name, size := range map[string]int{"a.go": 3000, "b/c.go": 10, "x.py": 1000, "vendor/y.py": 90000, "README.md": 7,
		"none.zzz": 5000, "go.mod": 5000} {
		script += fmt.Sprintf("M 100644 inline %s\ndata %d\n%s\n", name, size, strings.Repeat("z", size))
	}
	r.GitIn(script, "fast-import", "--quiet")
	sizes, all := map[string]int{}, 0
	names := map[string]string{".go": "Go", ".py": "Python"}
	for line := range strings.Lines(r.Git("ls-tree", "-r", "-l", "main")) {
		fields := strings.Fields(line)
		if language := names[filepath.Ext(fields[4])]; language != "" && !strings.HasPrefix(fields[4], "vendor/") {
			size, _ := strconv.Atoi(fields[3])
			sizes[language] += size
			all += size
		}
	}
	var many strings.Builder
	many.WriteString("blob\nmark :1\ndata 1\nx\ncommit refs/heads/main\ncommitter a <a@example.org> 1700000000 +0000\n" +
		"data 1\nx\n")
	for n := range 100_001 {
		fmt.Fprintf(&many, "M 100644 :1 wide/%d\n", n)
		if n <= 10_000 {
			fmt.Fprintf(&many, "M 100644 :1 %d/%d.c\n", n/100, n)
		}
	}
	gittest.InitAt(t, filepath.Join(root, "many.git")).GitIn(many.String(), "fast-import", "--quiet")
	c := servePages(t, root)
	for name, want := range map[string]bool{"app": false, "many": true} {
		if page := string(c.get("/" + name + "/")); strings.Contains(page, "Of the first 10,000 files") != want {
			t.Errorf("%s has the note on files that do not count: %v, want %v", name, !want, want)
		}
	}
	if page := string(c.get("/many/-/tree/main/wide")); !strings.Contains(page, ">100000<") || !strings.Contains(page,
		"The last commits are not shown") {
		t.Errorf("a directory with 100,001 entries: %.2000s", page)
	}
	got := map[string]bool{}
	for _, e := range elements(t, c.get("/app/"), hasClass("languages")) {
		for n := range e.Descendants() {
			if n.Data == "li" {
				got[textOf(n)] = true
			}
		}
	}
	for language, size := range sizes {
		if want := fmt.Sprintf("%s%.1f %%", language, 100*float64(size)/float64(all)); !got[want] {
			t.Errorf("the languages are %v, want %q", got, want)
		}
	}
	if len(got) != len(sizes) {
		t.Errorf("the languages are %v, want %d", got, len(sizes))
	}
}

// TestPageReadme shows a README that is a symbolic link in the repository, and no other files.
func TestPageReadme(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := gittest.InitAt(t, filepath.Join(root, "app.git"))
	link := func(name, to string) string {
		return fmt.Sprintf("M 120000 inline %s\ndata %d\n%s\n", name, len(to), to)
	}
	const text = "# A *title*\n\n[next](other.md)\n"
	script := "commit refs/heads/main\ncommitter a <a@example.org> 1700000000 +0000\ndata 1\nx\n" +
		fmt.Sprintf("M 100644 inline docs/en/intro.md\ndata %d\n%s\n", len(text), text)
	for dir, to := range map[string]string{"one": "../docs/en/intro.md", "two": "../one/README", "loop": "README",
		"out": "../../etc/passwd", "root": "/etc/passwd", "dir": "../docs", "none": "missing"} {
		script += link(dir+"/README", to)
	}
	script += "M 100644 inline rst/README.rst\ndata 8\nTitle\n==\nM 100644 inline txt/README.txt\ndata 4\na<b>\n"
	r.GitIn(script, "fast-import", "--quiet")
	c := servePages(t, root)
	for dir, want := range map[string]string{"one": "A title\nnext", "two": "A title\nnext", "loop": "", "out": "",
		"root": "", "dir": "", "none": "", "rst": "Title\n==", "txt": "a<b>"} {
		page := c.get("/app/-/tree/main/" + dir)
		safe(t, dir, page)
		got := ""
		for _, e := range elements(t, page, hasClass("prose")) {
			got += strings.TrimSpace(textOf(e))
		}
		if got != want {
			t.Errorf("the README of %s is %q, want %q", dir, got, want)
		}
		if want := "/app/-/file/main/docs/en/other.md"; dir == "two" && !strings.Contains(string(page), `"`+want+`"`) {
			t.Errorf("the README of %s has no link to %s", dir, want)
		}
	}
}
