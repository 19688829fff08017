package client

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Watch goes over the changes of refs in some repositories until ctx ends or the loop is left.
//
// It begins with one event for each repository, which says where it is now. When the connection breaks it gives the error, with a nil
// event, and then comes back by itself: after a pause that grows from 0.1 to 10 seconds, and from the last version that it has seen of each
// repository, so that no change is missed. Until each one's next event, with which it begins again, what is known of it may be old. An event with
// Reset_ set says: forget everything about this repository. A long event comes in parts, all but the last with Continued set; if the connection
// breaks between them it comes again, with what had come of it already.
//
// Errors that will not pass end the loop after they are given: the request is wrong, the caller is not trusted (by KindOf: INVALID, DENIED,
// NOT_FOUND; by code: UNAUTHENTICATED), the node does not know watches (UNIMPLEMENTED) or cannot trust its disk (DATA_LOSS), ctx has ended.
func (c *Client) Watch(ctx context.Context, request *packhorsev1.WatchRequest) iter.Seq2[*packhorsev1.WatchResponse, error] {
	request = proto.CloneOf(request)
	return func(yield func(*packhorsev1.WatchResponse, error) bool) {
		from := proto.CloneOf(request)
		at := make(map[string]*packhorsev1.WatchedRepository, len(from.GetRepositories()))
		for _, r := range from.GetRepositories() {
			at[r.GetRepository()] = r
		}
		pause := c.firstPause
		for {
			var failure error
			for event, err := range received(ctx, from, c.refs.Watch) {
				if err != nil {
					failure = err
					break
				}
				pause = c.firstPause
				if r := at[event.GetRepository()]; r != nil {
					r.Version = event.GetVersion() // none if it is gone: then nothing is known
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
			if !wait(ctx, max(RetryAfter(failure), pause/2+rand.N(pause/2))) {
				yield(nil, ctx.Err())
				return
			}
			pause = min(2*pause, c.lastPause)
		}
	}
}

var errWatchEnded = errors.New("the node ended the watch")

// passes tells whether an error may be over after a while.
func passes(err error) bool {
	switch KindOf(err) {
	case packhorsev1.FaultKind_FAULT_KIND_INVALID, packhorsev1.FaultKind_FAULT_KIND_DENIED, packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND:
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodeUnimplemented, connect.CodeDataLoss:
		return false
	}
	return true
}

// wait waits, and reports false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
