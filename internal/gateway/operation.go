package gateway

import (
	"math"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Operation is a kind of request. The table below has everything that depends on it.
type Operation struct {
	Name  string         // value of "operation" in metrics, logs and traces
	Lane  concurrency    // the concurrency limit that the request enters first; nil: it enters none
	Short bool           // the request is short and needs no other limit
	Class inflight.Class // service level of the request; a Fetch with a pack has another one
	Limit limit          // of the request's body; nil: it has none
	InGit bool           // errors are sent as ERR packets, whose text git shows; of HTTP errors only the status
	Web   bool           // not a request for one repository: the log has its method and path
	LFS   bool           // of Git LFS: its log line and metrics have the object's figures, not those of a pack
	Quiet bool           // the cause of an Unavailable error was logged where it occurred
}

type (
	concurrency func(*admit.Lanes) *admit.Lane
	limit       func(*Gateway) BodyLimit
)

// The operations.
var (
	Advertise = &Operation{Name: "info_refs", Lane: smallLane, Short: true, Class: inflight.ClassSmall}
	LsRefs    = &Operation{Name: "ls_refs", Lane: smallLane, Class: inflight.ClassSmall, Limit: requestLimit,
		InGit: true}
	Fetch = &Operation{Name: "fetch", Lane: smallLane, Class: inflight.ClassSmall, Limit: requestLimit,
		InGit: true}
	ObjectInfo = &Operation{Name: "object_info", Lane: smallLane, Class: inflight.ClassSmall,
		Limit: requestLimit, InGit: true}
	BundleURI = &Operation{Name: "bundle_uri", Lane: smallLane, Class: inflight.ClassSmall,
		Limit: requestLimit, InGit: true}
	Archive = &Operation{Name: "archive", Lane: coldLane, Class: inflight.ClassCold}
	Push    = &Operation{Name: "push", Lane: pushLane, Class: inflight.ClassPush, Limit: pushLimit}
	Wait    = &Operation{Name: "wait"}
	Resolve = &Operation{Name: "resolve", Lane: smallLane, Short: true, Class: inflight.ClassResolve,
		Limit: requestLimit}
	LFSBatch = &Operation{Name: "lfs_batch", Lane: smallLane, Class: inflight.ClassSmall,
		Limit: requestLimit, LFS: true}
	LFSVerify = &Operation{Name: "lfs_verify", Lane: smallLane, Short: true, Class: inflight.ClassSmall,
		Limit: requestLimit, LFS: true}
	LFSLocks = &Operation{Name: "lfs_locks", Lane: smallLane, Short: true, Class: inflight.ClassSmall,
		Limit: requestLimit, LFS: true}
	// LFSPart is the question how much of an interrupted upload has arrived.
	LFSPart     = &Operation{Name: "lfs_part", Lane: smallLane, Short: true, Class: inflight.ClassSmall, LFS: true}
	LFSDownload = &Operation{Name: "lfs_download", Lane: smallLane, Class: inflight.ClassSmall, LFS: true}
	// LFSAuthenticate makes a token for clients of SSH.
	LFSAuthenticate = &Operation{Name: "lfs_authenticate", Lane: smallLane, Short: true,
		Class: inflight.ClassSmall, LFS: true}
	LFSUpload = &Operation{Name: "lfs_upload", Lane: pushLane, Class: inflight.ClassPush,
		Limit: uploadLimit, LFS: true}
	Search = &Operation{Name: "search", Lane: pageLane, Class: inflight.ClassSearch,
		Limit: requestLimit, Web: true, Quiet: true}
	Page = &Operation{Name: "page", Lane: pageLane, Class: inflight.ClassPage, Limit: requestLimit, Web: true,
		Quiet: true}
	// API is a request for the API of repositories, and APIChange one that changes a repository.
	API       = &Operation{Name: "api", Lane: pageLane, Class: inflight.ClassPage, Limit: apiLimit, Web: true}
	APIChange = &Operation{Name: "api_change", Lane: pushLane, Class: inflight.ClassPush, Limit: apiLimit, Web: true}
	Hook      = &Operation{Name: "webhook", Limit: hookLimit, Web: true} // from a forge
	App       = &Operation{Name: "app", Web: true}                       // package app has the limits and the class
	Other     = &Operation{Name: "other", Web: true}
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
func coldLane(l *admit.Lanes) *admit.Lane  { return l.Cold }
func pushLane(l *admit.Lanes) *admit.Lane  { return l.Push }
func pageLane(l *admit.Lanes) *admit.Lane  { return l.Pages }

// BodyLimit has the limits of a request's body.
type BodyLimit struct {
	Size  int64         // of the unpacked body, in bytes
	Stall time.Duration // maximum time without a byte
	Total time.Duration // maximum time for the whole body
}

// maxStalls is the maximum time for the whole body of most requests, as a multiple of Stall.
const maxStalls = 10

func requestLimit(g *Gateway) BodyLimit {
	return BodyLimit{Size: g.MaxBody, Stall: g.ReadStall, Total: maxStalls * g.ReadStall}
}

// maxHook is the maximum size of the body of a webhook in bytes.
const maxHook = 1 << 20

func hookLimit(g *Gateway) BodyLimit {
	return BodyLimit{Size: maxHook, Stall: g.ReadStall, Total: maxStalls * g.ReadStall}
}

// MaxAPIBody is the maximum size of the body of a request to the API in bytes.
const MaxAPIBody = 8 << 20

// apiLimit allows one byte more, so that a body which is too long has a status of its own.
func apiLimit(g *Gateway) BodyLimit {
	return BodyLimit{Size: MaxAPIBody + 1, Stall: g.ReadStall, Total: maxStalls * g.ReadStall}
}

// pushOverhead is the maximum number of bytes in a push's body besides its pack. Git itself refuses a pack that is too
// large, and reports it.
const pushOverhead = 64 << 20

// uploadLimit is the limit of an object of Git LFS. The request announces its size, see Body.LimitTo.
func uploadLimit(g *Gateway) BodyLimit {
	l := pushLimit(g)
	l.Size = math.MaxInt64 - 1
	return l
}

func pushLimit(g *Gateway) BodyLimit {
	// limitedReader asks for one byte more than Size
	l := BodyLimit{Size: math.MaxInt64 - 1, Stall: g.ReadStall, Total: g.timeLimit()}
	if g.MaxPush > 0 && g.MaxPush < math.MaxInt64-pushOverhead {
		l.Size = g.MaxPush + pushOverhead
	}
	return l
}
