package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Patch yields the files of a diff, each with its whole patch, and at the end the summary. It ends after an error.
func (c *Client) Patch(ctx context.Context,
	request *packhorsev1.PatchRequest) iter.Seq2[*packhorsev1.PatchResponse, error] {
	request = proto.CloneOf(request)
	return func(yield func(*packhorsev1.PatchResponse, error) bool) {
		var last *packhorsev1.PatchResponse
		for part, err := range received(ctx, request, c.diffs.Patch) {
			if more := part.GetPatch(); more != nil && last.GetFile() != nil {
				file := last.GetFile()
				file.Patch = append(file.Patch, more...)
				continue
			}
			if last != nil && !yield(last, nil) {
				return
			}
			if last = part; err != nil {
				yield(nil, err)
				return
			}
		}
		if last != nil {
			yield(last, nil)
		}
	}
}

// FormatPatch reads commits as mails that git am accepts. The caller closes the reader.
func (c *Client) FormatPatch(ctx context.Context, request *packhorsev1.FormatPatchRequest) (io.ReadCloser, error) {
	mails := &content{}
	_, err := openContent(ctx, mails, request, c.diffs.FormatPatch, (*packhorsev1.FormatPatchResponse).GetData)
	if err != nil {
		return nil, err
	}
	return mails, nil
}

// RangeDiff reads the comparison of two versions of a series of commits. The caller closes the reader.
func (c *Client) RangeDiff(ctx context.Context, request *packhorsev1.RangeDiffRequest) (io.ReadCloser, error) {
	text := &content{}
	_, err := openContent(ctx, text, request, c.diffs.RangeDiff, (*packhorsev1.RangeDiffResponse).GetData)
	if err != nil {
		return nil, err
	}
	return text, nil
}

// BlamedHunk is some lines of a file, and the commit that they come from.
type BlamedHunk struct {
	*packhorsev1.BlameHunk
	By *packhorsev1.BlameCommit
}

// Blame yields the hunks of a file in its order. It ends after an error.
func (c *Client) Blame(ctx context.Context, request *packhorsev1.BlameRequest) iter.Seq2[BlamedHunk, error] {
	request = proto.CloneOf(request)
	return func(yield func(BlamedHunk, error) bool) {
		commits := map[string]*packhorsev1.BlameCommit{}
		for batch, err := range received(ctx, request, c.history.Blame) {
			if err != nil {
				yield(BlamedHunk{}, err)
				return
			}
			for _, commit := range batch.GetCommits() {
				commits[commit.GetOid()] = commit
			}
			for _, hunk := range batch.GetHunks() {
				if !yield(BlamedHunk{hunk, commits[hunk.GetCommit()]}, nil) {
					return
				}
			}
		}
	}
}

// ChangedEntry is an entry of a directory, and the last commit that changed it.
type ChangedEntry struct {
	*packhorsev1.LastCommit
	By *packhorsev1.Commit
}

// LastCommits yields the entries of a directory. It ends after an error.
func (c *Client) LastCommits(ctx context.Context,
	request *packhorsev1.LastCommitsRequest) iter.Seq2[ChangedEntry, error] {
	request = proto.CloneOf(request)
	return func(yield func(ChangedEntry, error) bool) {
		commits := map[string]*packhorsev1.Commit{}
		for batch, err := range received(ctx, request, c.history.LastCommits) {
			if err != nil {
				yield(ChangedEntry{}, err)
				return
			}
			for _, commit := range batch.GetCommits() {
				commits[commit.GetOid()] = commit
			}
			for _, entry := range batch.GetEntries() {
				if !yield(ChangedEntry{entry, commits[entry.GetCommit()]}, nil) {
					return
				}
			}
		}
	}
}

// maxPairs is the maximum number of pairs in a message of CheckMerges.
const maxPairs = 100

// CheckMerges merges pairs of revisions, writes nothing, and yields the results in the order of the pairs. A pair that
// cannot be merged has a Fault. It ends after an error of the whole call.
func (c *Client) CheckMerges(ctx context.Context, repository string,
	pairs []*packhorsev1.MergePair) iter.Seq2[*packhorsev1.CheckResponse, error] {
	return func(yield func(*packhorsev1.CheckResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		stream := c.merges.Check(ctx)
		sent := make(chan struct{})
		var failure error
		go func() { // while results arrive
			defer close(sent)
			for batch := range slices.Chunk(pairs, maxPairs) {
				request := &packhorsev1.CheckRequest{Repository: repository, Pairs: batch}
				if failure = stream.Send(request); failure != nil {
					break
				}
			}
			_ = stream.CloseRequest()
		}()
		defer func() {
			cancel()
			<-sent
			_ = stream.CloseResponse()
		}()
		for {
			result, err := stream.Receive()
			if errors.Is(err, io.EOF) {
				if <-sent; failure != nil && !errors.Is(failure, io.EOF) {
					yield(nil, failure)
				}
				return
			}
			if !yield(result, err) || err != nil {
				return
			}
		}
	}
}
