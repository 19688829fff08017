package native

import (
	"encoding/binary"
	"hash"
	"io"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

const (
	packHeader = 12 // "PACK", version and object count (gitformat-pack(5))

	bandHeader = pktline.MaxLine - pktline.MaxBandData // length and band of a packet
	frames     = 16                                    // maximum number of packets in one write

	// flushAfter is the maximum age of a full packet that was not written yet.
	flushAfter = 5 * time.Millisecond
)

// framed writes a pack as side-band-1 packets, and hashes it. All packets but the last one are full, so that the place
// of an entry in the framed pack follows from its offset (see unframed).
type framed struct {
	out    io.Writer
	hash   hash.Hash
	buf    *frameBuffer
	frame  int   // packet being filled
	n      int   // payload bytes in it
	offset int64 // in the pack
	sent   time.Time
}

type frameBuffer [frames * pktline.MaxLine]byte

var frameBuffers = sync.Pool{New: func() any { return new(frameBuffer) }}

func newFramed(out io.Writer, format git.ObjectFormat) *framed {
	return &framed{out: out, hash: format.New(), buf: frameBuffers.Get().(*frameBuffer)}
}

// begin writes the header of a pack.
func (f *framed) begin(objects int) error {
	header := [packHeader]byte{'P', 'A', 'C', 'K', 0, 0, 0, 2}
	binary.BigEndian.PutUint32(header[8:], uint32(objects))
	return f.write(header[:])
}

func (f *framed) release() { frameBuffers.Put(f.buf); f.buf = nil }

// write appends bytes to the pack.
func (f *framed) write(p []byte) error {
	f.hash.Write(p)
	return f.append(p)
}

// append appends bytes that are not part of the checksum.
func (f *framed) append(p []byte) error {
	f.offset += int64(len(p))
	for len(p) > 0 {
		if f.n == pktline.MaxBandData {
			if err := f.next(); err != nil {
				return err
			}
		}
		at := f.frame*pktline.MaxLine + bandHeader
		n := copy(f.buf[at+f.n:at+pktline.MaxBandData], p)
		f.n += n
		p = p[n:]
	}
	return nil
}

// next begins the next packet. It writes the full ones if there is no room, or if they have waited for a while.
func (f *framed) next() error {
	f.header()
	f.frame, f.n = f.frame+1, 0
	if f.frame < frames && time.Since(f.sent) < flushAfter {
		return nil
	}
	return f.flush()
}

func (f *framed) header() {
	at := f.frame * pktline.MaxLine
	pktline.PutLength(f.buf[at:], f.n+bandHeader)
	f.buf[at+4] = byte(pktline.BandData)
}

// flush writes the packets before the current one, which is empty.
func (f *framed) flush() error {
	return f.send(f.frame * pktline.MaxLine)
}

func (f *framed) send(end int) error {
	_, err := f.out.Write(f.buf[:end])
	f.frame, f.n, f.sent = 0, 0, time.Now()
	return err
}

// finish writes the checksum and the rest of the pack.
func (f *framed) finish() (sum []byte, err error) {
	sum = f.hash.Sum(nil)
	if err := f.append(sum); err != nil {
		return nil, err
	}
	f.header()
	return sum, f.send(f.frame*pktline.MaxLine + bandHeader + f.n)
}
