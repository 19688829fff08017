package receivepack

import (
	"net/netip"
	"strings"
	"unicode"

	"github.com/packhorse-git/packhorse/internal/node"
)

// maxNameBytes is the maximum length of a pusher's name in reflogs.
const maxNameBytes = 200

// anonymous is the name of a pusher without a name that Git accepts.
const anonymous = "anonymous"

// identity is the pusher in reflogs and in what hooks commit. The zero value stands for no identity.
type identity struct{ name, email string }

// newIdentity makes an identity that Git accepts, whatever the pusher's name is. Like git http-backend
// (git-http-backend(1), GIT_COMMITTER_EMAIL), it makes the e-mail address from the name, the transport and the address
// of the client.
func newIdentity(p node.Pusher, transport string) identity {
	name := strings.Map(func(r rune) rune {
		if r == '<' || r == '>' || r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, p.Name)
	name = strings.ToValidUTF8(name[:min(len(name), maxNameBytes)], "")
	const crud = " .,:;<>\"\\'" // Git removes these at both ends, and fails if nothing else is left
	if name = strings.Trim(name, crud); name == "" {
		name = anonymous
	}
	return identity{name: name, email: emailAddress(name, transport, p.Address)}
}

// Identity returns the name and the e-mail address of a pusher in commits that are made for it, as in reflogs.
func Identity(p node.Pusher, transport string) (name, email string) {
	i := newIdentity(p, transport)
	return i.name, i.email
}

// environment returns the identity as environment variables of Git.
func (i identity) environment() []string {
	if i.name == "" {
		return nil
	}
	return []string{"GIT_COMMITTER_NAME=" + i.name, "GIT_COMMITTER_EMAIL=" + i.email}
}

// emailAddress makes an e-mail address from a name. A name that is an address is not changed.
func emailAddress(name, transport, address string) string {
	plain := func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._+-", r) {
			return r
		}
		return '-'
	}
	if local, domain, ok := strings.Cut(name, "@"); ok && local != "" && domain != "" &&
		strings.Map(plain, local+domain) == local+domain {
		return name
	}
	host := "localhost"
	if ip, err := netip.ParseAddr(address); err == nil {
		host = strings.ReplaceAll(ip.WithZone("").String(), ":", "-")
	}
	return strings.Map(plain, name) + "@" + transport + "." + host
}
