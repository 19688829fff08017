package cold

import (
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/git"
)

// The values of --case.
const (
	depth1      = "depth-1"
	depth20     = "depth-20"
	full        = "full"
	blobNone    = "blob-none"
	incremental = "incremental"
	afterPush   = "push"
	firstJob    = "first-job"
)

var caseNames = []string{depth1, depth20, full, blobNone, incremental, afterPush, firstJob}

// shape is the kind of a fetch.
type shape struct {
	name   string
	depth  int    // 0: the whole history
	filter string // "": none
	tags   bool   // include-tag
	all    bool   // wants all branches and tags instead of the default branch
}

var (
	shallow     = shape{name: depth1, depth: 1}
	deeper      = shape{name: depth20, depth: 20, tags: true}
	whole       = shape{name: full, tags: true, all: true}
	blobless    = shape{name: blobNone, filter: "blob:none", tags: true, all: true}
	update      = shape{name: incremental, tags: true}
	emptyCache  = []shape{shallow, deeper, whole, blobless, update}
	pushShapes  = []shape{shallow, deeper, whole}
	pushCommits = []int{1, 10, 50}
)

// refs are the objects that clients want.
type refs struct {
	format git.ObjectFormat
	tip    git.ObjectID   // of the default branch
	all    []git.ObjectID // of all branches and tags, sorted
}

// wants returns the wanted objects of a shape.
func (s shape) wants(r *refs) []git.ObjectID {
	if s.all {
		return r.all
	}
	return []git.ObjectID{r.tip}
}

// request is a fetch of this shape.
func (s shape) request(r *refs, haves []string) *gitload.FetchRequest {
	f := &gitload.FetchRequest{Format: r.format, Depth: s.depth, Filter: s.filter, Tags: s.tags, Haves: haves}
	for _, id := range s.wants(r) {
		f.Wants = append(f.Wants, id.String())
	}
	return f
}
