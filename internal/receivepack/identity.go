package receivepack

import (
	"net/netip"
	"strings"
	"unicode"

	"github.com/packhorse-git/packhorse/internal/node"
)

// maxCommitter bounds a pusher's name in reflogs, in bytes.
const maxCommitter = 200

// nobody is the name of a pusher who has none that git would take.
const nobody = "anonymous"

// committer is who pushed, for reflogs and for what hooks commit: a name, and an e-mail address as git http-backend
// makes it up (git-http-backend(1), GIT_COMMITTER_EMAIL), with the transport and the client's address behind the "@".
// Whatever the pusher is called, git takes both, and nothing in them can be taken for the end of a field.
func committer(p node.Pusher, transport string) (name, email string) {
	name = strings.Map(func(r rune) rune {
		if r == '<' || r == '>' || r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, p.Name)
	name = strings.ToValidUTF8(name[:min(len(name), maxCommitter)], "")
	const crud = " .,:;<>\"\\'" // git leaves these away at both ends, and dies where nothing else is there
	if name = strings.Trim(name, crud); name == "" {
		name = nobody
	}
	return name, mailbox(name, transport, p.Address)
}

// mailbox is an e-mail address of a name. A name that is one already stays as it is.
func mailbox(name, transport, address string) string {
	plain := func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._+-", r) {
			return r
		}
		return '-'
	}
	if local, domain, ok := strings.Cut(name, "@"); ok && local != "" && domain != "" && strings.Map(plain, local+domain) == local+domain {
		return name
	}
	host := "localhost"
	if ip, err := netip.ParseAddr(address); err == nil {
		host = strings.ReplaceAll(ip.WithZone("").String(), ":", "-")
	}
	return strings.Map(plain, name) + "@" + transport + "." + host
}
