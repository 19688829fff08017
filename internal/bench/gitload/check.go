package gitload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Walker follows a fetch answer through its framing (gitprotocol-v2(5), "fetch"; gitprotocol-pack(5), "packfile data"):
// sections of text packets, then the packfile section's side-bands, then a flush. Before version 2 there are lines
// instead of sections, maybe with a flush among them, and the first packet with a band begins the pack. It is fed the
// stream in any pieces and may be told that bytes of a packet's payload went by unseen.
type Walker struct {
	Data  func([]byte) // gets band 1's bytes; with it nothing is skippable
	older bool         // before version 2
	// section, if not nil, gets the lines before the pack, without their ends and bands; an answer without a pack is then
	// allowed.
	Section func(line []byte) error

	state   walkState
	head    [5]byte // four digits and, in the packfile section, the band
	nhead   int
	left    int    // payload bytes of the running packet still to come
	band    byte   // of the running packet
	text    []byte // payload of the running text, progress or error packet, as far as it is kept
	magic   [12]byte
	nmagic  int   // bytes of the pack's own head that were seen
	HasPack bool  // the packfile section has begun
	pack    int64 // bytes of the pack so far
	size    int64 // bytes of the answer so far
	packets int64
	last    [2]int64 // where the last two data packets of band 1 began
}

type walkState uint8

const (
	inSections walkState = iota
	inPack
	atEnd
)

// maxText bounds how much of a text packet is kept: section headers are short, and so is what people read of an error.
const maxText = 1000

// feed takes the next bytes of the answer.
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

// headLen is how many bytes have to be seen before a packet's payload: in the packfile section every packet but the
// special ones has a band, which is known only from the digits. Before version 2 a band is what the section begins
// with.
func (w *Walker) headLen() int {
	if (w.state == inPack || w.older) && w.nhead >= 4 {
		return 5
	}
	return 4
}

// beginPacket acts on a packet's head once it is complete.
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
	if w.state == inSections && w.older && n > 4 {
		if w.nhead < 5 {
			return nil
		}
		if band := pktline.Band(w.head[4]); pktline.BandData <= band && band <= pktline.BandError {
			w.state = inPack
		}
	}
	if w.state == inSections {
		seen := w.head[4:w.nhead]
		w.nhead = 0
		w.packets++
		w.band, w.left, w.text = 0, n-4-len(seen), append(w.text[:0], seen...)
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

// special acts on flush, delim and response-end.
func (w *Walker) special(n int) error {
	switch {
	case n == 0 && (w.state == inPack || w.Section != nil):
		w.state = atEnd
		return nil
	case n == 0 && w.older: // after shallow lines
		return nil
	case n == 0:
		return errors.New("the answer ends without a packfile section")
	case n == 1 && w.state == inSections:
		return nil
	}
	return fmt.Errorf("special packet %04d where none belongs", n)
}

// payload looks at a part of the running packet.
func (w *Walker) payload(p []byte) {
	if pktline.Band(w.band) == pktline.BandData {
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

// endPacket acts on a packet that is complete.
func (w *Walker) endPacket() error {
	switch {
	case w.state == inPack && pktline.Band(w.band) == pktline.BandError:
		return ServerError(loadgen.Clean(w.text))
	case w.state == inPack:
		if w.nmagic == len(w.magic) && !bytes.HasPrefix(w.magic[:], []byte("PACK")) {
			return errors.New("band 1 holds no pack")
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

// skippable is how many of the next bytes are bulk that need not be seen.
func (w *Walker) skippable() int64 {
	if w.Data == nil && w.state == inPack && pktline.Band(w.band) == pktline.BandData && w.nmagic == len(w.magic) {
		return int64(w.left)
	}
	return 0
}

// skip says that n bytes, at most skippable, went by unseen.
func (w *Walker) skip(n int64) error {
	w.pack += n
	w.size += n
	w.left -= int(n)
	if w.left == 0 {
		return w.endPacket()
	}
	return nil
}

// finish is to be called at the end of the stream.
func (w *Walker) finish() error {
	switch {
	case w.state != atEnd:
		return fmt.Errorf("the answer ends after %d bytes without its final flush", w.size)
	case w.nmagic < len(w.magic) && (w.HasPack || w.Section == nil):
		return errors.New("the packfile section holds no pack")
	}
	return nil
}

// Reference is the layout of an answer whose every packet has been walked and whose pack has been verified. An answer
// of the same length is expected to have it too.
type Reference struct {
	Size    int64 // of the whole answer
	tail    int64 // offset of a band-1 packet near its end; from there on everything is looked at again
	objects uint32
	pack    int64 // bytes of the pack
}

// reference is valid once finish has returned nil.
func (w *Walker) reference() *Reference {
	tail := w.last[0]
	if tail == 0 {
		tail = w.last[1]
	}
	return &Reference{Size: w.size, tail: tail, objects: binary.BigEndian.Uint32(w.magic[8:]), pack: w.pack}
}

// ServerError is what the server said in an error band or an ERR packet.
type ServerError string

func (e ServerError) Error() string { return "the server sent an error: " + string(e) }

// errLayout says that the end of an answer as long as the reference could not be followed.
var errLayout = errors.New("the answer is as long as the verified one but laid out in another way")

// CheckFetch reads one answer to the end and checks it. With a reference of the same length it looks at the beginning
// and the end and lets the middle go by; otherwise it follows every packet. firstByte is called once the body has
// begun.
func CheckFetch(b *loadgen.Body, h loadgen.Head, ref *Reference, w *Walker, firstByte func()) error {
	if h.Status != 200 {
		return StatusError(b, h)
	}
	jump := ref != nil && h.Length == ref.Size && ref.tail > 0
	for {
		if jump && w.skippable() > 0 && w.size < ref.tail {
			if err := skipTo(b, ref.tail); err != nil {
				return err
			}
			*w = Walker{state: inPack, magic: w.magic, nmagic: w.nmagic, size: ref.tail, pack: w.pack, text: w.text}
			err := walk(b, w, firstByte)
			if errors.Is(err, pktline.ErrSyntax) {
				return fmt.Errorf("%w: %w", errLayout, err)
			}
			return err
		}
		if done, err := walkStep(b, w, firstByte); done || err != nil {
			return err
		}
	}
}

// walk follows every packet to the end.
func walk(b *loadgen.Body, w *Walker, firstByte func()) error {
	for {
		if done, err := walkStep(b, w, firstByte); done || err != nil {
			return err
		}
	}
}

// walkStep takes one piece of the body.
func walkStep(b *loadgen.Body, w *Walker, firstByte func()) (done bool, err error) {
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
	if b.Size == int64(len(p)) {
		firstByte()
	}
	return false, w.feed(p)
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// skipTo drops the body up to an offset.
func skipTo(b *loadgen.Body, offset int64) error {
	for b.Size < offset {
		if _, err := b.Skip(offset - b.Size); err != nil {
			return noEOF(err)
		}
	}
	return nil
}

// StatusError reports an answer other than 200 with the beginning of what it says.
func StatusError(b *loadgen.Body, h loadgen.Head) error {
	p, err := b.Next(1000)
	text := ""
	if err == nil {
		text = loadgen.Clean(p[:min(len(p), 200)])
		err = b.Drain()
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("HTTP status %d; then %w", h.Status, err)
	}
	return &loadgen.HTTPError{Status: h.Status, Text: text, Retry: h.Retry}
}
