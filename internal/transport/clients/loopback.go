package clients

import (
	"net"
	"net/netip"
	"strings"
)

// IsLoopback reports whether the Host header of a request names this machine: localhost or a loopback address, with or
// without a port. A listener that only programs of the same machine may use refuses other hosts. Otherwise a web page
// could reach it through a name that it controls and that resolves to 127.0.0.1 (DNS rebinding). For the same reason no
// other name is known, such as that of the machine: its DNS zone can belong to anybody.
func IsLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") || err == nil && address.IsLoopback()
}
