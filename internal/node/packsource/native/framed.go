package native

import (
	"encoding/binary"
	"hash"
	"io"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

const (
	packHeader = 12                                    // "PACK", version and object count (gitformat-pack(5))
	bandHeader = pktline.MaxLine - pktline.MaxBandData // length and band of a packet
)

// framed frames and hashes a pack. All packets but the last one are full, so that the place of an entry in the framed
// pack follows from its offset (see unframed).
type framed struct {
	*packsource.Framer
	hash   hash.Hash
	offset int64 // in the pack
}

func newFramed(out io.Writer, format git.ObjectFormat) *framed {
	return &framed{Framer: packsource.NewFramer(out), hash: format.New()}
}

// begin writes the header of a pack.
func (f *framed) begin(objects int) error {
	return f.write(binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(objects)))
}

// write appends bytes to the pack.
func (f *framed) write(p []byte) error {
	f.hash.Write(p)
	f.offset += int64(len(p))
	_, err := f.Write(p)
	return err
}

// finish writes the checksum and the rest of the pack.
func (f *framed) finish() (sum []byte, err error) {
	sum = f.hash.Sum(nil)
	if _, err = f.Write(sum); err == nil {
		err = f.Flush()
	}
	return sum, err
}
