package browse

import (
	"bytes"

	"github.com/dustin/go-humanize"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// resolvePointer replaces a pointer file of Git LFS by the first limit bytes of its object.
func (q *request) resolvePointer(b *blob, limit int64) error {
	o, ok := lfs.ParsePointer(b.data)
	if !ok || b.mode == modeLink {
		return nil
	}
	data, err := q.v.LFSContent(o, limit)
	b.object, b.size, b.data = &o, o.Size, data
	if fault.Is(err, fault.NotFound) {
		b.missing, b.data = true, nil
		return nil
	}
	return err
}

// pointersOf returns the LFS objects that a file names before and after a change; nil: it is not a pointer file.
func pointersOf(hunks [][]byte) (old, now *lfs.Object) {
	var sides [2]bytes.Buffer
	for _, line := range hunks[:min(len(hunks), lfs.MaxPointer)] {
		for i, other := range []byte{'+', '-'} {
			if len(line) > 0 && line[0] != other && line[0] != '@' && line[0] != '\\' {
				sides[i].Write(append(line[1:len(line):len(line)], '\n'))
			}
		}
	}
	if o, ok := lfs.ParsePointer(sides[0].Bytes()); ok {
		old = &o
	}
	if o, ok := lfs.ParsePointer(sides[1].Bytes()); ok {
		now = &o
	}
	return old, now
}

// pointerChange returns the sizes of the LFS objects before and after a change, and images of them. It returns nil if
// the file is not a pointer file.
func (d *diff) pointerChange(q *request, f *packhorsev1.FileDiff, before, after string) g.Node {
	old, now := pointersOf(hunksOf(f.GetPatch()))
	if old == nil && now == nil {
		return nil
	}
	d.hasObjects = true
	side := func(o *lfs.Object, commit, path, label string) g.Node {
		if o == nil {
			return nil
		}
		_, err := q.v.LFSContent(*o, 1)
		isHere := !fault.Is(err, fault.NotFound)
		text := label + ": " + humanize.IBytes(uint64(o.Size)) + " in Git LFS"
		if !isHere {
			text += ", which this server does not have"
		}
		return h.Figure(g.If(isHere && isImage(path) && o.Size <= maxRaw && commit != "",
			h.Img(h.Src(q.link("raw", commit, path)), h.Alt(label))), h.FigCaption(g.Text(text)))
	}
	return h.Div(h.Class("images"), side(old, before, string(f.GetOldPath()), "before"),
		side(now, after, string(f.GetPath()), "after"))
}
