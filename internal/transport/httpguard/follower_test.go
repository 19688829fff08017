package httpguard

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	get  = "GET /a HTTP/1.1\r\nHost: a\r\n"
	post = "POST /a HTTP/1.1\r\nHost: a\r\n"
	te   = "Transfer-Encoding: chunked\r\n"
)

// shapes are requests that are refused, and the reasons.
var shapes = map[string]struct {
	request string
	why     *Refusal
}{
	"length, chunks":             {post + "Content-Length: 3\r\n" + te + "\r\n0\r\n\r\n", twoLengths},
	"chunks, length":             {post + te + "content-length: 5\r\n\r\n0\r\n\r\n", twoLengths},
	"chunks, length 0":           {post + "TRANSFER-ENCODING: Chunked\r\nCONTENT-LENGTH: 0\r\n\r\n0\r\n\r\n", twoLengths},
	"two lengths":                {post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", badLength},
	"the same length twice":      {post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", badLength},
	"list of lengths":            {post + "Content-Length: 1, 1\r\n\r\na", badLength},
	"signed length":              {post + "Content-Length: +1\r\n\r\na", badLength},
	"negative length":            {post + "Content-Length: -1\r\n\r\na", badLength},
	"octal length":               {post + "Content-Length: 010\r\n\r\n1234567890", badLength},
	"hexadecimal length":         {post + "Content-Length: 0x1\r\n\r\na", badLength},
	"length with a space":        {post + "Content-Length: 1 0\r\n\r\na", badLength},
	"length with an underscore":  {post + "Content-Length: 1_0\r\n\r\na", badLength},
	"no length":                  {post + "Content-Length:\r\n\r\n", badLength},
	"length of spaces":           {post + "Content-Length: \t \r\n\r\n", badLength},
	"long length":                {post + "Content-Length: 1234567890123456789\r\n\r\n", badLength},
	"other encoding":             {post + "Transfer-Encoding: gzip\r\n\r\n", badCoding},
	"identity":                   {post + "Transfer-Encoding: identity\r\n\r\n", badCoding},
	"chunked and more":           {post + "Transfer-Encoding: chunked, identity\r\n\r\n", badCoding},
	"more and chunked":           {post + "Transfer-Encoding: gzip, chunked\r\n\r\n", badCoding},
	"x before chunked":           {post + "Transfer-Encoding: xchunked\r\n\r\n", badCoding},
	"x behind chunked":           {post + "Transfer-Encoding: chunkedx\r\n\r\n", badCoding},
	"quoted chunked":             {post + "Transfer-Encoding: \"chunked\"\r\n\r\n", badCoding},
	"chunked with a parameter":   {post + "Transfer-Encoding: chunked;q=1\r\n\r\n", badCoding},
	"tab before chunked":         {post + "Transfer-Encoding:\tchunked\r\n\r\n", badCoding},
	"two spaces before chunked":  {post + "Transfer-Encoding:  chunked\r\n\r\n", badCoding},
	"a space behind chunked":     {post + "Transfer-Encoding: chunked \r\n\r\n", badCoding},
	"chunked twice":              {post + te + te + "\r\n0\r\n\r\n", badCoding},
	"no encoding":                {post + "Transfer-Encoding:\r\n\r\n", badCoding},
	"chunks in HTTP/1.0":         {"POST /a HTTP/1.0\r\nHost: a\r\n" + te + "\r\n0\r\n\r\n", badCoding},
	"not chunked, by a bit":      {post + "Transfer-Encoding: \x43\x48\x55\x4e\x4b\x45\x64\x0b\r\n\r\n", control},
	"folded":                     {get + "X: a\r\n b\r\n\r\n", folded},
	"folded by a tab":            {get + "X: a\r\n\tb\r\n\r\n", folded},
	"folded length":              {post + "Content-Length:\r\n 1\r\n\r\na", badLength},
	"folded chunked":             {post + "Content-Length: 3\r\nX: a\r\n Transfer-Encoding: chunked\r\n\r\nabc", folded},
	"first header folded":        {"GET /a HTTP/1.1\r\n Host: a\r\n\r\n", folded},
	"a fold of nothing":          {get + " \r\n\r\n", folded},
	"a space before the colon":   {post + "Content-Length : 1\r\n\r\na", badName},
	"a tab before the colon":     {post + "Transfer-Encoding\t: chunked\r\n\r\n", badName},
	"a space in a name":          {get + "X Y: a\r\n\r\n", badName},
	"no colon":                   {get + "X\r\n\r\n", badName},
	"no name":                    {get + ": a\r\n\r\n", badName},
	"letters of other languages": {get + "X\xc3\xa9: a\r\n\r\n", badName},
	"NUL in a name":              {get + "X\x00: a\r\n\r\n", control},
	"NUL before a name":          {get + "\x00X: a\r\n\r\n", control},
	"NUL in a value":             {get + "X: a\x00b\r\n\r\n", control},
	"DEL in a value":             {get + "X: a\x7f\r\n\r\n", control},
	"CR in a value":              {get + "X: a\rContent-Length: 1\r\n\r\n", badEnd},
	"CR CR LF":                   {get + "X: a\r\r\n\r\n", badEnd},
	"LF behind a value":          {get + "X: a\nContent-Length: 1\r\n\r\n", badEnd},
	"LF for the empty line":      {get + "\n", badEnd},
	"LF for all":                 {"GET /a HTTP/1.1\nHost: a\n\n", badEnd},
	"CR X for the empty line":    {get + "\rX\n", badEnd},
	"CR LF in the target":        {"GET /a\r\nHost: a\r\n\r\n", badLine},
	"absolute form":              {"GET http://a/a HTTP/1.1\r\nHost: a\r\n\r\n", badTarget},
	"absolute form, TLS":         {"POST HTTPS://a/a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", badTarget},
	"authority form":             {"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", badTarget},
	"authority form of a GET":    {"GET a:443 HTTP/1.1\r\nHost: a\r\n\r\n", badTarget},
	"CONNECT to a path":          {"CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n", badTarget},
	"a path without a slash":     {"GET a HTTP/1.1\r\nHost: a\r\n\r\n", badTarget},
	"a query alone":              {"GET ?a HTTP/1.1\r\nHost: a\r\n\r\n", badTarget},
	"an asterisk":                {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", badTarget},
	"an asterisk and more":       {"OPTIONS *a HTTP/1.1\r\nHost: a\r\n\r\n", badTarget},
	"no target":                  {"GET  HTTP/1.1\r\nHost: a\r\n\r\n", badLine},
	"a space in the target":      {"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", badLine},
	"two spaces":                 {"GET /a  HTTP/1.1\r\nHost: a\r\n\r\n", badLine},
	"a tab for a space":          {"GET\t/a HTTP/1.1\r\nHost: a\r\n\r\n", badLine},
	"a space behind the version": {"GET /a HTTP/1.1 \r\nHost: a\r\n\r\n", badLine},
	"a control in the target":    {"GET /a\x01 HTTP/1.1\r\nHost: a\r\n\r\n", control},
	"no method":                  {" /a HTTP/1.1\r\nHost: a\r\n\r\n", badLine},
	"HTTP/0.9":                   {"GET /a\r\n", badLine},
	"HTTP/1.2":                   {"GET /a HTTP/1.2\r\nHost: a\r\n\r\n", badVersion},
	"HTTP/2.0":                   {"GET /a HTTP/2.0\r\nHost: a\r\n\r\n", badVersion},
	"HTTP/2, as it begins":       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", badVersion},
	"PROXY protocol":             {"PROXY TCP4 192.0.2.7 192.0.2.8 5555 80\r\n", proxyHeader},
	"http/1.1":                   {"GET /a http/1.1\r\nHost: a\r\n\r\n", badLine},
	"HTTP/1.10":                  {"GET /a HTTP/1.10\r\nHost: a\r\n\r\n", badLine},
	"TLS":                        {"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", badLine},
	"no host":                    {"GET /a HTTP/1.1\r\nX: a\r\n\r\n", badHost},
	"empty host":                 {"GET /a HTTP/1.1\r\nHost:  \r\n\r\n", badHost},
	"two hosts":                  {get + "host: b\r\n\r\n", badHost},
	"the same host twice":        {get + "Host: a\r\n\r\n", badHost},
	"two hosts, HTTP/1.0":        {"GET /a HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", badHost},
	"many empty lines":           {"\r\n\r\n\r\n" + get + "\r\n", badLine},
	"an empty line of LF":        {"\n" + get + "\r\n", badLine},
	"no size":                    {post + te + "\r\n\r\n", badChunk},
	"negative size":              {post + te + "\r\n-1\r\na\r\n0\r\n\r\n", badChunk},
	"signed size":                {post + te + "\r\n+1\r\na\r\n0\r\n\r\n", badChunk},
	"size with 0x":               {post + te + "\r\n0x1\r\na\r\n0\r\n\r\n", badChunk},
	"space before a size":        {post + te + "\r\n 1\r\na\r\n0\r\n\r\n", badChunk},
	"space behind a size":        {post + te + "\r\n1 \r\na\r\n0\r\n\r\n", badChunk},
	"space before an extension":  {post + te + "\r\n1 ;a\r\na\r\n0\r\n\r\n", badChunk},
	"overflow":                   {post + te + "\r\n1000000000000001\r\na\r\n0\r\n\r\n", badChunk},
	"padded size":                {post + te + "\r\n000000001\r\na\r\n0\r\n\r\n", badChunk},
	"padded last size":           {post + te + "\r\n1\r\na\r\n000000000\r\n\r\n", badChunk},
	"LF behind a size":           {post + te + "\r\n1\na\r\n0\r\n\r\n", badChunk},
	"CR behind a size":           {post + te + "\r\n1\ra\r\n0\r\n\r\n", badChunk},
	"LF in an extension":         {post + te + "\r\n1;a\nb\r\na\r\n0\r\n\r\n", badChunk},
	"NUL in an extension":        {post + te + "\r\n1;a\x00\r\na\r\n0\r\n\r\n", badChunk},
	"long extension":             {post + te + "\r\n1;" + strings.Repeat("a", maxSize) + "\r\na\r\n0\r\n\r\n", badChunk},
	"a longer chunk":             {post + te + "\r\n1\r\nab\r\n0\r\n\r\n", badChunk},
	"LF behind a chunk":          {post + te + "\r\n1\r\na\n0\r\n\r\n", badChunk},
	"length in a trailer":        {post + te + "\r\n0\r\nContent-Length: 1\r\n\r\n", badTrailer},
	"encoding in a trailer":      {post + te + "\r\n0\r\nX: a\r\ntransfer-encoding: chunked\r\n\r\n", badTrailer},
	"host in a trailer":          {post + te + "\r\n0\r\nHost: b\r\n\r\n", badTrailer},
	"folded trailer":             {post + te + "\r\n0\r\nX: a\r\n b\r\n\r\n", folded},
	"a trailer that is none":     {post + te + "\r\n0\r\nGET / HTTP/1.1\r\n\r\n", badName},
	"LF behind a trailer":        {post + te + "\r\n0\r\nX: a\n\r\n", badEnd},
}

// requests are accepted.
var requests = map[string]string{
	"GET":                   get + "\r\n",
	"a body":                post + "Content-Length: 3\r\n\r\nabc",
	"no body":               post + "Content-Length: 0\r\n\r\n",
	"a body that looks odd": post + "Content-Length: 35\r\n\r\nGET /b HTTP/1.1\nTransfer-Encoding:\x00",
	"spaces":                post + "Content-Length:\t 3 \r\nX:\r\nY:  \r\n\r\nabc",
	"chunks":                post + te + "\r\n3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\n",
	"padded chunks":         post + "Transfer-Encoding:chunked\r\n\r\n00000003\r\nabc\r\n000\r\n\r\n",
	"trailers":              post + te + "Trailer: X\r\n\r\n0\r\nX: a\r\nY: b\r\n\r\n",
	"HTTP/1.0":              "GET /a HTTP/1.0\r\n\r\n",
	"HTTP/1.0, a body":      "POST /a HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
	"OPTIONS":               "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
	"long":                  get + "X: " + strings.Repeat("a", 5000) + "\r\n" + strings.Repeat("a", 5000) + ": b\r\n\r\n",
	"UTF-8":                 "GET /\xc3\xa9?\xff# HTTP/1.1\r\nHost: a\r\nX: \xc3\xa9\r\n\r\n",
	"upgrade":               get + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
}

// frames lets a follower follow a stream in parts of the sizes that next returns. It returns where requests end at the
// end of a part, and why and where the follower stops.
func frames(stream []byte, next func() int) (ends []int, at int, why *Refusal) {
	var f follower
	for at < len(stream) {
		part := stream[at:min(len(stream), at+next())]
		n, bad := f.follow(part)
		if at += n; bad != nil {
			return ends, at, bad
		}
		if f.isBetween() && f.blanks == 0 {
			ends = append(ends, at)
		}
	}
	return ends, at, nil
}

func single() int { return 1 }

func whole() int { return 1 << 30 }

func TestShapes(t *testing.T) {
	t.Parallel()
	seen := map[*Refusal]bool{}
	for name, test := range shapes {
		for _, before := range []string{"", get + "\r\n", requests["a body"], requests["trailers"] + "\r\n"} {
			for _, next := range []func() int{whole, single, func() int { return 7 }} {
				stream := []byte(before + test.request)
				_, at, why := frames(stream, next)
				if why != test.why || at >= len(stream) || at < len(before) {
					t.Errorf("follow(%q after %q) = %d, %v, want a number from %d to %d, %v", name, before, at, why, len(before),
						len(stream)-1, test.why)
				}
			}
		}
		seen[test.why] = true
	}
	for _, why := range []*Refusal{badLine, proxyHeader, badVersion, badTarget, badHost, badEnd, control, folded, badName,
		badLength, badCoding, twoLengths, badChunk, badTrailer} {
		if !seen[why] {
			t.Errorf("shapes has no request for reason %q, want one", why.Reason)
		}
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	for name, request := range requests {
		stream := []byte(request + request)
		ends, _, why := frames(stream, single)
		if want := []int{len(request), len(stream)}; why != nil || !slices.Equal(ends, want) {
			t.Errorf("follow(%q twice) = %v, ends of requests %v, want nil, %v", name, why, ends, want)
		}
		for _, next := range []func() int{whole, func() int { return 7 }} {
			if _, at, why := frames(stream, next); why != nil || at != len(stream) {
				t.Errorf("follow(%q twice) = %d, %v, want %d, nil", name, at, why, len(stream))
			}
		}
		compare(t, stream, 1)
	}
}

// The grammar of RFC 9112 as regular expressions, without the leniency that it allows recipients.
var (
	line = regexp.MustCompile("^([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[\x21-\x7e\\x80-\\xff]*|\\*) HTTP/1\\.([01])\r\n")
	row  = regexp.MustCompile("^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\\x80-\\xff]*)\r\n")
	size = regexp.MustCompile("^([0-9A-Fa-f]{1,15})(;[\t\x20-\x7e\\x80-\\xff]*)?\r\n")
)

// latin turns each byte into a character, for regexp.
func latin(p []byte) []rune {
	runes := make([]rune, len(p))
	for i, b := range p {
		runes[i] = rune(b)
	}
	return runes
}

// strict parses one request with the grammar. It returns the body and the length of the request. ok is false if the
// request is invalid or incomplete.
func strict(stream []byte) (body []byte, length int, ok bool) {
	runes, at := latin(stream), 0
	match := func(re *regexp.Regexp) []string {
		m := re.FindStringSubmatch(string(runes[at:]))
		if m != nil {
			at += len([]rune(m[0]))
		}
		return m
	}
	for skipped := 0; skipped < maxBlanks && strings.HasPrefix(string(runes[at:min(len(runes), at+2)]),
		"\r\n"); skipped++ {
		at += 2
	}
	first := match(line)
	if first == nil {
		return nil, 0, false
	}
	headers := func() (map[string][]string, bool) {
		all := map[string][]string{}
		for m := match(row); m != nil; m = match(row) {
			name := strings.ToLower(m[1])
			all[name] = append(all[name], strings.Trim(m[2], " \t"))
		}
		if !strings.HasPrefix(string(runes[at:min(len(runes), at+2)]), "\r\n") {
			return nil, false
		}
		at += 2
		return all, true
	}
	head, ok := headers()
	if !ok || len(head["host"]) > 1 || first[3] == "1" && len(head["host"]) != 1 {
		return nil, 0, false
	}
	lengths, encodings := head["content-length"], head["transfer-encoding"]
	switch {
	case len(lengths)+len(encodings) > 1:
		return nil, 0, false
	case len(lengths) == 1:
		n, err := strconv.ParseUint(lengths[0], 10, 62)
		if err != nil || uint64(len(runes)-at) < n {
			return nil, 0, false
		}
		return stream[at : at+int(n)], at + int(n), true
	case len(encodings) == 1:
		if !strings.EqualFold(encodings[0], "chunked") {
			return nil, 0, false
		}
		for {
			m := match(size)
			if m == nil {
				return nil, 0, false
			}
			n, err := strconv.ParseUint(m[1], 16, 62)
			if err != nil || uint64(len(runes)-at) < n {
				return nil, 0, false
			}
			if n == 0 {
				_, ok := headers()
				return body, at, ok
			}
			body = append(body, stream[at:at+int(n)]...)
			at += int(n)
			if !strings.HasPrefix(string(runes[at:min(len(runes), at+2)]), "\r\n") {
				return nil, 0, false
			}
			at += 2
		}
	}
	return nil, at, true
}

// compare compares the requests that a follower accepts with those that another parser and net/http read.
func compare(t *testing.T, stream []byte, seed uint64) {
	ends, at, why := frames(stream, single)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, next := range []func() int{whole, func() int { return 1 + random.IntN(20) }} {
		if _, at2, why2 := frames(stream, next); why2 != why || why == nil && at2 != at {
			t.Fatalf("follow in longer parts = %d, %v, want %d, %v as for single bytes", at2, why2, at, why)
		}
	}
	from := 0
	for _, end := range ends {
		request := stream[from:end]
		want, length, ok := strict(stream[from:])
		if !ok || length != len(request) {
			t.Fatalf("strict(%q) = %d, %v, want %d, true", stream[from:], length, ok, len(request))
		}
		from = end
		// net/http skips empty lines after a POST, and refuses them elsewhere.
		request = bytes.TrimPrefix(bytes.TrimPrefix(request, []byte("\r\n")), []byte("\r\n"))
		rest := bytes.NewReader(append(bytes.Clone(request), stream[end:]...))
		in := bufio.NewReader(rest)
		r, err := http.ReadRequest(in)
		if err != nil {
			return // net/http closes the connection
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // net/http closes the connection
		}
		if read := len(request) + len(stream) - end - rest.Len() - in.Buffered(); read != len(request) ||
			!bytes.Equal(body, want) {
			t.Fatalf("net/http reads %d bytes of %q with the body %q, want %d bytes with %q", read, request, body,
				len(request), want)
		}
	}
}

func FuzzFollower(f *testing.F) {
	for _, request := range requests {
		f.Add([]byte(request+request), uint64(1))
	}
	for _, shape := range shapes {
		f.Add([]byte(get+"\r\n"+shape.request), uint64(2))
	}
	f.Fuzz(compare)
}
