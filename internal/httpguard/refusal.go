package httpguard

import (
	"net/http"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Refusal is the reason why a request is refused. As the error of a body it is of kind fault.Invalid.
type Refusal struct {
	Reason string // for metrics and logs
	Status int
	fault  fault.Error
}

// Error returns the message for the client.
func (r *Refusal) Error() string { return r.fault.Msg }

// Unwrap returns the error with the kind.
func (r *Refusal) Unwrap() error { return &r.fault }

func refusal(reason string, status int, text string) *Refusal {
	return &Refusal{reason, status, fault.Error{Kind: fault.Invalid, Msg: text}}
}

// The refusals. Their messages name the correct form.
var (
	badLine     = refusal("request_line", http.StatusBadRequest, "this is not an HTTP/1.1 request")
	proxyHeader = refusal("proxy_header", http.StatusBadRequest, "a PROXY protocol header from an address that may not "+
		"send one: "+
		"name the proxy in trusted_proxies, and set http.proxy_protocol = true")
	http2      = refusal("http2", http.StatusHTTPVersionNotSupported, "HTTP/2 is not supported: send HTTP/1.1 requests")
	badVersion = refusal("version", http.StatusHTTPVersionNotSupported, "only HTTP/1.1 and HTTP/1.0 are supported")
	badTarget  = refusal("target", http.StatusBadRequest, "the target of a request must begin with a slash: this "+
		"server is not a proxy")
	badHost = refusal("host", http.StatusBadRequest, "a request must have one Host header, which is not empty")
	badEnd  = refusal("line_end", http.StatusBadRequest, "lines of a request must end with CR and LF, and contain "+
		"neither")
	control = refusal("control", http.StatusBadRequest, "a control character in the request")
	folded  = refusal("folded", http.StatusBadRequest, "a header begins with a space: folded headers are not "+
		"supported")
	badName = refusal("header_name", http.StatusBadRequest, "a header with an invalid name, or a space before its "+
		"colon")
	badLength   = refusal("length", http.StatusBadRequest, "Content-Length must be one decimal number, and occur once")
	badEncoding = refusal("encoding", http.StatusBadRequest, "Transfer-Encoding must be chunked, in HTTP/1.1, and occur "+
		"once")
	twoLengths = refusal("length_and_encoding", http.StatusBadRequest, "Content-Length and Transfer-Encoding in one "+
		"request")
	badChunk = refusal("chunk", http.StatusBadRequest, "invalid chunk in the request body: the size must be a "+
		"hexadecimal number, "+
		"and the size and the data must end with CR and LF")
	badTrailer = refusal("trailer", http.StatusBadRequest, "a trailer field that is only valid in the head of a request")
)

// refusals lists all of them.
var refusals = [...]*Refusal{badLine, proxyHeader, http2, badVersion, badTarget, badHost, badEnd, control, folded,
	badName, badLength,
	badEncoding, twoLengths, badChunk, badTrailer}
