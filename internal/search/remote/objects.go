package remote

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/search"
)

const (
	maxMessage = 64 << 20 // bytes
	maxContent = 64 << 20 // bytes of a file
	maxGrep    = 100_000  // lines
	maxBehind  = 10_000   // commits
)

// each calls do for the messages of a stream, and adds the git usage of the call to the request in the context. After
// the first message, an error does not cause a request to another node.
func each[Message any](ctx context.Context, stream *connect.ServerStreamForClient[Message], cancel context.CancelFunc,
	do func(*Message) error) error {
	defer stream.Close()
	defer cancel() // first: a stream that is not read to its end is not waited for
	begun := false
	for stream.Receive() {
		begun = true
		if err := do(stream.Msg()); err != nil {
			return errBegun{err}
		}
	}
	inflight.From(ctx).AddUsageHeader(stream.ResponseTrailer().Get(inflight.UsageHeader))
	err := stream.Err()
	if err != nil && begun {
		return errBegun{faultrpc.From(err)}
	}
	return err
}

// nodeService makes a client of the look-ups for search processes.
func nodeService(c *client.Client) internalv1connect.NodeServiceClient {
	httpClient, url := c.HTTP()
	return internalv1connect.NewNodeServiceClient(httpClient, url, connect.WithReadMaxBytes(maxMessage))
}

func (s *Source) Files(ctx context.Context, repository git.RepoPath, commit, base git.ObjectID, limit int64,
	send func(search.File) error) error {
	r, err := s.routeOf(repository)
	if err != nil {
		return err
	}
	request := &internalv1.FilesRequest{Repository: repository.String(), Commit: commit.String(),
		Limit: min(limit, maxContent)}
	if !base.IsZero() {
		request.Base = base.String()
	}
	return r.ask(ctx, func(c *client.Client) error {
		ctx, cancel := context.WithCancel(ctx)
		stream, err := nodeService(c).Files(ctx, connect.NewRequest(request))
		if err != nil {
			cancel()
			return err
		}
		j := joiner{limit: request.GetLimit(), send: send}
		err = each(ctx, stream, cancel, func(answer *internalv1.FilesResponse) error {
			for _, f := range answer.GetFiles() {
				if err := j.add(f); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil && j.more {
			return errAnswer("the last file is incomplete")
		}
		return err
	})
}

// joiner joins the pieces of files.
type joiner struct {
	limit int64
	send  func(search.File) error
	file  search.File
	more  bool // further pieces of the file follow
}

func (j *joiner) add(f *internalv1.File) (err error) {
	content := f.GetContent()
	if j.more {
		content = append(j.file.Content, content...)
	} else {
		j.file = search.File{Path: f.GetPath(), Mode: f.GetMode(), Size: f.GetSize(), Gone: f.GetDeleted()}
		if !f.GetDeleted() {
			if j.file.ID, err = git.ParseObjectID(f.GetOid()); err != nil {
				return errAnswer("a file has the object ID %.80q", f.GetOid())
			}
		}
		if content == nil {
			content = []byte{}
		}
	}
	switch {
	case int64(len(content)) > j.limit:
		return errAnswer("a file of more than %d bytes", j.limit)
	case f.GetHasContent() || j.more:
		j.file.Content = content
	}
	if j.more = f.GetContinued(); j.more {
		return nil
	}
	if j.file.Content != nil && int64(len(j.file.Content)) != j.file.Size {
		return errAnswer("got %d bytes of a file of %d bytes", len(j.file.Content), j.file.Size)
	}
	return j.send(j.file)
}

func (s *Source) Behind(ctx context.Context, repository git.RepoPath, old, new git.ObjectID,
	limit int) (n int, err error) {
	r, err := s.routeOf(repository)
	if err != nil {
		return 0, err
	}
	request := &internalv1.CountCommitsRequest{Repository: repository.String(), Old: old.String(), New: new.String(),
		Limit: int32(min(limit, maxBehind))}
	err = r.ask(ctx, func(c *client.Client) error {
		answer, err := nodeService(c).CountCommits(ctx, connect.NewRequest(request))
		if err == nil {
			n = int(answer.Msg.GetCommits())
		}
		return err
	})
	return n, err
}

func (s *Source) Grep(ctx context.Context, repository git.RepoPath, commit git.ObjectID, g search.Grep,
	send func(search.Hit) error) error {
	r, err := s.routeOf(repository)
	if err != nil {
		return err
	}
	request := &internalv1.GrepRequest{
		Repository: repository.String(), Commit: commit.String(), Pattern: g.Pattern, Regexp: g.Regexp,
		IgnoreCase: g.IgnoreCase, Limit: int32(min(g.Limit, maxGrep)),
	}
	return r.ask(ctx, func(c *client.Client) error {
		ctx, cancel := context.WithCancel(ctx)
		stream, err := nodeService(c).Grep(ctx, connect.NewRequest(request))
		if err != nil {
			cancel()
			return err
		}
		return each(ctx, stream, cancel, func(answer *internalv1.GrepResponse) error {
			for _, h := range answer.GetHits() {
				if err := send(search.Hit{Path: h.GetPath(), Line: int(h.GetLine()), Column: int(h.GetColumn()),
					Text: h.GetText()}); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
