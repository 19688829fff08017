// Package auth says who calls, and whether they may do what they ask for.
//
// An identity is an argument: whoever answers a request is given it, and nothing keeps it beside. It comes from what a caller has proved,
// never from what was only offered.
//
// Auth puts the parts together, for HTTP and for SSH alike. Tokens are random words that a command makes; the file in the state directory
// has their hashes (tokens.go). Rules say who may do what with which repositories; the first that matches decides (rules.go). Where none
// does, an application may be asked over HTTP (hook.go). What is guessed too often is answered later and later (lockout.go).
//
// A caller learns nothing by being refused: whoever is not known is told to say who they are, for repositories that exist and others alike;
// whoever is known and may not read a repository is told that there is none.
package auth

import (
	"github.com/packhorse-git/packhorse/internal/fault"
)

// Identity is who calls. One without a name is anonymous.
type Identity struct {
	Name string // letters, digits and "._-@+", at most 128 bytes: fit for an environment, a header, and a log; "" for anonymous
	By   string // how it was proved: "token", "key", "certificate", "hook"; "" for anonymous
	// Credential says which one it was proved with, for logs: a token's ID, a key's fingerprint; never what proves it. May be empty.
	Credential string
	Address    string // the caller's IP address, without a port; an auth hook is told
	// Grant narrows what the identity may do to what its credential is for; nil: all that the rules allow.
	Grant *Grant
}

// Anonymous tells whether nobody knows who it is.
func (id Identity) Anonymous() bool { return id.Name == "" }

// MaxName bounds an identity's name in bytes.
const MaxName = 128

// CheckName accepts the names that identities and tokens may have: letters, digits and "._-@+" in ASCII, a letter or digit first, and not
// "anonymous". Nothing that was accepted can be taken for an option, a delimiter or a path.
func CheckName(name string) error {
	bad := fault.New(fault.Invalid, "bad name %.40q: it has 1 to %d letters, digits and \"._-@+\", and begins with a letter or digit", name, MaxName)
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
		return fault.New(fault.Invalid, "%q is who nobody knows; take another name", name)
	}
	return nil
}

// Operation is what a caller wants with a repository. Each includes those before it.
type Operation uint8

const (
	Read Operation = iota
	Write
	Admin
)

// String is the operation's name in the configuration, in logs, and in what an auth hook is asked.
func (o Operation) String() string { return [...]string{"read", "write", "admin"}[o] }

// ParseOperation reads an operation's name.
func ParseOperation(name string) (Operation, error) {
	for o := Read; o <= Admin; o++ {
		if o.String() == name {
			return o, nil
		}
	}
	return 0, fault.New(fault.Invalid, "%.40q is not read, write or admin", name)
}

// Grant is what a credential is good for.
type Grant struct {
	Operation    Operation // the most that it allows
	Repositories []Pattern // empty: all
}

// allows tells whether a grant is for this; nil is for everything.
func (g *Grant) allows(path []string, op Operation) bool {
	return g == nil || op <= g.Operation && (len(g.Repositories) == 0 || matchAny(g.Repositories, path))
}
