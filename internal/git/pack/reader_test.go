package pack

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestReader compares all objects with those that the Store reads, in the order of offsets and in another one, with
// little and with much memory.
func TestReader(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		r := gittest.Random(t, 4, gittest.Shape{Commits: 100, Format: format.String()})
		for _, args := range [][]string{{"repack", "-adfq", "--depth=50"}, {"-c", "repack.useDeltaBaseOffset=false",
			"-c", "pack.indexVersion=1", "repack", "-adfq", "--depth=200"}} {
			r.Git(args...)
			s, err := Open(r.Dir+"/objects", Options{Format: format})
			if err != nil {
				t.Fatal(err)
			}
			err = s.Raw(10, func(packs []*Raw) error {
				for _, limit := range []int64{1, 5000, 1 << 20} {
					readRaw(t, NewReader(s, packs, limit), s, packs[0])
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func readRaw(t *testing.T, r *Reader, s *Store, p *Raw) {
	t.Helper()
	order, err := p.Order()
	if err != nil {
		t.Fatal(err)
	}
	shuffled := slices.Clone(order)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(order), func(i, j int) {
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	})
	bases := 0
	for _, pos := range slices.Concat(order, shuffled) {
		id := git.RawObjectID(p.ID(int(pos)))
		typ, data, err := s.Read(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		o, err := r.Read(p, int(pos))
		if err != nil || o.Type != typ || !bytes.Equal(o.Data, data) {
			t.Fatalf("Read(%s) = %v, %v, want a %s of %d bytes", id, o, err, typ, len(data))
		}
		if o.Base != nil {
			bases++
		}
	}
	if bases == 0 {
		t.Error("no object had a base")
	}
	if r.young.bytes > r.limit/2 && len(r.young.objects) > 201 || r.old.bytes > r.limit && len(r.old.objects) > 201 {
		t.Errorf("the reader keeps %d and %d bytes with a limit of %d", r.young.bytes, r.old.bytes, r.limit)
	}
}

// TestReaderDamage flips each byte of a pack: entries are unchanged, or are errors.
func TestReaderDamage(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 4, gittest.Shape{Commits: 12})
	r.Git("repack", "-adfq", "--depth=50")
	s, err := Open(r.Dir+"/objects", Options{Format: git.SHA1})
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]string{}
	var end int64
	read := func(each func(o *Object, pos int, err error)) {
		err = s.Raw(1, func(packs []*Raw) error {
			reader, p := NewReader(s, packs, 1<<20), packs[0]
			end = p.End
			for pos := range p.Len() {
				o, err := reader.Read(p, pos)
				each(o, pos, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	read(func(o *Object, pos int, err error) { want[pos] = fmt.Sprintf("%s %x", o.Type, o.Data) })
	packs, err := filepath.Glob(r.Dir + "/objects/pack/*.pack")
	if err != nil || len(packs) != 1 {
		t.Fatal(packs, err)
	}
	f, err := os.OpenFile(packs[0], os.O_RDWR, 0)
	if err != nil {
		os.Chmod(packs[0], 0o600)
		if f, err = os.OpenFile(packs[0], os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
	}
	defer f.Close()
	errors := 0
	for at := int64(packHeader); at < end; at += 3 {
		var b [1]byte
		f.ReadAt(b[:], at)
		f.WriteAt([]byte{b[0] ^ 1<<(at%8)}, at)
		read(func(o *Object, pos int, err error) {
			if err != nil {
				if errors++; !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.Invalid) {
					t.Errorf("byte %d: Read(%d) = %v, want an error of kind Corrupt", at, pos, err)
				}
				return
			}
			got := fmt.Sprintf("%s %x", o.Type, o.Data)
			if got != want[pos] {
				t.Errorf("byte %d: Read(%d) returned other bytes", at, pos)
			}
		})
		f.WriteAt(b[:], at)
	}
	if errors == 0 {
		t.Error("no damage was noticed")
	}
}
