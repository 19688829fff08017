package uploadpack

import (
	"slices"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

// bufferSize is the size from which a buffered response is written.
const bufferSize = 64 << 10

// maxPooled is the maximum size of a buffer that is kept for other requests. The wanted-refs section of a thousand refs
// fits.
const maxPooled = 1 << 20

// scratch has the buffers of one response.
type scratch struct {
	buf []byte
	ids []git.ObjectID
}

var scratches = sync.Pool{New: func() any { return &scratch{buf: make([]byte, 0, bufferSize)} }}

// getScratch returns empty buffers. The caller returns them with putScratch.
func getScratch() *scratch {
	s := scratches.Get().(*scratch)
	s.buf, s.ids = s.buf[:0], s.ids[:0]
	return s
}

func putScratch(s *scratch) {
	if cap(s.buf) <= maxPooled && cap(s.ids)*git.SHA256.Size() <= maxPooled {
		scratches.Put(s)
	}
}

// disjoint sorts prefixes and drops those that a shorter one covers, so that listing one after the other gives every
// ref once and in order. No prefixes mean all refs.
func disjoint(prefixes []string) []string {
	if len(prefixes) == 0 {
		return []string{""}
	}
	sorted := slices.Sorted(slices.Values(prefixes))
	kept := sorted[:1]
	for _, p := range sorted[1:] {
		if !strings.HasPrefix(p, kept[len(kept)-1]) {
			kept = append(kept, p)
		}
	}
	return kept
}
