package native

import "errors"

// fallback is an error that leaves a pack to git. It is returned before the first byte of the pack.
type fallback struct {
	reason string // a word for the metric: missing, filter, memory, damaged, ...
	err    error  // may be nil
}

func (f *fallback) Error() string {
	if f.err == nil {
		return "the pack cannot be made in process: " + f.reason
	}
	return "the pack cannot be made in process: " + f.reason + ": " + f.err.Error()
}

func (f *fallback) Unwrap() error { return f.err }

// errAlways is for the log; the client's message has the reason.
var errAlways = errors.New(`packs.source is "native"; with "auto" git makes this pack`)

// Reasons of fallbacks.
const (
	reasonMissing = "missing" // an object is not in the repository, as in a partial clone
	reasonFilter  = "filter"  // the filter is not supported
	reasonMemory  = "memory"  // the selection takes more memory than allowed
	reasonEncode  = "encode"  // too many objects would be encoded again
	reasonPacks   = "packs"   // the repository has too many packs
	reasonDamaged = "damaged" // an object, pack or index is damaged
	reasonFailed  = "failed"  // a pack failed or was left to git after long work a while ago, or there was another error
)
