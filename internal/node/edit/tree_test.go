package edit_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

type file struct {
	mode uint32
	id   git.ObjectID
}

// files is a tree as a list of its files.
type files map[string]file

// below returns the files at a path or below it.
func (f files) below(path string) files {
	found := files{}
	for name, e := range f {
		if name == path || strings.HasPrefix(name, path+"/") {
			found[name] = e
		}
	}
	return found
}

// apply applies changes in a simple way. It returns nil if they are not valid.
func (f files) apply(changes []*edit.Change) files {
	removed, added, modified := map[string]bool{}, map[string]bool{}, map[string]bool{}
	var all []string
	note := func(of map[string]bool, path string) { of[path], all = true, append(all, path) }
	for _, c := range changes {
		switch c.Kind {
		case edit.Put:
			note(added, c.Path)
		case edit.Delete:
			note(removed, c.Path)
		case edit.Mode:
			note(modified, c.Path)
		case edit.Move:
			note(removed, c.Path)
			note(added, c.To)
		}
	}
	for i, a := range all {
		for j, b := range all {
			switch {
			case i == j:
			case a == b:
				return nil
			case strings.HasPrefix(a, b+"/") && !(removed[a] && added[b] || added[a] && removed[b]):
				return nil
			}
		}
	}
	out := maps.Clone(f)
	for path := range removed {
		if len(f.below(path)) == 0 {
			return nil
		}
		for name := range f.below(path) {
			delete(out, name)
		}
	}
	kept := maps.Clone(out)
	for path := range added {
		for name := range kept {
			if strings.HasPrefix(path, name+"/") || strings.HasPrefix(name, path+"/") {
				return nil
			}
		}
	}
	for _, c := range changes {
		old, exists := kept[c.Path]
		switch c.Kind {
		case edit.Put:
			e := file{c.Mode, c.ID}
			if c.Blob != nil {
				e.id = c.Blob.ID
			}
			if e.mode == 0 {
				if e.mode = old.mode; !exists || e.mode == pack.ModeGitlink {
					e.mode = pack.ModeFile
				}
			}
			out[c.Path] = e
		case edit.Mode:
			if !exists || old.mode == pack.ModeGitlink {
				return nil
			}
			out[c.Path] = file{c.Mode, old.id}
		case edit.Move:
			if _, exists := kept[c.To]; exists {
				return nil
			}
			for name, e := range f.below(c.Path) {
				out[c.To+strings.TrimPrefix(name, c.Path)] = e
			}
		}
	}
	return out
}

// randomPath returns a path among few, whose order as files is not that as directories.
func randomPath(rnd *rand.Rand) string {
	names := []string{"a", "a-", "a.b", "a0", "b", "c", "\xff\n", "é"}
	path := names[rnd.IntN(len(names))]
	for rnd.IntN(3) == 0 {
		path += "/" + names[rnd.IntN(len(names))]
	}
	return path
}

func randomChange(rnd *rand.Rand, f files, format git.ObjectFormat) *edit.Change {
	modes := []uint32{pack.ModeFile, pack.ModeExecutable, pack.ModeSymlink}
	c := &edit.Change{Field: "f", Path: randomPath(rnd)}
	if names := slices.Sorted(maps.Keys(f)); len(names) > 0 && rnd.IntN(4) > 0 {
		c.Path = names[rnd.IntN(len(names))]
		if i := strings.IndexByte(c.Path, '/'); i > 0 && rnd.IntN(3) == 0 {
			c.Path = c.Path[:i]
		}
	}
	switch rnd.IntN(10) {
	case 0, 1:
		c.Kind = edit.Delete
	case 2, 3:
		c.Kind, c.To = edit.Move, randomPath(rnd)
	case 4:
		c.Kind, c.Mode = edit.Mode, modes[rnd.IntN(len(modes))]
	case 5:
		c.Mode, c.ID = pack.ModeGitlink, write.NewObject(format, git.Commit, []byte{byte(rnd.IntN(200))}).ID
	default:
		c.Blob = write.NewObject(format, git.Blob, []byte{byte(rnd.IntN(200))})
		if rnd.IntN(2) == 0 {
			c.Mode = modes[rnd.IntN(len(modes))]
		}
	}
	return c
}

// Histories of random changes have the trees and the commits that git makes.
func TestChangesEqualGit(t *testing.T) {
	t.Parallel()
	commits, seeds := 40, uint64(2)
	if !testing.Short() {
		commits, seeds = 300, 8
	}
	for seed := range seeds {
		format := []string{"sha1", "sha256"}[seed%2]
		s := newState(t, gittest.Init(t, "--object-format="+format))
		rnd := rand.New(rand.NewPCG(seed, 1))
		present := files{}
		index := filepath.Join(t.TempDir(), "index")
		made := 0
		for made < commits {
			var changes []*edit.Change
			for range 1 + rnd.IntN(5) {
				changes = append(changes, randomChange(rnd, present, s.git.Format()))
			}
			r := edit.Request{Target: edit.Target{Branch: "refs/heads/main", Create: made == 0}, AllowEmpty: true,
				Header: edit.Header{Author: "A <a> 1700000000 +0000", Committer: "C <c> 1700000000 +0000",
					Message: fmt.Appendf(nil, "%d\n", made)}}
			plan, result, err := build(t, s, &r, changes)
			want := present.apply(changes)
			if (err == nil) != (want != nil) {
				t.Fatalf("seed %d: %v and %v: %v", seed, present, describe(changes), err)
			}
			if err != nil {
				continue
			}
			s.store(plan.Objects...)
			if tree := treeOf(s, index, want); tree != result.Tree.String() {
				t.Fatalf("seed %d: %v and %v: tree %s, git has %s: %s", seed, present, describe(changes), result.Tree, tree,
					s.git.Git("diff-tree", "-r", tree, result.Tree.String()))
			}
			args := []string{"commit-tree", result.Tree.String(), "-m", fmt.Sprint(made)}
			if made > 0 {
				args = append(args, "-p", "main")
			}
			out, err := gitWith(s.git, "git", []string{"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=C",
				"GIT_COMMITTER_EMAIL=c"}, args...)
			if err != nil || out != result.Commit.String() {
				t.Fatalf("commit %s, git has %s, %v", result.Commit, out, err)
			}
			s.git.Git("update-ref", "refs/heads/main", result.Commit.String())
			present = want
			made++
		}
		s.git.Git("fsck", "--strict")
	}
}

// build adds changes to a request and builds it.
func build(t testing.TB, s *state, r *edit.Request, changes []*edit.Change) (write.Plan, edit.Made, error) {
	for _, c := range changes {
		if err := r.Changes.Add(c); err != nil {
			return write.Plan{}, edit.Made{}, err
		}
	}
	if err := r.Changes.Check(); err != nil {
		return write.Plan{}, edit.Made{}, err
	}
	return r.Build(t.Context(), s, edit.NewKeys())
}

func describe(changes []*edit.Change) (all []string) {
	for _, c := range changes {
		all = append(all, fmt.Sprintf("%d %q %q %o", c.Kind, c.Path, c.To, c.Mode))
	}
	return all
}

// treeOf makes the tree of a list of files with git.
func treeOf(s *state, index string, f files) string {
	s.t.Helper()
	var b strings.Builder
	for name, e := range f {
		fmt.Fprintf(&b, "%06o %s\t%s\x00", e.mode, e.id, name)
	}
	_ = os.Remove(index)
	input := filepath.Join(filepath.Dir(index), "input")
	if err := os.WriteFile(input, []byte(b.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	env := []string{"GIT_INDEX_FILE=" + index}
	if out, err := gitFrom(s.git, input, env, "update-index", "-z", "--index-info"); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	out, err := gitWith(s.git, "git", env, "write-tree", "--missing-ok")
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return out
}

// The paths that git update-index refuses are refused, and no others.
func TestPathsEqualGit(t *testing.T) {
	t.Parallel()
	s := newState(t, gittest.Init(t))
	s.git.Git("config", "core.protectHFS", "true")
	s.git.Git("config", "core.protectNTFS", "true")
	id := s.git.Blob("x").String()
	index := filepath.Join(t.TempDir(), "index")
	check := func(path string, mode uint32) {
		t.Helper()
		_ = os.Remove(index)
		out, err := gitWith(s.git, "git", []string{"GIT_INDEX_FILE=" + index}, "update-index", "--add", "--cacheinfo",
			fmt.Sprintf("%o,%s,%s", mode, id, path))
		// update-index does not look behind a backslash at the beginning of a component, but fsck does
		isBlind := path != "" && path[0] == '\\' || strings.Contains(path, "/\\")
		// update-index does not check all directories above a symbolic link
		isBlind = isBlind || mode == pack.ModeSymlink && strings.Contains(path, "/")
		if got := edit.CheckPath(path, mode); (got == nil) != (err == nil) && (got == nil || !isBlind) {
			t.Errorf("%q of mode %o: %v, git: %v %s", path, mode, got, err, out)
		}
	}
	for _, path := range hostilePaths {
		if strings.Contains(path, "\x00") || len(path) > 4096 {
			if err := edit.CheckPath(path, pack.ModeFile); !fault.Is(err, fault.Invalid) {
				t.Errorf("%q: %v", fault.Short(path), err)
			}
			continue
		}
		for _, mode := range []uint32{pack.ModeFile, pack.ModeSymlink} {
			check(path, mode)
			if path != "" && len(path) < 4000 && !testing.Short() {
				check("d/"+path, mode)
				check(path+"/f", mode)
			}
		}
	}
	rounds := 50
	if !testing.Short() {
		rounds = 2000
	}
	parts := []string{".", "g", "G", "i", "t", "~", "1", "git", ".git", "gi7eba", "modules", "/", "\\", ":", " ", "\u200c",
		"\ufeff", "\xff", "é", "2", "x", "gitmod"}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range rounds {
		path := ""
		for range 1 + rnd.IntN(6) {
			path += parts[rnd.IntN(len(parts))]
		}
		check(path, []uint32{pack.ModeFile, pack.ModeSymlink}[rnd.IntN(2)])
	}
}

var hostilePaths = []string{"", "/", "a/", "/a", "a//b", ".", "..", "a/..", "a/../b", "./a", "a/.", "...", ".a", "a.",
	".git",
	".GIT", ".gIt", ".git ", ".git.", ".git. .", ".git...", ".git::$INDEX_ALLOCATION", ".git:x", ".gitx", "git", "git~1",
	"GIT~1", "git~1.", "git~1 ", "git~2", "git~10", "git~1:x", ".g\u200cit", "\u200c.git", ".git\ufeff", ".git\u202e",
	".gi\u206at", ".git\xff", "\xff.git", ".g\xffit", ".git\ufffe", ".gıt", "a\\.git", "a\\git~1\\b", ".git\\x",
	"a\\..\\b",
	"\\", "a\\b", "C:\\x", "a:b", "a\nb", "a\tb", "-a", "--a", "a b", " ", "é", "\xff", ".gitmodules", ".GitModules",
	".gitmodules ", ".gitmodules.", ".gitmodules:x", ".gitmodulesx", "gitmod~1", "GITMOD~4", "gitmod~5", "gitmod~1 .",
	"gi7eba~1", "GI7EBA~9", "gi7eb~10", "gi7e~100", "gi7eba~0", "gi7d29~1", "gi~12345", "~1234567", "~0",
	".g\u200citmodules",
	"a\\.gitmodules", ".gitattributes", "con", "aux.txt", "a\x00b", ".git\x00", strings.Repeat("a/", 2100) + "b",
	strings.Repeat("x", 5000), strings.Repeat("x", 4096), "HEAD", "objects", "@", "a@{1}", "*", "?", "[", "~", "^"}
