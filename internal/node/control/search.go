package control

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"connectrpc.com/connect"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// Index is the index of a search process. It is safe for concurrent use.
type Index interface {
	search.Searcher
	// Searched returns the repositories in any order.
	Searched() []git.RepoPath
	// Status returns the progress of indexing. readable limits the repositories that it may name; nil: all.
	Status(readable search.Readable) search.Status
	// Refresh lists the repositories again.
	Refresh(ctx context.Context) error
}

// searchService serves SearchService.
type searchService struct{ *Server }

var _ internalv1connect.SearchServiceHandler = searchService{}

// formats maps the formats of results.
var formats = map[internalv1.SearchFormat]schema.Format{
	internalv1.SearchFormat_SEARCH_FORMAT_UNSPECIFIED:   schema.API,
	internalv1.SearchFormat_SEARCH_FORMAT_STREAM_LINES:  schema.StreamLines,
	internalv1.SearchFormat_SEARCH_FORMAT_STREAM_CHUNKS: schema.StreamChunks,
	internalv1.SearchFormat_SEARCH_FORMAT_GRAPHQL:       schema.GraphQL,
	internalv1.SearchFormat_SEARCH_FORMAT_EVENTS:        schema.APIEvents,
}

func (s searchService) Search(ctx context.Context, request *connect.Request[internalv1.SearchRequest],
	stream *connect.ServerStream[internalv1.SearchResponse]) error {
	m := request.Msg
	q := search.Request{Limit: int(m.GetLimit()), Timeout: m.GetTimeout().AsDuration()}
	var err error
	if q.Query, err = query.Parse(m.GetQuery()); err != nil {
		return err
	}
	var ok bool
	if q.Format, ok = formats[m.GetFormat()]; !ok {
		return fault.New(fault.Invalid, "unknown result format %d", m.GetFormat())
	}
	switch {
	case q.Limit < 0 || q.Timeout < 0:
		return fault.New(fault.Invalid, "negative limit or timeout")
	case q.Limit > 0:
		q.Query.Count = 0
	}
	if q.Timeout > 0 {
		q.Query.Timeout = 0
	}
	if q.May, err = s.readable(m.GetAll(), m.GetReadable()); err != nil {
		return err
	}
	seat, err := s.Lanes.Pages.Enter(balance.Caller(request.Header().Get(callerHeader)))
	if err != nil {
		return err
	}
	defer seat.Leave()
	summary, err := s.Index.Search(ctx, q, searchStream{stream})
	if err != nil {
		return err
	}
	summary.Done = true
	return searchStream{stream}.Progress(summary)
}

// searchStream sends the results of a search.
type searchStream struct {
	*connect.ServerStream[internalv1.SearchResponse]
}

func (s searchStream) Matches(b search.Batch) error {
	return s.Send(&internalv1.SearchResponse{Part: &internalv1.SearchResponse_Matches{
		Matches: &internalv1.SearchMatches{Json: b.JSON, Results: int32(b.Results), Matches: int32(b.Matches)},
	}})
}

func (s searchStream) Progress(p search.Summary) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return s.Send(&internalv1.SearchResponse{Part: &internalv1.SearchResponse_Summary{
		Summary: &internalv1.SearchSummary{Json: text}}})
}

func (s searchService) ListSearchable(_ context.Context,
	request *connect.Request[internalv1.ListSearchableRequest]) (
	*connect.Response[internalv1.ListSearchableResponse], error) {
	l := newRepositoryList(s.Index.Searched())
	s.lists.Add(l.state, l.paths)
	answer := &internalv1.ListSearchableResponse{ListVersion: l.state}
	if answer.Unchanged = l.state == request.Msg.GetListVersion(); !answer.Unchanged {
		for _, path := range l.paths {
			answer.Repositories = append(answer.Repositories, path.String())
		}
	}
	return connect.NewResponse(answer), nil
}

func (s searchService) Status(ctx context.Context,
	request *connect.Request[internalv1.StatusRequest]) (*connect.Response[internalv1.StatusResponse], error) {
	may, err := s.readable(request.Msg.GetAll(), request.Msg.GetReadable())
	if err != nil {
		return nil, err
	}
	if request.Msg.GetRefresh() {
		if err := s.Index.Refresh(ctx); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(s.Index.Status(may))
	return responseOf(&internalv1.StatusResponse{Json: text}, err)
}

// readable returns the repositories in the scope of a request. Nil means all.
func (s searchService) readable(all bool, set *internalv1.ReadableSet) (search.Readable, error) {
	switch {
	case all:
		return nil, nil
	case set == nil:
		return nil, fault.New(fault.Invalid, "the request has no scope: set all or readable")
	}
	return s.readableOf(set.GetListVersion(), set.GetBits())
}

// repositoryList is a list of the searched repositories.
type repositoryList struct {
	state string
	paths []git.RepoPath // sorted
}

func newRepositoryList(paths []git.RepoPath) repositoryList {
	slices.SortFunc(paths, func(a, b git.RepoPath) int { return strings.Compare(a.String(), b.String()) })
	h := sha256.New()
	for _, path := range paths {
		io.WriteString(h, path.String()+"\n")
	}
	return repositoryList{base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12]), paths}
}

// repositoryLists has the latest lists that callers got, by their state.
type repositoryLists = lru.Cache[string, []git.RepoPath]

func newRepositoryLists() *repositoryLists {
	lists, _ := lru.New[string, []git.RepoPath](16) // the size is valid
	return lists
}

// readableOf returns the repositories of a list whose bits are set.
func (s searchService) readableOf(state string, bits []byte) (search.Readable, error) {
	paths, ok := s.lists.Get(state)
	if !ok {
		return nil, fault.New(fault.NotFound, "unknown version of the repository list: request a new list")
	}
	if len(bits) != (len(paths)+7)/8 {
		return nil, fault.New(fault.Invalid, "invalid readable set: got %d bytes for %d repositories", len(bits), len(paths))
	}
	may := make(map[git.RepoPath]struct{})
	for i, path := range paths {
		if bits[i/8]&(1<<(i%8)) != 0 {
			may[path] = struct{}{}
		}
	}
	return search.Each(func(path git.RepoPath) bool { _, ok := may[path]; return ok }), nil
}
