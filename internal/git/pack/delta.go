package pack

import "errors"

var (
	errDeltaShort = errors.New("the delta ends early")
	errDeltaBase  = errors.New("the delta is for a base of another size")
	errDeltaRange = errors.New("the delta copies from outside its base")
	errDeltaSize  = errors.New("the delta makes an object of another size than it says")
	errDeltaOp    = errors.New("the delta has a reserved instruction")
	errSize       = errors.New("a size beyond 2^63")
)

// deltaSize reads one of the two sizes at the head of a delta: little-endian groups of seven bits.
func deltaSize(delta []byte) (size int64, rest []byte, err error) {
	for i, c := range delta {
		if i == 9 {
			return 0, nil, errSize
		}
		size |= int64(c&0x7f) << (7 * i)
		if c&0x80 == 0 {
			return size, delta[i+1:], nil
		}
	}
	return 0, nil, errDeltaShort
}

// deltaSizes reads the head of a delta: the size of the base and of the result.
func deltaSizes(delta []byte) (base, result int64, rest []byte, err error) {
	if base, rest, err = deltaSize(delta); err != nil {
		return 0, 0, nil, err
	}
	result, rest, err = deltaSize(rest)
	return base, result, rest, err
}

// applyDelta runs the instructions (gitformat-pack, "Deltified representation") and fills dst, whose length is the
// result's size, to the last byte.
func applyDelta(dst, base, instructions []byte) error {
	in := instructions
	for len(in) > 0 {
		op := in[0]
		in = in[1:]
		switch {
		case op&0x80 != 0:
			var offset, size uint32
			for i := range 4 {
				if op&(1<<i) != 0 {
					if len(in) == 0 {
						return errDeltaShort
					}
					offset |= uint32(in[0]) << (8 * i)
					in = in[1:]
				}
			}
			for i := range 3 {
				if op&(0x10<<i) != 0 {
					if len(in) == 0 {
						return errDeltaShort
					}
					size |= uint32(in[0]) << (8 * i)
					in = in[1:]
				}
			}
			if size == 0 {
				size = 0x10000
			}
			end := uint64(offset) + uint64(size)
			if end > uint64(len(base)) {
				return errDeltaRange
			}
			if uint64(size) > uint64(len(dst)) {
				return errDeltaSize
			}
			copy(dst, base[offset:end])
			dst = dst[size:]
		case op != 0:
			n := int(op)
			if n > len(in) {
				return errDeltaShort
			}
			if n > len(dst) {
				return errDeltaSize
			}
			copy(dst, in[:n])
			dst, in = dst[n:], in[n:]
		default:
			return errDeltaOp
		}
	}
	if len(dst) > 0 {
		return errDeltaSize
	}
	return nil
}
