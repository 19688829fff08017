package git_test

import (
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

var refPieces = []string{
	"a", "main", "/", "/", ".", "..", ".lock", "@", "{", "@{", "~", "^", ":", "?", "*", "[", "\\", " ", "\t", "\x7f",
	"\x01", "é", "\xff", "-", "HEAD", "refs", "lock", "]", "}", "\"", "$(x)", "%2e",
}

// gitAcceptsRef asks git about a name below refs/.
func gitAcceptsRef(t testing.TB, name string) bool {
	_, err := gittest.At(t, "").Try("check-ref-format", name)
	return err == nil
}

func TestRefNamesAsGitChecksThem(t *testing.T) {
	t.Parallel()
	const seed = 3
	rnd := rand.New(rand.NewPCG(seed, 0))
	names := []string{"refs/heads/main", "refs/stash", "refs/", "refs", "refs//a", "refs/a/", "refs/a.", "refs/a./b",
		"refs/@", "refs/heads/@", "refs/a.lock/b", "refs/.a", "refs/heads/-x", "refs/x" + strings.Repeat("/y", 100)}
	for range 400 {
		name := "refs/"
		for range 1 + rnd.IntN(5) {
			name += refPieces[rnd.IntN(len(refPieces))]
		}
		names = append(names, name)
	}
	for _, name := range names {
		_, err := git.ParseRefName(name)
		if want := gitAcceptsRef(t, name); (err == nil) != want {
			t.Errorf("%q (seed %d): git accepts it: %t; we: %v", name, seed, want, err)
		}
	}
	for _, name := range []string{"", "main", "heads/main", "FETCH_HEAD", "head", "refs/" +
		strings.Repeat("x/", git.MaxRefName), "refs/a\x00b", "refs/a\nb"} {
		if _, err := git.ParseRefName(name); err == nil {
			t.Errorf("%.50q is a ref name", name)
		}
	}
	if name, err := git.ParseRefName("HEAD"); err != nil || name != git.HEAD {
		t.Errorf("HEAD: %v", err)
	}
}

func FuzzParseRefName(f *testing.F) {
	for _, p := range refPieces {
		f.Add("refs/" + p)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := git.ParseRefName(s)
		if err != nil {
			return
		}
		if string(name) != s || strings.ContainsAny(s, "\x00\n \x7f") || len(s) > git.MaxRefName {
			t.Errorf("%q became %q", s, name)
		}
		if name != git.HEAD && (path.Clean(s) != s || !strings.HasPrefix(s, "refs/")) {
			t.Errorf("%q is no plain path below refs", s)
		}
	})
}

func FuzzParseRepoPath(f *testing.F) {
	for _, s := range []string{"a", "/a/b.git/", "..", "a/../b", "./a", "a//b", "-", "-/a", "a/-", "a\x00", "a\\b", "...",
		".git", "\xff", strings.Repeat("a/", 600), " ", "a/. ", "~", "%2e%2e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := git.ParseRepoPath(s)
		if err != nil {
			if p != (git.RepoPath{}) {
				t.Errorf("%q: an error and a path", s)
			}
			return
		}
		below := path.Join("/root", p.String())
		if !strings.HasPrefix(below, "/root/") || strings.TrimPrefix(below, "/root/") != p.String() {
			t.Errorf("%q names %q", s, below)
		}
		if strings.ContainsAny(p.String(), "\x00\n\r\\") || p.String() == "-" || strings.HasPrefix(p.String(), "-/") ||
			len(p.String()) > git.MaxRepoPath {
			t.Errorf("%q became %q", s, p)
		}
		if again, err := git.ParseRepoPath(p.String()); err != nil || again != p {
			t.Errorf("%q: read again it is %q, %v", s, again, err)
		}
	})
}

func FuzzParseObjectID(f *testing.F) {
	for _, s := range []string{"", strings.Repeat("0", 40), strings.Repeat("aB", 20), strings.Repeat("f", 64),
		strings.Repeat("g", 40), strings.Repeat("0", 39) + "\n", strings.Repeat("\x80", 40)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := git.ParseObjectID(s)
		same, err2 := git.ParseObjectID([]byte(s))
		if (err == nil) != (err2 == nil) || id != same {
			t.Fatalf("%q: as a string %v, as bytes %v", s, err, err2)
		}
		if err != nil {
			if id != (git.ObjectID{}) {
				t.Errorf("%q: an error and an ID", s)
			}
			return
		}
		if id.String() != strings.ToLower(s) || git.RawObjectID(id.Raw()) != id || id.Format().HexSize() != len(s) {
			t.Errorf("%q became %s", s, id)
		}
		if id.IsZero() != (strings.Trim(s, "0") == "") {
			t.Errorf("%q: zero is %t", s, id.IsZero())
		}
	})
}
