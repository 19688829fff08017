package packsource

import (
	"io"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

const (
	bandHeader = pktline.MaxLine - pktline.MaxBandData // four digits and the band
	frames     = 16                                    // maximum number of packets in one write
	packHeader = 12                                    // "PACK", version and object count (gitformat-pack(5))

	// flushAfter is the maximum age of a full packet that was not written yet.
	flushAfter = 5 * time.Millisecond
)

// Framer writes a pack as side-band-1 packets, and several packets in one write. All packets but the last one before a
// Flush are full. It is not safe for concurrent use.
type Framer struct {
	out   io.Writer
	buf   *frameBuffer
	frame int // packet being filled
	n     int // payload bytes in it
	sent  time.Time
}

type frameBuffer [frames * pktline.MaxLine]byte

var frameBuffers = sync.Pool{New: func() any { return new(frameBuffer) }}

// NewFramer returns a Framer that the caller has to release.
func NewFramer(out io.Writer) *Framer {
	return &Framer{out: out, buf: frameBuffers.Get().(*frameBuffer)}
}

// Release ends the use of the Framer.
func (f *Framer) Release() {
	frameBuffers.Put(f.buf)
	f.buf = nil
}

// Write appends bytes to the pack. It writes packets if there is no room for more, or if they have waited for a while.
func (f *Framer) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if f.n == pktline.MaxBandData {
			f.header()
			f.frame, f.n = f.frame+1, 0
			if f.frame == frames || time.Since(f.sent) >= flushAfter {
				if err := f.send(f.frame * pktline.MaxLine); err != nil {
					return n, err
				}
			}
		}
		at := f.frame*pktline.MaxLine + bandHeader
		m := copy(f.buf[at+f.n:at+pktline.MaxBandData], p[n:])
		f.n, n = f.n+m, n+m
	}
	return n, nil
}

// Flush writes all bytes.
func (f *Framer) Flush() error {
	end := f.frame * pktline.MaxLine
	if f.n > 0 {
		f.header()
		end += bandHeader + f.n
	}
	if end == 0 {
		return nil
	}
	return f.send(end)
}

// header writes the header of the packet.
func (f *Framer) header() {
	at := f.frame * pktline.MaxLine
	pktline.PutLength(f.buf[at:], f.n+bandHeader)
	f.buf[at+4] = byte(pktline.BandData)
}

func (f *Framer) send(end int) error {
	_, err := f.out.Write(f.buf[:end])
	f.frame, f.n, f.sent = 0, 0, time.Now()
	return err
}
