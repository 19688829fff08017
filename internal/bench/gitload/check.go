package gitload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Walker parses a fetch response (gitprotocol-v2(5), "fetch"). A response has sections of text packets, then the
// side-bands of the packfile section, then a flush. The stream is fed in pieces of any size. Bytes of a packet's
// payload may be skipped.
type Walker struct {
	Data func([]byte) // receives the bytes of band 1; if set, no byte is skippable
	// Section, if not nil, receives the lines before the pack, without line ends and bands. A response without a pack is
	// then valid.
	Section func(line []byte) error

	state   walkState
	head    [5]byte // four digits and, in the packfile section, the band
	nhead   int
	left    int    // remaining payload bytes of the current packet
	band    byte   // of the current packet
	text    []byte // beginning of the payload of the current text, progress or error packet
	magic   [12]byte
	nmagic  int       // bytes of the pack's own header so far
	HasPack bool      // the packfile section has begun
	Began   time.Time // when the first byte of the pack arrived
	pack    int64     // bytes of the pack so far
	size    int64     // bytes of the answer so far
	packets int64
	last    [2]int64 // offsets of the last two data packets of band 1
}

type walkState uint8

const (
	inSections walkState = iota
	inPack
	atEnd
)

// maxText limits the stored part of a text packet. Section headers are short, and people read only the start of an
// error.
const maxText = 1000

// feed parses the next bytes of the response.
func (w *Walker) feed(p []byte) error {
	for len(p) > 0 {
		if w.state == atEnd {
			return errors.New("bytes after the final flush")
		}
		if w.left > 0 {
			n := min(w.left, len(p))
			w.payload(p[:n])
			p = p[n:]
			w.left -= n
			w.size += int64(n)
			if w.left == 0 {
				if err := w.endPacket(); err != nil {
					return err
				}
			}
			continue
		}
		n := copy(w.head[w.nhead:w.headLen()], p)
		w.nhead += n
		w.size += int64(n)
		p = p[n:]
		if err := w.beginPacket(); err != nil {
			return err
		}
	}
	return nil
}

// headLen returns the number of bytes before a packet's payload. In the packfile section every packet except for
// special ones has a band, which only the length digits show.
func (w *Walker) headLen() int {
	if w.state == inPack && w.nhead >= 4 {
		return 5
	}
	return 4
}

// beginPacket handles the complete head of a packet.
func (w *Walker) beginPacket() error {
	if w.nhead < 4 {
		return nil
	}
	n, err := pktline.ParseLength(w.head[:4])
	if err != nil {
		return err
	}
	if n < 4 {
		w.nhead = 0
		return w.special(n)
	}
	if w.state == inSections {
		w.nhead = 0
		w.packets++
		w.band, w.left, w.text = 0, n-4, w.text[:0]
		if w.left == 0 {
			return w.endPacket()
		}
		return nil
	}
	if n == 4 {
		return errors.New("packet without a band in the packfile section")
	}
	if w.nhead < 5 {
		return nil
	}
	w.nhead = 0
	w.packets++
	w.band, w.left, w.text = w.head[4], n-5, w.text[:0]
	switch pktline.Band(w.band) {
	case pktline.BandData:
		w.last[0], w.last[1] = w.last[1], w.size-5
	case pktline.BandProgress, pktline.BandError:
	default:
		return fmt.Errorf("unknown band %d", w.band)
	}
	if w.left == 0 {
		return w.endPacket()
	}
	return nil
}

// special handles flush, delim and response-end.
func (w *Walker) special(n int) error {
	switch {
	case n == 0 && (w.state == inPack || w.Section != nil):
		w.state = atEnd
		return nil
	case n == 0:
		return errors.New("the response ends without a packfile section")
	case n == 1 && w.state == inSections:
		return nil
	}
	return fmt.Errorf("unexpected special packet %04d", n)
}

// payload handles a part of the current packet.
func (w *Walker) payload(p []byte) {
	if pktline.Band(w.band) == pktline.BandData {
		if w.pack == 0 {
			w.Began = time.Now()
		}
		w.pack += int64(len(p))
		if w.nmagic < len(w.magic) {
			w.nmagic += copy(w.magic[w.nmagic:], p)
		}
		if w.Data != nil {
			w.Data(p)
		}
		return
	}
	if room := maxText - len(w.text); room > 0 {
		w.text = append(w.text, p[:min(room, len(p))]...)
	}
}

// endPacket handles the end of a packet.
func (w *Walker) endPacket() error {
	switch {
	case w.state == inPack && pktline.Band(w.band) == pktline.BandError:
		return ServerError(loadgen.Clean(w.text))
	case w.state == inPack:
		if w.nmagic == len(w.magic) && !bytes.HasPrefix(w.magic[:], []byte("PACK")) {
			return errors.New("band 1 does not contain a pack")
		}
		return nil
	}
	text := w.text
	if len(text) > 0 { // sideband-all: section lines have a band too
		switch pktline.Band(text[0]) {
		case pktline.BandData:
			text = text[1:]
		case pktline.BandProgress:
			return nil
		case pktline.BandError:
			return ServerError(loadgen.Clean(text[1:]))
		}
	}
	if rest, ok := bytes.CutPrefix(text, []byte("ERR ")); ok {
		return ServerError(loadgen.Clean(rest))
	}
	text = bytes.TrimSuffix(text, []byte("\n"))
	if bytes.Equal(text, []byte("packfile")) {
		w.state, w.HasPack = inPack, true
		return nil
	}
	if w.Section != nil {
		return w.Section(text)
	}
	return nil
}

// skippable returns how many of the next bytes are bulk data that need not be parsed.
func (w *Walker) skippable() int64 {
	if w.Data == nil && w.state == inPack && pktline.Band(w.band) == pktline.BandData && w.nmagic == len(w.magic) {
		return int64(w.left)
	}
	return 0
}

// skip accounts for n skipped bytes, at most skippable.
func (w *Walker) skip(n int64) error {
	w.pack += n
	w.size += n
	w.left -= int(n)
	if w.left == 0 {
		return w.endPacket()
	}
	return nil
}

// finish checks the end of the stream.
func (w *Walker) finish() error {
	switch {
	case w.state != atEnd:
		return fmt.Errorf("the response ends after %d bytes without its final flush", w.size)
	case w.nmagic < len(w.magic) && (w.HasPack || w.Section == nil):
		return errors.New("the packfile section does not contain a pack")
	}
	return nil
}

// Reference is the layout of a response with a verified pack. A response of the same length is expected to have the
// same layout.
type Reference struct {
	Size    int64 // of the whole response
	tail    int64 // offset of a band-1 packet near the end, from which every packet is parsed again
	objects uint32
	pack    int64 // bytes of the pack
}

// reference is valid after finish has returned nil.
func (w *Walker) reference() *Reference {
	tail := w.last[0]
	if tail == 0 {
		tail = w.last[1]
	}
	return &Reference{Size: w.size, tail: tail, objects: binary.BigEndian.Uint32(w.magic[8:]), pack: w.pack}
}

// ServerError is the text of an error band or an ERR packet.
type ServerError string

func (e ServerError) Error() string { return "the server sent an error: " + string(e) }

// errLayout is the error of a response that has the length of the reference but not its layout at the end.
var errLayout = errors.New("the response has the length of the verified one but a different layout")

// CheckFetch reads one response to its end and checks it. If it has the length of the reference, CheckFetch parses the
// beginning and the end and skips the middle. Otherwise it parses every packet.
func CheckFetch(b *loadgen.Body, ref *Reference, w *Walker) error {
	if err := b.OK(); err != nil {
		return err
	}
	jump := ref != nil && b.Length == ref.Size && ref.tail > 0
	jumped := false
	for {
		if jump && !jumped && w.skippable() > 0 && w.size < ref.tail {
			for b.Size < ref.tail {
				if _, err := b.Skip(ref.tail - b.Size); err != nil {
					return noEOF(err)
				}
			}
			jumped = true
			*w = Walker{state: inPack, magic: w.magic, nmagic: w.nmagic, size: ref.tail, pack: w.pack, text: w.text,
				Began: w.Began}
		}
		done, err := walkStep(b, w)
		if jumped && errors.Is(err, pktline.ErrSyntax) {
			err = fmt.Errorf("%w: %w", errLayout, err)
		}
		if done || err != nil {
			return err
		}
	}
}

// walkStep parses one piece of the body.
func walkStep(b *loadgen.Body, w *Walker) (done bool, err error) {
	if n := w.skippable(); n > 0 {
		n, err := b.Skip(n)
		if err != nil {
			return false, noEOF(err)
		}
		return false, w.skip(n)
	}
	limit := loadgen.ConnBuffer
	if w.Data == nil && w.state == inPack && w.nmagic == len(w.magic) {
		limit = loadgen.FrameRead
	}
	p, err := b.Next(limit)
	if err == io.EOF {
		return true, w.finish()
	}
	if err != nil {
		return false, err
	}
	return false, w.feed(p)
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
