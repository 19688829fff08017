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

// resolvePointer replaces a pointer file of Git LFS by its object. Only small ones that are not images have data.
func (q *request) resolvePointer(b *blob) error {
	o, ok := lfs.ParsePointer(b.data)
	if !ok || b.mode == modeLink {
		return nil
	}
	b.object, b.size, b.data = &o, o.Size, nil
	var err error
	if o.Size > maxShown || isImage(q.path) {
		var states []lfs.Status
		if states, err = q.v.LFSStates([]lfs.Object{o}); err == nil {
			b.missing, err = states[0].State == lfs.Missing, states[0].Err
		}
	} else if err = q.hold(int(o.Size)); err == nil {
		b.data, err = q.v.LFSContent(o)
	}
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

// findObjects finds the LFS objects of pointer files. If that fails, their states are not known.
func (d *diff) findObjects(q *request) {
	d.pointers = make(map[*packhorsev1.FileDiff][2]*lfs.Object)
	var list []lfs.Object
	for _, f := range d.shown() {
		old, now := pointersOf(hunksOf(f.GetPatch()))
		for _, o := range []*lfs.Object{old, now} {
			if o != nil {
				d.pointers[f] = [2]*lfs.Object{old, now}
				list = append(list, *o)
			}
		}
	}
	if len(list) == 0 {
		return
	}
	states, err := q.v.LFSStates(list)
	if fault.Is(err, fault.NotFound) {
		states = make([]lfs.Status, len(list)) // they are missing
	}
	d.objects = make(map[lfs.Object]lfs.State)
	for i, s := range states {
		d.objects[list[i]] = s.State
	}
}

// pointerChange returns the sizes of the LFS objects before and after a change, and images of them. It returns nil if
// the file is not a pointer file.
func (d *diff) pointerChange(q *request, f *packhorsev1.FileDiff, before, after string) g.Node {
	pointers, ok := d.pointers[f]
	if !ok {
		return nil
	}
	side := func(o *lfs.Object, commit, path, label string) g.Node {
		if o == nil {
			return nil
		}
		state, isKnown := d.objects[*o]
		text := label + ": " + humanize.IBytes(uint64(o.Size)) + " in Git LFS"
		if isKnown && state == lfs.Missing {
			text += ", which this server does not have"
		}
		return h.Figure(g.If(state == lfs.Present && isImage(path) && o.Size <= maxRaw && commit != "",
			h.Img(h.Src(q.link("raw", commit, path)), h.Alt(label))), h.FigCaption(g.Text(text)))
	}
	return h.Div(h.Class("images"), side(pointers[0], before, string(f.GetOldPath()), "before"),
		side(pointers[1], after, string(f.GetPath()), "after"))
}
