package router

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/node"
)

// Calls makes calls of a node's public API. A Node that implements it takes such calls. It is safe for concurrent use.
type Calls interface {
	// Call passes each message of the response to receive, whose error ends the call and is returned. Other errors have
	// a fault kind. A node.UnsentError means that the node has not begun the call.
	Call(ctx context.Context, call node.Call, receive func(message []byte) error) error
}
