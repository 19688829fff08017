package httpguard

// chunkByte takes a byte of what stands between chunks (RFC 9112, section 7.1).
func (f *follower) chunkByte(c byte) *Refusal {
	switch f.state {
	case inSize:
		return f.sizeByte(c)
	case inExtension:
		if f.n++; c == '\r' {
			f.state = sizeLF
		} else if classes[c]&text == 0 || f.n > maxExtension {
			return badChunk
		}
		return nil
	case sizeLF:
		f.state = inData
		if f.left == 0 {
			f.state, f.trailing = lineStart, true
		}
		if c == '\n' {
			return nil
		}
	case dataCR:
		f.state = dataLF
		if c == '\r' {
			return nil
		}
	case dataLF:
		f.state, f.n, f.left = inSize, 0, 0
		if c == '\n' {
			return nil
		}
	}
	return badChunk
}

func (f *follower) sizeByte(c byte) *Refusal {
	digit := int64(0)
	switch {
	case c >= '0' && c <= '9':
		digit = int64(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		digit = int64(c|0x20-'a') + 10
	case f.n == 0:
		return badChunk
	case c == '\r':
		f.state = sizeLF
		return nil
	case c == ';':
		f.state, f.n = inExtension, 0
		return nil
	default:
		return badChunk
	}
	if f.n == 0 {
		f.zero = c == '0'
	}
	if f.n++; f.n > maxDigits || f.zero && f.n > maxPadded {
		return badChunk
	}
	f.left = f.left<<4 | digit
	return nil
}
