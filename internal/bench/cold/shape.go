package cold

import (
	"fmt"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
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

// request is the body of a fetch as git sends it (gitprotocol-v2(5), "fetch"). With haves it is the first round of a
// negotiation, after which the server is ready.
func (s shape) request(r *refs, haves []git.ObjectID) []byte {
	b := pktline.AppendLine(nil, "command=fetch")
	b = pktline.Append(b, "agent="+loadgen.UserAgent)
	b = pktline.Append(b, "object-format="+r.format.String())
	b = pktline.AppendDelim(b)
	b = pktline.Append(b, "thin-pack")
	b = pktline.Append(b, "no-progress")
	if s.tags {
		b = pktline.Append(b, "include-tag")
	}
	b = pktline.Append(b, "ofs-delta")
	if s.depth > 0 {
		b = pktline.Append(b, fmt.Sprintf("deepen %d", s.depth))
	}
	if s.filter != "" {
		b = pktline.Append(b, "filter "+s.filter)
	}
	for _, id := range s.wants(r) {
		b = pktline.AppendLine(b, "want "+id.String())
	}
	for _, id := range haves {
		b = pktline.AppendLine(b, "have "+id.String())
	}
	if len(haves) == 0 {
		b = pktline.AppendLine(b, "done")
	}
	return pktline.AppendFlush(b)
}
