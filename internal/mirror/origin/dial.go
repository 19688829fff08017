package origin

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// ParseURL parses and checks the URL of an origin: https://HOST/BASE/, http:// or ssh://[USER@]HOST/BASE/. Other
// schemes, passwords, queries, and hosts that a program could take for an option are errors.
func ParseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("invalid URL of an origin: %w", err)
	}
	return u, checkURL(u)
}

func checkURL(u *url.URL) error {
	_, hasPassword := u.User.Password()
	switch {
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh":
		return fmt.Errorf("origin %q: scheme %q: use https, http or ssh", u.Redacted(), u.Scheme)
	case u.Opaque != "" || u.Hostname() == "" || strings.HasPrefix(u.Host, "-"):
		return fmt.Errorf("origin %q: invalid host %q", u.Redacted(), u.Host)
	case u.User != nil && (u.Scheme != "ssh" || hasPassword || strings.HasPrefix(u.User.Username(), "-")):
		return fmt.Errorf("origin %q: no credentials in a URL: set user and token_file", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("origin %q: a query or fragment is not allowed", u.Redacted())
	}
	for _, part := range []string{u.Host, u.Path, u.User.Username()} {
		if strings.ContainsFunc(part, isControl) {
			return fmt.Errorf("origin %q: control characters are not allowed", u.Redacted())
		}
	}
	if base := strings.Trim(u.Path, "/"); base != "" {
		return checkPath(base)
	}
	return nil
}

// checkPath checks the path of a repository at an origin.
func checkPath(path string) error {
	const limit = 2048 // bytes
	if len(path) > limit || strings.ContainsFunc(path, isControl) {
		return fault.New(fault.Invalid, "invalid path of a repository: %.100q", path)
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.Contains(part, `\`) {
			return fault.New(fault.Invalid, "invalid path of a repository: %.100q", path)
		}
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// NewDialer returns a dialer that refuses private addresses unless they are allowed. It checks the address to which it
// connects, after the name has been resolved, so that names that change their address (DNS rebinding) are refused.
func NewDialer(allowPrivate bool) *net.Dialer {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	if !allowPrivate {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil || isPrivate(to.Addr()) {
				return fault.New(fault.Denied, "address %s is not public: allow it with private = true", address)
			}
			return nil
		}
	}
	return d
}

// dialer returns the dialer for an address, with or without a port. A proxy connects to any address.
func (o *Options) dialer(address string) *net.Dialer {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return NewDialer(o.Private || isLiteral(host) || o.Proxy != nil)
}

// isLiteral reports whether the administrator wrote an address or localhost, and so allows it.
func isLiteral(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}

// reserved are networks that are not public in addition to those that netip knows (IANA special-purpose registries).
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("fec0::/10"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
}

// translated is the network of addresses that contain a public IPv4 address (NAT64, RFC 6052).
var translated = netip.MustParsePrefix("64:ff9b::/96")

// isPrivate reports whether an address is not one of the public internet.
func isPrivate(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if translated.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return !a.IsGlobalUnicast() || a.IsPrivate() ||
		slices.ContainsFunc(reserved, func(network netip.Prefix) bool { return network.Contains(a) })
}
