package refs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// testSource is a Source whose latest known layers can be older than the current ones.
type testSource struct {
	now, known *Layers
	err        error
	checks     int
}

func (s *testSource) Layers(context.Context) (*Layers, error) {
	s.checks++
	if s.err != nil {
		return nil, s.err
	}
	s.known = s.now
	return s.now, nil
}

func (s *testSource) Known() *Layers { return s.known }

// numberedID returns the ID number n.
func numberedID(n int) git.ObjectID { return git.MustParseObjectID(fmt.Sprintf("%040x", n)) }

// testPeeled returns what the object number n peels to: every third one is a tag.
func testPeeled(n int) git.ObjectID {
	if n%3 != 0 {
		return git.ObjectID{}
	}
	return numberedID(n + 1000)
}

// packedText returns a packed-refs file.
func packedText(state map[git.RefName]int) string {
	var b strings.Builder
	b.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for _, name := range slices.Sorted(maps.Keys(state)) {
		fmt.Fprintf(&b, "%s %s\n", numberedID(state[name]), name)
		if peeled := testPeeled(state[name]); !peeled.IsZero() {
			fmt.Fprintf(&b, "^%s\n", peeled)
		}
	}
	return b.String()
}

func baseOf(t interface{ Fatal(...any) }, dir string, state map[git.RefName]int) *Base {
	path := filepath.Join(dir, "base")
	if err := os.WriteFile(path, []byte(packedText(state)), 0o600); err != nil {
		t.Fatal(err)
	}
	base, err := OpenBase(path, git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	return base
}

// layersOf returns layers with a base of one state that show another one. The changes also have some refs that are
// equal.
func layersOf(t *rapid.T, number uint64, head git.RefName, base *Base, before, after map[git.RefName]int) *Layers {
	l := &Layers{Number: number, Head: head, Base: base}
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value, ok := after[name]
		old, had := before[name]
		if ok == had && value == old && rapid.IntRange(0, 3).Draw(t, "repeat") > 0 {
			continue
		}
		ref := Ref{Name: name, PeelKnown: true}
		if ok {
			ref.ID, ref.Peeled = numberedID(value), testPeeled(value)
		}
		l.Changes = append(l.Changes, ref)
	}
	return l
}

// TestLayersEqualFiles compares Snapshots of layers with those of files that have the same refs.
func TestLayersEqualFiles(t *testing.T) {
	t.Parallel()
	names := []git.RefName{"refs/heads/a", "refs/heads/a-b", "refs/heads/a0", "refs/heads/b/c", "refs/heads/main",
		"refs/hidden/x", "refs/tags/v1", "refs/tags/v1.1", "refs/tags/v2", "refs/zz"}
	states := rapid.MapOf(rapid.SampledFrom(names), rapid.IntRange(1, 12))
	hidden := func(name git.RefName) bool { return strings.HasPrefix(string(name), "refs/hidden/") }
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "layers")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		source := &testSource{}
		layered := Open(dir, dir, Options{Source: source, Hidden: hidden})
		var last, lastPlain *Snapshot
		var base *Base
		var before map[git.RefName]int
		for number := range uint64(3) {
			if base == nil || rapid.Bool().Draw(t, "fold") {
				before = states.Draw(t, "base")
				base = baseOf(t, dir, before)
			}
			after := states.Draw(t, "state")
			head := rapid.SampledFrom(names).Draw(t, "HEAD")
			source.now = layersOf(t, number+1, head, base, before, after)
			snap := takeSnapshot(t, layered)
			if again := takeSnapshot(t, layered); again != snap || snap.Generation() != number+1 {
				t.Fatalf("got another snapshot of the same layers, or generation %d, want %d", snap.Generation(), number+1)
			}
			files := filepath.Join(dir, fmt.Sprint(number))
			plain := takeSnapshot(t, Open(writeFiles(t, files, head, after), files, Options{Hidden: hidden}))
			compareSnapshots(t, snap, plain, names)
			compareTips(t, snap, plain)
			if last != nil {
				if got, want := diffText(t, last, snap), diffText(t, lastPlain, plain); got != want {
					t.Fatalf("Diff: got\n%s\nwant\n%s", got, want)
				}
			}
			last, lastPlain = snap, plain
		}
	})
}

func writeFiles(t *rapid.T, dir string, head git.RefName, state map[git.RefName]int) string {
	if err := os.MkdirAll(filepath.Join(dir, "refs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"HEAD": "ref: " + string(head) + "\n", "packed-refs": packedText(state)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func takeSnapshot(t *rapid.T, s *Store) *Snapshot {
	snap, err := s.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// compareSnapshots compares every way to read two snapshots.
func compareSnapshots(t *rapid.T, got, want *Snapshot, names []git.RefName) {
	if got.Head() != want.Head() {
		t.Fatalf("Head() = %v, want %v", got.Head(), want.Head())
	}
	after := rapid.SampledFrom(names).Draw(t, "after")
	for _, prefix := range []string{"", "refs/heads/", "refs/tags/v1", "refs/none/"} {
		for _, after := range []git.RefName{"", after} {
			if a, b := listText(t, got, prefix, after), listText(t, want, prefix, after); a != b {
				t.Fatalf("EachAfter(%q, %q): got\n%s\nwant\n%s", prefix, after, a, b)
			}
		}
	}
	if a, b := hiddenText(t, got), hiddenText(t, want); a != b {
		t.Fatalf("EachHidden: got\n%s\nwant\n%s", a, b)
	}
	all := append([]git.RefName{"HEAD", "refs/heads/none"}, names...)
	for _, name := range all {
		a, okA, errA := got.Lookup(name)
		b, okB, errB := want.Lookup(name)
		if a != b || okA != okB || errA != nil || errB != nil {
			t.Fatalf("Lookup(%q) = %v, %v, %v, want %v, %v, %v", name, a, okA, errA, b, okB, errB)
		}
	}
	many := func(s *Snapshot) (text string) {
		err := s.LookupAll(all, func(_ int, ref Ref, ok bool) error { text += fmt.Sprintln(ref, ok); return nil })
		return fmt.Sprint(text, err)
	}
	if a, b := many(got), many(want); a != b {
		t.Fatalf("LookupAll: got\n%s\nwant\n%s", a, b)
	}
	for _, short := range []string{"a", "v1", "main", "heads/a", "HEAD", "zz"} {
		a, errA := got.Expand(short)
		b, errB := want.Expand(short)
		if !slices.Equal(a, b) || errA != nil || errB != nil {
			t.Fatalf("Expand(%q) = %v, %v, want %v, %v", short, a, errA, b, errB)
		}
	}
}

// compareTips compares which objects are values of refs, and their names.
func compareTips(t *rapid.T, got, want *Snapshot) {
	for n := range 14 {
		names, err := want.Names([]git.ObjectID{numberedID(n)})
		if err != nil {
			t.Fatal(err)
		}
		if own, err := got.Names([]git.ObjectID{numberedID(n)}); err != nil || own[0] != names[0] {
			t.Fatalf("Names(%d) = %v, %v, want %v", n, own, err, names)
		}
		ok, err := got.HasTips([]git.ObjectID{numberedID(n)})
		if err != nil || ok != (names[0] != "") {
			t.Fatalf("HasTips(%d) = %v, %v, want the name %q", n, ok, err, names[0])
		}
	}
}

func listText(t *rapid.T, s *Snapshot, prefix string, after git.RefName) (text string) {
	err := s.EachAfter(prefix, after, func(ref Ref) error { text += fmt.Sprintln(ref); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func hiddenText(t *rapid.T, s *Snapshot) (text string) {
	if err := s.EachHidden(func(ref Ref) error { text += fmt.Sprintln(ref); return nil }); err != nil {
		t.Fatal(err)
	}
	return text
}

func diffText(t *rapid.T, old, new *Snapshot) (text string) {
	if err := Diff(old, new, func(c Change) error { text += fmt.Sprintln(c); return nil }); err != nil {
		t.Fatal(err)
	}
	return text
}

// TestSnapshotOfKnownTips: only an object that is not a known tip costs a check, and errors of the source pass through.
func TestSnapshotOfKnownTips(t *testing.T) {
	t.Parallel()
	base := baseOf(t, t.TempDir(), map[git.RefName]int{"refs/heads/a": 1, "refs/heads/b": 2, "refs/heads/gone": 3})
	first := &Layers{Number: 1, Head: "refs/heads/a", Base: base, Changes: []Ref{{Name: "refs/heads/gone"}}}
	second := &Layers{Number: 2, Head: "refs/heads/a", Base: base,
		Changes: []Ref{{Name: "refs/heads/c", ID: numberedID(4)}}}
	source := &testSource{now: second, known: first}
	s := Open("unused", "unused", Options{Source: source})
	for _, c := range []struct {
		wants      []int
		generation uint64
		checks     int
	}{{nil, 1, 0}, {[]int{1, 2}, 1, 0}, {[]int{1, 3}, 2, 1}, {[]int{4, 3}, 2, 1}, {[]int{7}, 2, 2}} {
		var wants []git.ObjectID
		for _, n := range c.wants {
			wants = append(wants, numberedID(n))
		}
		snap, err := s.SnapshotOf(t.Context(), wants)
		if err != nil || snap.Generation() != c.generation || source.checks != c.checks {
			t.Fatalf("SnapshotOf(%v): generation %d after %d checks, %v; want %d after %d", c.wants, snap.Generation(),
				source.checks, err, c.generation, c.checks)
		}
	}
	// An older state that comes late does not replace a newer one.
	source.now = first
	if snap, err := s.Snapshot(t.Context()); err != nil || snap.Generation() != 2 {
		t.Errorf("Snapshot() after older layers: generation %d, %v, want 2", snap.Generation(), err)
	}
	source.err = fault.New(fault.NotFound, "deleted")
	if _, err := s.Snapshot(t.Context()); !errors.Is(err, source.err) || !errors.Is(err, ErrGone) {
		t.Errorf("Snapshot() = %v, want %v with ErrGone", err, source.err)
	}
}

// TestLayersOfManyRefs: a change in a repository with many refs costs neither time nor memory for each of them.
func TestLayersOfManyRefs(t *testing.T) {
	if testing.Short() {
		t.Skip("a million refs")
	}
	path := filepath.Join(t.TempDir(), "base")
	var b strings.Builder
	b.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for i := range 1_000_000 {
		fmt.Fprintf(&b, "%s refs/heads/%07d\n", numberedID(i*7919+1), i)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	base, err := OpenBase(path, git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	source := &testSource{}
	s := Open("unused", "unused", Options{Source: source})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	allocs := testing.AllocsPerRun(100, func() {
		number := uint64(1)
		if source.now != nil {
			number += source.now.Number
		}
		source.now = &Layers{Number: number, Head: "refs/heads/0000000", Base: base,
			Changes: []Ref{{Name: "refs/heads/0500000", ID: numberedID(int(number)), PeelKnown: true}}}
		if _, err := s.Snapshot(context.Background()); err != nil {
			t.Fatal(err)
		}
		if ok, err := s.latest.Load().HasTips([]git.ObjectID{numberedID(1)}); err != nil || !ok {
			t.Fatalf("HasTips() = %v, %v", ok, err)
		}
	})
	after := heap()
	runtime.KeepAlive(s)
	if used := int64(after - before); allocs > 30 || used > 10<<20 {
		t.Errorf("a change costs %.0f allocations, and all of them %d bytes, want at most 30 and 10 MiB", allocs, used)
	}
}
