package edit_test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/edit"
)

var nobody node.Pusher

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// Names, addresses, dates and messages become what git commit-tree makes of them.
func TestHeaderEqualsGit(t *testing.T) {
	t.Parallel()
	rounds := 200
	if testing.Short() {
		rounds = 40
	}
	s := newState(t, gittest.Init(t))
	tree := s.git.Git("hash-object", "-wt", "tree", "--stdin")
	parents := []git.ObjectID{s.git.Commit("one"), s.git.Commit("two")}
	program := newestGit()
	letters := []string{"a", "Ö", " ", ",", ":", ";", "<", ">", `"`, `\`, "'", "\t", "\x01", "b", "c"}
	if program != "git" { // older versions remove dots as well
		letters = append(letters, ".")
	}
	rnd := mathrand.New(mathrand.NewPCG(1, 2))
	text := func() (b string) {
		for range rnd.IntN(9) {
			b += letters[rnd.IntN(len(letters))]
		}
		return b
	}
	for range rounds {
		p := edit.Person{Name: text(), Email: text(), Date: fmt.Sprintf("%d %+05d",
			100_000_000+rnd.Int64N(4e9), rnd.IntN(15)*100+rnd.IntN(60))}
		if rnd.IntN(2) == 0 {
			zone := time.FixedZone("", (rnd.IntN(28*60)-14*60)*60)
			p.Date = time.Unix(rnd.Int64N(4102444799-86400)+86400, 0).In(zone).Format(time.RFC3339)
		}
		message := text()
		n := rnd.IntN(3)
		args := []string{"commit-tree", tree, "-m", message}
		for _, id := range parents[:n] {
			args = append(args, "-p", id.String())
		}
		cmd := exec.Command(program, args...)
		cmd.Dir = s.git.Dir
		cmd.Env = append(gittest.Env(), "GIT_AUTHOR_NAME="+p.Name, "GIT_AUTHOR_EMAIL="+p.Email, "GIT_AUTHOR_DATE="+p.Date,
			"GIT_COMMITTER_NAME="+p.Name, "GIT_COMMITTER_EMAIL="+p.Email, "GIT_COMMITTER_DATE="+p.Date)
		out, gitErr := cmd.Output()
		var h edit.Header
		var err error
		if p.Name == "" && p.Email == "" {
			continue // the actor
		}
		if h.Author, h.Committer, err = edit.Lines(p, edit.Person{}, node.Pusher{}, now); (err == nil) != (gitErr == nil) {
			t.Fatalf("%q: %v, git: %v", p, err, gitErr)
		}
		if err != nil {
			continue
		}
		if h.Message, err = edit.CheckMessage(message, nil); err != nil {
			t.Fatal(err)
		}
		o, err := h.Commit(git.SHA1, git.MustParseObjectID(tree), parents[:n]...)
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.TrimSpace(string(out)); o.ID.String() != want {
			t.Fatalf("%q, %q: commit\n%q\ngit has\n%q", p, message, o.Data, s.git.Git("cat-file", "commit", want))
		}
	}
}

func TestDefaultPersons(t *testing.T) {
	t.Parallel()
	alice := node.Pusher{Name: "alice", Address: "192.0.2.1"}
	for _, test := range []struct {
		author, committer    edit.Person
		actor                node.Pusher
		wantAuthor, wantBoth string
	}{
		{actor: alice, wantBoth: "alice <alice@api.192.0.2.1> 1795953600 +0000"},
		{wantBoth: "anonymous <anonymous@api.localhost> 1795953600 +0000"},
		{actor: alice, author: edit.Person{Date: "5 -0030"}, wantBoth: "alice <alice@api.192.0.2.1> 5 -0030"},
		{author: edit.Person{Name: "A", Email: "a@x"}, committer: edit.Person{Date: "2026-11-29T13:00:00+01:00"},
			wantAuthor: "A <a@x> 1795953600 +0000", wantBoth: "A <a@x> 1795953600 +0100"},
		{author: edit.Person{Raw: []byte("A\xff > <> 7 +051800")}, wantBoth: ""},
		{author: edit.Person{Raw: []byte("A\xff <> 7 +051800")}, wantBoth: "A\xff <> 7 +051800"},
	} {
		author, committer, err := edit.Lines(test.author, test.committer, test.actor, now)
		if test.wantAuthor == "" {
			test.wantAuthor = test.wantBoth
		}
		if author != test.wantAuthor || committer != test.wantBoth && err == nil || (err != nil) != (test.wantBoth == "") {
			t.Errorf("%q, %q: %q and %q, %v", test.author, test.committer, author, committer, err)
		}
	}
}

func TestInvalidHeaders(t *testing.T) {
	t.Parallel()
	persons := func(p edit.Person) error {
		_, _, err := edit.Lines(edit.Person{Name: "a"}, p, node.Pusher{}, now)
		return err
	}
	date := func(text string) error { return persons(edit.Person{Date: text}) }
	raw := func(text string) error { return persons(edit.Person{Raw: []byte(text)}) }
	message := func(text, raw string) error { _, err := edit.CheckMessage(text, []byte(raw)); return err }
	extra := func(text string) error { _, err := edit.CheckExtra([]byte(text)); return err }
	key := func(text string) error { _, err := edit.NewKey(text, nil); return err }
	for i, test := range []struct {
		err   error
		field string // "": it is valid
	}{
		{persons(edit.Person{Name: "a\nb"}), "committer.name"},
		{persons(edit.Person{Name: "a\x00b"}), "committer.name"},
		{persons(edit.Person{Name: "<,>", Email: "x"}), "committer.name"},
		{persons(edit.Person{Email: "x"}), "committer.name"},
		{persons(edit.Person{Name: "a", Email: "x\n"}), "committer.email"},
		{persons(edit.Person{Name: "a", Raw: []byte("a <> 1 +0000")}), "committer.raw"},
		{date("4102444799 +0000"), ""},
		{date("4102444800 +0000"), "committer.date"},
		{date("2100-01-01T00:00:00Z"), "committer.date"},
		{date("1969-12-31T23:59:59Z"), "committer.date"},
		{date("1970-01-01T00:00:00+01:00"), "committer.date"},
		{date("-1 +0000"), "committer.date"},
		{date("99999999999999999999 +0000"), "committer.date"},
		{date("5 +2400"), "committer.date"},
		{date("5 +0060"), "committer.date"},
		{date("5"), "committer.date"},
		{date("now"), "committer.date"},
		{date("2026-11-29T12:00:00+01:00\n"), "committer.date"},
		{raw("A <a> 9223372036854775807 +0000"), ""},
		{raw(" <a> 0 -0000"), ""},
		{raw("A <a> 9223372036854775808 +0000"), "committer.raw"},
		{raw("<a> 1 +0000"), "committer.raw"},
		{raw("A<a> 1 +0000"), "committer.raw"},
		{raw("A > <a> 1 +0000"), "committer.raw"},
		{raw("A <a>> 1 +0000"), "committer.raw"},
		{raw("A <a>1 +0000"), "committer.raw"},
		{raw("A <a> 01 +0000"), "committer.raw"},
		{raw("A <a> 1 0000"), "committer.raw"},
		{raw("A <a> 1 +0000\n"), "committer.raw"},
		{raw("A\x00 <a> 1 +0000"), "committer.raw"},
		{message("a\n\nb", ""), ""},
		{message("", "\xff"), ""},
		{message("a\x00b", ""), "message"},
		{message("", "\x00"), "message"},
		{message("a", "b"), "raw_message"},
		{extra("encoding ISO-8859-1"), ""},
		{extra("gpgsig a\n b\n \nmergetag x\n"), ""},
		{extra(" a\n"), "headers"},
		{extra("a b\n\nmessage"), "headers"},
		{extra("a b\x00\n"), "headers"},
		{extra("encoding\n"), "headers"},
		{extra("tree 1\n"), "headers"},
		{extra("a b\nparent 1\n"), "headers"},
		{extra("author\n"), "headers"},
		{extra("committer x"), "headers"},
		{key(strings.Repeat("x", 128)), ""},
		{key(strings.Repeat("x", 129)), "idempotency_key"},
	} {
		checkField(t, strconv.Itoa(i), test.err, test.field)
	}
}

// checkField checks that an error is Invalid, and about a field.
func checkField(t *testing.T, name string, err error, field string) {
	t.Helper()
	if e, ok := err.(*fault.Error); (err != nil) != (field != "") || err != nil && (!ok || e.Kind != fault.Invalid ||
		e.Field != field) {
		t.Errorf("%s: %#v, want an error of field %q", name, err, field)
	}
}

func TestBranchNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"main", "refs/heads/main", "a/b", "heads/x", "ö"} {
		if got, err := edit.ParseBranch(name); err != nil || got != git.RefName("refs/heads/"+strings.TrimPrefix(name,
			"refs/heads/")) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "refs/heads/", "HEAD", "-x", "refs/tags/x", "a..b", "a b", "a\nb", "a\x00", "x.lock",
		"a//b", "/a", "a/", "@{-1}", "a~1", "refs/heads/HEAD", strings.Repeat("x", 5000)} {
		if got, err := edit.ParseBranch(name); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
}

// git verifies the signatures of all kinds of keys.
func TestSignatures(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen")
	}
	for _, kind := range []string{"ed25519", "rsa", "ecdsa"} {
		for _, format := range []string{"sha1", "sha256"} {
			s := newState(t, gittest.Init(t, "--object-format="+format))
			file := filepath.Join(t.TempDir(), "key")
			if out, err := exec.Command("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", file).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			public, err := os.ReadFile(file + ".pub")
			if err != nil {
				t.Fatal(err)
			}
			signers := filepath.Join(t.TempDir(), "signers")
			if err := os.WriteFile(signers, append([]byte("* "), public...), 0o600); err != nil {
				t.Fatal(err)
			}
			h := edit.Header{Author: "A <a> 1700000000 +0000", Committer: "C <c> 1700000000 +0000", Message: []byte("signed\n"),
				Extra: []byte("encoding x\n")}
			if h.Signer, err = edit.LoadSigner(file); err != nil {
				t.Fatal(err)
			}
			if h.Key, err = edit.NewKey("key", []byte("request")); err != nil {
				t.Fatal(err)
			}
			tree := s.git.Git("hash-object", "-wt", "tree", "--stdin")
			o, err := h.Commit(s.git.Format(), git.MustParseObjectID(tree))
			if err != nil {
				t.Fatal(err)
			}
			s.store(o)
			out, err := gitWith(s.git, newestGit(), nil, "-c", "gpg.ssh.allowedSignersFile="+signers, "verify-commit",
				o.ID.String())
			if err != nil || !strings.Contains(out, `Good "git" signature`) {
				t.Errorf("%s, %s: %v\n%s\n%s", kind, format, err, out, o.Data)
			}
			s.git.Git("update-ref", "refs/heads/main", o.ID.String())
			s.git.Git("fsck", "--strict")
		}
	}
	if _, err := edit.LoadSigner(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing key was loaded")
	}
}

// A request finds the commit that it has made before.
func TestKeys(t *testing.T) {
	t.Parallel()
	s := newState(t, gittest.Init(t))
	random := make([]byte, 8)
	_, _ = rand.Read(random)
	branch := git.RefName("refs/heads/" + hex.EncodeToString(random))
	keys := edit.NewKeys()
	find := func(keys *edit.Keys, head git.ObjectID, key, request string) (git.ObjectID, error) {
		t.Helper()
		k, err := edit.NewKey(key, []byte(request))
		if err != nil {
			t.Fatal(err)
		}
		return keys.Find(t.Context(), s, branch, head, k)
	}
	tree := git.MustParseObjectID(s.git.Git("hash-object", "-wt", "tree", "--stdin"))
	var head git.ObjectID
	var all []git.ObjectID
	for i := range 20 {
		h := edit.Header{Author: "A <a> 1 +0000", Committer: "C <c> 1 +0000", Message: fmt.Appendf(nil, "%d\n", i)}
		h.Key, _ = edit.NewKey(fmt.Sprintf("key %d", i), []byte("request"))
		parents := []git.ObjectID{head}
		if i == 0 {
			parents = nil
		}
		o, err := h.Commit(git.SHA1, tree, parents...)
		if err != nil {
			t.Fatal(err)
		}
		s.store(o)
		head = o.ID
		all = append(all, head)
		for j := range all {
			if got, err := find(keys, head, fmt.Sprintf("key %d", j), "request"); err != nil || got != all[j] {
				t.Fatalf("key %d: %s, %v, want %s", j, got, err, all[j])
			}
		}
	}
	restarted := edit.NewKeys()
	for _, keys := range []*edit.Keys{keys, restarted} {
		if got, err := find(keys, head, "key 3", "another request"); !fault.Is(err, fault.Invalid) {
			t.Errorf("another request: %s, %v", got, err)
		}
		if got, err := find(keys, all[5], "key 6", "request"); err != nil || !got.IsZero() {
			t.Errorf("after a rewind: %s, %v", got, err)
		}
		if got, err := find(keys, head, "key 6", "request"); err != nil || got != all[6] {
			t.Errorf("after a change: %s, %v", got, err)
		}
		if got, err := find(keys, head, "new", "request"); err != nil || !got.IsZero() {
			t.Errorf("unknown key: %s, %v", got, err)
		}
	}
}
