package repo

import (
	"bytes"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// FuzzReadRefs parses possible output of git about refs. Each parsed ref gives the same result after it is formatted as
// git does.
func FuzzReadRefs(f *testing.F) {
	a, b := strings.Repeat("a1", 20), strings.Repeat("b2", 20)
	for _, lines := range [][]string{
		{}, {a + " HEAD symref-target:refs/heads/main", a + " refs/heads/main", b + " refs/tags/v1 peeled:" + a},
		{"unborn HEAD symref-target:refs/heads/main"}, {a + " refs/heads/a symref-target:refs/heads/b peeled:" + b},
		{strings.Repeat("0", 40) + " refs/heads/broken"}, {strings.Repeat("c", 64) + " refs/heads/main"},
		{a + " refs/heads/a..b"}, {a}, {""},
		{a + " refs/heads/x symref-target:"}, {a + " refs/heads/x peeled:1"},
	} {
		var answer []byte
		for _, line := range lines {
			answer = pktline.AppendLine(answer, line)
		}
		f.Add(pktline.AppendFlush(answer), false)
		f.Add(answer, true)
	}
	f.Add([]byte("0001"), false)
	f.Fuzz(func(t *testing.T, answer []byte, sha256 bool) {
		format := git.SHA1
		if sha256 {
			format = git.SHA256
		}
		var found []refs.Ref
		if err := readRefs(bytes.NewReader(answer), format, func(ref refs.Ref) { found = append(found, ref) }); err != nil {
			return
		}
		var again []byte
		for _, ref := range found {
			line := "unborn"
			if !ref.ID.IsZero() {
				line = ref.ID.String()
			} else if ref.Name != git.HEAD {
				t.Fatalf("a ref without an ID: %+v", ref)
			}
			line += " " + string(ref.Name)
			if ref.Target != "" {
				line += " symref-target:" + string(ref.Target)
			}
			if !ref.Peeled.IsZero() {
				line += " peeled:" + ref.Peeled.String()
			}
			again = pktline.AppendLine(again, line)
		}
		err := readRefs(bytes.NewReader(pktline.AppendFlush(again)), format, func(ref refs.Ref) {
			if len(found) == 0 || ref != found[0] {
				t.Fatalf("%+v, want %+v", ref, found)
			}
			found = found[1:]
		})
		if err != nil || len(found) > 0 {
			t.Fatalf("%v, and %+v was not found again", err, found)
		}
	})
}
