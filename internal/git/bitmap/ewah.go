package bitmap

import (
	"encoding/binary"
	"errors"
)

// ewahSize is the size of an EWAH bitmap without words: the number of bits, the number of words, and the position of
// the last marker. Only the number of words is needed.
const ewahSize = 12

// ewah is the words of a compressed bitmap (gitformat-bitmap(5), "Appendix A: Serialization format for an EWAH
// bitmap"). A marker has the bit and the length of a run of equal words, and the number of literal words that follow.
type ewah struct {
	words []byte
	end   int // the place behind the bitmap
}

func ewahAt(b []byte, at int) (ewah, error) {
	if len(b)-at < ewahSize {
		return ewah{}, errors.New("a bitmap is truncated")
	}
	size := 8 * int64(binary.BigEndian.Uint32(b[at+4:]))
	if size > int64(len(b)-at-ewahSize) {
		return ewah{}, errors.New("a bitmap is truncated")
	}
	end := at + ewahSize + int(size)
	return ewah{b[at+8 : end-4], end}, nil
}

// xor changes the bits of to that the bitmap has. Git may write zeros beyond the last word.
func (e ewah) xor(to []uint64) error {
	for b := e.words; len(b) > 0; {
		marker := binary.BigEndian.Uint64(b)
		b = b[8:]
		run, literals := marker>>1&(1<<32-1), marker>>33
		if literals > uint64(len(b)/8) {
			return errors.New("a bitmap has fewer words than a marker of it says")
		}
		same := to[:min(run, uint64(len(to)))]
		if marker&1 != 0 {
			if run > uint64(len(to)) {
				return errBeyond
			}
			for i := range same {
				same[i] = ^same[i]
			}
		}
		to = to[len(same):]
		inside := min(int(literals), len(to))
		for i := range to[:inside] {
			to[i] ^= binary.BigEndian.Uint64(b[8*i:])
		}
		for i := inside; i < int(literals); i++ {
			if binary.BigEndian.Uint64(b[8*i:]) != 0 {
				return errBeyond
			}
		}
		to, b = to[inside:], b[8*literals:]
	}
	return nil
}

var errBeyond = errors.New("a bitmap has bits beyond the last object")

// words is the number of words for a number of bits.
func words(bits int) int { return (bits + 63) / 64 }
