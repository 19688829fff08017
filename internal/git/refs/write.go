package refs

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// PackedHeader is the first line of a packed-refs file that is complete and sorted: git-pack-refs(1).
const PackedHeader = "# pack-refs with: peeled fully-peeled sorted \n"

// WritePacked writes a packed-refs file with the refs of base, which may be nil, and changes. Changes are sorted by
// name and have PeelKnown set. One with a zero ID removes its ref. The base is copied in pieces, so the cost is that of
// copying its bytes. WritePacked returns the number of refs that the file has more than base.
func WritePacked(w io.Writer, base *Base, changes []Ref) (more int, err error) {
	byName := func(a, b Ref) int { return strings.Compare(string(a.Name), string(b.Name)) }
	if !slices.IsSortedFunc(changes, byName) {
		return 0, fault.New(fault.Internal, "the changes of refs are not sorted")
	}
	if _, err := io.WriteString(w, PackedHeader); err != nil {
		return 0, err
	}
	if base == nil {
		base = &Base{&packed{peel: peelAll}}
	}
	p := base.packed
	if p.peel != peelAll {
		return 0, fault.Wrap(fault.Corrupt, "the repository's refs are damaged",
			fmt.Errorf("%s: its header does not have the word fully-peeled", p.path))
	}
	err = p.do(func(b []byte) error {
		at := p.body
		for i := range changes {
			c := &changes[i]
			off, err := p.searchFrom(b, at, string(c.Name))
			if err != nil {
				return err
			}
			if _, err := w.Write(b[at:off]); err != nil {
				return err
			}
			at = off
			if off < len(b) {
				r, err := p.record(b, off)
				if err != nil {
					return err
				}
				if string(r.name) == string(c.Name) {
					at = r.next
					more--
				}
			}
			if c.ID.IsZero() {
				continue
			}
			more++
			if _, err := w.Write(AppendPacked(nil, c)); err != nil {
				return err
			}
		}
		_, err := w.Write(b[at:])
		return err
	})
	return more, err
}

// AppendPacked appends the lines of a ref in packed-refs.
func AppendPacked(b []byte, ref *Ref) []byte {
	b = append(append(append(ref.ID.AppendHex(b), ' '), ref.Name...), '\n')
	if !ref.Peeled.IsZero() {
		b = append(ref.Peeled.AppendHex(append(b, '^')), '\n')
	}
	return b
}
