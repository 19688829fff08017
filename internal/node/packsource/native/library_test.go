package native_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// library has one pack, whose files a test can damage.
type library struct{ pack, index []byte }

func (l library) Packs(string) []packsource.Key { return []packsource.Key{{1}} }

func (l library) Borrow(packsource.Key) (*packsource.Borrowed, error) {
	dir, err := os.MkdirTemp("", "library-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the open files stay
	b := &packsource.Borrowed{Size: int64(len(l.pack)), Close: func() {}}
	for name, content := range map[string][]byte{"pack": l.pack, "index": l.index} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		if name == "pack" {
			b.Pack = f
		} else {
			b.Index = f
		}
	}
	b.Close = func() { b.Pack.Close(); b.Index.Close() }
	return b, nil
}

// newLibrary makes a pack of a repository.
func newLibrary(t testing.TB, spec *packsource.Spec) library {
	t.Helper()
	p, err := newSource(t, true).Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out sourcetest.Output
	if err := p.Send(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "index")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.(packsource.Indexed).WriteIndex(f); err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return library{out.Framed, index}
}

// tips are a repository, packs of it, and the Specs of the packs after a push.
type tips struct {
	*gittest.Repo
	names []string
	libs  []library
	specs []*packsource.Spec
}

func newTips(t testing.TB, format string) *tips {
	r := gittest.Random(t, 1, gittest.Shape{Format: format})
	s := &tips{Repo: r}
	specs := func() (list []*packsource.Spec) {
		full := sourcetest.Full(r)
		main := []git.ObjectID{r.ID("main")}
		depth1 := &packsource.Spec{Repo: full.Repo, Wants: main, Shallow: main, Offset: true}
		blobless := *full
		blobless.Filter = "blob:none"
		return []*packsource.Spec{full, depth1, &blobless}
	}
	for _, spec := range specs() {
		s.libs = append(s.libs, newLibrary(t, spec))
	}
	r.Push(rand.New(rand.NewPCG(1, 1)), "main", "main", 3)
	s.specs = specs()
	s.names = []string{"full", "depth 1", "blob:none"}
	return s
}

// TestDamagedLibrary flips bits of earlier packs. The next pack is made of the repository instead.
func TestDamagedLibrary(t *testing.T) {
	flips := 4
	if !testing.Short() {
		flips = 40
	}
	for i, format := range []string{"sha1", "sha256"} {
		s := newTips(t, format)
		for k, spec := range s.specs {
			t.Run(fmt.Sprintf("%s, %s", format, s.names[k]), func(t *testing.T) {
				t.Parallel()
				rnd := rand.New(rand.NewPCG(uint64(i), uint64(k)))
				for range flips {
					l := library{slices.Clone(s.libs[k].pack), s.libs[k].index}
					at, bit := rnd.IntN(len(l.pack)), rnd.IntN(8)
					l.pack[at] ^= 1 << bit
					source := newSource(t, true)
					source.SetLibrary(l)
					if sourcetest.FetchAndCheck(t, source, s.Repo, spec); t.Failed() {
						t.Fatalf("byte %d of %d, bit %d", at, len(l.pack), bit)
					}
				}
			})
		}
	}
}
