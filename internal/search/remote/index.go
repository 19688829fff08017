// Package remote connects search with other processes. Index is the index of a search process, as a gateway uses it.
// Source reads the repositories of storage nodes through their control API, as a search process uses it.
//
// The gateway decides what a caller may read, because it knows the caller: the search process sends the list of
// repositories that it searches, and gets one bit for each.
//
// A Source selects nodes by routes, as a gateway does: the longest prefix that covers a repository. It calls the
// route's first node, which has the pushes, and another one only if no connection to the nodes before it can be made.
package remote

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// listAge is the maximum age of the list of repositories. Callers who may not read everything do not find newer
// repositories.
const listAge = time.Second

// Index is the search.Searcher of a search process. Safe for concurrent use.
type Index struct {
	service internalv1connect.SearchServiceClient
	lists   *retry.Answers[struct{}, list]
}

// list is the searchable repositories at one time.
type list struct {
	state string
	paths []git.RepoPath
}

var _ search.Searcher = (*Index)(nil)

// NewIndex returns the Index of a search process. It does not connect.
func NewIndex(c *client.Client) *Index {
	httpClient, url := c.HTTP()
	return &Index{service: internalv1connect.NewSearchServiceClient(httpClient, url, connect.WithReadMaxBytes(maxMessage)),
		lists: retry.NewAnswers[struct{}, list](1, 0, time.Now)}
}

// formats maps result formats to those of the API.
var formats = map[schema.Format]internalv1.SearchFormat{
	schema.API:          internalv1.SearchFormat_SEARCH_FORMAT_UNSPECIFIED,
	schema.StreamLines:  internalv1.SearchFormat_SEARCH_FORMAT_STREAM_LINES,
	schema.StreamChunks: internalv1.SearchFormat_SEARCH_FORMAT_STREAM_CHUNKS,
	schema.GraphQL:      internalv1.SearchFormat_SEARCH_FORMAT_GRAPHQL,
	schema.APIEvents:    internalv1.SearchFormat_SEARCH_FORMAT_EVENTS,
}

// Search implements search.Searcher. It also fails with Unavailable if the process is unreachable or ends before the
// last result.
func (x *Index) Search(ctx context.Context, request search.Request, sink search.Sink) (search.Summary, error) {
	q := &internalv1.SearchRequest{
		Query: request.Query.Text, Format: formats[request.Format], Scope: &internalv1.SearchRequest_All{All: true},
	}
	if request.Query.Count == 0 { // otherwise the query has it
		q.Limit = int32(min(max(request.Limit, 0), math.MaxInt32))
	}
	if request.Query.Timeout == 0 {
		q.Timeout = durationpb.New(request.Timeout)
	}
	whole := true // access to all repositories is determined
	for again := false; ; again = true {
		if request.May != nil {
			l, err := x.searched(ctx, again)
			if err != nil {
				return search.Summary{}, unreachable(ctx, err)
			}
			var set *internalv1.ReadableSet
			set, whole = l.readable(request.May)
			q.Scope = &internalv1.SearchRequest_Readable{Readable: set}
		}
		summary, begun, err := x.search(ctx, q, sink)
		summary.TimedOut = summary.TimedOut || !whole
		if fault.Is(err, fault.NotFound) && !begun && !again { // the process has a newer list
			continue
		}
		return summary, err
	}
}

// search makes the call. begun reports whether the sink has received anything.
func (x *Index) search(ctx context.Context, q *internalv1.SearchRequest,
	sink search.Sink) (summary search.Summary, begun bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	call := connect.NewRequest(q)
	inflight.From(ctx).Forward(call.Header().Set)
	inflight.InjectTrace(ctx, call.Header())
	stream, err := x.service.Search(ctx, call)
	if err != nil {
		cancel()
		return summary, false, unreachable(ctx, err)
	}
	defer stream.Close()
	defer cancel() // before Close, which would wait for the end of the stream
	for stream.Receive() {
		begun = true
		switch part := stream.Msg().GetPart().(type) {
		case *internalv1.SearchResponse_Matches:
			m := part.Matches
			err = sink.Matches(search.Batch{JSON: m.GetJson(), Results: int(m.GetResults()), Matches: int(m.GetMatches())})
		case *internalv1.SearchResponse_Summary:
			summary = search.Summary{}
			if err = json.Unmarshal(part.Summary.GetJson(), &summary); err != nil {
				err = fault.Wrap(fault.Internal, "the search process sent an invalid summary", err)
			} else if !summary.Done {
				err = sink.Progress(summary)
			}
		}
		if err != nil {
			return summary, true, err
		}
	}
	inflight.From(ctx).AddUsageHeader(stream.ResponseTrailer().Get(inflight.UsageHeader))
	if err := stream.Err(); err != nil {
		return summary, begun, unreachable(ctx, err)
	}
	if !summary.Done {
		return summary, begun, fault.Retry(fault.Unavailable, fault.RetrySoon, "incomplete response from the search process")
	}
	return summary, begun, nil
}

// unreachable returns the error of a call, worded for a search process. Errors that are neither from the process nor
// from ctx are from the connection.
func unreachable(ctx context.Context, err error) error {
	if err == nil || connect.IsWireError(err) || ctx.Err() != nil {
		err = faultrpc.From(err)
		// from the process, so the connection is not the cause
		if e, ok := err.(*fault.Error); ok && e.Kind == fault.Unavailable {
			e.Err = nil
		}
		return err
	}
	return &fault.Error{Kind: fault.Unavailable, Msg: "cannot reach the search process; try again",
		RetryAfter: fault.RetrySoon, Err: err}
}

// Repositories yields the searchable repositories.
func (x *Index) Repositories(ctx context.Context, each func(git.RepoPath) error) error {
	l, err := x.searched(ctx, false)
	if err != nil {
		return unreachable(ctx, err)
	}
	for _, path := range l.paths {
		if err := each(path); err != nil {
			return err
		}
	}
	return nil
}

// statusLimit is the time limit of calls for the status and the list.
const statusLimit = 5 * time.Second

// Status returns the progress of the index. may selects the repositories that it may name; nil means all. If the call
// fails, the status has the error.
func (x *Index) Status(may search.Readable) search.Status {
	ctx, cancel := context.WithTimeout(context.Background(), statusLimit)
	defer cancel()
	none := search.Status{Jobs: []search.Job{}, Failures: []search.IndexFailure{}}
	answer, err := x.status(ctx, may, false)
	if fault.Is(faultrpc.From(err), fault.NotFound) { // the process has a newer list
		answer, err = x.status(ctx, may, true)
	}
	if err != nil {
		none.Error = fault.Message(unreachable(ctx, err))
		return none
	}
	s := none
	if err := json.Unmarshal(answer.Msg.GetJson(), &s); err != nil {
		none.Error = "invalid status from the search process"
		return none
	}
	hidden := func(name string) bool {
		path, err := git.ParseRepoPath(name)
		if err != nil || may == nil {
			return err != nil
		}
		readable, _ := may([]git.RepoPath{path})
		return !readable[0]
	}
	s.Jobs = slices.DeleteFunc(s.Jobs, func(j search.Job) bool { return hidden(j.Repository) })
	s.Failures = slices.DeleteFunc(s.Failures, func(f search.IndexFailure) bool { return hidden(f.Repository) })
	return s
}

// status makes the call. If refresh is set, it uses a current list.
func (x *Index) status(ctx context.Context, may search.Readable,
	refresh bool) (*connect.Response[internalv1.StatusResponse], error) {
	q := &internalv1.StatusRequest{Scope: &internalv1.StatusRequest_All{All: true}}
	if may != nil {
		l, err := x.searched(ctx, refresh)
		if err != nil {
			return nil, err
		}
		set, _ := l.readable(may)
		q.Scope = &internalv1.StatusRequest_Readable{Readable: set}
	}
	return x.service.Status(ctx, connect.NewRequest(q))
}

// searched returns a list that is at most listAge old, or, if refresh is set, a current one.
func (x *Index) searched(ctx context.Context, refresh bool) (list, error) {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	var since time.Time
	old, _ := x.lists.Get(struct{}{})
	if refresh {
		since, old.state = time.Now(), ""
	}
	l, _, err := x.lists.Ask(ctx, struct{}{}, since, func() (retry.Answer[list], error) {
		now := time.Now()
		l, err := x.newer(old)
		return retry.Until(l, now.Add(listAge)), err
	})
	return l, err
}

// newer returns the current list. If it has the state of the old one, the paths are those of the old one.
func (x *Index) newer(old list) (list, error) {
	ctx, cancel := context.WithTimeout(context.Background(), statusLimit)
	defer cancel()
	answer, err := x.service.ListSearchable(ctx,
		connect.NewRequest(&internalv1.ListSearchableRequest{ListVersion: old.state}))
	if err != nil {
		return list{}, err
	}
	l := list{state: answer.Msg.GetListVersion(), paths: old.paths}
	if !answer.Msg.GetUnchanged() {
		l.paths = make([]git.RepoPath, len(answer.Msg.GetRepositories()))
		for i, name := range answer.Msg.GetRepositories() {
			if l.paths[i], err = git.ParseRepoPath(name); err != nil {
				return list{}, fault.Wrap(fault.Internal, "invalid repository name from the search process", err)
			}
		}
	}
	return l, nil
}

// readable returns the part of the list that may be read. complete is false if access to some repository cannot be
// determined.
func (l *list) readable(may search.Readable) (set *internalv1.ReadableSet, complete bool) {
	readable, complete := may(l.paths)
	bits := make([]byte, (len(l.paths)+7)/8)
	for i, ok := range readable {
		if ok {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return &internalv1.ReadableSet{ListVersion: l.state, Bits: bits}, complete
}
