package node

// ReachableHeader is the header of a call for a client of a gateway, which may read only what it may fetch. "1" means
// that objects that no visible ref reaches are hidden from it, and "0" that the node's configuration decides. IDs of
// visible objects may follow, separated by spaces.
const ReachableHeader = "Packhorse-Reachable"

// ShareHeader is the header of a call with the client of a gateway to whose share of the capacity the call counts,
// escaped as in a query.
const ShareHeader = "Packhorse-Share"

// Call is a call of a node's public API (proto/packhorse/v1), with one message as its request.
type Call struct {
	Procedure string // "/packhorse.v1.ObjectService/Tree"
	Request   []byte // the message, encoded as Protobuf
	// Reachable is the value of ReachableHeader. "" means that the revisions in the request are not checked.
	Reachable string
	Caller    string // whose share the call counts to, see ShareHeader
	// StoreID is the ID of the object store in which a change has to be committed. "" means that any will do.
	StoreID string
	// HasRules reports whether the request has rules that the node must enforce (Pusher.Rules).
	HasRules bool
}
