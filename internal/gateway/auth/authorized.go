package auth

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// authorized is a line of an authorized_keys file.
type authorized struct {
	key       ssh.PublicKey
	authority bool // the key signs certificates
	grantee
}

// parseAuthorized parses a line (sshd(8), "AUTHORIZED_KEYS FILE FORMAT"). If name is empty, the comment is the name. A
// line with an unsupported option is invalid, because without the option it could give too much access.
func parseAuthorized(line, name string) (*authorized, error) {
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil || len(rest) > 0 {
		return nil, fault.New(fault.Invalid, "not a public key with options")
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return nil, fault.New(fault.Invalid, "a certificate: add the key of its authority, with the option cert-authority")
	}
	if name == "" {
		name, _, _ = strings.Cut(comment, " ")
		if err := CheckName(name); err != nil {
			return nil, fault.Wrap(fault.Invalid, "the comment after the key must be the name of the user", err)
		}
	}
	if err := checkStrength(key); err != nil {
		return nil, err
	}
	a := &authorized{key: key, grantee: grantee{name: name}}
	for _, option := range options {
		if err := a.option(option); err != nil {
			return nil, err
		}
	}
	if len(a.principals) > 0 && !a.authority {
		return nil, fault.New(fault.Invalid, "principals= requires cert-authority")
	}
	return a, nil
}

// noEffect lists options about features that are not supported. Environment variables of clients are never used, as by
// default in sshd(8).
var noEffect = []string{
	"restrict", "agent-forwarding", "no-agent-forwarding", "port-forwarding", "no-port-forwarding", "pty", "no-pty",
	"user-rc", "no-user-rc", "x11-forwarding", "no-x11-forwarding", "permitlisten", "permitopen", "tunnel", "environment",
}

// option applies an option of the line.
func (a *authorized) option(text string) error {
	name, value, given := strings.Cut(text, "=")
	name = strings.ToLower(name)
	if given {
		var ok bool
		if value, ok = unquoteOption(value); !ok {
			return fault.New(fault.Invalid, "option %.40q: the value is not in quotes", name)
		}
	}
	var err error
	switch {
	case name == "cert-authority":
		a.authority = true
	case name == "no-touch-required":
		a.noTouch = true
	case name == "principals" && given:
		a.principals = strings.Split(value, ",")
	case name == "from" && given:
		if a.restricted {
			return fault.New(fault.Invalid, "from= occurs twice: write all addresses in one")
		}
		a.restricted = true
		a.from, err = parseAddressPattern(value)
	case name == "expiry-time" && given:
		var at time.Time
		// the earliest of several applies, as in sshd(8)
		if at, err = parseExpiry(value); a.expires.IsZero() || at.Before(a.expires) {
			a.expires = at
		}
	case name == "command":
		err = fault.New(fault.Invalid,
			"command= is not supported, so the line is ignored: remove the option to permit the key")
	case slices.Contains(noEffect, name):
	default:
		err = fault.New(fault.Invalid, "unknown option %.40q", name)
	}
	return err
}

func unquoteOption(s string) (string, bool) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return "", false
	}
	return strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`), true
}

// parseExpiry parses YYYYMMDD[HHMM[SS]], in UTC with a final Z and otherwise in the time zone of the machine.
func parseExpiry(s string) (time.Time, error) {
	digits, utc := strings.CutSuffix(s, "Z")
	zone := time.Local
	if utc {
		zone = time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(digits) == len(layout) {
			if t, err := time.ParseInLocation(layout, digits, zone); err == nil {
				return t, nil
			}
		}
	}
	return time.Time{}, fault.New(fault.Invalid,
		"expiry-time %.40q is not YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, with or without a final Z", s)
}

// addressPattern is a list of addresses, networks and address patterns as in from= (ssh_config(5), PATTERNS). An
// address must match one of them, and none of those with "!". Host names are not supported: the owner of an address
// controls its name.
type addressPattern []addressMatch

type addressMatch struct {
	not     bool
	network netip.Prefix // if valid
	glob    string
}

func parseAddressPattern(list string) (addressPattern, error) {
	var all addressPattern
	for _, word := range strings.Split(list, ",") {
		var m addressMatch
		word, m.not = strings.CutPrefix(strings.TrimSpace(word), "!")
		address, err := netip.ParseAddr(word)
		if err == nil {
			m.network = netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen())
		} else if m.network, err = netip.ParsePrefix(word); err == nil {
			if a := m.network.Addr(); a.Is4In6() && m.network.Bits() >= 96 {
				m.network = netip.PrefixFrom(a.Unmap(), m.network.Bits()-96) // match unmaps addresses as well
			}
			m.network = m.network.Masked()
		} else {
			for _, c := range word {
				if !strings.ContainsRune("0123456789abcdefABCDEF.:*?", c) {
					return nil, fault.New(fault.Invalid,
						"%.80q is not an address, a network or an address pattern; host names are not supported", word)
				}
			}
			if m.glob = strings.ToLower(word); word == "" {
				return nil, fault.New(fault.Invalid, "empty address pattern")
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// match reports whether an address matches.
func (p addressPattern) match(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	if !address.IsValid() {
		return false
	}
	text, found := address.String(), false
	for _, m := range p {
		ok := m.network.Contains(address)
		if m.glob != "" {
			ok, _ = path.Match(m.glob, text)
		}
		if ok && m.not {
			return false
		}
		found = found || ok
	}
	return found
}
