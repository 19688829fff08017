package node

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// Origin is what an origin is and does for a repository.
type Origin struct {
	Host     string        // gets the credential
	URL      string        // permissions of another one do not count
	StaleFor time.Duration // how long a permission holds while the origin gives no answer
	IsSilent bool          // it has lately answered nothing
	// Probe asks whether the owner of a credential may use a service on the repository. The zero credential is that of an
	// anonymous caller. The origin has refused if the error is Unauthenticated, Denied or NotFound. Any other error
	// means that it gave no answer. caller is the party that the request counts for, in the form of balance.Caller: ""
	// is the repository, whose origin has accepted the credential for it before.
	Probe func(ctx context.Context, service protocol.Service, authorization Secret, caller string) error
}
