package graph

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// checkWhole compares the whole history with git's.
func checkWhole(t *testing.T, g *Graph, m *model) {
	t.Helper()
	got, _, err := g.Missing(t.Context(), m.ids, nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := NewCommits(m.ids...); !maps.Equal(got, want) {
		t.Fatalf("history has %d commits; git says %d", len(got), len(want))
	}
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 3, gittest.Shape{Merge: 0.3})
	g := openGraph(t, r, Options{})
	m := newModel(r)
	inGraph := func() int {
		t.Helper()
		checkWhole(t, g, m)
		if err := g.Refresh(); err != nil {
			t.Fatal(err)
		}
		checkWhole(t, g, m)
		return int(g.view.Load().total)
	}
	if n := inGraph(); n != 0 {
		t.Errorf("without commit-graph: %d commits in it, want 0", n)
	}
	writeGraph(r, "partial")
	part := inGraph()
	if part == 0 || part >= len(m.ids) {
		t.Errorf("partial commit-graph: %d of %d commits in it", part, len(m.ids))
	}
	old := g.view.Load()
	if inGraph(); g.view.Load() != old {
		t.Error("got a new view without a change, want the same")
	}
	writeGraph(r, "chain")
	if n := inGraph(); n != len(m.ids) {
		t.Errorf("chain: %d of %d commits in it", n, len(m.ids))
	}
	if g.view.Load().gens != corrected {
		t.Error("the chain has no corrected commit dates, want some")
	}
	if err := os.RemoveAll(filepath.Join(r.Dir, "objects", "info", "commit-graphs")); err != nil {
		t.Fatal(err)
	}
	if n := inGraph(); n != 0 {
		t.Errorf("chain removed: %d commits in it, want 0", n)
	}
}

func TestAlternates(t *testing.T) {
	t.Parallel()
	pool := gittest.Random(t, 4, gittest.Shape{Merge: 0.3})
	writeGraph(pool, "chain")
	fork := gittest.Init(t)
	if err := os.WriteFile(filepath.Join(fork.Dir, "objects", "info", "alternates"), []byte(pool.Dir+"/objects\n"),
		0o666); err != nil {
		t.Fatal(err)
	}
	top := fork.Commit("in the fork", pool.ID("HEAD"))
	fork.Git("update-ref", "refs/heads/main", top.String())
	g, m := openGraph(t, fork, Options{}), newModel(fork)
	checkWhole(t, g, m)
	if n := g.view.Load().total; n == 0 {
		t.Error("the pool's commit-graph is unused, want it used")
	}
	// The fork's own chain is on top of layers in the pool.
	fork.Git("commit-graph", "write", "--reachable", "--split=no-merge")
	if err := g.Refresh(); err != nil {
		t.Fatal(err)
	}
	checkWhole(t, g, m)
	if v := g.view.Load(); int(v.total) < len(m.ids) || len(v.layers) < 2 {
		t.Errorf("%d commits in %d layers; want at least %d and 2", v.total, len(v.layers), len(m.ids))
	}
}

// graphFiles are all commit-graph files of a repository.
func graphFiles(t *testing.T, r *gittest.Repo) []string {
	t.Helper()
	single := singlePath(filepath.Join(r.Dir, "objects"))
	files, _ := filepath.Glob(layerPath(filepath.Join(r.Dir, "objects"), "*"))
	if exists(single) {
		files = append(files, single)
	}
	for _, name := range files {
		if err := os.Chmod(name, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestCorrupt overwrites commit-graphs. Answers stay the same, unless the damage cannot be detected.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"full", "chain"} {
		r := gittest.Random(t, 6, gittest.Shape{Merge: 0.4})
		addOctopus(r)
		writeGraph(r, variant)
		m := newModel(r)
		for _, name := range graphFiles(t, r) {
			whole, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			l, err := parseLayer(whole, git.SHA1)
			if err != nil {
				t.Fatal(err)
			}
			for what, bad := range map[string][]byte{
				"empty":          {},
				"cut":            whole[:len(whole)/2],
				"signature":      overwrite(whole, 0, "XXXX"),
				"version":        overwrite(whole, 4, "\x09"),
				"hash":           overwrite(whole, 5, "\x02"),
				"chunks":         overwrite(whole, 6, "\xff"),
				"offset":         overwrite(whole, headerSize+4, "\xff\xff"),
				"fan":            overwrite(whole, l.fan.At+8, "\xff\xff"),
				"parents":        overwrite(whole, l.data.At+int(l.n-1)*(l.size+16)+l.size, "\x6f\xff\xff\xff"),
				"edges":          overwrite(whole, l.data.At+int(l.n-1)*(l.size+16)+l.size, "\x00\x00\x00\x00\xff\xff\xff\xff"),
				"all parents":    everyRecord(whole, l, "\x6f\xff\xff\xff\x6f\xff\xff\xff"),
				"circle":         circle(whole, l),
				"all dates":      overwrite(whole, l.dates.At, strings.Repeat("\xff", l.dates.Size)),
				"no edges' end":  overwrite(whole, l.edges.At, strings.Repeat("\x00", l.edges.Size)),
				"names of below": overwrite(whole, l.below.At, strings.Repeat("\x01", l.below.Size)),
			} {
				if bytes.Equal(bad, whole) {
					continue
				}
				if err := os.WriteFile(name, bad, 0o644); err != nil {
					t.Fatal(err)
				}
				g := openCorrupt(t, r)
				first := g.Refresh()
				checkCorrupt(t, variant+", "+what, g, m)
				switch what {
				case "circle", "parents", "edges", "all parents", "all dates", "no edges' end": // shows only if a walk comes by
				default:
					if !fault.Is(first, fault.Corrupt) {
						t.Errorf("%s, %s: Refresh says %v, want Corrupt", variant, what, first)
					}
				}
			}
			if err := os.WriteFile(name, whole, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func overwrite(b []byte, at int, s string) []byte {
	b = slices.Clone(b)
	copy(b[at:], s)
	return b
}

func everyRecord(b []byte, l layer, s string) []byte {
	b = slices.Clone(b)
	for i := range int(l.n) {
		copy(b[l.data.At+i*(l.size+16)+l.size:], s)
	}
	return b
}

// circle makes each commit the parent of the next by position, and the last the parent of the first.
func circle(b []byte, l layer) []byte {
	b = slices.Clone(b)
	for i := range l.n {
		r := b[l.data.At+int(i)*(l.size+16)+l.size:]
		binary.BigEndian.PutUint32(r, (i+1)%l.n)
		binary.BigEndian.PutUint32(r[4:], noParent)
	}
	return b
}

// openCorrupt is openGraph where the first Refresh may fail.
func openCorrupt(t *testing.T, r *gittest.Repo) *Graph {
	t.Helper()
	s := openStore(t, r, git.SHA1)
	return New(s, s.Dirs, Options{})
}

// checkCorrupt allows wrong answers due to plausible wrong data in the file, but no panic, endless walk or error.
func checkCorrupt(t *testing.T, what string, g *Graph, m *model) {
	t.Helper()
	heads := m.ids[:1]
	if _, _, err := g.Missing(t.Context(), m.ids, nil, nil, 0); err != nil {
		t.Errorf("%s: Missing: %v", what, err)
	}
	if _, _, err := g.FirstUnreachable(t.Context(), heads, m.ids, nil); err != nil {
		t.Errorf("%s: Unreachable: %v", what, err)
	}
	if _, err := g.Maximal(t.Context(), m.ids, nil); err != nil {
		t.Errorf("%s: Maximal: %v", what, err)
	}
	if _, _, err := g.AllReach(t.Context(), heads, m.ids[len(m.ids)-1:], nil); err != nil {
		t.Errorf("%s: AllReach: %v", what, err)
	}
	if _, err := g.Depth(t.Context(), heads, 20, nil, nil); err != nil {
		t.Errorf("%s: Depth: %v", what, err)
	}
	if _, err := g.Since(t.Context(), heads, 1, m.ids[10:11], nil, nil); err != nil && !fault.Is(err, fault.Invalid) {
		t.Errorf("%s: Since: %v", what, err)
	}
}

// TestTruncated shortens a mapped commit-graph. The walk is repeated from the objects, and Refresh reports the damage.
func TestTruncated(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 7, gittest.Shape{Commits: 300})
	writeGraph(r, "full")
	g, m := openGraph(t, r, Options{}), newModel(r)
	for _, name := range graphFiles(t, r) {
		if err := os.Truncate(name, 1200); err != nil { // the fan-out table stays, the rest is cut off
			t.Fatal(err)
		}
	}
	checkWhole(t, g, m)
	if g.view.Load().total != 0 {
		t.Skip("pages are larger than the file") // the mapped rest reads as zeros
	}
	if err := g.Refresh(); !fault.Is(err, fault.Corrupt) {
		t.Errorf("Refresh after a fault: got %v, want Corrupt", err)
	}
	writeGraph(r, "full")
	if err := g.Refresh(); err != nil {
		t.Fatal(err)
	}
	checkWhole(t, g, m)
	if g.view.Load().total == 0 {
		t.Error("the new file is unused, want it used")
	}
}

// TestChangeThatHides writes over a commit-graph in place: same inode, size and time of modification.
func TestChangeThatHides(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 8, gittest.Shape{Commits: 20})
	writeGraph(r, "full")
	m := newModel(r)
	name := graphFiles(t, r)[0]
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	g := openGraph(t, r, Options{})
	for round := range 10 {
		for _, bad := range []bool{true, false} {
			text := whole
			if bad {
				text = overwrite(whole, 0, "XXXX")
			}
			if err := os.WriteFile(name, text, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
			if err := g.Refresh(); bad != fault.Is(err, fault.Corrupt) || !bad && err != nil {
				t.Fatalf("round %d: %v after the file was made bad: %v", round, err, bad)
			}
			if err := g.Refresh(); err != nil {
				t.Fatalf("round %d: told once more: %v", round, err)
			}
			checkWhole(t, g, m)
			if got := int(g.view.Load().total); bad != (got == 0) {
				t.Fatalf("round %d, bad %v: %d commits in the commit-graph", round, bad, got)
			}
		}
	}
}

// TestPipesInsteadOfFiles would hang if a file were opened without O_NONBLOCK, because the pipes have no writer.
func TestPipesInsteadOfFiles(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"full", "chain"} {
		r := gittest.Random(t, 9, gittest.Shape{Commits: 20})
		writeGraph(r, variant)
		objects := filepath.Join(r.Dir, "objects")
		paths := graphFiles(t, r)
		if variant == "chain" {
			paths = append(paths, chainPath(objects))
		}
		m := newModel(r)
		for _, path := range paths {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			g := openCorrupt(t, r)
			if err := g.Refresh(); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: Refresh says %v, want Corrupt", path, err)
			}
			checkWhole(t, g, m)
		}
	}
}

// TestLinks replaces commit-graph files by links. Links to places outside the root are ignored.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"full", "chain"} {
		r := gittest.Random(t, 10, gittest.Shape{Commits: 20})
		writeGraph(r, variant)
		m, paths := newModel(r), graphFiles(t, r)
		if variant == "chain" {
			paths = append(paths, chainPath(filepath.Join(r.Dir, "objects")))
		}
		within := t.TempDir()
		inside := func(path string) bool {
			a, errA := filepath.EvalSymlinks(within)
			b, errB := filepath.EvalSymlinks(r.Dir)
			return errA == nil && disk.Below(a, path) || errB == nil && disk.Below(b, path)
		}
		open := func() *Graph {
			s := openStore(t, r, git.SHA1)
			return New(s, s.Dirs, Options{Inside: inside})
		}
		for i, path := range paths {
			move := func(from, dir string) string {
				to := filepath.Join(dir, strconv.Itoa(i))
				if err := errors.Join(os.Rename(from, to), os.RemoveAll(path), os.Symlink(to, path)); err != nil {
					t.Fatal(err)
				}
				return to
			}
			moved := move(path, within)
			g := open()
			if err := g.Refresh(); err != nil || g.view.Load().total == 0 {
				t.Errorf("%s is a link that may be: %v", path, err)
			}
			moved = move(moved, t.TempDir())
			g = open()
			if err := g.Refresh(); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s is a link that may not be: %v", path, err)
			}
			checkWhole(t, g, m)
			move(moved, within)
		}
	}
}

// TestPruned has a commit-graph that names commits which are gone.
func TestPruned(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	a := r.Commit("a")
	b := r.Commit("b", a)
	r.Git("update-ref", "refs/heads/main", b.String())
	r.Git("commit-graph", "write", "--reachable")
	r.Git("update-ref", "refs/heads/main", a.String())
	r.Git("prune", "--expire=now")
	g := openGraph(t, r, Options{})
	if _, err := g.Commit(b); !fault.Is(err, fault.NotFound) {
		t.Errorf("a pruned commit: got %v, want NotFound", err)
	}
	if _, _, err := g.Peel(b); !fault.Is(err, fault.NotFound) {
		t.Errorf("peel a pruned commit: got %v, want NotFound", err)
	}
}

// TestMissingParent has a history with a hole.
func TestMissingParent(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	a := r.Commit("a")
	b := r.Commit("b", a)
	hex := a.String()
	if err := os.Remove(filepath.Join(r.Dir, "objects", hex[:2], hex[2:])); err != nil {
		t.Fatal(err)
	}
	g := openGraph(t, r, Options{})
	if _, err := g.Depth(t.Context(), []git.ObjectID{b}, 9, nil, nil); !fault.Is(err, fault.Corrupt) {
		t.Errorf("walk into a hole: got %v, want Corrupt", err)
	}
	if _, err := g.Depth(t.Context(), []git.ObjectID{b}, 9, NewCommits(b), nil); err != nil {
		t.Errorf("walk that ends at a graft: %v", err)
	}
}

// TestBound has a table that is too small for the history.
func TestBound(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 9, gittest.Shape{})
	g, m := openGraph(t, r, Options{MaxCommits: 10}), newModel(r)
	for range 3 {
		checkWhole(t, g, m)
	}
	id := m.ids[0]
	if _, err := g.Commit(id); err != nil {
		t.Fatal(err)
	}
	if n := g.view.Load().table.len(); n > 10 {
		t.Errorf("%d commits remembered after a small walk; want at most 10", n)
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 11, gittest.Shape{Merge: 0.3})
	addOctopus(r)
	g, m := openGraph(t, r, Options{MaxCommits: 40}), newModel(r)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 20 {
				ids := m.ids[(i*j)%len(m.ids):]
				if _, err := g.Maximal(t.Context(), ids, nil); err != nil {
					t.Error(err)
				}
				if _, err := g.Depth(t.Context(), ids, 1+j%5, nil, nil); err != nil {
					t.Error(err)
				}
				if _, found, err := g.FirstUnreachable(t.Context(), m.ids, ids, nil); err != nil || found {
					t.Error(found, err)
				}
			}
		})
	}
	for _, variant := range []string{"partial", "full", "chain"} {
		writeGraph(r, variant)
		if err := g.Refresh(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	checkWhole(t, g, m)
}

func FuzzLayer(f *testing.F) {
	names, _ := filepath.Glob("testdata/*.graph") // written by git: single files, and the layers of a chain
	if len(names) == 0 {
		f.Fatal("no seeds")
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("CGPH\x01\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseLayer(b, git.SHA1)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Errorf("got %v, want Corrupt", err)
			}
			return
		}
		l.hasLevels(b)
		for i := range l.bases {
			l.sumBelow(b, i)
		}
		d := l.bytesOf(b)
		var parents []uint32
		for pos := range l.n {
			id := d.rawID(pos)
			if at, ok := d.find(id); ok && !bytes.Equal(d.rawID(at), id) {
				t.Errorf("found %x at the place of %x", id, d.rawID(at))
			}
			if parents, err = d.parents(pos, parents[:0]); err == nil {
				for _, p := range parents {
					d.date(p) // every parent has to be a place in the file
				}
			}
			d.rawTree(pos)
			d.level(pos)
			if l.dates.Size > 0 {
				_, _ = d.corrected(pos)
			}
		}
	})
}

func FuzzChain(f *testing.F) {
	f.Add([]byte(strings.Repeat("0123456789", 4) + "\n" + strings.Repeat("abcdefabcd", 4) + "\n"))
	f.Add([]byte("\n"))
	f.Add([]byte(strings.Repeat("f", 64)))
	f.Fuzz(func(t *testing.T, b []byte) {
		sums, err := parseChain(b, git.SHA1)
		for _, s := range sums {
			if _, err := git.ParseObjectID(s); err != nil || strings.ContainsAny(s, "/.") {
				t.Errorf("%q is no checksum", s)
			}
		}
		if err == nil && len(sums) != bytes.Count(append(b, '\n'), []byte("\n"))-btoi(bytes.HasSuffix(b, []byte("\n")) ||
			len(b) == 0) {
			t.Errorf("%d checksums from %q", len(sums), b)
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestLargeDateOffset has a commit whose corrected date needs 64 bits.
func TestLargeDateOffset(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	var in strings.Builder
	for _, date := range []int64{8_000_000_000, 5, 1_700_000_000} {
		in.WriteString("commit refs/heads/main\ncommitter C <c@x> " + strconv.FormatInt(date, 10) + " +0000\ndata 1\nx\n")
	}
	r.GitIn(in.String(), "fast-import", "--quiet")
	writeGraph(r, "full")
	g, m := openGraph(t, r, Options{}), newModel(r)
	if g.view.Load().layers[0].bigDates.Size == 0 {
		t.Fatal("the commit-graph has no large offsets")
	}
	for i := range m.ids[1:] {
		top, err := g.Commit(m.ids[i])
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range top.Parents {
			if below, err := g.Commit(p); err != nil || below.Generation >= top.Generation {
				t.Errorf("generation %d above %d, %v", top.Generation, below.Generation, err)
			}
		}
	}
}

func TestQueue(t *testing.T) {
	t.Parallel()
	var q queue
	keys := []uint64{3, 9, 3, 1, 9, 9, 4, 0, 3}
	for i, k := range keys {
		q.push(uint32(i), k)
	}
	var got []uint32
	for q.len() > 0 {
		got = append(got, q.pop())
	}
	if want := []uint32{1, 4, 5, 6, 0, 2, 8, 3, 7}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
