package httpguard

import "github.com/packhorse-git/packhorse/internal/fault"

// Refusal is the reason why a request is refused. As the error of a body it is of kind fault.Invalid.
type Refusal struct {
	Reason string // for metrics and logs
	Status int
	text   string
}

// Error returns the message for the client.
func (r *Refusal) Error() string { return r.text }

// Unwrap returns the error with the kind.
func (r *Refusal) Unwrap() error { return fault.New(fault.Invalid, "%s", r.text) }

// The refusals. Their messages name the correct form.
var (
	badLine     = &Refusal{"request_line", 400, "this is not an HTTP/1.1 request"}
	proxyHeader = &Refusal{"proxy_header", 400, "a PROXY protocol header from an address that may not send one: " +
		"name the proxy in trusted_proxies, and set http.proxy_protocol = true"}
	badVersion = &Refusal{"version", 505, "only HTTP/1.1 and HTTP/1.0 are supported"}
	badTarget  = &Refusal{"target", 400, "the target of a request must begin with a slash: this server is not a proxy"}
	badHost    = &Refusal{"host", 400, "a request must have one Host header, which is not empty"}
	badEnd     = &Refusal{"line_end", 400, "lines of a request must end with CR and LF, and contain neither"}
	control    = &Refusal{"control", 400, "a control character in the request"}
	folded     = &Refusal{"folded", 400, "a header begins with a space: folded headers are not supported"}
	badName    = &Refusal{"header_name", 400, "a header with an invalid name, or a space before its colon"}
	badLength  = &Refusal{"length", 400, "Content-Length must be one decimal number, and occur once"}
	badCoding  = &Refusal{"encoding", 400, "Transfer-Encoding must be chunked, in HTTP/1.1, and occur once"}
	twoLengths = &Refusal{"length_and_encoding", 400, "Content-Length and Transfer-Encoding in one request"}
	badChunk   = &Refusal{"chunk", 400, "invalid chunk in the request body: the size must be a hexadecimal number, " +
		"and the size and the data must end with CR and LF"}
	badTrailer = &Refusal{"trailer", 400, "a trailer field that is only valid in the head of a request"}
)
