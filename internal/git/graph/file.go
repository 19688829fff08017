package graph

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// Constants of gitformat-commit-graph(5).
const (
	headerSize  = 8
	fanSize     = 256 * 4
	noParent    = 0x70000000 // a missing parent in CDAT
	edgeFlag    = 1 << 31    // second parent: position in EDGE. In EDGE: the last one. In GDA2: position in GDO2
	maxCommits  = noParent   // positions are below this
	recordExtra = 16         // CDAT: two parents, generation and date
)

// errBadGraph means that the commit-graph is damaged. The walk is repeated without it.
var errBadGraph = fault.New(fault.Corrupt, "the commit-graph contradicts itself")

// layer is one commit-graph file. The sizes of its chunks were checked. Its records are checked when they are read.
type layer struct {
	file  *disk.Mapping // nil if only bytes were parsed
	base  uint32        // commits in the layers below
	n     uint32        // commits in this one
	size  int           // bytes of a raw object ID
	bases int           // number of layers below, according to the file
	sum   string        // the file's checksum, which is its name in a chain, in hexadecimal

	fan, ids, data, edges, dates, bigDates, below pack.Span
	filterEnds, filters                           pack.Span
}

// parseLayer reads a commit-graph file's header and table of chunks (gitformat-commit-graph(5), "HEADER", "CHUNK
// DATA").
func parseLayer(b []byte, format git.ObjectFormat) (layer, error) {
	l := layer{size: format.Size()}
	if len(b) < headerSize+l.size || string(b[:4]) != "CGPH" {
		return l, badFile("no commit-graph signature")
	}
	if b[4] != 1 {
		return l, badFile("version %d", b[4])
	}
	if b[5] != byte(format) { // 1: SHA-1, 2: SHA-256, as our own numbers
		return l, badFile("hash version %d in a %s repository", b[5], format)
	}
	l.bases = int(b[7])
	end := len(b) - l.size
	l.sum = hex.EncodeToString(b[end:])
	chunks, err := pack.ParseChunks(b, headerSize, int(b[6]), end)
	if err != nil {
		return l, badFile("%v", err)
	}
	l.fan, l.ids, l.data, l.edges = chunks["OIDF"], chunks["OIDL"], chunks["CDAT"], chunks["EDGE"]
	l.dates, l.bigDates, l.below = chunks["GDA2"], chunks["GDO2"], chunks["BASE"]
	l.filterEnds, l.filters = chunks["BIDX"], chunks["BDAT"]
	return l, l.check(b)
}

func badFile(format string, args ...any) error {
	return fault.New(fault.Corrupt, "bad commit-graph: %s", fmt.Sprintf(format, args...))
}

// check compares the lengths of the chunks with the number of commits in the fan-out table.
func (l *layer) check(b []byte) error {
	if l.fan.Size != fanSize {
		return badFile("no fan-out table")
	}
	fan := l.fan.In(b)
	last := uint32(0)
	for i := range 256 {
		n := binary.BigEndian.Uint32(fan[4*i:])
		if n < last {
			return badFile("the fan-out table is not sorted")
		}
		last = n
	}
	l.n = last
	n := int(last)
	switch {
	case last >= maxCommits:
		return badFile("%d commits", n)
	case l.ids.Size != n*l.size:
		return badFile("%d bytes of object IDs for %d commits", l.ids.Size, n)
	case l.data.Size != n*(l.size+recordExtra):
		return badFile("%d bytes of data for %d commits", l.data.Size, n)
	case l.edges.Size%4 != 0:
		return badFile("%d bytes of edges", l.edges.Size)
	case l.dates.Size != 0 && l.dates.Size != 4*n:
		return badFile("%d bytes of corrected dates for %d commits", l.dates.Size, n)
	case l.bigDates.Size%8 != 0:
		return badFile("%d bytes of large dates", l.bigDates.Size)
	case l.filterEnds.Size != 0 && l.filterEnds.Size != 4*n, (l.filterEnds.Size != 0) != (l.filters.Size != 0),
		l.filters.Size != 0 && l.filters.Size < filterHeader:
		return badFile("%d and %d bytes of filters for %d commits", l.filterEnds.Size, l.filters.Size, n)
	case l.below.Size != l.bases*l.size:
		return badFile("%d bytes of names for %d layers below", l.below.Size, l.bases)
	}
	return nil
}

// sumBelow returns the checksum, according to the file, of the i-th layer from the bottom.
func (l *layer) sumBelow(b []byte, i int) string {
	return hex.EncodeToString(l.below.In(b)[i*l.size:][:l.size])
}

// equals reports whether two layers are of the same file, by its checksum and the sizes of its parts.
func (l layer) equals(o layer) bool {
	l.file, o.file = nil, nil
	return l == o
}

// hasLevels reports whether the file has generation numbers. Early versions of git left them zero.
func (l *layer) hasLevels(b []byte) bool {
	return l.n == 0 || binary.BigEndian.Uint32(l.data.In(b)[l.size+8:])>>2 != 0
}

// bytesOf returns the layer's chunks in b, for use inside file.Do.
func (l *layer) bytesOf(b []byte) layerBytes {
	return layerBytes{base: l.base, n: l.n, size: l.size, fan: l.fan.In(b), ids: l.ids.In(b), data: l.data.In(b),
		edges: l.edges.In(b), dates: l.dates.In(b), bigDates: l.bigDates.In(b),
		filterEnds: l.filterEnds.In(b), filters: l.filters.In(b)}
}

// layerBytes is a layer during a call of disk.Mapping.Do. Positions are global: from base to base+n. The lengths of the
// slices were checked. Their content must be checked, because the file may be damaged or be written to.
type layerBytes struct {
	base, n                                uint32
	size                                   int
	fan, ids, data, edges, dates, bigDates []byte
	filterEnds, filters                    []byte
}

// find returns the position of a raw object ID.
func (l *layerBytes) find(raw []byte) (pos uint32, ok bool) {
	first := int(raw[0])
	var lo uint32
	if first > 0 {
		lo = binary.BigEndian.Uint32(l.fan[4*(first-1):])
	}
	hi := min(binary.BigEndian.Uint32(l.fan[4*first:]), l.n)
	at, ok := pack.SearchIDs(l.ids, 0, l.size, int(lo), int(hi), raw)
	return l.base + uint32(at), ok
}

func (l *layerBytes) rawID(pos uint32) []byte { return l.ids[int(pos-l.base)*l.size:][:l.size:l.size] }

func (l *layerBytes) rawTree(pos uint32) []byte {
	return l.data[int(pos-l.base)*(l.size+recordExtra):][:l.size:l.size]
}

// record returns a commit's row in CDAT, without the tree.
func (l *layerBytes) record(pos uint32) []byte {
	return l.data[int(pos-l.base)*(l.size+recordExtra)+l.size:][:recordExtra]
}

func (l *layerBytes) date(pos uint32) int64 {
	return int64(binary.BigEndian.Uint64(l.record(pos)[8:]) & (1<<34 - 1))
}

// level returns the topological level (generation number v1); 0: not computed.
func (l *layerBytes) level(pos uint32) uint64 {
	return uint64(binary.BigEndian.Uint32(l.record(pos)[8:]) >> 2)
}

// corrected returns the corrected commit date (generation number v2).
func (l *layerBytes) corrected(pos uint32) (uint64, error) {
	offset := uint64(binary.BigEndian.Uint32(l.dates[4*int(pos-l.base):]))
	if offset&edgeFlag != 0 {
		at := (offset &^ edgeFlag) * 8
		if at >= uint64(len(l.bigDates)) {
			return 0, errBadGraph
		}
		offset = binary.BigEndian.Uint64(l.bigDates[at:])
	}
	if offset > math.MaxInt64/2 {
		return 0, errBadGraph
	}
	return uint64(l.date(pos)) + offset, nil
}

// parents appends the positions of a commit's parents, which are in this layer or in those below.
func (l *layerBytes) parents(pos uint32, to []uint32) ([]uint32, error) {
	r := l.record(pos)
	first, second := binary.BigEndian.Uint32(r), binary.BigEndian.Uint32(r[4:])
	total := l.base + l.n
	if first == noParent {
		return to, nil
	}
	if first >= total {
		return to, errBadGraph
	}
	to = append(to, first)
	if second == noParent {
		return to, nil
	}
	if second&edgeFlag == 0 {
		if second >= total {
			return to, errBadGraph
		}
		return append(to, second), nil
	}
	for at := uint64(second&^edgeFlag) * 4; ; at += 4 {
		if at >= uint64(len(l.edges)) {
			return to, errBadGraph
		}
		edge := binary.BigEndian.Uint32(l.edges[at:])
		if edge&^edgeFlag >= total {
			return to, errBadGraph
		}
		to = append(to, edge&^edgeFlag)
		if edge&edgeFlag != 0 {
			return to, nil
		}
	}
}
