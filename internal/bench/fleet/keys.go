package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Keys counts the distinct keys of the packs of a run in shared caches. Not safe for concurrent use.
type Keys struct {
	raw       map[string]string // the canonical key by the key of a request's bytes
	canonical map[string]int
	Packs     int
}

// NewKeys returns an empty Keys.
func NewKeys() *Keys { return &Keys{raw: map[string]string{}, canonical: map[string]int{}} }

// Raw is the number of distinct requests by bytes, Canonical that by meaning.
func (k *Keys) Raw() int       { return len(k.raw) }
func (k *Keys) Canonical() int { return len(k.canonical) }

// Share is the hit rate of an unlimited cache with this number of distinct keys.
func (k *Keys) Share(distinct int) float64 {
	if k.Packs == 0 {
		return 0
	}
	return 1 - float64(distinct)/float64(k.Packs)
}

// Count adds a fetch with the request whose response had the pack. Call it before Finish.
func (k *Keys) Count(f *Fetch, request []byte) {
	k.Packs++
	sum := sha256.New()
	sum.Write(request)
	for _, r := range f.resolved { // a want-ref line changes its meaning when the ref moves
		fmt.Fprintf(sum, "%s %s\n", r.ID, r.Name)
	}
	raw := sumText(sum)
	canonical, ok := k.raw[raw]
	if !ok {
		canonical = f.canonical()
		k.raw[raw] = canonical
	}
	k.canonical[canonical]++
}

func sumText(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// canonical returns a key of the pack's contents. It covers the wanted objects without order and names, the maximal
// common commits, and the boundaries that the walk meets. It also covers the annotated tags in the pack, and whether
// deltas may use the client's objects.
func (f *Fetch) canonical() string {
	h := f.m.history
	h.mu.RLock()
	defer h.mu.RUnlock()
	sum := sha256.New()
	ids := f.Wants()
	list(sum, "want", ids)
	cut := maps.Clone(f.m.shallow)
	for _, at := range h.nodes(f.boundary) {
		cut[at] = true
	}
	haves := f.maximal(cut)
	list(sum, "have", haves)
	list(sum, "unshallow", f.unshallow)
	if len(cut) == 0 && !f.m.Tool.includeTag() {
		return sumText(sum)
	}
	met := h.walk(h.nodes(append(slices.Clone(ids), haves...)), cut, 0)
	var grafts []git.ObjectID
	for at := range cut {
		if met[at] {
			grafts = append(grafts, h.commits[at].id)
		}
	}
	slices.SortFunc(grafts, git.ObjectID.Compare)
	list(sum, "shallow", grafts)
	if f.m.Tool.includeTag() {
		list(sum, "tag", h.sentTags(ids, haves, cut))
	}
	return sumText(sum)
}

func list(to hash.Hash, what string, ids []git.ObjectID) {
	for _, id := range ids {
		fmt.Fprintf(to, "%s %s\n", what, id)
	}
}

func (h *History) nodes(ids []git.ObjectID) []node {
	var list []node
	for _, id := range ids {
		if at, ok := h.index[id]; ok {
			list = append(list, at)
		}
	}
	return list
}

// maximal drops the common commits that others imply, in the machine's history before and after the fetch.
func (f *Fetch) maximal(cut map[node]bool) []git.ObjectID {
	h := f.m.history
	lowest := int32(1 << 30)
	nodes := h.nodes(f.common)
	for _, at := range nodes {
		lowest = min(lowest, h.commits[at].level)
	}
	var parents []node
	for _, at := range nodes {
		if !cut[at] {
			parents = append(parents, h.commits[at].parents...)
		}
	}
	implied := h.walk(parents, cut, lowest)
	var list []git.ObjectID
	for _, at := range nodes {
		if !implied[at] {
			list = append(list, h.commits[at].id)
		}
	}
	slices.SortFunc(list, git.ObjectID.Compare)
	return slices.Compact(list)
}

// sentTags lists the annotated tags that are not wanted and whose commits are sent.
func (h *History) sentTags(wants, haves []git.ObjectID, cut map[node]bool) []git.ObjectID {
	var tags []git.ObjectID
	has := h.walk(h.nodes(haves), cut, 0)
	for at := range h.walk(h.nodes(wants), cut, 0) {
		for _, t := range h.tags[at] {
			_, wanted := slices.BinarySearchFunc(wants, t.id, git.ObjectID.Compare)
			if t.annotated && !wanted && !has[at] && strings.HasPrefix(t.name, "refs/tags/") {
				tags = append(tags, t.id)
			}
		}
	}
	slices.SortFunc(tags, git.ObjectID.Compare)
	return tags
}
