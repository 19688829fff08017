package client

import (
	"context"
	"iter"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// AllRepositories yields the paths of all repositories of a request, on all pages. It ends after an error.
func (c *Client) AllRepositories(ctx context.Context, request *packhorsev1.ListRequest) iter.Seq2[string, error] {
	return eachListed(ctx, c, request, (*packhorsev1.ListResponse).GetRepositories)
}

// DescribeRepositories yields the details of all repositories of a request, on all pages. It ends after an error.
func (c *Client) DescribeRepositories(ctx context.Context,
	request *packhorsev1.ListRequest) iter.Seq2[*packhorsev1.Repository, error] {
	request = proto.CloneOf(request)
	request.Details = true
	return eachListed(ctx, c, request, (*packhorsev1.ListResponse).GetDetails)
}

// eachListed yields the elements of all pages.
func eachListed[T any](ctx context.Context, c *Client, request *packhorsev1.ListRequest,
	elements func(*packhorsev1.ListResponse) []T) iter.Seq2[T, error] {
	request = proto.CloneOf(request)
	return func(yield func(T, error) bool) {
		request := proto.CloneOf(request)
		for {
			page, err := c.repositories.List(ctx, connect.NewRequest(request))
			if err != nil {
				yield(*new(T), err)
				return
			}
			for _, element := range elements(page.Msg) {
				if !yield(element, nil) {
					return
				}
			}
			request.After = ""
			if request.PageToken = page.Msg.GetNextPageToken(); request.PageToken == "" {
				return
			}
		}
	}
}

// AllTree yields the entries of a directory, on all pages. It ends after an error.
func (c *Client) AllTree(ctx context.Context,
	request *packhorsev1.TreeRequest) iter.Seq2[*packhorsev1.TreeEntry, error] {
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

// AllRefs yields the refs of a request in the order of their names. They show one state of the repository unless the
// request has a page size. It ends after an error.
func (c *Client) AllRefs(ctx context.Context,
	request *packhorsev1.RefServiceListRequest) iter.Seq2[*packhorsev1.Ref, error] {
	request = proto.CloneOf(request)
	return func(yield func(*packhorsev1.Ref, error) bool) {
		request := proto.CloneOf(request)
		for {
			next := ""
			for batch, err := range Messages(ctx, request, c.refs.List) {
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

// Commits yields the commits of a request. It ends after an error.
func (c *Client) Commits(ctx context.Context, request *packhorsev1.LogRequest) iter.Seq2[*packhorsev1.Commit, error] {
	request = proto.CloneOf(request)
	return func(yield func(*packhorsev1.Commit, error) bool) {
		for batch, err := range Messages(ctx, request, c.objects.Log) {
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

// Messages yields the messages of a call whose response is a stream, and ends the call when the loop is left:
//
//	for part, err := range client.Messages(ctx, request, node.Diffs().Patch) {
//
// It ends after an error.
func Messages[Request, Message any](
	ctx context.Context, request *Request, call func(context.Context,
		*connect.Request[Request]) (*connect.ServerStreamForClient[Message], error),
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
		defer cancel() // before Close, which would wait for the end of the stream
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
