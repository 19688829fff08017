package refs

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

const (
	id1 = "1111111111111111111111111111111111111111"
	id2 = "2222222222222222222222222222222222222222"
	id3 = "3333333333333333333333333333333333333333"
)

func packedOnly(text string) (*Snapshot, error) {
	p := &packed{path: "packed-refs", mem: []byte(text), format: git.SHA1}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	return &Snapshot{packed: p}, nil
}

func TestPeelTraits(t *testing.T) {
	t.Parallel()
	body := id1 + " refs/heads/a\n" + id1 + " refs/tags/a\n" + id1 + " refs/tags/b\n^" + id2 + "\n" + id1 + " refs/z\n^" +
		id3 + "\n"
	for _, c := range []struct{ traits, want string }{
		{"", "? ? 2 3"},
		{"# pack-refs with: sorted \n", "? ? 2 3"},
		{"# pack-refs with: peeled \n", "? - 2 3"},
		{"# pack-refs with: peeled fully-peeled sorted \n", "- - 2 3"},
		{"# pack-refs with: fully-peeled peeled unknown-trait\n", "- - 2 3"},
	} {
		snap, err := packedOnly(c.traits + body)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		err = snap.Each("", func(r Ref) error {
			switch {
			case !r.PeelKnown:
				got = append(got, "?")
			case r.Peeled.IsZero():
				got = append(got, "-")
			default:
				got = append(got, r.Peeled.String()[:1])
			}
			return nil
		})
		if s := strings.Join(got, " "); err != nil || s != c.want {
			t.Errorf("%q: %s, %v; want %s", c.traits, s, err, c.want)
		}
	}
}

func TestUnsortedPackedRefs(t *testing.T) {
	t.Parallel()
	text := "# pack-refs with: peeled \n" + id1 + " refs/tags/b\n^" + id2 + "\n" + id3 + " refs/heads/z\n" + id2 +
		" refs/heads/a\n"
	snap, err := packedOnly(text)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := snap.Each("", func(r Ref) error { got = append(got, string(r.Name)); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"refs/heads/a", "refs/heads/z", "refs/tags/b"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	ref, ok, err := snap.Lookup("refs/tags/b")
	if err != nil || !ok || ref.Peeled.String() != id2 {
		t.Errorf("%v %v %v", ref, ok, err)
	}
}

// TestDamagedPackedRefs checks that an answer that depends on a damaged line is an error with the location.
func TestDamagedPackedRefs(t *testing.T) {
	t.Parallel()
	head := "# pack-refs with: peeled fully-peeled sorted \n"
	first := id1 + " refs/heads/a\n"
	for _, c := range []struct {
		name, text string
		at         int
	}{
		{"header", "# something else\n" + first, 0},
		{"no end", head + first + id2 + " refs/heads/b", len(head + first)},
		{"half a line", head + first + id2[:20] + "\n", len(head + first)},
		{"no name", head + first + id2 + "\n", len(head + first)},
		{"not hexadecimal", head + first + "x" + id2[1:] + " refs/heads/b\n", len(head + first)},
		{"no space", head + first + id2 + "-refs/heads/b\n", len(head + first)},
		{"peeled first", head + "^" + id2 + "\n" + first, len(head)},
		{"peeled twice", head + first + "^" + id2 + "\n^" + id2 + "\n", len(head + first + "^" + id2 + "\n")},
		{"peeled short", head + first + "^" + id2[1:] + "\n", len(head + first)},
		{"comment inside", head + first + "# comment\n", len(head + first)},
		{"line too long", head + first + id2 + " refs/heads/" + strings.Repeat("x", maxPackedLine) + "\n", len(head + first)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			snap, err := packedOnly(c.text)
			if err == nil {
				err = snap.Each("", func(Ref) error { return nil })
			}
			if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(),
				fmt.Sprintf("packed-refs is damaged at byte %d:", c.at)) {
				t.Errorf("got %v, want an error at byte %d", err, c.at)
			}
		})
	}
}

// TestPackedRefsWithBadNames checks that names that git does not pack are left out.
func TestPackedRefsWithBadNames(t *testing.T) {
	t.Parallel()
	snap, err := packedOnly(id1 + " HEAD\n" + id1 + " refs/../x\n" + id1 + " refs/heads/a b\n" + id1 +
		" refs/heads/good\n" +
		strings.Repeat("0", 40) + " refs/heads/null\n" + id1 + " refs/heads/x.lock\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := dump(t, snap); got != "HEAD  -\nrefs/heads/good "+id1+" \n" {
		t.Error(got)
	}
	for _, name := range []git.RefName{"refs/../x", "refs/heads/a b", "refs/heads/null", "refs/heads/x.lock",
		"refs/heads/goo", "refs/heads/good2"} {
		if _, ok, err := snap.Lookup(name); ok || err != nil {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
}

func TestPackedRefsIsDirectory(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	write(t, filepath.Join(r.Dir, "packed-refs/x"), "")
	if _, err := openBare(r, Options{}).Snapshot(context.Background()); !fault.Is(err, fault.Corrupt) {
		t.Errorf("got %v", err)
	}
}

// FuzzPackedRefs compares search and iteration with a line by line reading.
func FuzzPackedRefs(f *testing.F) {
	head := "# pack-refs with: peeled fully-peeled sorted \n"
	f.Add("", "refs/")
	f.Add(head, "refs/heads/a")
	f.Add(head+id1+" refs/heads/a\n"+id1+" refs/tags/b\n^"+id2+"\n", "refs/tags/b")
	f.Add(id1+" refs/tags/b\n^"+id2+"\n"+id1+" refs/heads/a\n"+id3+" refs/heads/a-b\n", "refs/heads/a")
	f.Add("# pack-refs with: peeled \n"+id1+" refs/a/b\n^"+id2+"\n^"+id2+"\n", "refs/a/b")
	f.Add(head+"^"+id1+"\n^"+id1+"\n^"+id1+"\n", "refs/a/b")
	line := regexp.MustCompile(`^([0-9a-fA-F]{40})[ \t](.*)$`)
	f.Fuzz(func(t *testing.T, text, name string) {
		snap, err := packedOnly(text)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		// All must end without a panic, whatever the text claims.
		ref, found, lookupErr := snap.Lookup(git.RefName(name))
		var seen []git.RefName
		eachErr := snap.Each("", func(r Ref) error { seen = append(seen, r.Name); return nil })
		prefixErr := snap.Each(name, func(r Ref) error {
			if !strings.HasPrefix(string(r.Name), name) {
				t.Errorf("%q does not begin with %q", r.Name, name)
			}
			return nil
		})
		if eachErr != nil || !slices.IsSorted(seen) {
			return // damaged, or not sorted in spite of the header
		}
		if lookupErr != nil || prefixErr != nil {
			t.Fatalf("Each works, but %v, %v", lookupErr, prefixErr)
		}
		want := map[string]string{}
		lines := bytes.Split([]byte(text), []byte("\n"))
		sorted, last := true, ""
		for _, l := range lines {
			if m := line.FindSubmatch(l); m != nil {
				sorted = sorted && last < string(m[2])
				last = string(m[2])
				want[last] = strings.ToLower(string(m[1]))
			}
		}
		if !sorted {
			return
		}
		id, ok := want[name]
		_, nameErr := git.ParseRefName(name)
		ok = ok && nameErr == nil && name != "HEAD" && strings.Trim(id, "0") != ""
		if ok != found || ok && ref.ID.String() != id {
			t.Fatalf("Lookup(%q): %v, %v; want %q", name, ref, found, id)
		}
		if found != slices.Contains(seen, git.RefName(name)) {
			t.Fatalf("Lookup(%q): %v, but Each %v", name, found, seen)
		}
	})
}

// FuzzLoose checks the result of parsing a loose ref.
func FuzzLoose(f *testing.F) {
	for _, s := range []string{"", "\n", id1, id1 + "\n", id1 + " x", id1 + "x", id1[1:], "ref: refs/heads/main\n",
		"ref:HEAD",
		"ref: \t\n", "ref: refs/heads/a\nb", "ref: ../x", "refs/heads/main", "ref: refs/heads/.invalid", id1 + id1[:24] +
			"\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
			switch c := parseLoose(b, format); c.kind {
			case direct:
				if !strings.HasPrefix(strings.ToLower(string(b)), c.id.String()) || c.id.Format() != format || c.id.IsZero() ||
					c.link != "" {
					t.Errorf("%q: %+v", b, c)
				}
			case symbolic:
				if _, err := git.ParseRefName(string(c.link)); err != nil || !bytes.Contains(b, []byte(c.link)) || !c.id.IsZero() {
					t.Errorf("%q: %+v, %v", b, c, err)
				}
			case broken:
				if c != (content{}) {
					t.Errorf("%q: %+v", b, c)
				}
			}
		}
		_ = parseSymlink(string(b))
	})
}

// FuzzIsRefName compares the fast check with the complete one.
func FuzzIsRefName(f *testing.F) {
	for _, s := range []string{"", "refs/", "refs/a", "refs//a", "refs/a/", "refs/a.1", "refs/a.lock", "refs/a.1lock",
		"refs/.1", "refs/a..1",
		"refs/a.", "refs/a@{1", "refs/@", "HEAD", "refs/é", "refs/heads/x.lock/y", "refs/a\x7f", "refs/a/.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, err := git.ParseRefName(s)
		if got, want := isRefName([]byte(s)), err == nil && s != "HEAD"; got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	})
}
