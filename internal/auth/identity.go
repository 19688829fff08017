// Package auth says who calls, and whether they may do what they ask for.
//
// An identity is an argument: whoever answers a request is given it, and nothing keeps it beside. It comes from what a caller has proved,
// never from what was only offered.
package auth

// Identity is who calls. The zero value is anonymous.
type Identity struct {
	Name string // letters, digits and "._-@+", at most 128 bytes: fit for an environment, a header, and a log; "" for anonymous
	By   string // how it was proved: "token", "key", "certificate", "hook"; "" for anonymous
	// Grant narrows what the identity may do to what its credential is for; nil: all that the rules allow.
	Grant *Grant
}

// Anonymous tells whether nobody knows who it is.
func (id Identity) Anonymous() bool { return id.Name == "" }

// Operation is what a caller wants with a repository. Each includes those before it.
type Operation uint8

const (
	Read Operation = iota
	Write
	Admin
)

// String is the operation's name in the configuration, in logs, and in what an auth hook is asked.
func (o Operation) String() string { return [...]string{"read", "write", "admin"}[o] }

// Grant is what a credential is good for.
type Grant struct {
	Operation    Operation // the most that it allows
	Repositories []string  // patterns; empty: all
}
