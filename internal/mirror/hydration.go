package mirror

import (
	"errors"
	"io"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// packfileLine begins the packfile section of a response of version 2.
var packfileLine = pktline.AppendLine(nil, "packfile")

// hydration is the pack of a mirror's first update. Clients that clone everything follow it while it arrives. The
// spool has the pack in the form of a response of version 2.
type hydration struct {
	*spool
	wants    []git.ObjectID // sorted
	branches []git.ObjectID // those of branches, sorted
}

// newHydration returns a hydration with one user, the update.
func (s *spools) newHydration(wants, branches []git.ObjectID) (*hydration, error) {
	spool, err := s.create(formPackets)
	if err != nil {
		return nil, err
	}
	if _, err := spool.Write(packfileLine); err != nil {
		spool.release()
		return nil, err
	}
	return &hydration{spool: spool, wants: protocol.SortIDs(slices.Clone(wants)),
		branches: protocol.SortIDs(slices.Clone(branches))}, nil
}

// covers reports whether the pack answers a request: a clone of all branches without a boundary or a filter.
func (h *hydration) covers(f *protocol.Fetch) bool {
	if len(f.Wants) == 0 || len(f.WantRefs)+len(f.Haves)+len(f.Shallow) > 0 || f.Deepens() || f.Filter != nil {
		return false
	}
	return contains(h.wants, f.Wants) && contains(f.Wants, h.branches)
}

// contains reports whether a sorted list has all the IDs.
func contains(sorted, ids []git.ObjectID) bool {
	return !slices.ContainsFunc(ids, func(id git.ObjectID) bool {
		_, found := slices.BinarySearchFunc(sorted, id, git.ObjectID.Compare)
		return !found
	})
}

// prefixFor returns the packets that replace the first line of the spool.
func prefixFor(version protocol.Version, sidebandAll bool) []byte {
	switch {
	case version != protocol.V2:
		return pktline.AppendLine(nil, "NAK")
	case sidebandAll:
		return pktline.AppendBand(nil, pktline.BandData, "packfile\n")
	}
	return packfileLine
}

// tee returns the pack for git, and copies it to the spool while git reads. The response in the spool ends at the end
// of the pack, or with its error. A failure of the spool does not concern git.
func (h *hydration) tee(pack io.ReadCloser) io.ReadCloser {
	return &teeReader{pack: pack, hydration: h}
}

// teeReader copies a pack to a spool.
type teeReader struct {
	pack      io.ReadCloser
	hydration *hydration
	buf       []byte
	ended     bool
}

func (t *teeReader) Read(p []byte) (int, error) {
	n, err := t.pack.Read(p)
	if n > 0 && !t.ended {
		t.buf = pktline.AppendBand(t.buf[:0], pktline.BandData, p[:n])
		if _, broken := t.hydration.Write(t.buf); broken != nil {
			t.end(broken)
		}
	}
	if err == io.EOF && !t.ended {
		_, broken := t.hydration.Write(pktline.AppendFlush(nil))
		t.end(broken)
	} else if err != nil {
		t.end(err)
	}
	return n, err
}

// errInterrupted is the error of a pack that was closed before its end.
var errInterrupted = fault.New(fault.Unavailable, "the first update of the mirror was interrupted")

func (t *teeReader) Close() error {
	t.end(errInterrupted)
	return t.pack.Close()
}

// end ends the response in the spool, unless it has ended.
func (t *teeReader) end(err error) {
	if t.ended {
		return
	}
	t.ended = true
	if _, ok := errors.AsType[*fault.Error](err); err != nil && !ok {
		err = fault.Wrap(fault.Unavailable, "the response of the origin broke off", err)
	}
	t.hydration.end(err)
}
