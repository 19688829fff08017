package lookup

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// fields is a format of git log. Each field ends with a NUL.
const fields = "--format=tformat:%H%x00%T%x00%P%x00%an%x00%ae%x00%ad%x00%cn%x00%ce%x00%cd%x00%e%x00%B%x00"

// asGit is a commit as git log writes it.
func asGit(c *Commit) string {
	parents := make([]string, len(c.Parents))
	for i, p := range c.Parents {
		parents[i] = p.String()
	}
	date := func(s Signature) string {
		sign, offset := '+', s.Offset
		if offset < 0 {
			sign, offset = '-', -offset
		}
		return fmt.Sprintf("%d %c%04d", s.Seconds, sign, offset/60*100+offset%60)
	}
	message, _, _ := bytes.Cut(c.Message, []byte{0})
	return strings.Join([]string{c.ID.String(), c.Tree.String(), strings.Join(parents, " "),
		string(c.Author.Name), string(c.Author.Email), date(c.Author), string(c.Committer.Name), string(c.Committer.Email),
		date(c.Committer),
		c.Encoding, string(message), "\n"}, "\x00")
}

func TestOddCommitsAsGit(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	head := "tree " + treeOf(t, r).String() + "\n"
	l, opened := New(Options{}), openRepo(t, r)
	const who = "A U Thor <a@example.com> 1700000000 +0130"
	for _, rest := range []string{
		"author " + who + "\ncommitter C <c@example.com> 1700000001 -0930\n\nsubject\n\nbody\n",
		"author " + who + "\ncommitter " + who + "\n\n",
		"author " + who + "\ncommitter " + who + "\n",
		"author " + who + "\ncommitter " + who,
		"author " + who + "\ncommitter " + who + "\n\n\n\n  subject after empty lines  \n\n\n",
		"author " + who + "\ncommitter " + who + "\nencoding UTF-8\nencoding no\n\nx",
		"author " + who + "\ncommitter " + who + "\ngpgsig -----BEGIN\n author X <x> 1 +0000\n \n -----END\n\nsigned\n",
		"author " + who + "\ncommitter " + who + "\nmergetag object 1\n type commit\n tagger T <t> 5 +0000\n\nmerged\n",
		"author " + who + "\nauthor B <b> 5 +0000\ncommitter " + who + "\n\ntwo authors\n",
		"author  spaced   < e@f >  12   +0000\ncommitter <> 0 -0000\n\nx",
		"author A <a@b> 1\ncommitter A <a@b>\n\nx",
		"author A <a@b> 1 0100\ncommitter A <a@b> -5 +0100\n\nx",
		"author A <a@b> 1 +\ncommitter A <a@b> x +0100\n\nx",
		"author A <a@b> 5 +123456\ncommitter A <a@b> 5 -99999999999999\n\nx",
		"author A <a@b> 5 +2147483647\ncommitter A <a@b> 5 -2147483646\n\nx",
		"author A <a@b> 99999999999999999999 +0000\ncommitter A <a@b> 9223372036854775807 +0000\n\nx",
		"author A <a> b> 7 +0200\ncommitter A <a <b> 7 +0200\n\nx",
		"author A a@b 7 +0200\ncommitter <a@b 7 +0200\n\nx",
		"author \ncommitter \n\nx",
		"author A\t<a@b>\t7\t+0200\ncommitter A <a@b>7 +0200 rest\n\nx",
		"committer " + who + "\nauthor " + who + "\n\nthe other way round",
		"nothing\n\nx",
		"author " + who + "\ncommitter " + who + "\n\na\x00b",
		"author \xff\xfe <\xff> 1 +0000\ncommitter " + who + "\n\n\xff\xfe\n",
	} {
		id := store(t, r, git.Commit, []byte(head+rest))
		want := r.Git("log", "-1", "--date=raw", "--encoding=", fields, id.String())
		c, err := l.Commit(context.Background(), opened, id.String())
		if have := strings.TrimSuffix(asGit(&c), "\n"); err != nil || clean(have) != clean(want) {
			t.Errorf("%q\nhave %q, %v\nwant %q", rest, have, err, want)
		}
	}
}

// clean makes git's output comparable. For an invalid date git prints nothing and we return 0. Git removes empty lines
// at the beginning of a message.
func clean(s string) string {
	f := strings.Split(s, "\x00")
	for _, i := range []int{5, 8} {
		if len(f) > i && f[i] == "" {
			f[i] = "0 +0000"
		}
	}
	if len(f) > 10 {
		f[10] = strings.TrimLeft(f[10], "\n")
	}
	return strings.ReplaceAll(strings.Join(f, "\x00"), "-0000", "+0000")
}

func TestLongCommitsAreCut(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	tree := treeOf(t, r).String()
	parent := store(t, r, git.Commit, []byte("tree "+tree+"\nauthor A <a> 1 +0000\ncommitter A <a> 1 +0000\n\nx")).String()
	ident := " A <a@b> 1 +0000\n"
	l, opened := New(Options{}), openRepo(t, r)
	for name, data := range map[string]string{
		"message": "tree " + tree + "\nauthor" + ident + "committer" + ident + "\n" + strings.Repeat("m", maxMessage+1),
		"parents": "tree " + tree + "\n" + strings.Repeat("parent "+parent+"\n", maxParents+1) + "author" + ident +
			"committer" + ident + "\nm",
		"name": "tree " + tree + "\nauthor " + strings.Repeat("n", maxField+1) + ident + "committer" + ident + "\nm",
	} {
		c, err := l.Commit(context.Background(), opened, store(t, r, git.Commit, []byte(data)).String())
		if err != nil || !c.Truncated || len(c.Message) > maxMessage || len(c.Parents) > maxParents ||
			len(c.Author.Name) > maxField {
			t.Errorf("%s: %v %d %d, %v", name, c.Truncated, len(c.Message), len(c.Parents), err)
		}
	}
	signed := "tree " + tree + "\nauthor" + ident + "committer" + ident + "gpgsig " + strings.Repeat("s", 15_000) + "\n\nm"
	c, err := l.Commit(context.Background(), opened, store(t, r, git.Commit, []byte(signed)).String())
	if err != nil || cap(c.Author.Name) > len(ident) {
		t.Errorf("the commit keeps %d bytes of its object, %v", cap(c.Author.Name), err)
	}
	bogus := store(t, r, git.Commit, []byte("tree x\n")).String()
	if _, err := l.Commit(context.Background(), opened, bogus); !fault.Is(err, fault.Corrupt) ||
		!strings.Contains(fault.Message(err), bogus) {
		t.Errorf("a bogus commit: %v", err)
	}
}

func FuzzCommit(f *testing.F) {
	tree := "tree " + strings.Repeat("1", 40) + "\n"
	f.Add([]byte(tree + "author A <a> 1 +0000\ncommitter C <c> 1 +0100\nencoding X\n\nmessage\n"))
	f.Add([]byte(tree + "parent " + strings.Repeat("2", 40) + "\nauthor <>>< 99999999999999999999 -99999999999\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCommit(git.ObjectID{}, data, git.SHA1)
		if err != nil {
			return
		}
		if !bytes.HasSuffix(data, c.Message) || len(c.Message) == len(data) {
			t.Errorf("message %q", c.Message)
		}
		for _, s := range []Signature{c.Author, c.Committer} {
			if s.Seconds < 0 || bytes.ContainsAny(s.Email, ">\n") || bytes.ContainsAny(s.Name, "<\n") {
				t.Errorf("%+v", s)
			}
		}
	})
}

func TestLogIsGits(t *testing.T) {
	t.Parallel()
	everyHome(t, func(t *testing.T, r *gittest.Repo) {
		l, opened := New(Options{}), openRepo(t, r)
		for _, q := range []LogRequest{
			{},
			{Revisions: []string{"main", "v1", "nested"}},
			{Revisions: []string{"main"}, FirstParent: true, Skip: 2, Limit: 5},
			{Revisions: []string{"main~2", "main", "main~1"}, NoWalk: true},
			{Revisions: []string{"main"}, Path: "dir"},
			{Revisions: []string{"main"}, Path: "dir/"},
			{Revisions: []string{"main"}, Path: "dir/sub/z"},
			{Revisions: []string{"main"}, Path: "README", Limit: 2},
			{Revisions: []string{"main"}, Path: "README/"},
			{Revisions: []string{"main"}, Path: "nowhere"},
			{Revisions: []string{"main"}, Exclude: []string{"main"}},
			{Revisions: []string{"main"}, Exclude: []string{"v1", "v1.0"}},
		} {
			args := []string{"--literal-pathspecs", "log", "-z", "--date=raw", "--encoding=", fields,
				fmt.Sprint("--skip=", q.Skip)}
			if q.Limit > 0 {
				args = append(args, fmt.Sprint("-", q.Limit))
			}
			if q.FirstParent {
				args = append(args, "--first-parent")
			}
			if q.NoWalk {
				args = append(args, "--no-walk=unsorted")
			}
			for _, revision := range q.Exclude {
				args = append(args, "^"+revision)
			}
			args = append(append(args, q.Revisions...), "--")
			if q.Path != "" {
				args = append(args, q.Path)
			}
			var have strings.Builder
			err := l.Log(context.Background(), opened, q, func(batch []Commit) error {
				for i := range batch {
					have.WriteString(strings.TrimSuffix(asGit(&batch[i]), "\n") + "\x00")
				}
				return nil
			})
			if want := r.Git(args...); err != nil || have.String() != want {
				t.Errorf("%+v\nhave %q, %v\nwant %q", q, have.String(), err, want)
			}
		}
	})
}

func TestLogBatchesAndErrors(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	tree := treeOf(t, r).String()
	var tip git.ObjectID
	for i := range 250 {
		parent := ""
		if i > 0 {
			parent = "parent " + tip.String() + "\n"
		}
		tip = store(t, r, git.Commit, fmt.Appendf(nil, "tree %s\n%sauthor A <a> %d +0000\ncommitter A <a> %d +0000\n\n%d",
			tree, parent, i, i, i))
	}
	r.Git("update-ref", "refs/heads/main", tip.String())
	l, opened := New(Options{}), openRepo(t, r)
	var batches []int
	send := func(batch []Commit) error { batches = append(batches, len(batch)); return nil }
	if err := l.Log(context.Background(), opened, LogRequest{Limit: 1 << 30}, send); err != nil ||
		fmt.Sprint(batches) != "[100 100 50]" {
		t.Errorf("batches of %v, %v", batches, err)
	}
	for kind, q := range map[fault.Kind][]LogRequest{
		fault.Invalid: {{Limit: -1}, {Skip: -1}, {Revisions: []string{tree}}, {Exclude: make([]string, maxRevisions+1)},
			{Path: strings.Repeat("x", maxPath+1)}},
		fault.NotFound: {{Revisions: []string{"nowhere"}}, {Exclude: []string{"nowhere"}}},
	} {
		for _, q := range q {
			if err := l.Log(context.Background(), opened, q, send); !fault.Is(err, kind) {
				t.Errorf("%.200s: %v, want %s", fmt.Sprintf("%+v", q), err, kind)
			}
		}
	}
	shallow := gittest.At(t, t.TempDir())
	gittest.Run(t, "", "", "clone", "-q", "--bare", "--depth=3", "file://"+r.Dir, shallow.Dir)
	batches = nil
	if err := l.Log(context.Background(), openRepo(t, shallow), LogRequest{}, send); err != nil ||
		fmt.Sprint(batches) != "[3]" {
		t.Errorf("of a shallow repository: %v, %v", batches, err)
	}
}
