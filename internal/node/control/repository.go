package control

import (
	"cmp"
	"context"
	"encoding/base64"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// repositoryService serves RepositoryService.
type repositoryService struct{ *Server }

var _ packhorsev1connect.RepositoryServiceHandler = (*repositoryService)(nil)

func (s *repositoryService) Create(ctx context.Context,
	r *connect.Request[packhorsev1.CreateRequest]) (*connect.Response[packhorsev1.CreateResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (_ *packhorsev1.CreateResponse, err error) {
		o := storage.CreateOptions{Branch: r.Msg.GetDefaultBranch(), RequestID: r.Msg.GetRequestId()}
		if name := r.Msg.GetObjectFormat(); name != "" {
			if o.Format, err = git.ParseObjectFormat(name); err != nil {
				return nil, fault.Wrap(fault.Invalid, `invalid object format: want "sha1" or "sha256"`, err)
			}
		}
		if source := r.Msg.GetForkOf(); source != "" && r.Msg.GetObjectFormat()+r.Msg.GetDefaultBranch() != "" {
			return nil, fault.InvalidField("fork_of", "a fork has the object format and the branch of its source")
		}
		if r.Msg.Settings != nil {
			if err := checkSettings(r.Msg.GetSettings()); err != nil {
				return nil, err
			}
			o.Settings = make(places.Settings)
			if err := addSettings(o.Settings, r.Msg.GetSettings()); err != nil {
				return nil, err
			}
		}
		var d storage.Description
		if name := r.Msg.GetForkOf(); name != "" {
			source, err := parsePath(name)
			if err != nil {
				return nil, fault.InField("fork_of", err)
			}
			d, err = s.Node.Fork(ctx, source, path, places.ForkOptions{RequestID: o.RequestID, Settings: o.Settings})
			return &packhorsev1.CreateResponse{Repository: description(d)}, err
		}
		d, err = s.Node.Create(ctx, path, o)
		return &packhorsev1.CreateResponse{Repository: description(d)}, err
	})
}

// respond answers a unary call about one repository with the message of answer.
func respond[M any](request interface{ GetRepository() string }, answer func(git.RepoPath) (*M, error)) (
	*connect.Response[M], error) {
	path, err := parsePath(request.GetRepository())
	if err != nil {
		return nil, err
	}
	return responseOf(answer(path))
}

// responseOf returns the response or the error of a unary call.
func responseOf[M any](m *M, err error) (*connect.Response[M], error) {
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(m), nil
}

func (s *repositoryService) Get(ctx context.Context,
	r *connect.Request[packhorsev1.GetRequest]) (*connect.Response[packhorsev1.GetResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.GetResponse, error) {
		d, err := s.Node.Describe(ctx, path)
		return &packhorsev1.GetResponse{Repository: description(d)}, err
	})
}

// defaultPage is the default number of repositories in a page.
const defaultPage = 100

func (s *repositoryService) List(ctx context.Context,
	r *connect.Request[packhorsev1.ListRequest]) (*connect.Response[packhorsev1.ListResponse], error) {
	limit, err := pageSize(r.Msg.GetPageSize())
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = defaultPage
	}
	after, err := readToken(repositoryToken, r.Msg.GetPrefix(), r.Msg.GetPageToken())
	switch only := r.Msg.GetOnly(); {
	case err != nil:
		return nil, err
	case after != "" && r.Msg.GetAfter() != "":
		return nil, fault.InvalidField("after", "it is set together with page_token")
	case len(only) > places.MaxPage:
		return nil, fault.InvalidField("only", "more than %d paths", places.MaxPage)
	case len(only) > 0 && r.Msg.GetPrefix()+after+r.Msg.GetAfter()+strings.Join(r.Msg.GetLabels(), "") != "":
		return nil, fault.InvalidField("only", "it is set together with other conditions")
	case len(only) > 0:
		return s.summarize(ctx, only, "", false)
	}
	page, err := s.Node.List(ctx, places.ListQuery{Prefix: r.Msg.GetPrefix(), After: cmp.Or(after, r.Msg.GetAfter()),
		Limit: min(limit, places.MaxPage), Labels: r.Msg.GetLabels(), IsFurther: after != ""})
	next := pageToken(repositoryToken, r.Msg.GetPrefix(), page.Next)
	if err == nil && r.Msg.GetDetails() {
		return s.summarize(ctx, page.Paths, next, true)
	}
	return responseOf(&packhorsev1.ListResponse{Repositories: page.Paths, NextPageToken: next}, err)
}

// summarize returns a page with details.
func (s *repositoryService) summarize(ctx context.Context, paths []string, next string, isFurther bool) (
	*connect.Response[packhorsev1.ListResponse], error) {
	all, err := s.Node.Summarize(ctx, paths, isFurther)
	page := &packhorsev1.ListResponse{NextPageToken: next}
	for _, d := range all {
		r := &packhorsev1.Repository{Path: printable(d.Path)}
		if d.Format != 0 {
			r = description(d)
		}
		r.Version, r.Objects, r.Config = nil, nil, nil
		page.Repositories, page.Details = append(page.Repositories, d.Path), append(page.Details, r)
	}
	return responseOf(page, err)
}

func (s *repositoryService) Delete(ctx context.Context,
	r *connect.Request[packhorsev1.DeleteRequest]) (*connect.Response[packhorsev1.DeleteResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.DeleteResponse, error) {
		o := places.DeleteOptions{Incarnation: r.Msg.GetIncarnation(), Force: r.Msg.GetForce()}
		return &packhorsev1.DeleteResponse{}, s.Node.Delete(ctx, path, o)
	})
}

func (s *repositoryService) Rename(ctx context.Context,
	r *connect.Request[packhorsev1.RenameRequest]) (*connect.Response[packhorsev1.RenameResponse], error) {
	return respond(r.Msg, func(from git.RepoPath) (*packhorsev1.RenameResponse, error) {
		to, err := parsePath(r.Msg.GetTo())
		if err != nil {
			return nil, err
		}
		renamed := &packhorsev1.RenameResponse{}
		if err = s.Node.Rename(ctx, from, to); err == nil && s.Mentions != nil {
			renamed.Mentions = s.Mentions(from, to)
		}
		return renamed, err
	})
}

func (s *repositoryService) Fork(ctx context.Context,
	r *connect.Request[packhorsev1.ForkRequest]) (*connect.Response[packhorsev1.ForkResponse], error) {
	return respond(r.Msg, func(source git.RepoPath) (*packhorsev1.ForkResponse, error) {
		target, err := parsePath(r.Msg.GetTarget())
		if err != nil {
			return nil, err
		}
		o := places.ForkOptions{Refs: r.Msg.GetRefs(), RequestID: r.Msg.GetRequestId(),
			Lifetime: r.Msg.GetLifetime().AsDuration()}
		d, err := s.Node.Fork(ctx, source, target, o)
		return &packhorsev1.ForkResponse{Repository: description(d)}, err
	})
}

func (s *repositoryService) Detach(ctx context.Context,
	r *connect.Request[packhorsev1.DetachRequest]) (*connect.Response[packhorsev1.DetachResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.DetachResponse, error) {
		return &packhorsev1.DetachResponse{}, s.Node.Detach(ctx, path)
	})
}

func (s *repositoryService) SetHead(ctx context.Context, r *connect.Request[packhorsev1.SetHeadRequest]) (
	*connect.Response[packhorsev1.SetHeadResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.SetHeadResponse, error) {
		branch, err := git.ParseRefName(r.Msg.GetBranch())
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, "invalid branch: want a full name such as refs/heads/main", err)
		}
		exists, err := s.Node.SetHead(ctx, path, branch, git.RefName(r.Msg.GetExpected()))
		return &packhorsev1.SetHeadResponse{Exists: exists}, err
	})
}

// defaultAge is the age from which objects expire if a request has none.
const defaultAge = 14 * 24 * time.Hour

func (s *repositoryService) Collect(ctx context.Context, r *connect.Request[packhorsev1.CollectRequest]) (
	*connect.Response[packhorsev1.CollectResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.CollectResponse, error) {
		start := time.Now()
		o := places.CollectOptions{OlderThan: defaultAge, DryRun: r.Msg.GetDryRun()}
		if age := r.Msg.GetOlderThan(); age != nil {
			o.OlderThan = age.AsDuration()
		}
		done, err := s.Node.Collect(ctx, path, o)
		m := &packhorsev1.CollectResponse{Before: counts(done.Before), After: counts(done.After), FreedBytes: done.Freed,
			Duration: durationpb.New(time.Since(start))}
		for _, member := range done.Members {
			m.Members = append(m.Members, member.String())
		}
		return m, err
	})
}

func (s *repositoryService) Maintain(ctx context.Context, r *connect.Request[packhorsev1.MaintainRequest]) (
	*connect.Response[packhorsev1.MaintainResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.MaintainResponse, error) {
		m, err := s.Node.Maintain(ctx, path)
		return &packhorsev1.MaintainResponse{Before: counts(m.Before), After: counts(m.After),
			Duration: durationpb.New(m.Took)}, err
	})
}

func (s *repositoryService) DropPacks(ctx context.Context, r *connect.Request[packhorsev1.DropPacksRequest]) (
	*connect.Response[packhorsev1.DropPacksResponse], error) {
	if r.Msg.GetAll() == (r.Msg.GetRepository() != "") {
		return nil, fault.New(fault.Invalid, "set either repository or all")
	}
	var path *git.RepoPath
	if !r.Msg.GetAll() {
		parsed, err := parsePath(r.Msg.GetRepository())
		if err != nil {
			return nil, err
		}
		path = &parsed
	}
	dropped, err := s.Node.DropPacks(ctx, path)
	return responseOf(&packhorsev1.DropPacksResponse{Packs: int64(dropped.Entries), Bytes: dropped.Bytes}, err)
}

// parsePath parses the path of a repository in a request.
func parsePath(name string) (git.RepoPath, error) {
	path, err := git.ParseRepoPath(name)
	if err != nil {
		return path, fault.Wrap(fault.Invalid, err.Error(), err)
	}
	return path, nil
}

// description converts a description. Texts that are not UTF-8 are made valid.
func description(d storage.Description) *packhorsev1.Repository {
	r := &packhorsev1.Repository{
		Path: printable(d.Path), ObjectFormat: d.Format.String(), Head: printable(string(d.Head.Target)),
		HeadOid: oid(d.Head.ID), Version: version(d.Version),
		Size: d.Size, Refs: d.Refs, Objects: counts(d.Objects), Config: make(map[string]string, len(d.Config)),
		RepositoryHooks: string(d.RepositoryHooks), Settings: settingsMessage(d.Settings),
		SettingsVersion: settingsVersion(d.Settings), PushedAt: timestampOf(d.PushedAt), Expires: timestampOf(d.Expires),
		CommittedAt: timestampOf(d.CommittedAt),
	}
	for _, hook := range d.Hooks {
		r.Hooks = append(r.Hooks, printable(hook))
	}
	for key, value := range d.Config {
		r.Config[printable(key)] = printable(value)
	}
	return r
}

func counts(c pack.Counts) *packhorsev1.Objects {
	return &packhorsev1.Objects{
		Packed: c.Packed, Packs: c.Packs, Loose: c.Loose, PackBytes: c.PackBytes,
		MultiPackIndex: c.MultiPackIndex, Bitmap: c.Bitmap, CommitGraph: c.CommitGraph,
	}
}

func version(v git.Version) *packhorsev1.Version {
	return &packhorsev1.Version{Incarnation: v.Incarnation, Epoch: v.Epoch, Generation: v.Generation}
}

// oid returns an object ID as text, and "" for the zero ID.
func oid(id git.ObjectID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// printable makes a text valid for a message.
func printable(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// pageSize checks a page size.
func pageSize(n int32) (int, error) {
	if n < 0 {
		return 0, fault.New(fault.Invalid, "negative page size")
	}
	return int(n), nil
}

// Prefixes of the tokens of the two lists, which keep them apart.
const (
	repositoryToken = "r1"
	refToken        = "f1"
)

// pageToken encodes the position at which a page of a list with a prefix ended; "" stays "".
func pageToken(kind, prefix, position string) string {
	if position == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(kind + prefix + "\x00" + position))
}

// readToken decodes the position in a token. It must be from a list with the same prefix.
func readToken(kind, prefix, token string) (string, error) {
	if token == "" {
		return "", nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	position, ok := strings.CutPrefix(string(text), kind+prefix+"\x00")
	if err != nil || !ok || position == "" {
		return "", fault.New(fault.Invalid, "invalid page token: it is not from the previous response to the same request")
	}
	return position, nil
}
