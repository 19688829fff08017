// Package browser tells apart what a web page makes a browser send, on a port that is for programs. Whoever may use such a port has a
// browser, too, and a page that the browser shows must not: neither by asking for this machine's addresses, nor by a name of its own
// that leads to them once the page is loaded (DNS rebinding).
package browser

import (
	"net"
	"net/http"
)

// Sent reports whether a page, not a person or a program, made this request: browsers say so (the Fetch standard, "Origin header"; Fetch
// Metadata, "Sec-Fetch-Site"). One that a page sends to its own origin may be without either.
func Sent(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return r.Header.Get("Origin") != "" || site != "" && site != "none"
}

// Foreign reports whether a page of somebody else's made this request, or led there: not one that this server sent, and not who typed the address.
func Foreign(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site != "none" && site != "same-origin"
	}
	return r.Header.Get("Origin") != ""
}

// Local reports whether the request names its server as one of the same machine. What a page sends to its own origin names the page's host,
// wherever that name leads.
func Local(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return true
	}
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
