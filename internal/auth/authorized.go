package auth

import (
	"net/netip"
	"path"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// authorized is a line of a file of authorized keys.
type authorized struct {
	key       ssh.PublicKey
	authority bool // the key signs certificates
	grantee
}

// parseAuthorized reads a line (sshd(8), "AUTHORIZED_KEYS FILE FORMAT"); without a name its comment is it. A line that
// asks for more than is done here is an error: it must not let in more than it says.
func parseAuthorized(line, name string) (*authorized, error) {
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil || len(rest) > 0 {
		return nil, fault.New(fault.Invalid, "it is no public key with its options")
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return nil, fault.New(fault.Invalid, "it is a certificate; name who signs it, with cert-authority")
	}
	if name == "" {
		name, _, _ = strings.Cut(comment, " ")
		if err := CheckName(name); err != nil {
			return nil, fault.Wrap(fault.Invalid, "the comment after the key has to be the user's name", err)
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
		return nil, fault.New(fault.Invalid, "principals are for cert-authority")
	}
	return a, nil
}

// noEffect are options about what is not offered anyway. Environment variables are never taken from a client's side, as
// by sshd(8) itself.
var noEffect = map[string]bool{
	"restrict": true, "agent-forwarding": true, "no-agent-forwarding": true, "port-forwarding": true,
	"no-port-forwarding": true, "pty": true,
	"no-pty": true, "user-rc": true, "no-user-rc": true, "x11-forwarding": true, "no-x11-forwarding": true,
	"permitlisten": true, "permitopen": true,
	"tunnel": true, "environment": true,
}

func (a *authorized) option(text string) error {
	name, value, given := strings.Cut(text, "=")
	name = strings.ToLower(name)
	if given {
		var ok bool
		if value, ok = unquoteOption(value); !ok {
			return fault.New(fault.Invalid, "the value of the option %.40q is not in quotes", name)
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
			return fault.New(fault.Invalid, "from= stands twice; name all addresses in one")
		}
		a.restricted = true
		a.from, err = parseAddressPattern(value)
	case name == "expiry-time" && given:
		var at time.Time
		// of several the first to come, as in sshd(8)
		if at, err = parseExpiry(value); a.expires.IsZero() || at.Before(a.expires) {
			a.expires = at
		}
	case name == "command":
		err = fault.New(fault.Invalid,
			"command= is for servers that run commands; this one runs none, and lets nobody in by the line: remove the "+
				"option to let the key in")
	case noEffect[name]:
	default:
		err = fault.New(fault.Invalid, "the option %.40q is not known here", name)
	}
	return err
}

func unquoteOption(s string) (string, bool) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return "", false
	}
	return strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`), true
}

// parseExpiry reads YYYYMMDD[HHMM[SS]], in UTC with a final Z and else in the machine's time.
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

// addressPattern is a list of addresses, networks and patterns of addresses as in from= (ssh_config(5), PATTERNS): one
// has to match, and none of those with "!". Names of hosts are not looked up: who answers for an address decides what
// it is called.
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
				m.network = netip.PrefixFrom(a.Unmap(), m.network.Bits()-96) // as the addresses that come
			}
			m.network = m.network.Masked()
		} else {
			for _, c := range word {
				if !strings.ContainsRune("0123456789abcdefABCDEF.:*?", c) {
					return nil, fault.New(fault.Invalid,
						"%.80q is no address, network, or pattern of addresses; names of hosts are not looked up", word)
				}
			}
			if m.glob = strings.ToLower(word); word == "" {
				return nil, fault.New(fault.Invalid, "an empty pattern of addresses")
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// match tells whether an address may come in.
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
