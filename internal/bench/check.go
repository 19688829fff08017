package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// walker follows a fetch answer through its framing (gitprotocol-v2(5), "fetch"; gitprotocol-pack(5), "packfile data"):
// sections of text packets, then the packfile section's side-bands, then a flush. Before version 2 there are lines instead of
// sections, maybe with a flush among them, and the first packet with a band begins the pack. It is fed the stream in any pieces and
// may be told that bytes of a packet's payload went by unseen.
type walker struct {
	data  func([]byte) // gets band 1's bytes; with it nothing is skippable
	older bool         // before version 2
	// section, if not nil, gets the lines before the pack, without their ends and bands; an answer without a pack is then allowed.
	section func(line []byte) error

	state   walkState
	head    [5]byte // four digits and, in the packfile section, the band
	nhead   int
	left    int    // payload bytes of the running packet still to come
	band    byte   // of the running packet
	text    []byte // payload of the running text, progress or error packet, as far as it is kept
	magic   [12]byte
	nmagic  int   // bytes of the pack's own head that were seen
	hasPack bool  // the packfile section has begun
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
func (w *walker) feed(p []byte) error {
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

// headLen is how many bytes have to be seen before a packet's payload: in the packfile section every packet but the special
// ones has a band, which is known only from the digits. Before version 2 a band is what the section begins with.
func (w *walker) headLen() int {
	if (w.state == inPack || w.older) && w.nhead >= 4 {
		return 5
	}
	return 4
}

// beginPacket acts on a packet's head once it is complete.
func (w *walker) beginPacket() error {
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
func (w *walker) special(n int) error {
	switch {
	case n == 0 && (w.state == inPack || w.section != nil):
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
func (w *walker) payload(p []byte) {
	if pktline.Band(w.band) == pktline.BandData {
		w.pack += int64(len(p))
		if w.nmagic < len(w.magic) {
			w.nmagic += copy(w.magic[w.nmagic:], p)
		}
		if w.data != nil {
			w.data(p)
		}
		return
	}
	if room := maxText - len(w.text); room > 0 {
		w.text = append(w.text, p[:min(room, len(p))]...)
	}
}

// endPacket acts on a packet that is complete.
func (w *walker) endPacket() error {
	switch {
	case w.state == inPack && pktline.Band(w.band) == pktline.BandError:
		return serverError(clean(w.text))
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
			return serverError(clean(text[1:]))
		}
	}
	if rest, ok := bytes.CutPrefix(text, []byte("ERR ")); ok {
		return serverError(clean(rest))
	}
	text = bytes.TrimSuffix(text, []byte("\n"))
	if bytes.Equal(text, []byte("packfile")) {
		w.state, w.hasPack = inPack, true
		return nil
	}
	if w.section != nil {
		return w.section(text)
	}
	return nil
}

// skippable is how many of the next bytes are bulk that need not be seen.
func (w *walker) skippable() int64 {
	if w.data == nil && w.state == inPack && pktline.Band(w.band) == pktline.BandData && w.nmagic == len(w.magic) {
		return int64(w.left)
	}
	return 0
}

// skip says that n bytes, at most skippable, went by unseen.
func (w *walker) skip(n int64) error {
	w.pack += n
	w.size += n
	w.left -= int(n)
	if w.left == 0 {
		return w.endPacket()
	}
	return nil
}

// finish is to be called at the end of the stream.
func (w *walker) finish() error {
	switch {
	case w.state != atEnd:
		return fmt.Errorf("the answer ends after %d bytes without its final flush", w.size)
	case w.nmagic < len(w.magic) && (w.hasPack || w.section == nil):
		return errors.New("the packfile section holds no pack")
	}
	return nil
}

// clean makes text from a server fit for one line of a terminal.
func clean(b []byte) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	return strings.TrimSpace(s)
}

// reference is the layout of an answer whose every packet has been walked and whose pack has been verified. An answer of
// the same length is expected to have it too.
type reference struct {
	size    int64 // of the whole answer
	tail    int64 // offset of a band-1 packet near its end; from there on everything is looked at again
	objects uint32
	pack    int64 // bytes of the pack
}

// reference is valid once finish has returned nil.
func (w *walker) reference() *reference {
	tail := w.last[0]
	if tail == 0 {
		tail = w.last[1]
	}
	return &reference{size: w.size, tail: tail, objects: binary.BigEndian.Uint32(w.magic[8:]), pack: w.pack}
}

// serverError is what the server said in an error band or an ERR packet.
type serverError string

func (e serverError) Error() string { return "the server sent an error: " + string(e) }

// errLayout says that the end of an answer as long as the reference could not be followed.
var errLayout = errors.New("the answer is as long as the verified one but laid out in another way")

// checkFetch reads one answer to the end and checks it. With a reference of the same length it looks at the beginning and the
// end and lets the middle go by; otherwise it follows every packet. firstByte is called once the body has begun.
func checkFetch(b *body, h head, ref *reference, w *walker, firstByte func()) error {
	if h.status != 200 {
		return statusError(b, h)
	}
	jump := ref != nil && h.length == ref.size && ref.tail > 0
	for {
		if jump && w.skippable() > 0 && w.size < ref.tail {
			if err := skipTo(b, ref.tail); err != nil {
				return err
			}
			*w = walker{state: inPack, magic: w.magic, nmagic: w.nmagic, size: ref.tail, pack: w.pack, text: w.text}
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
func walk(b *body, w *walker, firstByte func()) error {
	for {
		if done, err := walkStep(b, w, firstByte); done || err != nil {
			return err
		}
	}
}

// walkStep takes one piece of the body.
func walkStep(b *body, w *walker, firstByte func()) (done bool, err error) {
	if n := w.skippable(); n > 0 {
		n, err := b.skip(n)
		if err != nil {
			return false, noEOF(err)
		}
		return false, w.skip(n)
	}
	limit := connBuffer
	if w.data == nil && w.state == inPack && w.nmagic == len(w.magic) {
		limit = frameRead
	}
	p, err := b.next(limit)
	if err == io.EOF {
		return true, w.finish()
	}
	if err != nil {
		return false, err
	}
	if b.size == int64(len(p)) {
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
func skipTo(b *body, offset int64) error {
	for b.size < offset {
		if _, err := b.skip(offset - b.size); err != nil {
			return noEOF(err)
		}
	}
	return nil
}

// drain drops the rest of the body.
func (b *body) drain() error {
	for {
		if _, err := b.skip(discardStep); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// statusError reports an answer other than 200 with the beginning of what it says.
func statusError(b *body, h head) error {
	p, err := b.next(1000)
	text := ""
	if err == nil {
		text = clean(p[:min(len(p), 200)])
		err = b.drain()
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("HTTP status %d; then %w", h.status, err)
	}
	return &httpError{h.status, text, h.retry}
}

// httpError is a whole answer with a status other than 200; the connection can be used again.
type httpError struct {
	status int
	text   string
	retry  bool // with Retry-After
}

// refusal tells whether it is one that a client may try again later.
func (e *httpError) refusal() bool { return e.retry && (e.status == 429 || e.status == 503) }

func (e *httpError) Error() string {
	if e.text == "" {
		return fmt.Sprintf("HTTP status %d", e.status)
	}
	return fmt.Sprintf("HTTP status %d: %s", e.status, e.text)
}
