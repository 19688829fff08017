package packsource

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

const (
	bandHeader   = pktline.MaxLine - pktline.MaxBandData // four digits and the band
	framerFrames = 16                                    // maximum number of packets in one write
	packHeader   = 12                                    // "PACK", version and object count (gitformat-pack(5))
)

// framer reads a pack into side-band-1 packets. The buffer has room for the header of each packet, so that no byte is
// copied between buffers. The framer holds back the checksum at the end of the pack. The caller gets it from last after
// git has succeeded. No client accepts a pack without its checksum.
type framer struct {
	buf     *frameBuffer
	hold    int // bytes kept back
	frame   int // index of the packet being filled
	n       int // payload bytes in it
	head    []byte
	objects uint32 // from the pack's header
	total   int64

	keepFrame, keepAt int // packet and offset of the first byte that take did not return
}

type frameBuffer [framerFrames * pktline.MaxLine]byte

var frameBuffers = sync.Pool{New: func() any { return new(frameBuffer) }}

func newFramer(hold int) *framer {
	return &framer{buf: frameBuffers.Get().(*frameBuffer), hold: hold, head: make([]byte, 0, packHeader)}
}

func (f *framer) release() { frameBuffers.Put(f.buf); f.buf = nil }

// room returns the maximum number of bytes that the next fill reads.
func (f *framer) room() int {
	if f.n == pktline.MaxBandData {
		return pktline.MaxBandData
	}
	return pktline.MaxBandData - f.n
}

// fill reads once. An error of type errGit means that the output is not a pack; all others come from r.
func (f *framer) fill(r io.Reader) error {
	if f.n == pktline.MaxBandData {
		f.frame, f.n = f.frame+1, 0
	}
	start := f.frame*pktline.MaxLine + bandHeader
	n, err := r.Read(f.buf[start+f.n : start+pktline.MaxBandData])
	if missing := packHeader - len(f.head); missing > 0 && n > 0 {
		f.head = append(f.head, f.buf[start+f.n:][:min(n, missing)]...)
		if bad := f.checkHead(); bad != nil {
			err = bad
		}
	}
	f.n += n
	f.total += int64(n)
	return err
}

func (f *framer) checkHead() error {
	if len(f.head) < packHeader {
		return nil
	}
	version := binary.BigEndian.Uint32(f.head[4:])
	if string(f.head[:4]) != "PACK" || version != 2 && version != 3 {
		return fmt.Errorf("%w: it begins with %q", errGit, f.head)
	}
	f.objects = binary.BigEndian.Uint32(f.head[8:])
	return nil
}

// take returns packets to send. If all is set, they have all bytes except for the held ones. Otherwise take returns
// full packets, and only if the buffer is full. The caller sends them and calls sent before the next fill.
func (f *framer) take(all bool) []byte {
	end := f.frame * pktline.MaxLine
	f.keepFrame, f.keepAt = f.frame, 0
	switch {
	case all && f.n > f.hold:
		f.keepAt = f.n - f.hold
		f.header(f.frame, f.keepAt)
		end += bandHeader + f.keepAt
	case f.n == pktline.MaxBandData && f.frame == framerFrames-1, all && f.n == f.hold:
	case all && f.frame > 0: // some of the held bytes are in the previous packet
		f.keepFrame--
		end -= pktline.MaxLine
	default:
		f.keepFrame = 0
		return nil
	}
	f.fullHeaders(f.keepFrame)
	return f.buf[:end]
}

func (f *framer) fullHeaders(count int) {
	for i := range count {
		f.header(i, pktline.MaxBandData)
	}
}

func (f *framer) header(frame, payload int) {
	at := frame * pktline.MaxLine
	pktline.PutLength(f.buf[at:], payload+bandHeader)
	f.buf[at+4] = byte(pktline.BandData)
}

// sent moves the bytes that take did not return to the start of the buffer.
func (f *framer) sent() {
	end := f.frame*pktline.MaxLine + bandHeader + f.n
	copy(f.buf[bandHeader:], f.buf[f.keepFrame*pktline.MaxLine+bandHeader+f.keepAt:end])
	f.n -= f.keepAt
	f.frame -= f.keepFrame
	f.keepFrame, f.keepAt = 0, 0
}

// last returns the remaining packets of a complete pack.
func (f *framer) last() []byte {
	f.fullHeaders(f.frame)
	end := f.frame * pktline.MaxLine
	if f.n > 0 {
		f.header(f.frame, f.n)
		end += bandHeader + f.n
	}
	return f.buf[:end]
}

// whole returns an error if the pack is too short to be complete. Git computes the checksum, so whole does not.
func (f *framer) whole() error {
	if f.total < int64(packHeader+f.hold) {
		return fmt.Errorf("%w: it ends after %d bytes", errGit, f.total)
	}
	return nil
}
