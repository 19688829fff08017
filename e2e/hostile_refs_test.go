package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// hostileRefs is a repository whose refs are odd.
type hostileRefs struct {
	make func(dir, tip string) // in a copy of the good repository
	says string                // unless empty: an error with this text, and not the output of git
	// git itself would wait forever, or differs for a good reason: our server has to respond
	ours bool
}

func loose(t *testing.T, names ...string) func(dir, tip string) {
	return func(dir, tip string) {
		for _, name := range names {
			write(t, filepath.Join(dir, name), tip+"\n")
		}
	}
}

func packedRefs(t *testing.T, text string) func(dir, tip string) {
	return func(dir, tip string) {
		write(t, filepath.Join(dir, "packed-refs"), strings.ReplaceAll(text, "TIP", tip))
	}
}

func symrefs(t *testing.T, pairs ...string) func(dir, tip string) {
	return func(dir, _ string) {
		for i := 0; i < len(pairs); i += 2 {
			write(t, filepath.Join(dir, pairs[i]), "ref: "+pairs[i+1]+"\n")
		}
	}
}

func special(path string, make func(path string)) func(dir, tip string) {
	return func(dir, _ string) {
		_ = os.Remove(filepath.Join(dir, path))
		make(filepath.Join(dir, path))
	}
}

// chain is n symbolic refs, one after the other, the last of which names main.
func chain(n int) (pairs []string) {
	for i := range n {
		pairs = append(pairs, fmt.Sprint("refs/heads/link", i), fmt.Sprint("refs/heads/link", i+1))
	}
	pairs[len(pairs)-1] = "refs/heads/main"
	return pairs
}

func allHostileRefs(t *testing.T) map[string]hostileRefs {
	hex := strings.Repeat("deadbeef", 5)
	const sorted = "# pack-refs with: peeled fully-peeled sorted \n"
	return map[string]hostileRefs{
		"names": {make: loose(t, "refs/heads/HEAD", "refs/heads/"+hex, "refs/heads/"+hex[:7], "refs/heads/a@{b",
			"refs/heads/@", "refs/heads/@{0}",
			"refs/heads/a..b", "refs/heads/a.lock", "refs/heads/.hidden", "refs/heads/-dash", "refs/heads/--upload-pack=x",
			"refs/heads/a~1", "refs/heads/a^",
			"refs/heads/a:b", "refs/heads/a?b", "refs/heads/a*b", "refs/heads/a[b", `refs/heads/a\b`, "refs/heads/sp ace",
			"refs/heads/ctl\x01", "refs/heads/new\nline",
			"refs/heads/tab\t", "refs/heads/del\x7f", "refs/heads/é", "refs/heads/\xff\xfe", "refs/heads/a.",
			"refs/heads/dir./x", "refs/heads/dir.lock/x", "refs/heads/.git/x",
			"refs/heads/"+strings.Repeat("n", 250), "refs/onelevel", "refs/heads/refs/heads/main", "refs/replace/"+hex,
			"refs/stash", "refs/bisect/bad", "refs/heads/main;id",
			"refs/heads/$(id)", "refs/heads/`id`", "refs/heads/%2e%2e", "refs/heads/MAIN", "refs/heads/Main", "FETCH_HEAD",
			"ORIG_HEAD", "heads/main", "main")},
		"deep": {make: loose(t, "refs/heads/"+strings.Repeat("a/", 1800)+"b")},
		"packed names": {make: packedRefs(t, sorted+"TIP refs/heads/-dash\nTIP refs/heads/.hidden\nTIP "+
			"refs/heads/a..b\nTIP refs/heads/a\x01b\nTIP refs/heads/a\\b\nTIP refs/heads/é\n"+
			"TIP refs/heads/"+strings.Repeat("n", 3000)+"\n")},
		// git dies of some of them
		"outside refs": {make: packedRefs(t, "TIP HEAD\nTIP config\nTIP ../../x\nTIP refs/../x\nTIP refs/heads/fine\n"),
			ours: true},
		// the longest name here; git's limit is another
		"4 KiB": {make: packedRefs(t, sorted+"TIP refs/heads/"+strings.Repeat("n", 4085)+"\n"), ours: true},
		"file and directory": {make: func(dir, tip string) {
			packedRefs(t, sorted+"TIP refs/heads/a\n")(dir, tip)
			loose(t, "refs/heads/a/b")(dir, tip)
		}},
		"directory and file": {make: func(dir, tip string) {
			packedRefs(t, sorted+"TIP refs/heads/a/b\n")(dir, tip)
			loose(t, "refs/heads/a")(dir, tip)
		}},
		"both packed": {make: packedRefs(t, sorted+"TIP refs/heads/a\nTIP refs/heads/a/b\n")},
		"cases": {make: func(dir, tip string) {
			packedRefs(t, sorted+"TIP refs/heads/MAIN\nTIP refs/heads/mAIN\n")(dir, tip)
			loose(t, "refs/heads/maiN")(dir, tip)
		}},
		"empty packed-refs":  {make: packedRefs(t, "")},
		"header only":        {make: packedRefs(t, sorted)},
		"header without end": {make: packedRefs(t, "# pack-refs with: sorted"), says: "packed-refs is damaged"},
		"other header":       {make: packedRefs(t, "# something\nTIP refs/heads/x\n"), says: "packed-refs is damaged"},
		"cut off": {make: packedRefs(t, sorted+"TIP refs/heads/a\nTIP refs/he"),
			says: "packed-refs is damaged"},
		"cut off in an ID": {make: packedRefs(t, sorted+"TIP refs/heads/a\ndeadbeef"), says: "packed-refs is damaged"},
		"unsorted":         {make: packedRefs(t, "TIP refs/heads/z\nTIP refs/heads/a\nTIP refs/heads/m\n")},
		"repeated":         {make: packedRefs(t, sorted+"TIP refs/heads/a\nTIP refs/heads/a\n")},
		"carriage returns": {make: packedRefs(t, sorted+"TIP refs/heads/a\r\nTIP refs/heads/b\r\n")},
		"garbage":          {make: packedRefs(t, "\x00\x01\x02garbage\n"), says: "packed-refs is damaged"},
		"NULs": {make: packedRefs(t, sorted+strings.Repeat("\x00", 100_000)),
			says: "packed-refs is damaged"},
		// git's C string ends there
		"NUL in a name": {make: packedRefs(t, sorted+"TIP refs/heads/a\x00b\n"), ours: true},
		"short ID":      {make: packedRefs(t, sorted+"deadbeef refs/heads/a\n"), says: "packed-refs is damaged"},
		"no ID": {make: packedRefs(t, sorted+strings.Repeat("z", 40)+" refs/heads/a\n"),
			says: "packed-refs is damaged"},
		"empty lines":  {make: packedRefs(t, sorted+"\n\nTIP refs/heads/a\n"), says: "packed-refs is damaged"},
		"peeled first": {make: packedRefs(t, sorted+"^TIP\nTIP refs/heads/a\n"), says: "packed-refs is damaged"},
		"peeled twice": {make: packedRefs(t, sorted+"TIP refs/heads/a\n^TIP\n^TIP\n"),
			says: "packed-refs is damaged"},
		"huge line": {make: packedRefs(t, sorted+"TIP refs/heads/"+strings.Repeat("a",
			1<<20)+"\nTIP refs/heads/z\n"), says: "packed-refs is damaged"},
		"huge line without end": {make: packedRefs(t, strings.Repeat("a", 1<<20)), says: "packed-refs is damaged"},
		"packed zeros":          {make: packedRefs(t, sorted+strings.Repeat("0", 40)+" refs/heads/a\nTIP refs/heads/b\n")},
		"packed and missing":    {make: packedRefs(t, sorted+hex+" refs/heads/a\nTIP refs/heads/b\n")},
		"500,000 refs": {make: func(dir, tip string) {
			packedRefs(t,
				sorted+string(manyRefs(tip, scaled(500_000))))(dir, tip)
		}},
		"symref to itself": {make: symrefs(t, "refs/heads/loop", "refs/heads/loop")},
		"symref loop":      {make: symrefs(t, "refs/heads/one", "refs/heads/two", "refs/heads/two", "refs/heads/one")},
		"HEAD loop":        {make: symrefs(t, "HEAD", "refs/heads/x", "refs/heads/x", "HEAD")},
		"HEAD to itself":   {make: symrefs(t, "HEAD", "HEAD"), ours: true}, // no repository for git
		"chain of 3":       {make: symrefs(t, chain(3)...)},
		"chain of 4":       {make: symrefs(t, chain(4)...)},
		"chain of 6":       {make: symrefs(t, chain(6)...)},
		"chain of 1000":    {make: symrefs(t, chain(1000)...)},
		"symref to nothing": {make: symrefs(t, "refs/heads/none", "refs/heads/nothing", "refs/remotes/o/HEAD",
			"refs/remotes/o/gone")},
		"symref up": {make: symrefs(t, "refs/heads/up", "../../../outside", "refs/heads/etc", "/etc/passwd",
			"refs/heads/dots", "refs/heads/../heads/main", "refs/heads/config", "config")},
		"symref to HEAD":      {make: symrefs(t, "refs/heads/head", "HEAD")},
		"symref with control": {make: symrefs(t, "refs/heads/ctl", "refs/heads/ma\x01in")},
		// git's C string ends there
		"symref with NUL":  {make: symrefs(t, "refs/heads/nul", "refs/heads/main\x00x"), ours: true},
		"symref of 100 KB": {make: symrefs(t, "refs/heads/long", "refs/heads/"+strings.Repeat("a", 100_000))},
		"symref through packed": {make: func(dir, tip string) {
			packedRefs(t, sorted+"TIP refs/heads/p\n")(dir, tip)
			symrefs(t, "refs/heads/link", "refs/heads/p")(dir, tip)
		}},
		"HEAD detached to nothing": {make: func(dir, _ string) { write(t, filepath.Join(dir, "HEAD"), hex+"\n") }},
		"HEAD to nothing":          {make: symrefs(t, "HEAD", "refs/heads/none")},
		"HEAD of a tag":            {make: symrefs(t, "HEAD", "refs/tags/v5")},
		// no repository for git
		"HEAD empty": {make: func(dir, _ string) { write(t, filepath.Join(dir, "HEAD"), "") }, ours: true},
		// no repository for git
		"HEAD garbage": {make: func(dir, _ string) { write(t, filepath.Join(dir, "HEAD"), "x\x00y") },
			ours: true},
		"HEAD huge": {make: func(dir, _ string) {
			write(t, filepath.Join(dir, "HEAD"),
				strings.Repeat("ref: ", 1<<20))
		}, ours: true},
		"loose and empty": {make: func(dir, _ string) { write(t, filepath.Join(dir, "refs/heads/empty"), "") }},
		"loose and zeros": {make: func(dir, _ string) {
			write(t, filepath.Join(dir, "refs/heads/zero"),
				strings.Repeat("0", 40)+"\n")
		}},
		"loose and junk": {make: func(dir, _ string) {
			write(t, filepath.Join(dir, "refs/heads/junk"),
				"ref:\x00\n")
		}},
		"loose and huge": {make: func(dir, tip string) {
			write(t, filepath.Join(dir, "refs/heads/huge"), tip+"\n"+strings.Repeat("x", 1<<20))
		}},
		"loose and long": {make: func(dir, tip string) { write(t, filepath.Join(dir, "refs/heads/long"), tip+"a\n") }},
		"loose and upper": {make: func(dir, tip string) {
			write(t, filepath.Join(dir, "refs/heads/upper"),
				strings.ToUpper(tip)+"\n")
		}},
		"loose and missing": {make: func(dir, _ string) { write(t, filepath.Join(dir, "refs/heads/missing"), hex+"\n") }},
		"tag of nothing":    {make: func(dir, _ string) { write(t, filepath.Join(dir, "refs/tags/missing"), hex+"\n") }},
		// git waits for a writer
		"loose pipe":   {make: special("refs/heads/pipe", func(p string) { fifo(t, p) }), ours: true},
		"loose socket": {make: special("refs/heads/socket", func(p string) { socket(t, p) })},
		// git reads it without end
		"loose link to zeros": {make: special("refs/heads/zeros", func(p string) { symlink(t, "/dev/zero", p) }), ours: true},
		"loose link to a tty": {make: special("refs/heads/tty", func(p string) { symlink(t, "/dev/tty", p) }), ours: true},
		// git follows; links in our place are symbolic refs or nothing
		"loose link outside": {make: special("refs/heads/link", func(p string) { symlink(t, "../../../secret", p) }),
			ours: true},
		"link as symref": {make: special("refs/heads/link", func(p string) { symlink(t, "refs/heads/main", p) }),
			ours: true},
		"link beside": {make: func(dir, tip string) {
			loose(t, "refs/heads/beside/x")(dir, tip)
			symlink(t, "beside/x", filepath.Join(dir, "refs/heads/link"))
		}, ours: true}, /* git follows a link to a file; we never do */
		"link to a packed ref": {make: special("refs/heads/link", func(p string) { symlink(t, "nothing", p) })},
		// git lists it
		"directory link": {make: special("refs/heads/dir", func(p string) { symlink(t, "/etc", p) }), ours: true},
		"packed pipe": {make: special("packed-refs", func(p string) { fifo(t, p) }),
			says: "packed-refs is damaged"},
		"packed socket": {make: special("packed-refs", func(p string) { socket(t, p) }),
			says: "packed-refs is damaged"},
		"packed directory": {make: special("packed-refs", func(p string) { _ = os.Mkdir(p, 0o755) }),
			says: "packed-refs is damaged"},
		"packed zeros without end": {make: special("packed-refs", func(p string) { symlink(t, "/dev/zero", p) }),
			says: "a link to outside the served root"},
		"packed link to itself": {make: special("packed-refs", func(p string) { symlink(t, "packed-refs", p) }),
			ours: true},
		"packed lock left behind": {make: packedLock(t)},
		"refs is a file for a moment": {make: func(dir, _ string) {
			_ = os.RemoveAll(filepath.Join(dir, "refs/tags"))
			write(t, filepath.Join(dir, "refs/tags"), "x")
		}},
		"a thousand empty directories": {make: func(dir, _ string) { manyDirectories(t, dir) }},
	}
}

func packedLock(t *testing.T) func(dir, tip string) {
	return func(dir, tip string) { loose(t, "packed-refs.lock", "HEAD.lock", "refs/heads/main.lock")(dir, tip) }
}

func manyDirectories(t *testing.T, dir string) {
	for i := range 1000 {
		if err := os.MkdirAll(filepath.Join(dir, "refs/heads/empty", fmt.Sprint(i), "x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func manyRefs(tip string, n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "%s refs/heads/many/%06d\n", tip, i)
	}
	return b.Bytes()
}

// lsRemote lists a repository's refs with git; it does not wait for ever.
func lsRemote(t *testing.T, url string) (string, error) {
	t.Helper()
	limit, cancel := context.WithTimeout(t.Context(), hostileLimit)
	defer cancel()
	cmd := exec.CommandContext(limit, "git", "-c", "safe.directory=*", "ls-remote", "--symref", url)
	cmd.Env = gittest.Env()
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, tail(errs.String(), 500))
	}
	return out.String(), err
}

// withoutBroken leaves out what git shows of refs that are broken or badly named: a zero ID, which no client can use.
// We do not show them.
func withoutBroken(list string) string {
	var out strings.Builder
	for line := range strings.Lines(list) {
		id, _, _ := strings.Cut(line, "\t")
		if strings.HasPrefix(line, "ref: ") || len(id) == 40 && strings.Trim(id, "0") != "" {
			out.WriteString(line)
		}
	}
	return out.String()
}

// differences lists the lines that only one of two texts has.
func differences(a, b string) string {
	var out strings.Builder
	for _, side := range []struct{ name, text, other string }{{"we", a, b}, {"git", b, a}} {
		there := map[string]bool{}
		for line := range strings.Lines(side.other) {
			there[line] = true
		}
		for line := range strings.Lines(side.text) {
			if !there[line] {
				fmt.Fprintf(&out, "\n%s: %.200q", side.name, line)
			}
		}
	}
	return out.String()
}

// TestHostileRefs puts odd files in place of refs. The server shows the refs that git shows, or a clear error. It never
// waits, and other clients do not notice (threats: ref abuse).
func TestHostileRefs(t *testing.T) {
	t.Parallel()
	all := allHostileRefs(t)
	v := attack(t, "", nil)
	v.errorsLogged = true
	write(t, filepath.Join(v.root, "../secret"), fakeID(7)+"\n")
	good := filepath.Join(v.root, "good.git")
	tip := v.idOf("good", "main")
	i := 0
	for name, test := range all {
		i++
		repo := fmt.Sprint("refs", i)
		dir := filepath.Join(v.root, repo+".git")
		copyRepo(t, good, dir)
		gittest.At(t, dir).Git("config", "core.logAllRefUpdates", "false")
		test.make(dir, tip)
		got, err := lsRemote(t, v.http+"/"+repo)
		switch {
		case test.says != "":
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v %.300q, want an error with %q", name, err, got, test.says)
			}
		case test.ours:
			if err != nil && (strings.Contains(err.Error(), "signal: killed") ||
				strings.Contains(err.Error(), "internal error")) || strings.Contains(got, fakeID(7)) {
				t.Errorf("%s: got %v %.300q, want success or a clear error, and no ID of the other repository", name, err, got)
			}
			t.Logf("%s: %d bytes, %v", name, len(got), err)
		default:
			want, wantErr := lsRemote(t, "file://"+dir)
			want = withoutBroken(want)
			if (err == nil) != (wantErr == nil) || got != want {
				t.Errorf("%s: %v, git has %v; only one of us shows:%.2000s", name, err, wantErr, differences(got, want))
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	v.unharmed(500 << 20)
}
