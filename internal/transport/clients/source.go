package clients

import (
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"
)

// Proxies are the networks of trusted proxies.
type Proxies []netip.Prefix

// Contain reports whether an address is that of a trusted proxy.
func (p Proxies) Contain(a netip.Addr) bool {
	a = a.Unmap()
	for _, network := range p {
		if network.Contains(a) {
			return true
		}
	}
	return false
}

// Source is where a request came from, as far as that can be believed.
type Source struct {
	Client  netip.Addr   // invalid: unknown, on a Unix socket
	Hops    []netip.Addr // trusted proxies that the request came by, the one next to this server last
	Trusted bool         // the peer is a trusted proxy
	HTTPS   bool         // the client uses it
	Host    string       // requested host according to a proxy; empty: that of the request
	ID      string       // of the request, from a proxy that is trusted; it is as the proxy wrote it
}

const maxHops = 20 // trusted proxies that a request has come by

// Of finds out where a request came from. It does not read Forwarded (RFC 7239): most proxies set X-Forwarded-* and
// pass on what their client wrote there.
func (p Proxies) Of(r *http.Request) Source {
	peer := peerOf(r.RemoteAddr)
	at := Source{Client: peer, HTTPS: r.TLS != nil}
	if len(p) == 0 || !p.Contain(peer) {
		return at
	}
	at.Trusted, at.ID = true, r.Header.Get("X-Request-Id")
	for_, proto, host := List(r.Header["X-Forwarded-For"]), List(r.Header["X-Forwarded-Proto"]),
		List(r.Header["X-Forwarded-Host"])
	hops := 1
	for i := len(for_) - 1; i >= 0 && len(at.Hops) < maxHops; i-- {
		addr, ok := parseNode(for_[i])
		if !ok {
			break // addresses before it are not trustworthy either
		}
		at.Hops = append(at.Hops, at.Client)
		at.Client = addr
		if !p.Contain(addr) {
			break
		}
		hops++
	}
	for i, j := 0, len(at.Hops)-1; i < j; i, j = i+1, j-1 {
		at.Hops[i], at.Hops[j] = at.Hops[j], at.Hops[i]
	}
	// Each proxy adds one value, or replaces all. The values before those of trusted proxies came from the client.
	if n := len(proto); n > 0 {
		switch p := proto[max(0, n-hops)]; {
		case strings.EqualFold(p, "https"):
			at.HTTPS = true
		case strings.EqualFold(p, "http"):
			at.HTTPS = false
		}
	}
	if n := len(host); n > 0 && ValidHost(host[max(0, n-hops)]) {
		at.Host = host[max(0, n-hops)]
	}
	return at
}

// ValidHost reports whether a host and its port need no escaping in a header, a URL or a quoted string.
func ValidHost(host string) bool {
	for _, c := range []byte(host) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(".-_:[]%~", c) >= 0:
		default:
			return false
		}
	}
	return len(host) <= 300
}

// peerOf is the address in a request's RemoteAddr; invalid on a Unix socket.
func peerOf(remote string) netip.Addr {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// List splits a header's comma-separated values.
func List(values []string) (all []string) {
	for _, v := range values {
		for s := range strings.SplitSeq(v, ",") {
			all = append(all, textproto.TrimString(s))
		}
	}
	return all
}

// parseNode reads an address with or without a port.
func parseNode(s string) (netip.Addr, bool) {
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return a.Unmap().WithZone(""), err == nil
}
