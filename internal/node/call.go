package node

import "context"

// ReachableHeader is the header of a call for a client of a gateway, which may read only what it may fetch. "1" means
// that objects that no visible ref reaches are hidden from it, and "0" that the node's configuration decides. IDs of
// visible objects may follow, separated by spaces.
const ReachableHeader = "Packhorse-Reachable"

// ShareHeader is the header of a call with the client of a gateway to whose share of the capacity the call counts,
// escaped as in a query.
const ShareHeader = "Packhorse-Share"

// ActorHeader is the header of a call with the name of the client of a gateway, escaped as in a query. The events of
// changes have it.
const ActorHeader = "Packhorse-Actor"

type actorKey struct{}

// WithActor returns a context with the name of the user on whose behalf a change is made.
func WithActor(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, actorKey{}, name)
}

// ActorOf returns the name of WithActor; "" if there is none.
func ActorOf(ctx context.Context) string {
	name, _ := ctx.Value(actorKey{}).(string)
	return name
}

// Call is a call of a node's public API (proto/packhorse/v1), with one message as its request.
type Call struct {
	Procedure string // "/packhorse.v1.ObjectService/Tree"
	Request   []byte // the message, encoded as Protobuf
	// Reachable is the value of ReachableHeader. "" means that the revisions in the request are not checked.
	Reachable string
	Caller    string // whose share the call counts to, see ShareHeader
	Actor     string // see ActorHeader
	// StoreID is the ID of the object store in which a change has to be committed. "" means that any will do.
	StoreID string
	// HasRules reports whether the request has rules that the node must enforce (Pusher.Rules).
	HasRules bool
}
