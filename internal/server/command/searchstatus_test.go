package command

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/search"
)

func TestSearchStatusReads(t *testing.T) {
	t.Parallel()
	s := search.Status{
		Searching: true, Repositories: 2415, TooLarge: 3,
		Fresh: 2300, Behind: 12, Waiting: 90, Empty: 10, Failed: 2, Shards: 2312,
		Jobs:     []search.Job{{Repository: "team/app.git", Kind: "full", Seconds: 11.7, Files: 1204}},
		Failures: []search.IndexFailure{{Repository: "team/odd.git", Error: "a tree is damaged"}},
	}
	var out strings.Builder
	if err := writeStatus(&out, s); err != nil {
		t.Fatal(err)
	}
	want := `searches are answered; the first index is in progress: 2322 of 2415 repositories are indexed, 2 failed; team/app.git: 1204 files
STATE      REPOSITORIES  MEANING
fresh      2300          the index is up to date
behind     12            changed since they were indexed
waiting    90            not indexed yet
too large  3             not indexed: see index.max_repository_files and max_repository_bytes
empty      10            without files to index
indexing team/app.git (full): 1204 files in 12 s
cannot index team/odd.git: a tree is damaged
and 1 more
`
	if out.String() != want {
		t.Errorf("writeStatus = %s\nwant %s", out.String(), want)
	}
	for _, test := range []struct {
		status search.Status
		want   string
	}{
		{search.Status{Searching: true, Complete: true}, "searches are answered from the index\n"},
		{search.Status{Error: "no space left on device"}, "searches are refused: no space left on device\n"},
		{search.Status{}, "searches are refused: the search process is starting\n"},
	} {
		out.Reset()
		if err := writeStatus(&out, test.status); err != nil || !strings.HasPrefix(out.String(), test.want) {
			t.Errorf("writeStatus(%+v) = %v, %s\nwant %s", test.status, err, out.String(), test.want)
		}
	}
}
