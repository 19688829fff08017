package page

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
	g "maragu.dev/gomponents"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Packed is the main part of a page, rendered and compressed. It becomes a part of gzip streams (RFC 1952) as it is. It
// refers to no text around it. So the size of a response does not depend on the likeness of the visitor's text and
// other text (BREACH).
type Packed struct {
	blocks []byte // of deflate (RFC 1951), none of them the last one, up to a byte's end
	size   int    // of the text
	sum    uint32 // CRC-32 of the text
	shift  uint32 // see shiftOf
}

// compressors compress fast rather than well: a page may be requested only once.
var compressors = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // the level is valid
	return w
}}

// Pack renders and compresses the main part of a page.
func Pack(main g.Node) (Packed, error) {
	var text, b bytes.Buffer
	if err := main.Render(&text); err != nil {
		return Packed{}, fault.Wrap(fault.Internal, "cannot render the page", err)
	}
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&b)
	_, _ = w.Write(text.Bytes()) // a buffer does not fail
	_ = w.Flush()
	return Packed{bytes.Clone(b.Bytes()), text.Len(), crc32.ChecksumIEEE(text.Bytes()), shiftOf(text.Len())}, nil
}

// Size is the memory of the text in bytes.
func (p *Packed) Size() int { return len(p.blocks) }

// Text returns the text.
func (p *Packed) Text() ([]byte, error) {
	text := make([]byte, p.size)
	if _, err := io.ReadFull(flate.NewReader(bytes.NewReader(p.blocks)), text); err != nil {
		return nil, fault.Wrap(fault.Internal, "cannot unpack the page", err)
	}
	return text, nil
}

// Len returns the number of bytes of the text.
func (p *Packed) Len() int { return p.size }

// SendPacked sends a page whose main part is packed. name is its name in metrics. The page is sent compressed if the
// client accepts that, unless the address has a query string. A page may repeat that, and must not show by its size
// that it has more text like it.
func (s *Site) SendPacked(w http.ResponseWriter, r *http.Request, name string, head Head, main *Packed) error {
	var b bytes.Buffer
	b.Grow(4096)
	start := 0
	if err := s.Frame(head, g.NodeFunc(func(io.Writer) error {
		start = b.Len()
		return nil
	})).Render(&b); err != nil {
		return fault.Wrap(fault.Internal, "cannot render the page", err)
	}
	begin, end := b.Bytes()[:start], b.Bytes()[start:]
	const contentType = "text/html; charset=utf-8"
	w.Header().Add("Vary", "Accept-Encoding")
	if r.URL.RawQuery == "" && acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		text := append(make([]byte, 0, len(main.blocks)+b.Len()+64), gzipHeader...)
		text = append(storedBlocks(text, begin, false), main.blocks...)
		text = storedBlocks(text, end, true)
		sum := crc32.Update(multiply(main.shift, crc32.ChecksumIEEE(begin))^main.sum, crc32.IEEETable, end)
		text = binary.LittleEndian.AppendUint32(text, sum)
		text = binary.LittleEndian.AppendUint32(text, uint32(b.Len()+main.size))
		return s.SendText(w, r, http.StatusOK, name, contentType, text)
	}
	text, err := main.Text()
	if err != nil {
		return err
	}
	return s.SendText(w, r, http.StatusOK, name, contentType, begin, text, end)
}

// acceptsGzip reports whether a client accepts responses in gzip (RFC 9110, section 12.5.3).
func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(strings.Join(r.Header["Accept-Encoding"], ","), ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return strings.Trim(weight, " q=0.") != "" || strings.TrimSpace(weight) == ""
		}
	}
	return false
}

var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}

// storedBlocks appends text in deflate's blocks that are not compressed. The last one may be that of the stream.
func storedBlocks(b, text []byte, isLast bool) []byte {
	for {
		n := min(len(text), 1<<16-1)
		kind := byte(0)
		if isLast && n == len(text) {
			kind = 1
		}
		b = append(b, kind, byte(n), byte(n>>8), ^byte(n), ^byte(n>>8))
		b, text = append(b, text[:n]...), text[n:]
		if len(text) == 0 {
			return b
		}
	}
}

// shiftOf returns the factor of the CRC-32 of a text before n more bytes: the polynomial x^8n modulo that of CRC-32.
// The highest bit is that of x^0.
func shiftOf(n int) uint32 {
	p := uint32(1) << 31
	for x := uint32(1) << 23; n > 0; n >>= 1 {
		if n&1 != 0 {
			p = multiply(x, p)
		}
		x = multiply(x, x)
	}
	return p
}

// multiply multiplies polynomials modulo that of CRC-32.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}
