package gittest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Git and ReadPack find the same objects in a pack of all kinds of entries.
func TestPackWriter(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		r := Init(t, "--object-format="+format.String())
		w := NewPackWriter(format)
		text := func(n int) []byte { return fmt.Appendf([]byte(strings.Repeat("common ", 1000)), "%d", n) }
		first := w.Add(git.Blob, text(0))
		for i := 1; i < 200; i++ {
			w.AddOffsetDelta(first, text(0), text(i))
		}
		w.AddRefDelta(HashObject(format, git.Blob, text(7)), text(7), text(1000))
		r.GitIn(string(w.Bytes()), "index-pack", "--stdin", "--strict")
		got, err := ReadPack(w.Bytes(), format, func(git.ObjectID) (git.ObjectType, []byte, error) {
			return 0, nil, errors.New("a base outside of the pack")
		})
		if err != nil {
			t.Fatal(err)
		}
		want := r.Git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
		if ids := strings.Join(got.IDs(), "\n"); ids != want || !got.HasOffsets {
			t.Errorf("%v: ReadPack found\n%s\nwant\n%s", format, ids, want)
		}
	}
}
