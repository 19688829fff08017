package pack

import (
	"encoding/binary"
	"errors"
	"hash/adler32"
	"math/bits"
)

// inflater inflates zlib streams (RFC 1950, RFC 1951) that are in memory as a whole. Most objects are small, and for
// them it takes half the time of a reader of streams. It is used by one goroutine.
type inflater struct {
	src []byte
	in  int    // of src
	buf uint64 // the next bits, the first is the lowest
	n   uint   // number of bits in buf
	bad bool   // a bit behind the end of src was used

	lengths   [maxLitLen + maxDist]uint8
	litLen    huffman
	distances huffman
	codes     huffman
}

const (
	maxLitLen = 288
	maxDist   = 32
	rootBits  = 9 // codes of at most this length need one look-up
	maxBits   = 15
)

var (
	errInput  = errors.New("the zlib stream ends early")
	errStream = errors.New("the zlib stream is damaged")
)

// An entry of a Huffman table: bits 0-4 are the length of the code, 5-7 the kind, 8-15 the number of extra bits, 16-31
// the value. For a link, the extra bits index a second table, which begins at the value.
const (
	kindLiteral uint32 = iota << 5
	kindBase           // of a length or a distance, to which the extra bits are added
	kindEnd            // of the block
	kindLink
	kindBad
)

const kindMask uint32 = 7 << 5

// huffman decodes a Huffman code. The first 2^rootBits entries are looked up by the next bits.
type huffman struct {
	table []uint32
}

func value(kind, extra, v uint32) uint32 { return v<<16 | extra<<8 | kind }

var (
	lengthCodes   = lengthEntries()
	distanceCodes = distanceEntries()
	plainCodes    = plainEntries()
	fixedLitLen   = fixedLiterals()
	fixedDistance = fixedDistances()
)

// lengthEntries are the literals, the end of block and the lengths (RFC 1951, 3.2.5).
func lengthEntries() (e [maxLitLen]uint32) {
	for i := range 256 {
		e[i] = value(kindLiteral, 0, uint32(i))
	}
	e[256] = value(kindEnd, 0, 0)
	base := uint32(3)
	for i := range 28 {
		extra := uint32(max(i-4, 0) / 4)
		e[257+i] = value(kindBase, extra, base)
		base += 1 << extra
	}
	e[285] = value(kindBase, 0, 258)
	e[286], e[287] = kindBad, kindBad
	return e
}

func distanceEntries() (e [maxDist]uint32) {
	base := uint32(1)
	for i := range 30 {
		extra := uint32(max(i-2, 0) / 2)
		e[i] = value(kindBase, extra, base)
		base += 1 << extra
	}
	e[30], e[31] = kindBad, kindBad
	return e
}

func plainEntries() (e [19]uint32) {
	for i := range e {
		e[i] = value(kindLiteral, 0, uint32(i))
	}
	return e
}

func fixedLiterals() huffman {
	var lengths [maxLitLen]uint8
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
	var h huffman
	h.build(lengths[:], lengthCodes[:])
	return h
}

func fixedDistances() huffman {
	var lengths [maxDist]uint8
	for i := range lengths {
		lengths[i] = 5
	}
	var h huffman
	h.build(lengths[:], distanceCodes[:])
	return h
}

// build makes the table for code lengths. It reports false if they are not those of a complete code. As in zlib, a
// code of a single symbol of length 1, and one without symbols, may be incomplete: its unused bits are errors.
func (h *huffman) build(lengths []uint8, entries []uint32) bool {
	var count [maxBits + 1]int
	for _, l := range lengths {
		count[l]++
	}
	longest := maxBits
	for longest > 0 && count[longest] == 0 {
		longest--
	}
	var next [maxBits + 1]uint32
	code, left := uint32(0), 1
	for l := 1; l <= maxBits; l++ {
		if left = left<<1 - count[l]; left < 0 {
			return false
		}
		code <<= 1
		next[l] = code
		code += uint32(count[l])
	}
	if left > 0 && longest > 1 {
		return false
	}
	if cap(h.table) < 1<<rootBits {
		h.table = make([]uint32, 1<<rootBits, 1<<(rootBits+1))
	}
	h.table = h.table[:1<<rootBits]
	if left > 0 {
		for i := range h.table {
			h.table[i] = kindBad | 1
		}
	}
	if longest > rootBits {
		h.link(count, next, longest)
	}
	for symbol, l := range lengths {
		if l == 0 {
			continue
		}
		reversed := uint32(bits.Reverse16(uint16(next[l]))) >> (16 - l)
		next[l]++
		h.put(reversed, uint(l), entries[symbol])
	}
	return true
}

// link allocates the second tables of the codes that are longer than rootBits. All codes with the same first rootBits
// bits share one.
func (h *huffman) link(count [maxBits + 1]int, next [maxBits + 1]uint32, longest int) {
	first := next[rootBits] + uint32(count[rootBits]) // the first root of longer codes
	for root := first; root < 1<<rootBits; root++ {
		// The codes with this root have at most as many further bits as the longest one that exists.
		size := longest - rootBits
		for l := rootBits + 1; l < longest; l++ {
			if (next[l]+uint32(count[l]))>>(l-rootBits) > root {
				size = l - rootBits
				break
			}
		}
		at := len(h.table)
		for range 1 << size {
			h.table = append(h.table, kindBad|1)
		}
		reversed := bits.Reverse16(uint16(root)) >> (16 - rootBits)
		h.table[reversed] = value(kindLink, uint32(size), uint32(at)) | rootBits
	}
}

// put enters a code, whose bits are in the order in which they are read.
func (h *huffman) put(reversed uint32, length uint, entry uint32) {
	if length <= rootBits {
		for i := reversed; i < 1<<rootBits; i += 1 << length {
			h.table[i] = entry | uint32(length)
		}
		return
	}
	link := h.table[reversed&(1<<rootBits-1)]
	at, size, rest := link>>16, link>>8&0xff, length-rootBits
	for i := reversed >> rootBits; i < 1<<size; i += 1 << rest {
		h.table[at+i] = entry | uint32(rest)
	}
}

// refill makes at least 56 bits available, zeros behind the end of src.
func (z *inflater) refill() {
	if z.in+8 <= len(z.src) {
		z.buf |= binary.LittleEndian.Uint64(z.src[z.in:]) << z.n
		z.in += int(63-z.n) >> 3
		z.n |= 56
		return
	}
	for z.n <= 56 {
		if z.in < len(z.src) {
			z.buf |= uint64(z.src[z.in]) << z.n
		} else if z.in > len(z.src)+8 {
			z.bad = true
		}
		z.in++
		z.n += 8
	}
}

// take returns the next bits, of which refill made enough available.
func (z *inflater) take(n uint) uint32 {
	v := uint32(z.buf) & (1<<n - 1)
	z.buf >>= n
	z.n -= n
	return v
}

// inflate inflates the stream at the beginning of src, which must hold exactly len(dst) bytes, and checks its checksum.
// It returns the length of the stream. The error is errInput if src is too short.
func (z *inflater) inflate(dst, src []byte) (length int, err error) {
	if len(src) < 2 {
		return 0, errInput
	}
	if src[0]&0xf != 8 || src[0]>>4 > 7 || binary.BigEndian.Uint16(src)%31 != 0 || src[1]&0x20 != 0 {
		return 0, errStream
	}
	z.src, z.in, z.buf, z.n, z.bad = src, 2, 0, 0, false
	defer func() { z.src = nil }()
	out := 0
	for last := false; !last; {
		z.refill()
		last = z.take(1) == 1
		switch z.take(2) {
		case 0:
			out, err = z.stored(dst, out)
		case 1:
			out, err = z.block(dst, out, &fixedLitLen, &fixedDistance)
		case 2:
			if err = z.readCodes(); err == nil {
				out, err = z.block(dst, out, &z.litLen, &z.distances)
			}
		default:
			err = errStream
		}
		if z.bad || z.in-int(z.n/8) > len(src) {
			return 0, errInput
		}
		if err != nil {
			return 0, err
		}
	}
	end := z.in - int(z.n/8)
	if end+4 > len(src) {
		return 0, errInput
	}
	if out < len(dst) {
		return 0, errShort
	}
	if binary.BigEndian.Uint32(src[end:]) != adler32.Checksum(dst) {
		return 0, errStream
	}
	return end + 4, nil
}

// stored copies a block that is not compressed.
func (z *inflater) stored(dst []byte, out int) (int, error) {
	z.in -= int(z.n / 8)
	z.buf, z.n = 0, 0
	if z.in+4 > len(z.src) {
		return out, z.short()
	}
	size := binary.LittleEndian.Uint16(z.src[z.in:])
	if size != ^binary.LittleEndian.Uint16(z.src[z.in+2:]) {
		return out, errStream
	}
	z.in += 4
	if z.in+int(size) > len(z.src) {
		return out, z.short()
	}
	if int(size) > len(dst)-out {
		return out, errLong
	}
	copy(dst[out:], z.src[z.in:z.in+int(size)])
	z.in += int(size)
	return out + int(size), nil
}

func (z *inflater) short() error {
	z.bad = true
	return errInput
}

// codeOrder is the order of the lengths of the code for code lengths.
var codeOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// readCodes reads the codes of a block with dynamic Huffman codes (RFC 1951, 3.2.7).
func (z *inflater) readCodes() error {
	z.refill()
	literals, distances, codes := int(z.take(5))+257, int(z.take(5))+1, int(z.take(4))+4
	if literals > 286 || distances > 30 {
		return errStream
	}
	var lengths [19]uint8
	for i := range codes {
		if z.n < 3 {
			z.refill()
		}
		lengths[codeOrder[i]] = uint8(z.take(3))
	}
	if !z.codes.build(lengths[:], plainCodes[:]) {
		return errStream
	}
	all := z.lengths[:literals+distances]
	for i := 0; i < len(all); {
		if z.refill(); z.bad {
			return errInput
		}
		e := z.codes.table[z.buf&(1<<rootBits-1)]
		if e&kindMask != kindLiteral {
			return errStream
		}
		z.take(uint(e & 31))
		symbol := e >> 16
		if symbol < 16 {
			all[i] = uint8(symbol)
			i++
			continue
		}
		length, repeat := uint8(0), 0
		switch symbol {
		case 16:
			if i == 0 {
				return errStream
			}
			length, repeat = all[i-1], int(z.take(2))+3
		case 17:
			repeat = int(z.take(3)) + 3
		default:
			repeat = int(z.take(7)) + 11
		}
		if repeat > len(all)-i {
			return errStream
		}
		for ; repeat > 0; repeat-- {
			all[i] = length
			i++
		}
	}
	if all[256] == 0 || !z.litLen.build(all[:literals], lengthCodes[:]) ||
		!z.distances.build(all[literals:], distanceCodes[:]) {
		return errStream
	}
	return nil
}

// block inflates a block from dst[out] on. It returns the new out.
func (z *inflater) block(dst []byte, out int, litLen, distances *huffman) (int, error) {
	for {
		if z.n < 48 { // the longest length with its extra bits, and its distance, take 20 + 28
			if z.refill(); z.bad {
				return out, errInput
			}
		}
		e := litLen.look(z)
		switch e & kindMask {
		case kindLiteral:
			if out == len(dst) {
				return out, errLong
			}
			dst[out] = byte(e >> 16)
			out++
		case kindBase:
			length := int(e>>16) + int(z.take(uint(e>>8&0xff)))
			e = distances.look(z)
			if e&kindMask != kindBase {
				return out, errStream
			}
			distance := int(e>>16) + int(z.take(uint(e>>8&0xff)))
			if distance > out {
				return out, errStream
			}
			if length > len(dst)-out {
				return out, errLong
			}
			if distance >= length {
				copy(dst[out:out+length], dst[out-distance:])
				out += length
				continue
			}
			for ; length > 0; length-- {
				dst[out] = dst[out-distance]
				out++
			}
		case kindEnd:
			return out, nil
		default:
			return out, errStream
		}
	}
}

// look takes the next code, and returns its entry.
func (h *huffman) look(z *inflater) uint32 {
	e := h.table[z.buf&(1<<rootBits-1)]
	if e&kindMask == kindLink {
		z.take(rootBits)
		e = h.table[e>>16+uint32(z.buf)&(1<<(e>>8&0xff)-1)]
	}
	z.take(uint(e & 31))
	return e
}
