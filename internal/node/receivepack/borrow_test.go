package receivepack

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// lent is a repository with a history that its fork has, and one that it keeps for itself.
type lent struct {
	*world
	lender *gittest.Repo
	client *gittest.Repo // has all objects, like an attacker who knows their IDs
	long   string        // a file worth a delta
}

func newLent(t *testing.T, format string) *lent {
	t.Helper()
	lender := gittest.Init(t, "--object-format="+format)
	fork := gittest.Init(t, "--object-format="+format)
	var long strings.Builder
	for rnd := rand.New(rand.NewPCG(1, 2)); long.Len() < 20_000; {
		fmt.Fprintln(&long, rnd.Uint64())
	}
	l := &lent{lender: lender, long: long.String()}
	first := lender.Commit("first")
	old := lender.Commit(l.long+"old\n", first)
	public := lender.Commit(l.long+"public\n", old)
	secret := lender.Commit("s"+l.long+"secret\n", public)
	for name, id := range map[string]git.ObjectID{"refs/heads/old": old, "refs/heads/main": public,
		"refs/heads/secret": secret} {
		lender.Git("update-ref", name, id.String())
	}
	lender.Git("tag", "-a", "-m", "kept", "kept", "secret")
	if err := os.WriteFile(filepath.Join(fork.Dir, "objects/info/alternates"), []byte(lender.Dir+"/objects\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	fork.Git("update-ref", "refs/heads/main", public.String())
	l.client = gittest.Init(t, "--object-format="+format)
	l.client.Git("fetch", "-q", lender.Dir, "refs/*:refs/*")
	l.world = worldAt(t, Options{}, fork)
	return l
}

// tree is one with a file.
func (l *lent) tree(file string) string {
	l.t.Helper()
	return l.client.GitIn("100644 blob "+file+"\tfile\n", "mktree")
}

// commit is one with a tree, on the fork's history.
func (l *lent) commit(tree string) string {
	l.t.Helper()
	return l.client.GitIn("new\n", "commit-tree", "-p", "main", tree)
}

// sends pushes a new ref with just these objects.
func (l *lent) sends(to string, objects ...string) (string, error) {
	l.t.Helper()
	var list strings.Builder
	for _, id := range objects {
		list.WriteString(id + "\n")
	}
	return l.sendsPack(to, l.client.GitIn(list.String(), "pack-objects", "-q", "--stdout"))
}

func (l *lent) sendsPack(to, pack string) (string, error) {
	l.t.Helper()
	return l.post(command2(l.t, git.MustParseObjectID(to), "refs/tags/new",
		"report-status object-format="+l.Git("rev-parse", "--show-object-format")) + pack)
}

// thin is a pack with one object: all of another one that it has not, and an exclamation mark (gitformat-pack(5),
// "Deltified representation").
func thin(base git.ObjectID, size int) string {
	number := func(n int) (b []byte) {
		for ; n >= 0x80; n >>= 7 {
			b = append(b, byte(n)|0x80)
		}
		return append(b, byte(n))
	}
	delta := append(number(size), number(size+1)...)
	delta = append(delta, 0x80|0x30, byte(size), byte(size>>8), 1, '!')
	pack := append([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01"), 7<<4|byte(len(delta)))
	var deflated bytes.Buffer
	z := zlib.NewWriter(&deflated)
	_, _ = z.Write(delta)
	_ = z.Close()
	pack = append(append(pack, base.Raw()...), deflated.Bytes()...)
	sum := base.Format().New()
	sum.Write(pack)
	return string(sum.Sum(pack))
}

// A pusher cannot make the lender's objects the fork's by naming them.
func TestBorrowedObjectsAreNotTaken(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			l := newLent(t, format)
			c := l.client
			secretTree, secretBlob := c.Git("rev-parse", "secret^{tree}"), c.Git("rev-parse", "secret:file")
			withTree, aTree := l.commit(secretTree), l.tree(secretBlob)
			withBlob := l.commit(aTree)
			on := c.GitIn("on\n", "commit-tree", "-p", "secret", "main^{tree}")
			all := "s" + l.long + "secret\n"
			made := c.GitIn(all+"!", "hash-object", "-w", "--stdin")
			mine := l.commit(l.tree(c.GitIn(l.long+"mine\n", "hash-object", "-w", "--stdin")))
			before := l.refs()
			for name, push := range map[string]func() (string, error){
				"a commit":        func() (string, error) { return l.sends(c.Git("rev-parse", "secret")) },
				"a tag":           func() (string, error) { return l.sends(c.Git("rev-parse", "kept")) },
				"a tree":          func() (string, error) { return l.sends(secretTree) },
				"a blob":          func() (string, error) { return l.sends(secretBlob) },
				"a parent":        func() (string, error) { return l.sends(on, on) },
				"a commit's tree": func() (string, error) { return l.sends(withTree, withTree) },
				"a tree's blob":   func() (string, error) { return l.sends(withBlob, withBlob, aTree) },
				"the base of a delta": func() (string, error) {
					return l.sendsPack(made,
						thin(git.MustParseObjectID(secretBlob), len(all)))
				},
			} {
				got, err := push()
				if err != nil || !strings.Contains(got, "ng refs/tags/new pre-receive") {
					t.Errorf("%s: the push ends with %q, %v", name, got, err)
				}
			}
			if after := l.refs(); after != before {
				t.Errorf("the refs are %s", after)
			}
			if _, err := l.sendsPack(mine, c.GitIn(mine+"\n^main\n", "pack-objects", "-q", "--thin", "--revs",
				"--stdout")); err != nil {
				t.Error(err)
			}
			if !strings.Contains(l.refs(), mine) {
				t.Error("a push that lacks nothing was refused")
			}
			l.clean()
		})
	}
}

// Objects in the fork's own history may be borrowed, whether the push continues it or not.
func TestBorrowedHistoryIsTheForks(t *testing.T) {
	t.Parallel()
	l := newLent(t, "sha1")
	c := l.client
	own := l.GitIn("nobody's", "hash-object", "-w", "--stdin")
	back := l.commit(c.Git("rev-parse", "main~2^{tree}"))
	for name, push := range map[string]func() (string, error){
		"an old commit":     func() (string, error) { return l.sends(c.Git("rev-parse", "old")) },
		"an old tree again": func() (string, error) { return l.sends(back, back) },
		"an object of the fork's that nothing reaches": func() (string, error) { return l.sends(own) },
	} {
		if got, err := push(); err != nil || !strings.Contains(got, "ok refs/tags/new") {
			t.Errorf("%s: the push ends with %q, %v", name, got, err)
		}
		l.Git("update-ref", "-d", "refs/tags/new")
	}
	w := gittest.Init(t)
	w.Git("fetch", "-q", l.Dir, "refs/*:refs/*")
	w.Git("update-ref", "refs/heads/main", w.Commit(l.long+"next\n", w.ID("main")).String())
	l.mustPush(w, "main", ":refs/heads/none") // git sends a delta against what the fork borrows
	l.mustPush(w, "main:refs/heads/other")
	l.mustPush(w, ":refs/heads/other")
	l.clean()
	if l.ID("main") != w.ID("main") {
		t.Error("the push did not arrive")
	}
}

// Where the object directory itself is another repository's, nothing in it is certain to be this one's.
func TestBorrowedByALink(t *testing.T) {
	t.Parallel()
	l := newLent(t, "sha1")
	objects := filepath.Join(l.Dir, "objects")
	if err := os.RemoveAll(objects); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(l.lender.Dir, "objects"), objects); err != nil {
		t.Fatal(err)
	}
	if got, err := l.sends(l.client.Git("rev-parse", "secret")); err != nil ||
		!strings.Contains(got, "ng refs/tags/new pre-receive") {
		t.Errorf("the push ends with %q, %v", got, err)
	}
	if got, err := l.sends(l.client.Git("rev-parse", "old")); err != nil || !strings.Contains(got, "ok refs/tags/new") {
		t.Errorf("the push ends with %q, %v", got, err)
	}
}
