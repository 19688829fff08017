package app

import (
	"net/http"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/origin"
)

const (
	maxFields = 200      // of a request's header, and of an answer's trailer; an answer's header has as many as fit into maxHeader
	maxHeader = 64 << 10 // bytes of an answer's header; net/http bounds those of requests

	// Of requests that no worker takes for malformed: Puma has 20, 8 KiB once three bytes stand for one, and 256.
	plainVerb   = 20
	plainTarget = 2 << 10
	plainField  = 255
)

// refusal is why a request is not relayed.
type refusal struct {
	status int
	text   string
}

// check finds what net/http lets through and workers may take for something else, and which protocol the client wants to switch to.
func (e *exchange) check() *refusal {
	r := e.r
	bad := func(text string) *refusal { return &refusal{http.StatusBadRequest, text} }
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		return &refusal{http.StatusMethodNotAllowed, "this method is not served"}
	case r.URL.Opaque != "" || r.URL.User != nil || r.URL.Scheme != "" && r.URL.Scheme != "http" && r.URL.Scheme != "https":
		return bad("the request's target is none that is served here")
	case r.URL.Path == "*" && r.Method != http.MethodOptions || r.URL.Path != "*" && r.URL.Path != "" && r.URL.Path[0] != '/':
		return bad("the request's target is no path")
	case !origin.ValidHost(r.Host):
		return bad("bad Host")
	}
	n := 0
	e.odd = !plainMethod(r.Method) || len(r.RequestURI) > plainTarget
	for name, values := range r.Header {
		n += len(values)
		e.odd = e.odd || len(name) > plainField
	}
	if n > maxFields {
		return &refusal{http.StatusRequestHeaderFieldsTooLarge, "too many header fields"}
	}
	if r.Header["Upgrade"] != nil {
		return e.checkUpgrade()
	}
	return nil
}

// plainMethod tells whether a method is one that every worker's parser takes.
func plainMethod(method string) bool {
	for _, c := range []byte(method) {
		if (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return len(method) <= plainVerb
}

// appendTarget writes a request's target in origin form.
func appendTarget(b []byte, r *http.Request) []byte {
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	b = append(b, path...)
	if r.URL.RawQuery == "" && !r.URL.ForceQuery {
		return b
	}
	b = append(b, '?')
	for _, c := range []byte(r.URL.RawQuery) {
		if c <= ' ' || c >= 0x7f || c == '#' || c == '"' || c == '<' || c == '>' {
			const hex = "0123456789ABCDEF"
			b = append(b, '%', hex[c>>4], hex[c&15])
			continue
		}
		b = append(b, c)
	}
	return b
}

// Of all fields that come by it is asked what they are: by switches, which cost half of what maps do.

// hopByHop tells the fields that are between two neighbours (RFC 9110, section 7.6.1), and those that a proxy says of itself.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length":
		return true
	}
	return false
}

// notFromClients tells the fields that workers believe, and that only we or a trusted proxy may say. Proxy becomes HTTP_PROXY in CGI's environment.
func notFromClients(name string) bool {
	switch name {
	case "Host", "Expect", "Proxy", "Http2-Settings", "Forwarded", "X-Real-Ip", "Client-Ip", "X-Client-Ip", "True-Client-Ip", "X-Cluster-Client-Ip",
		"X-Request-Start", "X-Queue-Start", "X-Request-Id", "X-Sendfile", "X-Sendfile-Type", "X-Lighttpd-Send-File", "X-Original-Url", "X-Rewrite-Url",
		"X-Scheme", "X-Url-Scheme", "Front-End-Https", "Gitlab-Workhorse", "X-Forwarded", "Forwarded-For":
		return true
	}
	return false
}

// ofProxies tells the fields by which proxies of others say who the client is. A trusted one may: we have no name of our own for what it says.
func ofProxies(name string) bool {
	switch name {
	case "Cf-Connecting-Ip", "Cf-Connecting-Ipv6", "Cf-Pseudo-Ipv4", "Fastly-Client-Ip", "Fly-Client-Ip", "Do-Connecting-Ip", "X-Azure-Clientip",
		"X-Azure-Socketip", "X-Appengine-User-Ip", "X-Envoy-External-Address", "X-Original-Forwarded-For", "X-Originating-Ip", "X-Proxyuser-Ip",
		"X-Remote-Addr", "X-Remote-Ip":
		return true
	}
	return false
}

// internal tells whether a field is one of ours, or of those whose place we take: none of them crosses us in either direction.
func internal(name string) bool {
	if name == "" || name[0] != 'P' && name[0] != 'X' && name[0] != 'G' {
		return false
	}
	return strings.HasPrefix(name, "X-Accel-") || strings.HasPrefix(name, "X-Packhorse-") || strings.HasPrefix(name, "Packhorse-") || strings.HasPrefix(name, "Gitlab-Workhorse-")
}

// named are the fields that Connection names.
func named(h http.Header) (names []string) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = textproto.TrimString(name); name != "" && !strings.EqualFold(name, "close") && !strings.EqualFold(name, "keep-alive") {
				names = append(names, textproto.CanonicalMIMEHeaderKey(name))
			}
		}
	}
	return names
}

// crosses tells whether a client's field is passed on as it is. A name of more than letters, digits and dashes is not: workers for which names become
// variables (RFC 3875, section 4.1.18) take "X_Forwarded_For", and some "X.Forwarded.For" and others, for the one with dashes.
func crosses(name string, connection []string) bool {
	if hopByHop(name) || notFromClients(name) || !plainName(name) || strings.HasPrefix(name, "X-Forwarded-") || internal(name) {
		return false
	}
	for _, c := range connection {
		if c == name {
			return false
		}
	}
	return true
}

// plainName tells whether a name is of letters, digits and dashes alone.
func plainName(name string) bool {
	for _, c := range []byte(name) {
		if c|0x20 < 'a' || c|0x20 > 'z' {
			if c != '-' && (c < '0' || c > '9') {
				return false
			}
		}
	}
	return true
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// appendHead writes a request for a worker.
func (e *exchange) appendHead(b []byte, w *worker) []byte {
	r := e.r
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = appendTarget(b, r)
	b = append(b, " HTTP/1.1\r\n"...)
	host := r.Host
	if host == "" {
		host = w.conns.host
	}
	b = appendField(b, "Host", host)
	connection := named(r.Header)
	for name, values := range r.Header {
		if !crosses(name, connection) || !e.from.Trusted && ofProxies(name) {
			continue
		}
		for _, v := range values {
			b = appendField(b, name, v)
		}
	}
	b = appendOrigin(b, &e.from, host)
	b = append(b, "X-Request-Id: "...)
	b = append(b, e.id...)
	b = append(b, "\r\nX-Request-Start: t="...) // seconds, as nginx writes them: what reads the field knows that, and not all know other units
	at := e.received.UnixMilli()
	b = strconv.AppendInt(b, at/1000, 10)
	b = append(b, '.', byte('0'+at/100%10), byte('0'+at/10%10), byte('0'+at%10))
	b = append(b, "\r\n"...)
	if w.Files && e.p.FileHeader != "" {
		b = e.p.appendFiles(b)
	}
	if e.upgrade != "" {
		b = append(b, "Connection: Upgrade\r\n"...)
		b = appendField(b, "Upgrade", e.upgrade)
	} else if te := r.Header["Te"]; len(te) > 0 && hasToken(te, "trailers") {
		b = append(b, "Te: trailers\r\n"...)
	}
	if e.body.size > 0 || e.body.there {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, e.body.size, 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// hasToken looks for a token in a list, without its case.
func hasToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(textproto.TrimString(t), token) {
				return true
			}
		}
	}
	return false
}

// appendOrigin writes where a request came from as the fields that workers read.
func appendOrigin(b []byte, o *origin.Origin, host string) []byte {
	if o.Host != "" {
		host = o.Host
	}
	proto := "http"
	if o.HTTPS {
		proto = "https"
	}
	if o.Client.IsValid() {
		b = append(b, "X-Forwarded-For: "...)
		b = o.Client.AppendTo(b)
		for _, hop := range o.Hops {
			b = append(b, ", "...)
			b = hop.AppendTo(b)
		}
		b = append(b, "\r\nX-Real-Ip: "...)
		b = o.Client.AppendTo(b)
		b = append(b, "\r\n"...)
	}
	b = appendField(b, "X-Forwarded-Proto", proto)
	b = appendField(b, "X-Forwarded-Host", host)
	b = append(b, "Forwarded: "...)
	b = appendNode(b, o.Client)
	b = append(b, ";host=\""...)
	b = append(b, host...)
	b = append(b, "\";proto="...)
	b = append(b, proto...)
	for _, hop := range o.Hops {
		b = append(b, ", "...)
		b = appendNode(b, hop)
	}
	return append(b, "\r\n"...)
}

func appendNode(b []byte, a netip.Addr) []byte {
	switch {
	case !a.IsValid():
		return append(b, "for=unknown"...)
	case a.Is6():
		b = append(b, "for=\"["...)
		b = a.AppendTo(b)
		return append(b, "]\""...)
	}
	b = append(b, "for="...)
	return a.AppendTo(b)
}
