package edit_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// No accepted path leaves the working tree, or is in .git.
func FuzzCheckPath(f *testing.F) {
	for _, path := range hostilePaths {
		f.Add(path, true)
	}
	f.Fuzz(func(t *testing.T, path string, link bool) {
		mode := pack.ModeFile
		if link {
			mode = pack.ModeSymlink
		}
		if edit.CheckPath(path, mode) != nil {
			return
		}
		for component := range strings.SplitSeq(path, "/") {
			if slices.Contains([]string{"", ".", "..", ".git", "git~1"}, strings.ToLower(component)) ||
				strings.Contains(component, "\x00") {
				t.Errorf("%q was accepted", path)
			}
		}
	})
}

// Any changes give the tree of a simple application, or an error.
func FuzzChanges(f *testing.F) {
	f.Add("pa dba mab/c")
	f.Add("pa/b da pc")
	f.Add("da/b pa")
	f.Add("ma:b/c pb")
	f.Add("xa xb/d sd")
	s := newState(f, gittest.Init(f))
	blob := write.NewObject(git.SHA1, git.Blob, []byte("x"))
	base := files{"a": {pack.ModeFile, blob.ID}, "b/c": {pack.ModeSymlink, blob.ID}, "b/d": {pack.ModeFile, blob.ID},
		"b.x": {pack.ModeExecutable, blob.ID}, "d/e/f": {pack.ModeGitlink, blob.ID}}
	tree := git.MustParseObjectID(treeOf(s, f.TempDir()+"/index", base))
	f.Fuzz(func(t *testing.T, text string) {
		var changes []*edit.Change
		var c edit.Changes
		isValid := true
		for word := range strings.SplitSeq(text, " ") {
			if len(word) < 2 || len(changes) == 20 {
				continue
			}
			change := &edit.Change{Path: word[1:]}
			switch word[0] {
			case 'd':
				change.Kind = edit.Delete
			case 'm':
				change.Kind = edit.Move
				change.Path, change.To, _ = strings.Cut(change.Path, ":")
			case 'x':
				change.Kind, change.Mode = edit.Mode, pack.ModeExecutable
			case 's':
				change.Mode, change.ID = pack.ModeGitlink, blob.ID
			default:
				change.Blob = blob
			}
			changes = append(changes, change)
			if err := c.Add(change); err != nil {
				isValid = false
				break
			}
		}
		if !isValid || c.Check() != nil {
			return
		}
		got, _, err := c.Apply(s, tree)
		want := base.apply(changes)
		if (err == nil) != (want != nil) {
			t.Fatalf("%q: %v, want an error: %t", text, err, want == nil)
		}
		if err != nil {
			return
		}
		var fresh edit.Changes
		for path, e := range want {
			if err := fresh.Add(&edit.Change{Path: path, Mode: e.mode, ID: e.id}); err != nil {
				return // a link that was moved to .gitmodules
			}
		}
		if again, _, err := fresh.Apply(s, git.ObjectID{}); err != nil || again != got {
			t.Fatalf("%q: tree %s, want %s, %v", text, got, again, err)
		}
	})
}
