package browse

import (
	"net/url"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func TestLastPageOfLog(t *testing.T) {
	t.Parallel()
	repo, err := git.ParseRepoPath("r")
	if err != nil {
		t.Fatal(err)
	}
	q := &request{repo: repo, kind: kinds["log"], query: url.Values{"author": {"a"}}}
	list := []*packhorsev1.Commit{{Oid: "1"}, {Oid: "2222"}}
	for skip, want := range map[int]string{
		0:                        `"?author=a&amp;skip=50"`,
		maxSkip - logCommits:     `"?author=a&amp;skip=100000"`,
		maxSkip - logCommits + 1: `/-/log/2222?author=a"`,
		maxSkip:                  `those that 2222 reaches`,
	} {
		var b strings.Builder
		if err := q.pager(skip, true, list).Render(&b); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("after %d commits: %s, want %s", skip, b.String(), want)
		}
	}
}
