package uploadpack

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// recorder is a node.ResponseWriter that keeps what it is given.
type recorder struct {
	bytes.Buffer
	length int64 // announced; -1: not
	bulk   int
	cold   bool // the last argument of Bulk
	held   int64
}

func newRecorder() *recorder { return &recorder{length: -1} }

func (r *recorder) SetLength(n int64) { r.length = n }

func (r *recorder) ReserveMemory(n int64) error {
	r.held += n
	return nil
}

func (r *recorder) StartBulk(cold bool) error {
	r.bulk++
	r.cold = cold
	return nil
}
func (r *recorder) Flush() error { return nil }

// answer is a whole answer to a fetch, taken apart.
type answer struct {
	sections  []string // their names in order
	lines     map[string][]string
	pack      []byte
	progress  string
	bandError string
}

// parseAnswer reads a fetch's answer. With sidebandAll, all comes on side-bands.
func parseAnswer(b []byte, sidebandAll bool) (*answer, error) {
	a := &answer{lines: make(map[string][]string)}
	in := bytes.NewReader(b)
	r := pktline.NewReader(in)
	section, ended := "", false
	for {
		t, payload, err := r.Next()
		if err == io.EOF {
			if !ended && len(b) > 0 {
				return a, errors.New("the answer ends without a flush packet")
			}
			return a, nil
		}
		switch {
		case err != nil:
			return a, err
		case ended:
			return a, errors.New("something follows the flush packet")
		case t == pktline.Flush:
			ended = true
			continue
		case t == pktline.Delim:
			if section == "" || section == "packfile" {
				return a, errors.New("a delimiter in the wrong place")
			}
			section = ""
			continue
		case t != pktline.Data:
			return a, fmt.Errorf("unexpected %v packet", t)
		}
		if sidebandAll || section == "packfile" {
			if len(payload) == 0 {
				return a, errors.New("a packet without a band")
			}
			band := pktline.Band(payload[0])
			payload = payload[1:]
			switch band {
			case pktline.BandProgress:
				a.progress += string(payload)
				continue
			case pktline.BandError:
				a.bandError += string(payload)
				ended = true
				continue
			}
			if section == "packfile" {
				a.pack = append(a.pack, payload...)
				continue
			}
			if len(payload) == 0 {
				continue // keep-alive
			}
		}
		line := strings.TrimSuffix(string(payload), "\n") // git leaves it away in shallow-info
		if section == "" {
			section = line
			a.sections = append(a.sections, line)
			continue
		}
		a.lines[section] = append(a.lines[section], line)
	}
}

// packContent is what a pack holds.
type packContent struct {
	ids   map[git.ObjectID]git.ObjectType
	bases map[git.ObjectID]bool // objects outside of the pack that deltas refer to
	ofs   bool                  // a delta names its base by offset
}

func (p *packContent) sorted() []string {
	var ids []string
	for id := range p.ids {
		ids = append(ids, id.String())
	}
	slices.Sort(ids)
	return ids
}

type packEntry struct {
	typ     byte
	at      int64
	baseAt  int64
	baseID  git.ObjectID
	content []byte
}

// Types of pack entries (gitformat-pack(5)).
const entryOfs, entryRef = 6, 7

// readPack lists a pack's objects. outside reads the bases that are not in the pack.
func readPack(b []byte, format git.ObjectFormat, outside func(git.ObjectID) (git.ObjectType, []byte,
	error)) (*packContent, error) {
	size := format.Size()
	if len(b) < 12+size || string(b[:4]) != "PACK" {
		return nil, errors.New("no pack")
	}
	sum := format.New()
	sum.Write(b[:len(b)-size])
	if !bytes.Equal(sum.Sum(nil), b[len(b)-size:]) {
		return nil, errors.New("bad checksum")
	}
	count := binary.BigEndian.Uint32(b[8:])
	in := bytes.NewReader(b[:len(b)-size])
	in.Seek(12, io.SeekStart)
	p := &packContent{ids: make(map[git.ObjectID]git.ObjectType), bases: make(map[git.ObjectID]bool)}
	type object struct {
		typ  git.ObjectType
		data []byte
	}
	at, byID := make(map[int64]object), make(map[git.ObjectID]object)
	var waiting []packEntry
	add := func(offset int64, typ git.ObjectType, data []byte) error {
		id := objectID(format, typ, data)
		if _, twice := p.ids[id]; twice {
			return fmt.Errorf("%s stands in the pack twice", id)
		}
		p.ids[id] = typ
		at[offset], byID[id] = object{typ, data}, object{typ, data}
		return nil
	}
	for range count {
		e, err := readEntry(in, format)
		if err != nil {
			return nil, err
		}
		p.ofs = p.ofs || e.typ == entryOfs
		if e.typ >= entryOfs {
			waiting = append(waiting, e)
		} else if err := add(e.at, git.ObjectType(e.typ), e.content); err != nil {
			return nil, err
		}
	}
	if in.Len() != 0 {
		return nil, fmt.Errorf("%d bytes after the last object", in.Len())
	}
	for reach := false; len(waiting) > 0; {
		var left []packEntry
		for _, e := range waiting {
			base, ok := at[e.baseAt]
			if e.typ == entryRef {
				if base, ok = byID[e.baseID]; !ok && reach {
					if typ, data, err := outside(e.baseID); err == nil {
						base, ok = object{typ, data}, true
						p.bases[e.baseID] = true
					}
				}
			}
			if !ok {
				left = append(left, e)
				continue
			}
			data, err := applyDelta(base.data, e.content)
			if err == nil {
				err = add(e.at, base.typ, data)
			}
			if err != nil {
				return nil, err
			}
			reach = false
		}
		if len(left) == len(waiting) {
			if reach {
				return nil, fmt.Errorf("%d deltas without base", len(left))
			}
			reach = true
		}
		waiting = left
	}
	return p, nil
}

func readEntry(in *bytes.Reader, format git.ObjectFormat) (e packEntry, err error) {
	e.at = in.Size() - int64(in.Len())
	c, err := in.ReadByte()
	e.typ = c >> 4 & 7
	for c&0x80 != 0 && err == nil {
		c, err = in.ReadByte()
	}
	switch e.typ {
	case entryOfs:
		c, _ = in.ReadByte()
		n := int64(c & 0x7f)
		for c&0x80 != 0 {
			c, _ = in.ReadByte()
			n = (n+1)<<7 | int64(c&0x7f)
		}
		e.baseAt = e.at - n
	case entryRef:
		raw := make([]byte, format.Size())
		io.ReadFull(in, raw)
		e.baseID = git.RawObjectID(raw)
	}
	if err != nil {
		return e, err
	}
	z, err := zlib.NewReader(in)
	if err == nil {
		e.content, err = io.ReadAll(z)
	}
	return e, err
}

func applyDelta(base, delta []byte) ([]byte, error) {
	_, n := binary.Uvarint(delta)
	size, m := binary.Uvarint(delta[n:])
	delta = delta[n+m:]
	out := make([]byte, 0, size)
	for len(delta) > 0 {
		op := delta[0]
		delta = delta[1:]
		if op&0x80 == 0 {
			out = append(out, delta[:op]...)
			delta = delta[op:]
			continue
		}
		var v [7]int
		for i := range v {
			if op>>i&1 != 0 {
				v[i] = int(delta[0])
				delta = delta[1:]
			}
		}
		from, length := v[0]|v[1]<<8|v[2]<<16|v[3]<<24, v[4]|v[5]<<8|v[6]<<16
		if length == 0 {
			length = 1 << 16
		}
		if from+length > len(base) {
			return nil, errors.New("a delta copies from behind its base")
		}
		out = append(out, base[from:from+length]...)
	}
	if uint64(len(out)) != size {
		return nil, errors.New("a delta of the wrong size")
	}
	return out, nil
}

func objectID(format git.ObjectFormat, typ git.ObjectType, data []byte) git.ObjectID {
	h := format.New()
	fmt.Fprintf(h, "%s %d\x00", typ, len(data))
	h.Write(data)
	return git.RawObjectID(h.Sum(nil))
}
