package control

import (
	"context"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// historyService serves HistoryService.
type historyService struct {
	*Server
}

var _ packhorsev1connect.HistoryServiceHandler = (*historyService)(nil)

const (
	maxNamedRefs   = 3 << 20 // bytes of names in a response of Contains
	lastCommitSize = 100     // bytes of an entry in a response of LastCommits, about, without its name
)

func (s *historyService) LastCommits(ctx context.Context, request *connect.Request[packhorsev1.LastCommitsRequest],
	stream *connect.ServerStream[packhorsev1.LastCommitsResponse]) error {
	w, err := s.begin(ctx, s.work, request)
	if err != nil {
		return err
	}
	defer w.end()
	send := sendTo(w, stream)
	in := lookup.PathIn{Revision: request.Msg.GetRevision(), Path: rawPath(request.Msg)}
	return s.Node.LastCommits(ctx, w.repository, in, func(list []lookup.LastCommit) error {
		answer, size := new(packhorsev1.LastCommitsResponse), 0
		sent := make(map[*lookup.Commit]bool)
		for _, e := range list {
			var commits []*packhorsev1.Commit
			n := len(e.Name) + lastCommitSize
			if !sent[e.Commit] {
				sent[e.Commit] = true
				commits = append(commits, commitMessage(e.Commit))
				n += proto.Size(commits[0])
			}
			if size > 0 && size+n > maxPart {
				if err := send(answer); err != nil {
					return err
				}
				answer, size = new(packhorsev1.LastCommitsResponse), 0
			}
			size += n
			answer.Commits = append(answer.Commits, commits...)
			answer.Entries = append(answer.Entries, &packhorsev1.LastCommit{Name: []byte(e.Name), Type: e.Type.String(),
				Commit: e.Commit.ID.String()})
		}
		if size == 0 {
			return nil
		}
		return send(answer)
	})
}

func (s *historyService) MergeBase(ctx context.Context, request *connect.Request[packhorsev1.MergeBaseRequest]) (
	*connect.Response[packhorsev1.MergeBaseResponse], error) {
	return respond(request.Msg, func(repository git.RepoPath) (*packhorsev1.MergeBaseResponse, error) {
		bases, err := s.Node.MergeBase(ctx, repository, request.Msg.GetRevisions())
		answer := &packhorsev1.MergeBaseResponse{Oids: make([]string, len(bases))}
		for i, id := range bases {
			answer.Oids[i] = id.String()
		}
		return answer, err
	})
}

func pairsOf(list []*packhorsev1.CommitPair) []lookup.Pair {
	pairs := make([]lookup.Pair, len(list))
	for i, p := range list {
		pairs[i] = lookup.Pair{Left: p.GetLeft(), Right: p.GetRight()}
	}
	return pairs
}

func (s *historyService) AheadBehind(ctx context.Context, request *connect.Request[packhorsev1.AheadBehindRequest]) (
	*connect.Response[packhorsev1.AheadBehindResponse], error) {
	return respond(request.Msg, func(repository git.RepoPath) (*packhorsev1.AheadBehindResponse, error) {
		results, err := s.Node.AheadBehind(ctx, repository, pairsOf(request.Msg.GetPairs()))
		answer := &packhorsev1.AheadBehindResponse{Results: make([]*packhorsev1.AheadBehind, len(results))}
		for i, r := range results {
			answer.Results[i] = &packhorsev1.AheadBehind{Ahead: int64(r.Ahead), Behind: int64(r.Behind)}
		}
		return answer, err
	})
}

func (s *historyService) IsAncestor(ctx context.Context, request *connect.Request[packhorsev1.IsAncestorRequest]) (
	*connect.Response[packhorsev1.IsAncestorResponse], error) {
	return respond(request.Msg, func(repository git.RepoPath) (*packhorsev1.IsAncestorResponse, error) {
		results, err := s.Node.AheadBehind(ctx, repository, pairsOf(request.Msg.GetPairs()))
		answer := &packhorsev1.IsAncestorResponse{Results: make([]*packhorsev1.IsAncestorResult, len(results))}
		for i, r := range results {
			answer.Results[i] = &packhorsev1.IsAncestorResult{IsAncestor: r.Ahead == 0}
		}
		return answer, err
	})
}

// Contains omits refs whose names are not UTF-8, as the list of refs does.
func (s *historyService) Contains(ctx context.Context, request *connect.Request[packhorsev1.ContainsRequest]) (
	*connect.Response[packhorsev1.ContainsResponse], error) {
	return respond(request.Msg, func(repository git.RepoPath) (*packhorsev1.ContainsResponse, error) {
		results, err := s.Node.Contains(ctx, repository, lookup.ContainsRequest{
			Revisions: request.Msg.GetRevisions(), Prefix: request.Msg.GetPrefix(), Limit: int(request.Msg.GetLimit())})
		answer := &packhorsev1.ContainsResponse{Results: make([]*packhorsev1.ContainsResult, len(results))}
		size := 0
		for i, r := range results {
			m := &packhorsev1.ContainsResult{Truncated: r.Truncated}
			for _, name := range r.Refs {
				if utf8.ValidString(string(name)) {
					m.Refs = append(m.Refs, string(name))
					size += len(name)
				}
			}
			answer.Results[i] = m
		}
		if size > maxNamedRefs {
			return nil, fault.InField("limit", fault.New(fault.Invalid,
				"the names of the refs have more than %d bytes: use a lower limit", maxNamedRefs))
		}
		return answer, err
	})
}
