package httpguard

// follower follows what a client sends, from one request to the next: RFC 9112, sections 2 to 7, without the parts that recipients read in
// different ways. It keeps a few bytes of a head, and none of a body.
type follower struct {
	state state
	blank int   // empty lines before the request line
	left  int64 // bytes of the body, or of the chunk
	n     int   // bytes of what is read now: the method, the version, a header's name, a chunk's size or its extension

	head
	word  [18]byte // the method, the version; a header's name in small letters
	value [24]byte // of a header that counts here; what is longer is none that we take
	size  int      // bytes of it
}

// head is what counts of a request's head.
type head struct {
	method           method
	old              bool // HTTP/1.0
	field            field
	host, length, te bool // was there
	some             bool // the value is more than spaces
	trailing         bool // the headers are trailers
	zero             bool // a chunk's size begins with 0
}

type state uint8

const (
	between state = iota // nothing of a request has come
	blankLF
	inMethod
	targetStart
	inTarget
	asterisk
	inVersion
	versionLF
	lineStart
	inName
	inValue
	valueLF
	headLF
	inBody // states from here on: the head is over
	inSize
	inExtension
	sizeLF
	inData
	dataCR
	dataLF
)

type method uint8

const (
	otherMethod method = iota
	isHEAD
	isOPTIONS
	isCONNECT
	isPROXY // the first word of a PROXY protocol header, version 1
	isPRI   // of the HTTP/2 connection preface (RFC 9113, section 3.4)
)

type field uint8

const (
	otherField field = iota
	isHost
	isLength
	isEncoding
	isFraming // another one that no trailer may be
)

const (
	maxBlank     = 2    // empty lines before a request, which some clients have sent behind a body
	maxExtension = 1024 // bytes of a chunk's extension
	maxDigits    = 15   // of a chunk's size: it fits into an int64
	maxPadded    = 8    // of one that begins with 0
	maxLength    = 18   // digits of Content-Length
)

// What a byte may be part of.
const (
	token = 1 << iota // RFC 9110, section 5.6.2
	text              // of a header's value: RFC 9110, section 5.5
	graph             // of a target; what a URL may not have is the business of who parses it
)

var classes = func() (c [256]uint8) {
	for i := range c {
		if i >= ' ' && i != 0x7f || i == '\t' {
			c[i] |= text
		}
		if i > ' ' && i != 0x7f {
			c[i] |= graph
		}
		if i >= '0' && i <= '9' || i >= 'a' && i <= 'z' || i >= 'A' && i <= 'Z' {
			c[i] |= token
		}
	}
	for _, b := range []byte("!#$%&'*+-.^_`|~") {
		c[b] |= token
	}
	return c
}()

// inHead tells that a head has begun and is not over, or that none has begun.
func (f *follower) inHead() bool { return f.state < inBody && !f.trailing }

// follow goes over what came next, and gives how much of it is in order: all, or what stands before the end of a request or before a fault.
func (f *follower) follow(p []byte) (n int, bad *Refusal) {
	for n < len(p) && bad == nil {
		switch f.state {
		case inBody, inData:
			took := min(f.left, int64(len(p)-n))
			n += int(took)
			if f.left -= took; f.left > 0 {
				return n, nil
			}
			if f.state == inBody {
				f.end()
				return n, nil
			}
			f.state = dataCR
		case inValue:
			from := n
			for n < len(p) && classes[p[n]]&text != 0 {
				n++
			}
			if f.field != otherField {
				f.keep(p[from:n])
			}
			if n == len(p) {
				return n, nil
			}
			if bad = f.step(p[n]); bad == nil {
				n++
			}
		case inTarget:
			for n < len(p) && classes[p[n]]&graph != 0 {
				n++
			}
			if n == len(p) {
				return n, nil
			}
			if bad = f.step(p[n]); bad == nil {
				n++
			}
		case inName:
			for n < len(p) && classes[p[n]]&token != 0 {
				f.letter(p[n] | 0x20)
				n++
			}
			if n == len(p) {
				return n, nil
			}
			if bad = f.step(p[n]); bad == nil {
				n++
			}
		case headLF:
			if p[n] != '\n' {
				return n, badEnd
			}
			if bad = f.endHead(); bad != nil {
				return n, bad
			}
			if n++; f.state == between {
				return n, nil
			}
		default:
			if bad = f.step(p[n]); bad == nil {
				n++
			}
		}
	}
	return n, bad
}

// step takes one byte.
func (f *follower) step(c byte) *Refusal {
	switch f.state {
	case between:
		if c == '\r' && f.blank < maxBlank {
			f.state = blankLF
			return nil
		}
		if c == 0 && f.blank == maxBlank { // as a PROXY protocol header begins, version 2
			return proxyHeader
		}
		f.state, f.n, f.head = inMethod, 0, head{}
		return f.methodByte(c)
	case blankLF:
		f.blank++
		return f.lineFeed(c, between)
	case inMethod:
		return f.methodByte(c)
	case targetStart:
		return f.beginTarget(c)
	case inTarget:
		if c == ' ' {
			f.state, f.n = inVersion, 0
			return nil
		}
		return odd(c, badLine)
	case asterisk:
		f.state, f.n = inVersion, 0
		if c == ' ' {
			return nil
		}
		return badTarget
	case inVersion:
		return f.versionByte(c)
	case versionLF, valueLF:
		return f.lineFeed(c, lineStart)
	case lineStart:
		return f.beginLine(c)
	case inName:
		if c != ':' {
			return badName
		}
		return f.colon()
	case inValue:
		if c != '\r' {
			return odd(c, control)
		}
		f.state = valueLF
		return f.endField()
	}
	return f.chunkByte(c)
}

// odd is the refusal for a byte that nothing in a head may have; other for one that some parts of it may.
func odd(c byte, other *Refusal) *Refusal {
	switch {
	case c == '\r' || c == '\n':
		if other == control {
			return badEnd
		}
		return other
	case classes[c]&text == 0:
		return control
	}
	return other
}

func (f *follower) lineFeed(c byte, next state) *Refusal {
	f.state = next
	if c != '\n' {
		return badEnd
	}
	return nil
}

// letter takes one of a word.
func (f *follower) letter(c byte) {
	if f.n < len(f.word) {
		f.word[f.n] = c
	}
	f.n++
}

func (f *follower) methodByte(c byte) *Refusal {
	switch {
	case classes[c]&token != 0:
		f.letter(c)
		return nil
	case c != ' ' || f.n == 0:
		return badLine
	}
	switch string(f.word[:min(f.n, len(f.word))]) {
	case "HEAD":
		f.method = isHEAD
	case "OPTIONS":
		f.method = isOPTIONS
	case "CONNECT":
		f.method = isCONNECT
	case "PROXY":
		f.method = isPROXY
	case "PRI":
		f.method = isPRI
	}
	f.state = targetStart
	return nil
}

func (f *follower) beginTarget(c byte) *Refusal {
	switch {
	case f.method == isCONNECT:
		return badTarget
	case f.method == isPROXY && c != '/':
		return proxyHeader
	case f.method == isPRI && c == '*':
		return http2
	case c == '/':
		f.state = inTarget
		return nil
	case c == '*' && f.method == isOPTIONS:
		f.state = asterisk
		return nil
	case classes[c]&graph != 0:
		return badTarget
	}
	return odd(c, badLine)
}

func (f *follower) versionByte(c byte) *Refusal {
	const pattern = "HTTP/0.0"
	if c == '\n' {
		return badEnd
	} else if c != '\r' {
		if classes[c]&graph == 0 || f.n == len(pattern) {
			return odd(c, badLine)
		}
		f.letter(c)
		return nil
	}
	version := f.word[:min(f.n, len(f.word))]
	switch string(version) {
	case "HTTP/1.1":
		f.state = versionLF
		return nil
	case "HTTP/1.0":
		f.state, f.old = versionLF, true
		return nil
	}
	if len(version) == len(pattern) && string(version[:5]) == pattern[:5] && version[6] == '.' {
		return badVersion
	}
	return badLine
}

// beginLine begins a header, or ends the head.
func (f *follower) beginLine(c byte) *Refusal {
	switch {
	case c == '\r':
		f.state = headLF
		return nil
	case c == ' ' || c == '\t':
		return folded
	case classes[c]&token == 0:
		if c == '\n' {
			return badEnd
		}
		return odd(c, badName)
	}
	f.state, f.n = inName, 0
	f.letter(c | 0x20) // nothing but a capital letter becomes a letter by that
	return nil
}

// colon ends a header's name.
func (f *follower) colon() *Refusal {
	f.state, f.field, f.size, f.some = inValue, otherField, 0, false
	if f.n > len(f.word) {
		return nil
	}
	switch string(f.word[:f.n]) {
	case "host":
		f.field = isHost
	case "content-length":
		f.field = isLength
	case "transfer-encoding":
		f.field = isEncoding
	case "connection", "trailer", "upgrade", "te", "expect":
		f.field = isFraming
	}
	switch {
	case !f.trailing:
	case f.field != otherField:
		return badTrailer
	}
	return nil
}

// keep notes the value of a header that counts.
func (f *follower) keep(p []byte) {
	for _, c := range p {
		f.some = f.some || c != ' ' && c != '\t'
		if f.size < len(f.value) {
			f.value[f.size] = c
		}
		f.size++
	}
}

// endField looks at a header that is whole.
func (f *follower) endField() *Refusal {
	switch f.field {
	case isHost:
		if f.host || !f.some {
			return badHost
		}
		f.host = true
	case isLength:
		if f.length {
			return badLength
		}
		f.length = true
		return f.parseLength()
	case isEncoding:
		if f.te || f.old || !f.isChunked() {
			return badEncoding
		}
		f.te = true
	}
	return nil
}

// parseLength reads Content-Length, in one of the ways in which everybody reads the same: no sign, no list, nothing that C takes for octal.
func (f *follower) parseLength() *Refusal {
	from, to := 0, f.size
	if to > len(f.value) {
		return badLength
	}
	for from < to && (f.value[from] == ' ' || f.value[from] == '\t') {
		from++
	}
	for from < to && (f.value[to-1] == ' ' || f.value[to-1] == '\t') {
		to--
	}
	digits := f.value[from:to]
	if len(digits) == 0 || len(digits) > maxLength || digits[0] == '0' && len(digits) > 1 {
		return badLength
	}
	f.left = 0
	for _, c := range digits {
		if c < '0' || c > '9' {
			return badLength
		}
		f.left = f.left*10 + int64(c-'0')
	}
	return nil
}

// isChunked reads Transfer-Encoding. Other spaces than one before it are what some read past, and others do not.
func (f *follower) isChunked() bool {
	value := f.value[:min(f.size, len(f.value))]
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	const chunked = "chunked"
	if len(value) != len(chunked) {
		return false
	}
	for i, c := range value {
		if c|0x20 != chunked[i] {
			return false
		}
	}
	return true
}

// endHead looks at a head that is whole, or at trailers.
func (f *follower) endHead() *Refusal {
	switch {
	case f.trailing:
		f.end()
	case !f.host && !f.old:
		return badHost
	case f.te && f.length:
		return twoLengths
	case f.te:
		f.state, f.n, f.left = inSize, 0, 0
	case f.length && f.left > 0:
		f.state = inBody
	default:
		f.end()
	}
	return nil
}

// end ends a request.
func (f *follower) end() { f.state, f.blank, f.head = between, 0, head{} }
