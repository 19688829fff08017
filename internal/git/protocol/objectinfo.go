package protocol

import (
	"bytes"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// ObjectInfo requests information about objects without their content (gitprotocol-v2(5), "object-info").
type ObjectInfo struct {
	Size    bool           // sizes are requested
	Objects []git.ObjectID // in the order they were sent, with repeats: each gets its line
}

func (p *parser) objectInfoArgument(line []byte) error {
	o := p.req.ObjectInfo
	if string(line) == "size" {
		o.Size = true
		return nil
	}
	text, ok := bytes.CutPrefix(line, []byte("oid "))
	if !ok {
		return unexpected(line)
	}
	if len(o.Objects) >= p.limits.Objects {
		return tooMany("oid", p.limits.Objects)
	}
	id, err := p.objectID(text, "oid")
	if err == nil && len(o.Objects) == cap(o.Objects) {
		o.Objects, err = grow(p, o.Objects)
	}
	o.Objects = append(o.Objects, id)
	return err
}

// AppendInfoHeader appends the header of an object-info response.
func AppendInfoHeader(b []byte) []byte { return pktline.Append(b, "size") }

// AppendInfo appends an object's line. With size less than 0 the object is not known, and has no number.
func AppendInfo(b []byte, id git.ObjectID, withSize bool, size int64) []byte {
	b, start := pktline.Start(b)
	b = id.AppendHex(b)
	if withSize {
		b = append(b, ' ')
		if size >= 0 {
			b = strconv.AppendInt(b, size, 10)
		}
	}
	return pktline.Finish(b, start)
}
