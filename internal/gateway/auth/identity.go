// Package auth identifies callers and decides what they may do.
//
// Auth has a list of authenticators, each for one kind of credential. Tokens are in tokens.go, SSH keys and
// certificates in keys.go, identity tokens of CI jobs in oidc.go. Hook asks an application over HTTP (hook.go). A
// further kind is a type with the methods of Authenticator, and a line in package roles that adds it to the list. Wrong
// credentials are delayed (guesses.go).
//
// An origin decides about the repositories that it covers (origin.go, origindecide.go): the server that they come from.
//
// The first matching rule decides about the operations of an identity on a repository (rules.go). Without a matching
// rule, the hook decides (decide.go).
//
// A refusal reveals nothing. Anonymous callers are asked to authenticate whether the repository exists or not.
// Identified callers who may not read a repository get the same answer as for one that does not exist.
package auth

import (
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Identity is the proved identity of a caller. The zero value is an anonymous caller. Handlers get it as an argument.
// ByOrigin is an exception: May proves it, for one repository at a time.
type Identity struct {
	Name string // letters, digits and "._-@+", at most 128 bytes; empty for anonymous callers
	By   string // kind of the credential, such as ByToken
	// Credential names the credential in logs: the ID of a token or the fingerprint of a key. May be empty.
	Credential string
	Address    string // IP address of the caller, without a port
	// Grant limits the identity to the purpose of its credential. Nil means no limit.
	Grant *Grant

	host    string        // requested, if it is not this machine's; empty otherwise
	noTouch bool          // the security key need not be touched
	origin  *originCaller // with ByOrigin
}

// Anonymous reports whether the caller is not identified.
func (id Identity) Anonymous() bool { return id.Name == "" }

// stranger returns the same caller without a credential.
func (id Identity) stranger() Identity { return Identity{Address: id.Address, host: id.host} }

// MaxName is the maximum length of a name in bytes.
const MaxName = 128

// CheckName returns an error unless identities and tokens may have this name: ASCII letters, digits and "._-@+", a
// letter or digit first, and not "anonymous". Such a name is safe in an environment, a header, a log and a command
// line.
func CheckName(name string) error {
	bad := fault.New(fault.Invalid,
		"invalid name %.40q: use 1 to %d letters, digits and \"._-@+\", a letter or digit first", name, MaxName)
	if len(name) == 0 || len(name) > MaxName {
		return bad
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-' || c == '@' || c == '+'):
		default:
			return bad
		}
	}
	if name == anonymous {
		return fault.New(fault.Invalid, "invalid name %q: it stands for callers without credentials", name)
	}
	return nil
}

// Operation is an operation on a repository. Each includes the earlier ones.
type Operation uint8

const (
	Read Operation = iota
	Write
	Admin
)

// String returns the name of the operation in the configuration, in logs, and in requests to the hook.
func (o Operation) String() string { return [...]string{"read", "write", "admin"}[o] }

// ParseOperation parses the name of an operation.
func ParseOperation(name string) (Operation, error) {
	for o := Read; o <= Admin; o++ {
		if o.String() == name {
			return o, nil
		}
	}
	return 0, fault.New(fault.Invalid, "%.40q is not read, write or admin", name)
}

// Grant limits what a credential allows.
type Grant struct {
	Operation    Operation         // the most powerful operation
	Repositories []Pattern         // empty means all
	Refs         []node.RefPattern // the only refs that may be changed; empty means all
}

// allows reports whether the grant permits an operation. Nil permits everything.
func (g *Grant) allows(path target, op Operation) bool {
	return g == nil || op <= g.Operation && (len(g.Repositories) == 0 || matchAny(g.Repositories, path, path.anyCase))
}
