package gateway

import (
	"math"
	"time"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
)

// Operation is a kind of request. All that depends on it is in the table below.
type Operation struct {
	Name  string      // value of "operation" in metrics, logs and traces
	Lane  concurrency // the concurrency limit that the request enters first; nil: it enters none
	Short bool        // the request never needs another limit, and is over soon
	Class sli.Class   // the service level that the request is rated by; Fetch: as long as it has sent no pack
	Limit limit       // of the request's body; nil: it has none
	InGit bool        // git shows the user an ERR packet, but only the number of an HTTP status
	Web   bool        // not a request for one repository: the log has its method and path
	Quiet bool        // a refusal that says "unavailable" was logged where it was made
}

type (
	concurrency func(*admit.Lanes) *admit.Lane
	limit       func(*Gateway) BodyLimit
)

// The operations.
var (
	Advertise  = &Operation{Name: "info_refs", Lane: smallLane, Short: true, Class: sli.Small}
	LsRefs     = &Operation{Name: "ls_refs", Lane: smallLane, Class: sli.Small, Limit: requestLimit, InGit: true}
	Fetch      = &Operation{Name: "fetch", Lane: smallLane, Class: sli.Small, Limit: requestLimit, InGit: true}
	ObjectInfo = &Operation{Name: "object_info", Lane: smallLane, Class: sli.Small, Limit: requestLimit, InGit: true}
	BundleURI  = &Operation{Name: "bundle_uri", Lane: smallLane, Class: sli.Small, Limit: requestLimit, InGit: true}
	Push       = &Operation{Name: "push", Lane: pushLane, Class: sli.Push, Limit: pushLimit}
	Wait       = &Operation{Name: "wait"}
	Resolve    = &Operation{Name: "resolve", Lane: smallLane, Short: true, Class: sli.Resolve, Limit: requestLimit}
	Search     = &Operation{Name: "search", Lane: pageLane, Class: sli.Search, Limit: requestLimit, Web: true,
		Quiet: true}
	Page  = &Operation{Name: "page", Lane: pageLane, Class: sli.Page, Limit: requestLimit, Web: true, Quiet: true}
	App   = &Operation{Name: "app", Web: true} // the application has limits and a class of its own
	Other = &Operation{Name: "other", Web: true}
)

// operationOf returns the operation of a fetch session's request after it was parsed.
func operationOf(command protocol.Command) *Operation {
	switch command {
	case protocol.CommandLsRefs:
		return LsRefs
	case protocol.CommandObjectInfo:
		return ObjectInfo
	case protocol.CommandBundleURI:
		return BundleURI
	}
	return Fetch
}

func smallLane(l *admit.Lanes) *admit.Lane { return l.Small }
func pushLane(l *admit.Lanes) *admit.Lane  { return l.Push }
func pageLane(l *admit.Lanes) *admit.Lane  { return l.Pages }

// BodyLimit bounds a request's body.
type BodyLimit struct {
	Size  int64         // of the unpacked body, in bytes
	Stall time.Duration // how long the client may send nothing
	Total time.Duration // how long the whole body may take
}

// maxStalls is how many times Stall most bodies may take in all.
const maxStalls = 10

func requestLimit(g *Gateway) BodyLimit {
	return BodyLimit{Size: g.MaxBody, Stall: g.ReadStall, Total: maxStalls * g.ReadStall}
}

// pushOverhead is how many bytes a push's body may have beside its pack. Git itself refuses a pack that is too large,
// and reports it.
const pushOverhead = 64 << 20

func pushLimit(g *Gateway) BodyLimit {
	// limitedReader asks for one byte more than Size
	l := BodyLimit{Size: math.MaxInt64 - 1, Stall: g.ReadStall, Total: 24 * time.Hour}
	if g.MaxPush > 0 && g.MaxPush < math.MaxInt64-pushOverhead {
		l.Size = g.MaxPush + pushOverhead
	}
	if g.PushTime > 0 {
		l.Total = g.PushTime
	}
	return l
}
