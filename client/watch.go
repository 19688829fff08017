package client

import (
	"context"
	"errors"
	"iter"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Watch yields changes of refs in some repositories until ctx ends or the loop is left.
//
// It begins with one event for each repository, with its current version. If the connection breaks, it yields the error
// with a nil event. It resumes after 0.1 to 10 seconds from the last version of each repository, so no change is lost.
// Until the next event of a repository, information about it may be stale. If an event has Reset_ set, discard
// everything about its repository. A long event has several parts, and all except the last have Continued set. If the
// connection breaks between them, all parts are sent again.
//
// The loop ends with ctx and after a permanent error. These are an invalid request and a caller without permission (by
// KindOf: INVALID, DENIED, NOT_FOUND, and by code: UNAUTHENTICATED). A node without watches (UNIMPLEMENTED) or with a
// corrupt disk (DATA_LOSS) ends it, too.
func (c *Client) Watch(ctx context.Context,
	request *packhorsev1.WatchRequest) iter.Seq2[*packhorsev1.WatchResponse, error] {
	request = proto.CloneOf(request)
	return func(yield func(*packhorsev1.WatchResponse, error) bool) {
		from := proto.CloneOf(request)
		at := make(map[string]*packhorsev1.WatchedRepository, len(from.GetRepositories()))
		for _, r := range from.GetRepositories() {
			at[r.GetRepository()] = r
		}
		failures := 0
		for {
			var failure error
			for event, err := range Messages(ctx, from, c.refs.Watch) {
				if err != nil {
					failure = err
					break
				}
				failures = 0
				if r := at[event.GetRepository()]; r != nil {
					r.Version = event.GetVersion() // none if the repository is missing
				}
				if !yield(event, nil) {
					return
				}
			}
			if failure == nil {
				failure = connect.NewError(connect.CodeUnavailable, errWatchEnded)
			}
			if !yield(nil, failure) || ctx.Err() != nil || !passes(failure) {
				return
			}
			if failures++; c.pauses.Wait(ctx, failures, RetryAfter(failure)) != nil {
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

var errWatchEnded = errors.New("the node ended the watch")

// passes reports whether an error may be temporary.
func passes(err error) bool {
	switch KindOf(err) {
	case packhorsev1.FaultKind_FAULT_KIND_INVALID, packhorsev1.FaultKind_FAULT_KIND_DENIED,
		packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND:
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodeUnimplemented, connect.CodeDataLoss:
		return false
	}
	return true
}
