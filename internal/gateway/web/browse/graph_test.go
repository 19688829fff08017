package browse

import (
	"fmt"
	"testing"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Merges of many parents make a drawing of bounded size.
func TestGraphIsBounded(t *testing.T) {
	t.Parallel()
	list := make([]*packhorsev1.Commit, logCommits)
	for i := range list {
		list[i] = &packhorsev1.Commit{Oid: fmt.Sprint("merge", i), Parents: []string{fmt.Sprint("merge", i+1)}}
		for n := range 1000 {
			list[i].Parents = append(list[i].Parents, fmt.Sprint("parent", i, "-", n))
		}
	}
	gr, size := newGraph(list), 0
	for i := range list {
		size += len(fmt.Sprint(gr.row(i)))
	}
	if size > 200_000 || gr.width != maxLanes {
		t.Errorf("a drawing of %d bytes and %d lanes, want at most 200,000 bytes and %d lanes", size, gr.width, maxLanes)
	}
}
