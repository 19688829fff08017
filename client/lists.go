package client

import (
	"context"
	"iter"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// AllRepositories goes over the paths of the repositories that a request asks for, page by page. An error is the last that it gives.
func (c *Client) AllRepositories(ctx context.Context, request *packhorsev1.ListRequest) iter.Seq2[string, error] {
	request = proto.CloneOf(request)
	return func(yield func(string, error) bool) {
		request := proto.CloneOf(request)
		for {
			page, err := c.repositories.List(ctx, connect.NewRequest(request))
			if err != nil {
				yield("", err)
				return
			}
			for _, path := range page.Msg.GetRepositories() {
				if !yield(path, nil) {
					return
				}
			}
			if request.PageToken = page.Msg.GetNextPageToken(); request.PageToken == "" {
				return
			}
		}
	}
}

// AllTree goes over the entries of a directory, page by page. An error is the last that it gives.
func (c *Client) AllTree(ctx context.Context, request *packhorsev1.TreeRequest) iter.Seq2[*packhorsev1.TreeEntry, error] {
	request = proto.CloneOf(request)
	return func(yield func(*packhorsev1.TreeEntry, error) bool) {
		request := proto.CloneOf(request)
		for {
			page, err := c.objects.Tree(ctx, connect.NewRequest(request))
			if err != nil {
				yield(nil, err)
				return
			}
			for _, entry := range page.Msg.GetEntries() {
				if !yield(entry, nil) {
					return
				}
			}
			if request.PageToken = page.Msg.GetNextPageToken(); request.PageToken == "" {
				return
			}
		}
	}
}

// AllRefs goes over the refs that a request asks for, in the order of their names. All are of one state of the repository unless the
// request has a page size. An error is the last that it gives.
func (c *Client) AllRefs(ctx context.Context, request *packhorsev1.RefServiceListRequest) iter.Seq2[*packhorsev1.Ref, error] {
	request = proto.CloneOf(request)
	return func(yield func(*packhorsev1.Ref, error) bool) {
		request := proto.CloneOf(request)
		for {
			next := ""
			for batch, err := range received(ctx, request, c.refs.List) {
				if err != nil {
					yield(nil, err)
					return
				}
				for _, ref := range batch.GetRefs() {
					if !yield(ref, nil) {
						return
					}
				}
				next = batch.GetNextPageToken()
			}
			if request.PageToken = next; next == "" {
				return
			}
		}
	}
}

// Commits goes over the commits that a request asks for. An error is the last that it gives.
func (c *Client) Commits(ctx context.Context, request *packhorsev1.LogRequest) iter.Seq2[*packhorsev1.Commit, error] {
	request = proto.CloneOf(request)
	return func(yield func(*packhorsev1.Commit, error) bool) {
		for batch, err := range received(ctx, request, c.objects.Log) {
			if err != nil {
				yield(nil, err)
				return
			}
			for _, commit := range batch.GetCommits() {
				if !yield(commit, nil) {
					return
				}
			}
		}
	}
}

// received goes over the messages of a stream, and ends the call when it is left. An error is the last that it gives.
func received[Request, Message any](
	ctx context.Context, request *Request, call func(context.Context, *connect.Request[Request]) (*connect.ServerStreamForClient[Message], error),
) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		stream, err := call(ctx, connect.NewRequest(request))
		if err != nil {
			cancel()
			yield(nil, err)
			return
		}
		defer stream.Close()
		defer cancel() // first: a stream that is not read to its end is not waited for
		for stream.Receive() {
			if !yield(stream.Msg(), nil) {
				return
			}
		}
		if err := stream.Err(); err != nil {
			yield(nil, err)
		}
	}
}
