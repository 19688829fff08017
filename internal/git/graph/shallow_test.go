package graph

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// ask sends a version 2 fetch with the given lines to git upload-pack, and returns the text lines before the packfile.
// refused reports whether git rejects the limits because they exclude everything.
func ask(t *testing.T, r *gittest.Repo, lines []string) (answer []string, refused bool) {
	t.Helper()
	var in bytes.Buffer
	line := func(s string) { fmt.Fprintf(&in, "%04x%s\n", len(s)+5, s) }
	line("command=fetch")
	line("object-format=" + r.Format().String())
	in.WriteString("0001")
	for _, l := range append(slices.Clone(lines), "no-progress") {
		line(l)
	}
	in.WriteString("0000")
	cmd := exec.Command("git", "upload-pack", "--stateless-rpc", r.Dir)
	cmd.Env = append(gittest.Env(), "GIT_PROTOCOL=version=2")
	cmd.Stdin = &in
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	refused = strings.Contains(errs.String(), "no commits selected")
	// A shallow server may fail to make the pack of a request with deepen-since. Its earlier output is still valid.
	if err != nil && !refused && !strings.Contains(errs.String(), "pack-objects died") {
		t.Fatalf("upload-pack %v: %v\n%s", lines, err, errs.String())
	}
	for rest := out.Bytes(); len(rest) >= 4; {
		n, err := strconv.ParseUint(string(rest[:4]), 16, 16)
		if err != nil {
			t.Fatalf("upload-pack answers %q", rest)
		}
		if n < 4 {
			rest = rest[4:]
			continue
		}
		text := strings.TrimSuffix(string(rest[4:n]), "\n")
		rest = rest[n:]
		if text == "packfile" {
			break
		}
		answer = append(answer, text)
	}
	return answer, refused
}

// askShallow returns git's shallow-info. ok is false if git refuses.
func askShallow(t *testing.T, r *gittest.Repo, lines []string) (b Boundary, ok bool) {
	t.Helper()
	answer, refused := ask(t, r, append(slices.Clone(lines), "done"))
	for _, text := range answer {
		switch kind, id, _ := strings.Cut(text, " "); kind {
		case "shallow":
			b.Shallow = append(b.Shallow, git.MustParseObjectID(id))
		case "unshallow":
			b.Unshallow = append(b.Unshallow, git.MustParseObjectID(id))
		}
	}
	b.Shallow, b.Unshallow = sorted(b.Shallow), sorted(b.Unshallow)
	return b, !refused
}

// checkReady asks git when it is ready.
func checkReady(t *testing.T, f fixture) {
	for range 8 {
		wants, haves := f.some(f.rnd, 3), f.someCommits(f.rnd, 4).IDs()
		if len(haves) == 0 {
			continue
		}
		lines := append(named("want", wants), named("have", haves)...)
		answer, _ := ask(t, f.Repo, lines)
		got, _, err := f.g.AllReach(context.Background(), wants, haves, f.server)
		if err != nil {
			t.Fatal(err)
		}
		if want := slices.Contains(answer, "ready"); got != want {
			t.Fatalf("request:\n%s\nready: got %v, want %v", strings.Join(lines, "\n"), got, want)
		}
	}
}

func named(verb string, ids []git.ObjectID) []string {
	var lines []string
	for _, id := range ids {
		lines = append(lines, verb+" "+id.String())
	}
	return lines
}

func compare(t *testing.T, lines []string, got, want Boundary) {
	t.Helper()
	if !slices.Equal(got.Shallow, want.Shallow) || !slices.Equal(got.Unshallow, want.Unshallow) {
		t.Fatalf("request:\n%s\ngot  %v\nwant %v", strings.Join(lines, "\n"), got, want)
	}
}

// TestShallowServer has servers that are shallow themselves.
func TestShallowServer(t *testing.T) {
	t.Parallel()
	for depth := 2; depth <= 6; depth += 2 {
		t.Run(fmt.Sprint("depth", depth), func(t *testing.T) {
			t.Parallel()
			r := gittest.Random(t, uint64(depth), gittest.Shape{Commits: 60, Merge: 0.3, Skew: true})
			addOctopus(r)
			dir := filepath.Join(t.TempDir(), "shallow.git")
			gittest.Run(t, "", "", "clone", "-q", "--bare", "--no-single-branch", "--depth", strconv.Itoa(depth), "file://"+
				r.Dir, dir)
			s := gittest.At(t, dir)
			file, err := os.ReadFile(filepath.Join(dir, "shallow"))
			if err != nil {
				t.Fatal(err)
			}
			f := fixture{Repo: s, model: newModel(s), g: openGraph(t, s, Options{}),
				rnd: rand.New(rand.NewPCG(uint64(depth), 0))}
			f.server = NewCommits(parseIDs(strings.Fields(string(file)))...)
			checkReady(t, f)
			checkDepth(t, f)
			checkDepthRelative(t, f)
			checkSince(t, f)
		})
	}
}

func checkDepth(t *testing.T, f fixture) {
	for range 8 {
		wants, client := f.some(f.rnd, 3), f.someCommits(f.rnd, 5)
		depth := 1 + f.rnd.IntN(9)
		if f.rnd.IntN(8) == 0 {
			depth = Infinite
		}
		lines := append(named("shallow", client.IDs()), named("want", wants)...)
		lines = append(lines, fmt.Sprint("deepen ", depth))
		want, _ := askShallow(t, f.Repo, lines)
		got, err := f.g.Depth(context.Background(), wants, depth, f.server, client)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, lines, got, want)
	}
	if len(f.server) == 0 {
		return
	}
	// Nothing to deepen: git reports its own boundary.
	for range 8 {
		wants, client := f.some(f.rnd, 3), f.someCommits(f.rnd, 3)
		lines := append(named("shallow", client.IDs()), named("want", wants)...)
		want, _ := askShallow(t, f.Repo, lines)
		both := NewCommits(append(client.IDs(), f.server.IDs()...)...)
		got, err := f.g.Depth(context.Background(), wants, Infinite, both, client)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, lines, got, want)
	}
}

// checkDepthRelative has clients that have cloned with a depth. Their result equals that of git for the sum of both
// depths.
func checkDepthRelative(t *testing.T, f fixture) {
	for range 8 {
		wants, depth, more := f.some(f.rnd, 3), 1+f.rnd.IntN(4), 1+f.rnd.IntN(5)
		before, _ := askShallow(t, f.Repo, append(named("want", wants), fmt.Sprint("deepen ", depth)))
		if len(before.Shallow) == 0 {
			continue
		}
		client := NewCommits(before.Shallow...)
		lines := append(append(named("shallow", client.IDs()), named("want", wants)...), fmt.Sprint("deepen ", depth+more))
		want, _ := askShallow(t, f.Repo, lines)
		got, err := f.g.DepthRelative(context.Background(), wants, more, f.server, client)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, lines, got, want)
	}
}

// TestDepthRelative has boundaries that no one depth makes. History is a - b - c - d - e - f, with g - h - i on b, and
// m merges f and i.
func TestDepthRelative(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	ids := map[rune]git.ObjectID{}
	for _, c := range []string{"a", "ba", "cb", "dc", "ed", "fe", "gb", "hg", "ih", "mfi"} {
		var parents []git.ObjectID
		for _, p := range c[1:] {
			parents = append(parents, ids[p])
		}
		ids[rune(c[0])] = r.Commit(c, parents...)
	}
	r.Git("update-ref", "refs/heads/main", ids['m'].String())
	g := openGraph(t, r, Options{})
	list := func(names string) (list []git.ObjectID) {
		for _, n := range names {
			list = append(list, ids[n])
		}
		return sorted(list)
	}
	for _, test := range []struct {
		wants, client  string
		depth          int
		shallow, opens string
	}{
		{"m", "dg", 1, "cb", "dg"}, // each gets one more
		{"m", "dg", 2, "a", "dg"},  // d opens c and b, where the ways meet; b is opened by g
		{"m", "fi", 1, "eh", "fi"},
		{"m", "fg", 1, "eb", "fg"}, // of the near one no more, of the far one nothing is forgotten
		{"m", "cg", 1, "b", "cg"},  // the same one below both
		{"m", "c", 1, "a", "c"},    // b is known from the other side, and ends no history
		{"f", "", 1, "", ""},       // not shallow at all
		{"f", "i", 1, "", ""},      // not shallow here
		{"mi", "fg", 3, "c", "fg"}, // the far one reaches the root
		{"m", "fi", 100, "", "fi"}, // all
		{"i", "ia", 2, "g", "i"},   // a is behind the boundary, and stays
		{"i", "ib", 3, "", "i"},    // b is where it ends now
		{"i", "ib", 4, "a", "ib"},  // and is opened itself
		{"f", "f", Infinite, "", "f"},
	} {
		got, err := g.DepthRelative(t.Context(), list(test.wants), test.depth, nil, NewCommits(list(test.client)...))
		if err != nil {
			t.Fatal(err)
		}
		compare(t, []string{fmt.Sprintf("%+v", test)}, got, Boundary{Shallow: list(test.shallow),
			Unshallow: list(test.opens)})
	}
}

func checkSince(t *testing.T, f fixture) {
	refs := strings.Split(f.Git("for-each-ref", "--format=%(objectname) %(refname)"), "\n")
	for range 10 {
		wants, client := f.some(f.rnd, 3), f.someCommits(f.rnd, 4)
		lines := append(named("shallow", client.IDs()), named("want", wants)...)
		var since int64
		if f.rnd.IntN(3) > 0 {
			since = f.dates[f.ids[f.rnd.IntN(len(f.ids))]] + int64(f.rnd.IntN(2))
			lines = append(lines, fmt.Sprint("deepen-since ", since))
		}
		var not []git.ObjectID
		if since == 0 || f.rnd.IntN(2) == 0 {
			for range 1 + f.rnd.IntN(2) {
				id, name, _ := strings.Cut(refs[f.rnd.IntN(len(refs))], " ")
				not = append(not, git.MustParseObjectID(id))
				lines = append(lines, "deepen-not "+name)
			}
		}
		want, ok := askShallow(t, f.Repo, lines)
		got, err := f.g.Since(context.Background(), wants, since, not, f.server, client)
		if !ok {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("request:\n%s\ngot %v, %v; git selects nothing", strings.Join(lines, "\n"), got, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got.Shallow = slices.DeleteFunc(got.Shallow, f.server.Has)
		got.Unshallow = slices.DeleteFunc(got.Unshallow, f.server.Has)
		want.Shallow = slices.DeleteFunc(want.Shallow, f.server.Has)
		want.Unshallow = slices.DeleteFunc(want.Unshallow, f.server.Has)
		compare(t, lines, got, want)
	}
}

// TestSinceFromShallowServer has a case in which git is wrong: it does not report that history ends at its own
// boundary.
func TestSinceFromShallowServer(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	a := r.Commit("a")
	b := r.Commit("b", a)
	r.Git("update-ref", "refs/heads/main", b.String())
	g := openGraph(t, r, Options{})
	got, err := g.Since(t.Context(), []git.ObjectID{b}, 1, nil, NewCommits(b), nil)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, nil, got, Boundary{Shallow: []git.ObjectID{b}})
}

func TestBadDepth(t *testing.T) {
	t.Parallel()
	g := New(nil, func() []string { return nil }, Options{})
	for _, depth := range []int{0, -1} {
		if _, err := g.Depth(t.Context(), nil, depth, nil, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("depth %d: got %v, want Invalid", depth, err)
		}
	}
}

// A repository's own boundary may be long and invented. The look-up of it ends when the client disconnects.
func TestGraftsEndWithTheirClient(t *testing.T) {
	t.Parallel()
	g := openGraph(t, gittest.Init(t), Options{})
	invented := Commits{}
	for i := range 2 * checkEvery {
		invented[git.MustParseObjectID(fmt.Sprintf("%040x", i+1))] = struct{}{}
	}
	if all, _, err := g.AllReach(t.Context(), nil, nil, invented); err != nil || !all {
		t.Errorf("commits that do not exist: %v, %v", all, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := g.AllReach(ctx, nil, nil, invented); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that is gone: %v", err)
	}
}
