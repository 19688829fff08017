package pack

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestParse compares the parsed form of every object with git's output.
func TestParse(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		t.Run(format.String(), func(t *testing.T) {
			t.Parallel()
			r := gittest.Random(t, 11, gittest.Shape{Merge: 0.4, Skew: true, Format: format.String()})
			tags := map[git.ObjectID]string{}
			for line := range strings.SplitSeq(r.Git("for-each-ref", "--format=%(objectname) %(object) %(type)", "refs/tags"),
				"\n") {
				if f := strings.Fields(line); len(f) == 3 {
					tags[git.MustParseObjectID(f[0])] = f[1] + " " + f[2]
				}
			}
			commits := map[git.ObjectID]string{}
			for line := range strings.SplitSeq(r.Git("log", "--all", "--format=%H %T %ct %P"), "\n") {
				id, rest, _ := strings.Cut(line, " ")
				commits[git.MustParseObjectID(id)] = rest
			}
			seen := 0
			for _, o := range allObjects(t, r.Dir) {
				switch o.typ {
				case git.Commit:
					want, ok := commits[o.id]
					if !ok {
						continue
					}
					c, err := ParseCommit(o.data, format)
					if err != nil {
						t.Fatal(err)
					}
					got := fmt.Sprintf("%s %d ", c.Tree, c.Date)
					for i, p := range c.Parents {
						got += strings.Repeat(" ", min(i, 1)) + p.String()
					}
					if got != want {
						t.Errorf("commit %s:\ngot  %s\nwant %s", o.id, got, want)
					}
				case git.Tag:
					want, ok := tags[o.id]
					if !ok {
						continue
					}
					id, typ, err := ParseTag(o.data, format)
					if got := id.String() + " " + typ.String(); got != want || err != nil {
						t.Errorf("tag %s: got %s, %v; want %s", o.id, got, err, want)
					}
				case git.Tree:
					var got []string
					err := Entries(o.data, format, func(mode uint32, name []byte, id git.ObjectID) error {
						typ := map[uint32]string{ModeTree: "tree", ModeGitlink: "commit"}[mode]
						got = append(got, fmt.Sprintf("%06o %s %s\t%s", mode, cmp.Or(typ, "blob"), id, name))
						return nil
					})
					var want []string
					if out := r.Git("ls-tree", "-z", o.id.String()); out != "" {
						want = strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
					}
					if !slices.Equal(got, want) || err != nil {
						t.Errorf("tree %s, %v:\ngot  %q\nwant %q", o.id, err, got, want)
					}
				default:
					continue
				}
				seen++
			}
			if seen < 50 {
				t.Errorf("only %d objects compared", seen)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 12, gittest.Shape{})
	s := openStore(t, r.Dir, git.SHA1)
	tree := r.ID("HEAD^{tree}")
	paths := []string{"", "none", "dir/none", "dir/", "dir//x", "/dir", "README/", "README/x", "deep/er/and/deeper/f",
		"dir/sub", "./dir", "../x"}
	paths = append(paths, strings.Split(strings.TrimSuffix(r.Git("ls-tree", "-rtz", "--name-only", "HEAD"), "\x00"),
		"\x00")...)
	for _, path := range paths {
		want, gitErr := r.Try("rev-parse", "--verify", "--end-of-options", tree.String()+":"+path)
		if strings.HasPrefix(path, ".") {
			gitErr = errors.New("relative to a work tree, which there is none of")
		}
		id, mode, err := s.Resolve(tree, path)
		switch {
		case gitErr != nil:
			if !fault.Is(err, fault.NotFound) {
				t.Errorf("Resolve(%q) = %s, %v; want NotFound, as git: %v", path, id, err, gitErr)
			}
		case err != nil || id.String() != want:
			t.Errorf("Resolve(%q) = %s, %v; want %s", path, id, err, want)
		default:
			if typ := r.Git("cat-file", "-t", want); (typ == "tree") != (mode == ModeTree) {
				t.Errorf("Resolve(%q) has mode %o, but it is a %s", path, mode, typ)
			}
		}
	}
	if _, _, err := s.Resolve(git.MustParseObjectID(strings.Repeat("1", 40)), "x"); !fault.Is(err, fault.NotFound) {
		t.Errorf("Resolve in a tree that is not there: %v, want NotFound", err)
	}
}

const someID = "0123456789012345678901234567890123456789"

func TestCommitDates(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	tree := r.GitIn("", "mktree")
	for _, test := range []struct {
		headers string
		date    int64
	}{
		{"author A <a> 1 +0000\ncommitter C <c@d> 1234 +0100\n", 1234},
		{"author A <a> 1 +0000\ncommitter C <c> <d> 1234 +0100\n", 1234},
		{"author A <a> 1 +0000\ncommitter C 1234 +0100\n", 0},
		{"author A <a> 1 +0000\ncommitter C <c>\n", 0},
		{"author A <a> 1 +0000\ncommitter C <c> \n", 0},
		{"author A <a> 1 +0000\ncommitter C <c>  \t12x4\n", 12},
		{"author A <a> 1 +0000\ncommitter C <c> x\n", 0},
		{"author A <a> 1 +0000\nother x\ncommitter C <c> 1234 +0100\n", 0},
		{"committer C <c> 1234 +0100\n", 0},
		{"author A <a> 1 +0000\ncommitter C <c> 4294967297 +0000\n", 4294967297},
		{"author A <a> 1 +0000\ncommitter C <c> 99999999999999999999999 +0000\n", math.MaxInt64},
		{"author A <a> 1 +0000\ncommitter C <c> -1 +0000\n", math.MaxInt64},
		{"author A <a> 1 +0000\ncommitter C <c> 1234", 1234},
		{"", 0},
	} {
		data := "tree " + tree + "\n" + test.headers + "\nx\n"
		c, err := ParseCommit([]byte(data), git.SHA1)
		if err != nil || c.Date != test.date {
			t.Errorf("%q: date %d, %v; want %d", test.headers, c.Date, err, test.date)
		}
		if test.date == math.MaxInt64 || strings.Contains(test.headers, "> <") {
			continue // git has no one way to show these, or changed its mind
		}
		id := r.GitIn(data, "hash-object", "-t", "commit", "--literally", "-w", "--stdin")
		want := "0"
		if out := r.Git("rev-list", "--timestamp", "-1", id); out != "" {
			want, _, _ = strings.Cut(out, " ")
		}
		if want != fmt.Sprint(test.date) {
			t.Errorf("%q: date %d, git says %s", test.headers, test.date, want)
		}
	}
}

func TestBogusObjects(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		"", "tree", "tree " + someID, "tree " + someID[1:] + "\n\n", "tree " + someID + "x\n", "tree x" + someID[1:] + "\n\n",
		"tree " + someID + "\n",
		"tree " + someID + "\nparent " + someID[1:] + "\nauthor\n", "tree " + someID + "\nparent x" + someID[1:] +
			"\nauthor\n",
		"parent " + someID + "\n\n",
	} {
		if c, err := ParseCommit([]byte(data), git.SHA1); !fault.Is(err, fault.Corrupt) {
			t.Errorf("ParseCommit(%q) = %v, %v; want Corrupt", data, c, err)
		}
	}
	for _, data := range []string{
		"", "object", "object " + someID + "\n", "object " + someID + "\ntype commit\n", "object " + someID +
			"\ntype commit\ntag x",
		"object " + someID + "\ntype thing\ntag x\n", "type commit\nobject " + someID + "\ntag x\n",
	} {
		if id, _, err := ParseTag([]byte(data), git.SHA1); !fault.Is(err, fault.Corrupt) {
			t.Errorf("ParseTag(%q) = %v, %v; want Corrupt", data, id, err)
		}
	}
	for _, data := range []string{
		"1", "100644", "100644 ", "100644 a", "100644 a\x00", "100644 a\x00" + someID[:19], "100644 \x00" + someID[:20],
		" a\x00" + someID[:20], "10064x a\x00" + someID[:20], "77777777777777777 a\x00" + someID[:20],
	} {
		err := Entries([]byte(data), git.SHA1, func(uint32, []byte, git.ObjectID) error { return nil })
		if !fault.Is(err, fault.Corrupt) {
			t.Errorf("Entries(%q): %v, want Corrupt", data, err)
		}
	}
}

func TestEntriesEnds(t *testing.T) {
	t.Parallel()
	tree := []byte("100664 a\x00" + someID[:20] + "40000 b\x00" + someID[:20] + "100775 c\x00" + someID[:20])
	var seen []string
	visit := func(at string, result error) func(uint32, []byte, git.ObjectID) error {
		return func(mode uint32, name []byte, _ git.ObjectID) error {
			seen = append(seen, fmt.Sprintf("%o %s", mode, name))
			if string(name) == at {
				return result
			}
			return nil
		}
	}
	if err := Entries(tree, git.SHA1, visit("b", fs.SkipAll)); err != nil ||
		!slices.Equal(seen, []string{"100644 a", "40000 b"}) {
		t.Errorf("Entries until SkipAll: %v, %q", err, seen)
	}
	if err := Entries(tree, git.SHA1, visit("a", exec.ErrNotFound)); err != exec.ErrNotFound {
		t.Errorf("Entries: %v, want the function's error", err)
	}
	seen = nil
	if err := Entries(tree, git.SHA1, visit("", nil)); err != nil || len(seen) != 3 || seen[2] != "100755 c" {
		t.Errorf("Entries: %v, %q", err, seen)
	}
}
