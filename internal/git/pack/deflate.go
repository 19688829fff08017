package pack

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
)

var errDeflate = errors.New("the deflate stream is damaged")

const (
	fastBits   = 9 // literal and length codes up to this length are decoded by one look into a table
	fewBits    = 7 // the same for distances and for code lengths, which are never longer
	maxCodeLen = 15
	maxCodes   = 288
)

// huffman decodes one canonical code (RFC 1951, section 3.2.2).
type huffman struct {
	fast    [1 << fastBits]uint16 // symbol<<4 | length by the next bits; 0: a longer code, or none
	mask    uint64                // how many of the next bits: 1<<bits - 1
	count   [maxCodeLen + 1]uint16
	symbols [maxCodes]uint16 // by code
}

// build makes the tables for code lengths; false if they are no code. As zlib does, it accepts a code that is not
// complete only if it has at most one symbol, of length 1. The table is for codes of up to width bits.
func (h *huffman) build(lengths []uint8, width int) bool {
	fast := h.fast[:1<<width]
	h.mask = uint64(len(fast) - 1)
	h.count = [maxCodeLen + 1]uint16{}
	for _, n := range lengths {
		h.count[n]++
	}
	h.count[0] = 0
	left, longest := 1, 0
	var next, place [maxCodeLen + 2]uint16
	for n := 1; n <= maxCodeLen; n++ {
		next[n+1] = (next[n] + h.count[n]) << 1
		place[n+1] = place[n] + h.count[n]
		left = left<<1 - int(h.count[n])
		if left < 0 {
			return false
		}
		if h.count[n] > 0 {
			longest = n
		}
	}
	if left > 0 && longest > 1 {
		return false
	}
	if longest > width || left > 0 {
		clear(fast) // else every entry is set below
	}
	for symbol, n := range lengths {
		if n == 0 {
			continue
		}
		h.symbols[place[n]] = uint16(symbol)
		place[n]++
		code := next[n]
		next[n]++
		if int(n) > width {
			continue
		}
		entry := uint16(symbol)<<4 | uint16(n)
		for i := int(bits.Reverse16(code) >> (16 - n)); i < len(fast); i += 1 << n {
			fast[i] = entry
		}
	}
	return true
}

// slow decodes a code bit by bit: its symbol and length; length 0 if there is none.
func (h *huffman) slow(stream uint64) (symbol uint16, length uint8) {
	code, first, index := 0, 0, 0
	for n := 1; n <= maxCodeLen; n++ {
		code |= int(stream & 1)
		stream >>= 1
		count := int(h.count[n])
		if code-count < first {
			return h.symbols[index+code-first], uint8(n)
		}
		index += count
		first = (first + count) << 1
		code <<= 1
	}
	return 0, 0
}

// decode gives the symbol at the head of the stream; length 0 if there is none.
func (h *huffman) decode(stream uint64) (symbol uint16, length uint8) {
	if e := h.fast[stream&h.mask&(1<<fastBits-1)]; e != 0 {
		return e >> 4, uint8(e & 15)
	}
	return h.slow(stream)
}

// Lengths and distances (RFC 1951, section 3.2.5).
var (
	lengthBase = [...]uint16{3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115,
		131, 163, 195, 227, 258}
	lengthBits   = [...]uint8{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
	distanceBase = [...]uint16{1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537,
		2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577}
	distanceBits = [...]uint8{0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13}
	lengthOrder  = [...]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
)

// inflater decodes a deflate stream into a slice whose size is known beforehand, which spares the sliding window of
// compress/flate and most of its cost for each small object.
type inflater struct {
	in     *window
	acc    uint64 // bits read and not used yet, the next is the lowest
	have   int    // how many; below 0: used more than there were
	failed error  // of reading
	out    []byte
	n      int // of out that is filled

	literal, distance huffman
	fixed             bool // literal and distance hold the fixed codes
}

func (z *inflater) reset(in *window, out []byte) {
	z.in, z.out = in, out
	z.acc, z.have, z.n, z.failed = 0, 0, 0, nil
}

// refill makes at least 56 bits available, unless the input ends.
func (z *inflater) refill() {
	w := z.in
	if w.n-w.pos >= 8 {
		z.acc |= binary.LittleEndian.Uint64(w.buf[w.pos:]) << z.have
		w.pos += (63 - z.have) >> 3
		z.have |= 56
		return
	}
	for z.have < 56 {
		c, err := w.ReadByte()
		if err != nil {
			z.failed = err
			return
		}
		z.acc |= uint64(c) << z.have
		z.have += 8
	}
}

// take uses n bits, at most 32.
func (z *inflater) take(n int) (uint32, error) {
	if z.have < n {
		if z.refill(); z.have < n {
			return 0, z.failed
		}
	}
	v := uint32(z.acc & (1<<n - 1))
	z.acc >>= n
	z.have -= n
	return v, nil
}

var errFull = errors.New("the zlib stream is longer than its object")

// run decodes blocks until the last one ends; errFull if they hold more than fits into out.
func (z *inflater) run() error {
	for {
		head, err := z.take(3)
		if err != nil {
			return err
		}
		switch head >> 1 {
		case 0:
			err = z.stored()
		case 1:
			z.setFixed()
			err = z.block()
		case 2:
			if err = z.readCodes(); err == nil {
				err = z.block()
			}
		default:
			err = errDeflate
		}
		if err != nil || head&1 != 0 {
			return err
		}
	}
}

// trailer reads the checksum after the last block.
func (z *inflater) trailer() (uint32, error) {
	if _, err := z.take(z.have & 7); err != nil {
		return 0, err
	}
	v, err := z.take(32)
	return bits.ReverseBytes32(v), err
}

// left is how many bytes of input there are after what was used.
func (z *inflater) left() int64 { return z.in.left() + int64(z.have>>3) }

// stored copies a block that is not compressed.
func (z *inflater) stored() error {
	if _, err := z.take(z.have & 7); err != nil {
		return err
	}
	v, err := z.take(32)
	if err != nil {
		return err
	}
	size := int(v & 0xffff)
	if uint16(v) != ^uint16(v>>16) {
		return errDeflate
	}
	full := size > len(z.out)-z.n
	if full {
		size = len(z.out) - z.n
	}
	for ; size > 0 && z.have > 0; size-- {
		z.out[z.n] = byte(z.acc)
		z.acc >>= 8
		z.have -= 8
		z.n++
	}
	if size > 0 {
		z.acc = 0 // what refill left above the bits that count
		if _, err := io.ReadFull(z.in, z.out[z.n:z.n+size]); err != nil {
			return err
		}
		z.n += size
	}
	if full {
		return errFull
	}
	return nil
}

// setFixed makes the codes of section 3.2.6.
func (z *inflater) setFixed() {
	if z.fixed {
		return
	}
	var lengths [maxCodes]uint8
	for i := range lengths {
		switch {
		case i < 144:
			lengths[i] = 8
		case i < 256:
			lengths[i] = 9
		case i < 280:
			lengths[i] = 7
		default:
			lengths[i] = 8
		}
	}
	z.literal.build(lengths[:], fastBits)
	for i := range 32 {
		lengths[i] = 5
	}
	z.distance.build(lengths[:32], fewBits)
	z.fixed = true
}

// readCodes reads the codes of a block (section 3.2.7).
func (z *inflater) readCodes() error {
	z.fixed = false
	v, err := z.take(14)
	if err != nil {
		return err
	}
	literals, distances, codes := int(v&31)+257, int(v>>5&31)+1, int(v>>10)+4
	if literals > 286 || distances > 30 {
		return errDeflate
	}
	var lengths [286 + 30]uint8
	for i := range codes {
		if v, err = z.take(3); err != nil {
			return err
		}
		lengths[lengthOrder[i]] = uint8(v)
	}
	meta := &z.distance
	if !meta.build(lengths[:19], fewBits) {
		return errDeflate
	}
	clear(lengths[:19])
	if err := z.readLengths(meta, lengths[:literals+distances]); err != nil {
		return err
	}
	if lengths[256] == 0 || !z.literal.build(lengths[:literals], fastBits) ||
		!z.distance.build(lengths[literals:literals+distances], fewBits) {
		return errDeflate
	}
	return nil
}

// readLengths reads run-length coded code lengths.
func (z *inflater) readLengths(meta *huffman, lengths []uint8) error {
	for i := 0; i < len(lengths); {
		if z.have < 32 {
			z.refill()
		}
		symbol, n := meta.decode(z.acc)
		if n == 0 {
			return z.damaged()
		}
		z.acc >>= n
		if z.have -= int(n); z.have < 0 {
			return z.failed
		}
		if symbol < 16 {
			lengths[i] = uint8(symbol)
			i++
			continue
		}
		var v uint32
		var err error
		repeat, value := 0, uint8(0)
		switch symbol {
		case 16:
			if i == 0 {
				return errDeflate
			}
			v, err = z.take(2)
			repeat, value = 3+int(v), lengths[i-1]
		case 17:
			v, err = z.take(3)
			repeat = 3 + int(v)
		default:
			v, err = z.take(7)
			repeat = 11 + int(v)
		}
		if err != nil {
			return err
		}
		if i+repeat > len(lengths) {
			return errDeflate
		}
		for range repeat {
			lengths[i] = value
			i++
		}
	}
	return nil
}

// damaged is the error where no code fits: the input may have ended.
func (z *inflater) damaged() error {
	if z.failed != nil {
		return z.failed
	}
	return errDeflate
}

// block decodes literals and matches until the end-of-block symbol.
func (z *inflater) block() error {
	for {
		z.refill()
		for z.have >= 48 && z.n < len(z.out) { // the longest match needs 48 bits
			e := z.literal.fast[z.acc&(1<<fastBits-1)]
			if e == 0 || e >= 256<<4 {
				break
			}
			z.out[z.n] = byte(e >> 4)
			z.n++
			z.acc >>= e & 15
			z.have -= int(e & 15)
		}
		symbol, n := z.literal.decode(z.acc)
		if n == 0 {
			return z.damaged()
		}
		z.acc >>= n
		if z.have -= int(n); z.have < 0 {
			return z.failed
		}
		if symbol < 256 {
			if z.n == len(z.out) {
				return errFull
			}
			z.out[z.n] = byte(symbol)
			z.n++
			continue
		}
		if symbol == 256 {
			return nil
		}
		if symbol -= 257; int(symbol) >= len(lengthBase) {
			return errDeflate
		}
		extra := lengthBits[symbol]
		size := int(lengthBase[symbol]) + int(z.acc&(1<<extra-1))
		z.acc >>= extra
		z.have -= int(extra)

		if symbol, n = z.distance.decode(z.acc); n == 0 {
			return z.damaged()
		}
		if int(symbol) >= len(distanceBase) {
			return errDeflate
		}
		z.acc >>= n
		extra = distanceBits[symbol]
		back := int(distanceBase[symbol]) + int(z.acc&(1<<extra-1))
		z.acc >>= extra
		if z.have -= int(n) + int(extra); z.have < 0 {
			return z.failed
		}
		if back > z.n {
			return errDeflate
		}
		if !z.repeat(back, size) {
			return errFull
		}
	}
}

// repeat appends size bytes from back bytes ago, which may overlap; false if out is too short.
func (z *inflater) repeat(back, size int) bool {
	from, end := z.n-back, min(z.n+size, len(z.out))
	fits := end-z.n == size
	for z.n < end { // what there is to copy doubles each time
		z.n += copy(z.out[z.n:end], z.out[from:z.n])
	}
	return fits
}
