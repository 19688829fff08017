// Package node is the contract between a gateway and a storage node. It has what a gateway passes to the node about a
// session, where the node writes its response, and the outcome that the node returns. The node in this process (package
// storage) and a node in another process (package remote) both keep it. The interfaces of nodes are in the packages
// that call them.
package node

import (
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// StoreHeader is the header with the ID of an object store. In the response to a health check it is that of the node.
// In a push it is that of the store in which the node has to commit the push.
const StoreHeader = "Packhorse-Store"

// RulesHeader is the header in the response to a health check of a node that enforces Pusher.Rules. No other node gets
// a push with rules.
const RulesHeader = "Packhorse-Ref-Rules"

// NotReadyHeader is the header with the reason in the response to a health check of a node that is not ready.
const NotReadyHeader = "Packhorse-Not-Ready"

// Session describes how a client talks to the server.
type Session struct {
	// Service is the service of an advertisement. "" means protocol.UploadPack.
	Service protocol.Service
	Version protocol.Version
	// Stateless reports whether each request is complete in itself, as over HTTP: it repeats earlier requests, and its
	// response begins when the request has been read. In a session with state both sides take turns on one stream.
	Stateless bool
	// Caller is the caller that the work counts for, where callers share capacity fairly (balance.Caller).
	Caller string
	// Reachable reports whether objects that no visible ref reaches are hidden from this client. The node's
	// configuration can make them public for all clients.
	Reachable bool
	// Authorization is the client's own credential, as the value of the HTTP header of that name, for the server that
	// the repository mirrors. A gateway sets it only if that server has accepted the credential for this repository.
	Authorization Secret
	// Length is the number of bytes of the request of a push. Zero means that it is not known.
	Length int64
	// StoreID is the ID of the object store in which a push has to be committed. "" means that any will do.
	StoreID string
	// Offer limits the features that an advertisement of version 2 offers. Nil means no limit.
	Offer *protocol.Offer
	// Notice is a line for the client's user. It is sent on side-band 2 before a pack, also if the client asks for no
	// progress. "" means none.
	Notice string
}

// Pusher identifies the user of a push for hooks and logs.
type Pusher struct {
	Name    string // safe in an environment variable, a header and a log; "" if unknown
	Address string // the client's IP address
	// Rules limit what the user may change. The zero value: everything that pushes can do.
	Rules RefRules
}

// WaitCondition is the state of a repository that a caller waits for. All conditions must hold.
type WaitCondition struct {
	ID         git.ObjectID // an object that a visible ref reaches; zero: any
	Epoch      uint64       // the node's epoch in which Generation was reported; 0: the current one
	Generation uint64       // the least generation of the refs; 0: any
	Caller     string       // the caller that the work counts for, see admit.Lanes.CallerOf; "": no caller
}

// ResponseWriter is where a node writes the response to one request. Calls are not concurrent. If it is also an
// io.ReaderFrom, its ReadFrom gets parts of files, so that the kernel can copy them.
type ResponseWriter interface {
	io.Writer
	// SetLength announces the length of the whole response in bytes. It is called at most once, before the first Write.
	// A response that ends before its announced length must not look complete to the client. In a session with state
	// the length has no meaning.
	SetLength(n int64)
	// StartBulk announces a response that takes long to send: a pack, or a long list. It moves the request to the
	// concurrency limit for such responses. Cold means that the pack probably has to be made first. It is called at
	// most once for a response, before the first Write. In a session with state the advertisement is one response, and
	// everything after it is another, in which StartBulk comes before the pack. An error is a refusal that ends the
	// session.
	StartBulk(cold bool) error
	// Flush sends the buffered bytes.
	Flush() error
	// ReserveMemory counts n more bytes of memory that the request uses until the session ends. Sessions count what
	// grows with the length of the request. An error is a refusal that ends the session.
	ReserveMemory(n int64) error
}

// StalenessWriter is a ResponseWriter that can tell the client the age of the repository's state.
type StalenessWriter interface {
	// SetStaleness announces the age. It is called before the first Write. Zero revokes an earlier age.
	SetStaleness(age time.Duration)
}
