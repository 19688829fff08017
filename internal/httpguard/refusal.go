package httpguard

import (
	"net/http"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Refusal is why a request is refused. As an error of a body it is of the kind fault.Invalid.
type Refusal struct {
	Reason string // for metrics and logs: one of few
	Status int
	fault  fault.Error
}

// Error says what is wrong, for the client.
func (r *Refusal) Error() string { return r.fault.Msg }

// Unwrap gives the error its kind.
func (r *Refusal) Unwrap() error { return &r.fault }

func refusal(reason string, status int, text string) *Refusal {
	return &Refusal{reason, status, fault.Error{Kind: fault.Invalid, Msg: text}}
}

// The refusals. Texts say what would have been right.
var (
	badLine     = refusal("request_line", http.StatusBadRequest, "this is no request of HTTP/1.1")
	proxyHeader = refusal("proxy_header", http.StatusBadRequest, "a PROXY protocol header from an address that may not send one: name the proxy in trusted_proxies, and set http.proxy_protocol = true")
	http2       = refusal("http2", http.StatusHTTPVersionNotSupported, "HTTP/2 is not served here: send requests of HTTP/1.1")
	badVersion  = refusal("version", http.StatusHTTPVersionNotSupported, "requests are of HTTP/1.1 or HTTP/1.0 here")
	badTarget   = refusal("target", http.StatusBadRequest, "the target of a request begins with a slash here: this server is no proxy")
	badHost     = refusal("host", http.StatusBadRequest, "a request has one Host header, which is not empty")
	badEnd      = refusal("line_end", http.StatusBadRequest, "lines of a request end with CR and LF, which stand nowhere else")
	control     = refusal("control", http.StatusBadRequest, "there is a control character in the request")
	folded      = refusal("folded", http.StatusBadRequest, "a header begins with a space: each has a line of its own")
	badName     = refusal("header_name", http.StatusBadRequest, "a header has a bad name, or a space before its colon")
	badLength   = refusal("length", http.StatusBadRequest, "Content-Length is one number in decimal digits, and stands there once")
	badEncoding = refusal("encoding", http.StatusBadRequest, "Transfer-Encoding is chunked and nothing else, in HTTP/1.1, and stands there once")
	twoLengths  = refusal("length_and_encoding", http.StatusBadRequest, "Content-Length and Transfer-Encoding in one request")
	badChunk    = refusal("chunk", http.StatusBadRequest, "a chunk of the request's body is bad: its size is a hexadecimal number, and CR and LF stand behind it and its bytes")
	badTrailer  = refusal("trailer", http.StatusBadRequest, "a trailer of the request is one that belongs into its head")
)

// refusals are all of them.
var refusals = [...]*Refusal{badLine, proxyHeader, http2, badVersion, badTarget, badHost, badEnd, control, folded, badName, badLength, badEncoding, twoLengths, badChunk, badTrailer}
