package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// maxPairs is the maximum number of pairs in a message of CheckMerges.
const maxPairs = 500

// CheckMerges merges pairs of revisions, writes nothing, and yields the results in the order of the pairs. A pair that
// cannot be merged has a Fault. It ends after an error of the whole call.
func (c *Client) CheckMerges(ctx context.Context, repository string,
	pairs []*packhorsev1.MergePair) iter.Seq2[*packhorsev1.CheckResponse, error] {
	return func(yield func(*packhorsev1.CheckResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		stream := c.merges.Check(ctx)
		defer func() {
			cancel()
			_ = stream.CloseRequest()
			_ = stream.CloseResponse()
		}()
		for batch := range slices.Chunk(pairs, maxPairs) {
			err := stream.Send(&packhorsev1.CheckRequest{Repository: repository, Pairs: batch})
			if err != nil && !errors.Is(err, io.EOF) { // at io.EOF the response has the reason
				yield(nil, err)
				return
			}
			for range batch {
				result, err := stream.Receive()
				if !yield(result, err) || err != nil {
					return
				}
			}
			repository = "" // only in the first message
		}
	}
}
