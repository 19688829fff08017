package refs

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// branchPrefix is the beginning of the names of branches.
const branchPrefix = "refs/heads/"

// Names returns the name of a visible ref for each of a few object IDs; "" if no ref has that value. Of several refs it
// prefers a branch, and then the first by name. It compares the value of every ref: about 20 ns for each.
func (s *Snapshot) Names(ids []git.ObjectID) ([]git.RefName, error) {
	names := make([]git.RefName, len(ids))
	found := func(ref Ref) {
		i := slices.Index(ids, ref.ID)
		if i < 0 || s.hides(ref.Name) || names[i] != "" && !isPreferred(ref.Name, names[i]) {
			return
		}
		names[i] = git.RefName(strings.Clone(string(ref.Name)))
	}
	for _, e := range s.loose {
		if ref, ok := e.ref(); ok {
			found(ref)
		}
	}
	if s.packed == nil {
		return names, nil
	}
	parts, err := s.packed.branchesFirst()
	if err != nil {
		return nil, err
	}
	for i, part := range parts {
		if i > 0 && !slices.ContainsFunc(names, isNoBranch) {
			break
		}
		for part.from < part.to {
			ref, next, err := s.packed.findID(ids, part)
			if err != nil {
				return nil, err
			}
			if part.from = next; ref.Name != "" && s.findLoose(ref.Name) == nil {
				found(ref)
			}
		}
	}
	return names, nil
}

// isPreferred reports whether Names prefers the first name to the second.
func isPreferred(a, b git.RefName) bool {
	if isNoBranch(a) != isNoBranch(b) {
		return isNoBranch(b)
	}
	return a < b
}

func isNoBranch(name git.RefName) bool { return !strings.HasPrefix(string(name), branchPrefix) }

// fileRange is a range of packed-refs that begins and ends with a record.
type fileRange struct{ from, to int }

// branchesFirst divides packed-refs into the branches, the refs before and the refs after them.
func (p *packed) branchesFirst() (parts [3]fileRange, err error) {
	err = p.do(func(b []byte) error {
		from, err := p.search(b, branchPrefix)
		if err != nil {
			return err
		}
		to, err := p.search(b, "refs/heads0") // the next byte after "/"
		parts = [3]fileRange{{from, to}, {p.body, from}, {to, len(b)}}
		return err
	})
	return parts, err
}

// findID returns the first ref in a range whose value is one of the IDs, and the offset behind it. The name is "" if
// there is no further one.
func (p *packed) findID(ids []git.ObjectID, in fileRange) (ref Ref, next int, err error) {
	n := p.format.HexSize()
	prefixes := make([]uint64, 0, 16) // the first digits of each ID
	for _, id := range ids {
		prefixes = append(prefixes, binary.LittleEndian.Uint64(id.AppendHex(make([]byte, 0, 64))))
	}
	err = p.do(func(b []byte) error {
		for off := in.from; off < in.to; {
			end := bytes.IndexByte(b[min(off+n, in.to):in.to], '\n') // a "^" line is as long as an ID, too
			if end < 0 {
				break
			}
			line := b[off : off+n+end]
			if len(line) > n+1 && slices.Contains(prefixes, binary.LittleEndian.Uint64(line)) {
				r, err := p.record(b, off)
				if err != nil {
					return err
				}
				if slices.Contains(ids, r.id) && isRefName(r.name) {
					ref, next = p.ref(&r), r.next
					ref.Name = git.RefName(r.name)
					return nil
				}
			}
			off += len(line) + 1
		}
		next = in.to
		return nil
	})
	return ref, next, err
}
