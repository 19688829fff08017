package native

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// bomb makes a commit whose tree has names^levels paths to one file, but only one tree at each level.
func bomb(r *gittest.Repo, content string, levels, names int) git.ObjectID {
	b := r.Batch()
	defer b.Store()
	entries := func(entry string, id git.ObjectID) string {
		var list strings.Builder
		for n := range names {
			fmt.Fprintf(&list, "%s %v\t%c\n", entry, id, 'a'+n)
		}
		return list.String()
	}
	tree := b.Tree(entries("100644 blob", b.Object(git.Blob, []byte(content))))
	for range levels - 2 {
		tree = b.Tree(entries("040000 tree", tree))
	}
	return b.CommitTree("a bomb", entries("040000 tree", tree))
}

// TestTreeBomb updates a client that has a similar tree with 8^12 paths.
func TestTreeBomb(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	old := bomb(r, "old", 12, 8)
	tree := r.Git("rev-parse", bomb(r, "new", 12, 8).String()+"^{tree}")
	id := git.MustParseObjectID(r.Git("commit-tree", "-m", "the next", "-p", old.String(), tree))
	for _, arrange := range []func(){func() {}, func() {
		r.Git("update-ref", "refs/heads/main", id.String())
		r.Git("repack", "-adq")
	}} {
		arrange()
		c := newChooser(t, r, git.SHA1)
		chosen, _ := c.choose(&packsource.Spec{Wants: []git.ObjectID{id}, Haves: []git.ObjectID{old}, Thin: true})
		if len(chosen) != 14 {
			t.Errorf("%d objects are chosen, want a commit, 12 trees and a blob", len(chosen))
		}
		if c.ticks > 10 {
			t.Errorf("%d ticks, want few", c.ticks)
		}
	}
}

// TestManyParents has commits with the same parent very often, which take much memory and little room in a pack.
func TestManyParents(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	b := r.Batch()
	tree, last := b.Tree(""), git.ObjectID{}
	for n := range 60 {
		parents := ""
		if n > 0 {
			parents = strings.Repeat(fmt.Sprintf("parent %v\n", last), 10_000)
		}
		last = b.Object(git.Commit, fmt.Appendf(nil, "tree %v\n%sauthor A <a> 1 +0000\ncommitter A <a> 1 +0000\n\n%d", tree,
			parents, n))
	}
	b.Store()
	c := newChooser(t, r, git.SHA1)
	if chosen, _ := c.choose(wantOnly(last)); len(chosen) != 61 {
		t.Errorf("%d objects are chosen, want 60 commits and a tree", len(chosen))
	}
	c.budget = baseMemory + 4<<20
	_, _, err := c.try(wantOnly(last))
	checkFallback(t, err, reasonMemory)
}

// TestLargeOldTrees: a large tree is compared with few of its old trees, because they are in memory together.
func TestLargeOldTrees(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	b := r.Batch()
	var olds []git.ObjectID
	for n := range maxOldTrees + 1 {
		olds = append(olds, b.Object(git.Tree, fmt.Appendf(nil, "100644 %d%s\x00%s", n, strings.Repeat("x", baseMemory/3),
			strings.Repeat("i", git.SHA1.Size()))))
	}
	b.Store()
	for _, arrange := range []func(){func() {}, func() {
		r.GitIn(strings.Join(r.Objects(), "\n"), "pack-objects", "-q", r.Dir+"/objects/pack/pack")
	}} {
		arrange()
		c := newChooser(t, r, git.SHA1)
		err := c.store.Raw(1, func(packs []*pack.Raw) error {
			s := &selection{spec: wantOnly(), store: c.store, view: newView(git.SHA1, nil, packs), ctx: t.Context()}
			s.trees.open(s)
			defer s.trees.reader.Close()
			w := &diffWalk{s: s}
			data, err := w.read(newTree{olds[0], olds[1:]})
			if len(w.olds) != 2 || len(data) < baseMemory/3 || data[7] != '0' || w.olds[0].rest[7] != '1' {
				t.Errorf("%d old trees, want 2", len(w.olds))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestTicksOfLargeTrees: a walk of few, but large trees can be ended.
func TestTicksOfLargeTrees(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	commits := make([]git.ObjectID, 0, 3)
	for i := range cap(commits) {
		blob := r.GitIn(fmt.Sprint(i), "hash-object", "-w", "--stdin")
		var entries strings.Builder
		for n := range 60_000 {
			fmt.Fprintf(&entries, "100644 blob %s\tfile with a name that is rather long %06d\n", blob, n)
		}
		tree := r.GitIn(entries.String(), "mktree", "--missing")
		commits = append(commits, git.MustParseObjectID(r.Git("commit-tree", "-m", "large", tree)))
	}
	c := newChooser(t, r, git.SHA1)
	c.choose(wantOnly(commits...))
	if c.ticks < 2 {
		t.Errorf("%d ticks, want several", c.ticks)
	}
}

// TestEarlierPackOfTag: an earlier pack of a tag is not part of a pack for which the tag is only added if its target is
// there.
func TestEarlierPackOfTag(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	head := r.Commit("new", r.Commit("old"))
	r.Git("tag", "-a", "-m", "x", "side", r.Commit("on the side").String())
	r.Git("tag", "-a", "-m", "x", "main", head.String())
	c := newChooser(t, r, git.SHA1)
	spec := wantOnly(head)
	for _, ref := range []string{"refs/tags/side", "refs/tags/main"} {
		spec.Tags = append(spec.Tags, packsource.Tag{ID: r.ID(ref), Peeled: r.ID(ref + "^{}")})
	}
	if spec.Tags[0].ID.Compare(spec.Tags[1].ID) > 0 {
		spec.Tags[0], spec.Tags[1] = spec.Tags[1], spec.Tags[0]
	}
	want := c.packed(spec)
	c.withEarlier(wantOnly(r.ID("refs/tags/side")), func() {
		chosen, _ := c.choose(spec)
		checkSame(t, "a tag on the side", chosen, want)
	})
}

// TestEncodeAhead: the number of objects that are encoded and not written is limited, because a small part of a pack
// can have the deltas of many large objects.
func TestEncodeAhead(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 6, gittest.Shape{Commits: 150})
	r.Git("repack", "-adfq", "--depth=1")
	c := newChooser(t, r, git.SHA1)
	err := c.store.Raw(10, func(packs []*pack.Raw) error {
		v := newView(git.SHA1, nil, packs)
		w := newWriter(&packsource.Spec{Offset: true, Repo: packsource.Repository{Format: git.SHA1}}, v, v.newSet(), nil)
		for pos := range packs[0].Len() { // only deltas, whose bases are not in the pack
			var b [pack.MaxEntryHeader]byte
			offset, _ := packs[0].Offset(pos)
			packs[0].File.ReadAt(b[:], offset)
			if e, err := pack.ParseEntry(b[:], git.SHA1.Size()); err == nil && e.IsDelta() {
				w.chosen.add(place{0, pos})
			}
		}
		w.encoder, w.made, w.log = newEncoder(c.store, v, level, 2, 1<<20), &packsource.Made{}, slog.Default()
		w.out = newFramed(io.Discard, git.SHA1)
		most := 0
		w.tick = func(int) error {
			begun := 0
			for i := range w.items {
				if x := w.items[i].encoded; x != nil && x.done != nil {
					begun++
				}
			}
			most = max(most, begun-int(w.made.Encoded.Objects))
			return nil
		}
		if err := w.write(w.chosen.len()); err != nil {
			return err
		}
		if n := int(w.made.Encoded.Objects); n < 20 || n != w.chosen.len() || most >= w.encoder.ahead || most == 0 {
			t.Errorf("%d of %d objects were encoded, and at most %d ahead of the written ones, want less than %d", n,
				w.chosen.len(), most, w.encoder.ahead)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTicksWhilePlanning: a search for bases among the versions of files, all of which have long chains, can be ended.
func TestTicksWhilePlanning(t *testing.T) {
	t.Parallel()
	const chain = 2 * (maxTries + maxDepth)
	r := gittest.Init(t)
	p := gittest.NewPackWriter(git.SHA1)
	versions := versions{}
	content := func(n int) []byte { return append(bytes.Repeat([]byte("a common line\n"), 20), fmt.Sprint(n)...) }
	id := func(n int) git.ObjectID { return gittest.HashObject(git.SHA1, git.Blob, content(n)) }
	for n := range maxTries {
		for step := range maxNeighbours / 2 {
			versions.add(id(n), id((n+step+1)%maxTries))
		}
	}
	omitted := p.Add(git.Blob, content(-1))
	for n := chain; n < 200+chain; n++ {
		versions.add(id(n), id(n%maxTries))
		p.AddOffsetDelta(omitted, content(-1), content(n))
	}
	for n := range chain - 1 {
		p.AddRefDelta(id(n+1), content(n+1), content(n))
	}
	p.Add(git.Blob, content(chain-1))
	r.GitIn(string(p.Bytes()), "index-pack", "--stdin")
	c := newChooser(t, r, git.SHA1)
	err := c.store.Raw(1, func(packs []*pack.Raw) error {
		v := newView(git.SHA1, nil, packs)
		w := newWriter(&packsource.Spec{Repo: packsource.Repository{Format: git.SHA1}}, v, v.newSet(), nil)
		for n := range 200 + chain {
			raw := id(n)
			at, _ := v.find(raw.Raw())
			w.chosen.add(at)
		}
		w.versions, w.encoder, w.made = versions, newEncoder(c.store, v, level, 1, 1<<20), &packsource.Made{}
		w.out, w.log = newFramed(io.Discard, git.SHA1), slog.Default()
		ticks, abandoned := 0, errors.New("abandoned")
		w.tick = func(int) error {
			if ticks++; ticks == 100 {
				return abandoned
			}
			return nil
		}
		if err := w.write(w.chosen.len()); !errors.Is(err, abandoned) || w.made.Encoded.Objects > 0 || ticks > 100 {
			t.Errorf("write = %v after %d ticks and %d objects, want it to end while it plans the first ones", err, ticks,
				w.made.Encoded.Objects)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPanicWhileEncoding: a panic in a goroutine of the encoder continues in that of the pack, which handles it.
func TestPanicWhileEncoding(t *testing.T) {
	t.Parallel()
	c := newChooser(t, gittest.Init(t), git.SHA1)
	e := newEncoder(c.store, &view{format: git.SHA1, sources: []*source{{}}}, level, 2, 0)
	x := &encoding{id: git.RawObjectID(bytes.Repeat([]byte{1}, 20))}
	e.begin(x)
	defer func() {
		if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), "encoder") {
			t.Errorf("the panic is %v, want that of the encoder with its stack", v)
		}
	}()
	err := e.wait(x)
	t.Errorf("wait = %v, want a panic", err)
}

// TestSlowFallbackIsRemembered: git makes packs of a kind that was left to it after long work.
func TestSlowFallbackIsRemembered(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	spec := wantOnly(git.RawObjectID(bytes.Repeat([]byte{1}, 20)))
	s.failed.Add(kindOf(spec), time.Now())
	err := (&nativePack{s: s, spec: spec}).make(t.Context())
	checkFallback(t, err, reasonFailed)
	other := spec.For(spec.Caller)
	other.Filter, other.Repo.Objects = "blob:none", t.TempDir()+"/missing"
	err = (&nativePack{s: s, spec: other}).make(t.Context())
	if f := (*fallback)(nil); err == nil || errors.As(err, &f) {
		t.Errorf("the error is %v, want that of a missing repository", err)
	}
}

// TestTruncatedWhileEncoding truncates the index of a pack. A goroutine of the encoder reads it, and must not end the
// process.
func TestTruncatedWhileEncoding(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 6, gittest.Shape{Commits: 150})
	r.Git("repack", "-adfq")
	c := newChooser(t, r, git.SHA1)
	err := c.store.Raw(10, func(packs []*pack.Raw) error {
		id := git.RawObjectID(bytes.Clone(packs[0].ID(packs[0].Len() - 1)))
		index := packs[0].Path + ".idx"
		if err := os.Chmod(index, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(index, 100); err != nil {
			return err
		}
		e := newEncoder(c.store, newView(git.SHA1, nil, packs), level, 2, 1<<20)
		x := &encoding{id: id}
		e.begin(x)
		if err := e.wait(x); !fault.Is(err, fault.Corrupt) {
			t.Errorf("the error is %v, want one of kind Corrupt", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
