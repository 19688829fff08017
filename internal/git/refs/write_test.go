package refs

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// testID returns one of a few object IDs.
func testID(n int) git.ObjectID {
	return git.MustParseObjectID(strings.Repeat(string("123456789abcdef"[n%15]), 40))
}

// openBase returns the base with the content of a file.
func openBase(t *testing.T, content []byte) *Base {
	t.Helper()
	path := filepath.Join(t.TempDir(), "packed-refs")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	base, err := OpenBase(path, git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	return base
}

// WritePacked writes what a file with all refs would have, whatever changes.
func TestWritePacked(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	want := map[git.RefName]Ref{}
	var base *Base
	for step := range 60 {
		changed := map[git.RefName]Ref{}
		for range random.IntN(30) {
			name := git.RefName("refs/heads/" + strings.Repeat("x", random.IntN(8)) + string(rune('a'+random.IntN(26))))
			ref := Ref{Name: name, PeelKnown: true}
			if random.IntN(3) > 0 {
				ref.ID = testID(random.IntN(15))
			}
			if !ref.ID.IsZero() && random.IntN(3) == 0 {
				ref.Peeled = testID(random.IntN(15))
			}
			changed[name] = ref
		}
		before := len(want)
		var changes []Ref
		for name, ref := range changed {
			changes = append(changes, ref)
			if want[name] = ref; ref.ID.IsZero() {
				delete(want, name)
			}
		}
		slices.SortFunc(changes, func(a, b Ref) int { return strings.Compare(string(a.Name), string(b.Name)) })
		var got bytes.Buffer
		more, err := WritePacked(&got, base, changes)
		if err != nil || more != len(want)-before {
			t.Fatalf("step %d: WritePacked = %d, %v, want %d", step, more, err, len(want)-before)
		}
		if file := wantPacked(want); got.String() != file {
			t.Fatalf("step %d: got\n%s\nwant\n%s", step, &got, file)
		}
		base = openBase(t, got.Bytes())
	}
}

// wantPacked returns the packed-refs file with all refs.
func wantPacked(all map[git.RefName]Ref) string {
	var names []string
	for name := range all {
		names = append(names, string(name))
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString(PackedHeader)
	for _, name := range names {
		ref := all[git.RefName(name)]
		b.WriteString(ref.ID.String() + " " + name + "\n")
		if !ref.Peeled.IsZero() {
			b.WriteString("^" + ref.Peeled.String() + "\n")
		}
	}
	return b.String()
}

func TestWritePackedRefuses(t *testing.T) {
	t.Parallel()
	changes := []Ref{{Name: "refs/heads/b", ID: testID(1)}, {Name: "refs/heads/a", ID: testID(1)}}
	if _, err := WritePacked(&bytes.Buffer{}, nil, changes); !fault.Is(err, fault.Internal) {
		t.Errorf("unsorted changes: WritePacked = %v, want internal", err)
	}
	for name, content := range map[string]string{
		"not peeled": "# pack-refs with: peeled sorted \n" + testID(1).String() + " refs/heads/a\n",
		"damaged":    PackedHeader + testID(1).String() + " refs/heads/a\nx\n",
	} {
		base := openBase(t, []byte(content))
		if _, err := WritePacked(&bytes.Buffer{}, base, []Ref{{Name: "refs/heads/b"}}); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: WritePacked = %v, want corrupt", name, err)
		}
	}
}
