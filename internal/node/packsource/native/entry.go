package native

// appendEntry appends the header of an entry, for a delta without its base.
func appendEntry(b []byte, kind byte, size int64) []byte {
	c := kind<<4 | byte(size&0xf)
	for size >>= 4; size > 0; size >>= 7 {
		b = append(b, c|0x80)
		c = byte(size & 0x7f)
	}
	return append(b, c)
}

// appendDistance appends the distance from a base to its delta.
func appendDistance(b []byte, distance int64) []byte {
	var buf [10]byte
	at := len(buf) - 1
	buf[at] = byte(distance & 0x7f)
	for distance >>= 7; distance > 0; distance >>= 7 {
		distance--
		at--
		buf[at] = 0x80 | byte(distance&0x7f)
	}
	return append(b, buf[at:]...)
}
