package webhook

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// newClient creates the HTTP client of a target. It checks the address of each connection, so that a name cannot
// resolve to another address later.
func newClient(allowPrivate bool) *http.Client {
	dialer := &net.Dialer{Timeout: defaultTimeout}
	if !allowPrivate {
		dialer.Control = func(_, address string, _ syscall.RawConn) error { return checkAddress(address) }
	}
	return httpguard.Client(&http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		DisableCompression: true, MaxResponseHeaderBytes: maxHeader, TLSHandshakeTimeout: defaultTimeout,
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second,
	})
}

var errPrivate = errors.New("the address is in a private network or on this machine, and allow_private is not set")

// checkAddress refuses addresses that are not public.
func checkAddress(address string) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil || !IsPublic(a.Addr()) {
		return errPrivate
	}
	return nil
}

// notPublic are the special networks of RFC 6890 and its successors that net/netip does not know, and those that
// contain IPv4 addresses.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"), netip.MustParsePrefix("::ffff:0:0:0/96"),
	netip.MustParsePrefix("3fff::/20"), netip.MustParsePrefix("5f00::/16"),
}

// IsPublic reports whether an address is not in a private network or on this machine.
func IsPublic(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
