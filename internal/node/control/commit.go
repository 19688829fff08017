package control

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/write"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// commitService serves CommitService.
type commitService struct {
	*Server
}

var _ packhorsev1connect.CommitServiceHandler = (*commitService)(nil)

// Create implements packhorsev1connect.CommitServiceHandler.
func (s *commitService) Create(ctx context.Context, r *connect.Request[packhorsev1.CommitServiceCreateRequest]) (
	*connect.Response[packhorsev1.CommitServiceCreateResponse], error) {
	d, err := s.newDraft(ctx, r.Msg, r.Header().Get(callerHeader))
	if err != nil {
		return nil, err
	}
	defer d.blobs.Close()
	answer, err := d.commit(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// CreateStream implements packhorsev1connect.CommitServiceHandler.
func (s *commitService) CreateStream(ctx context.Context,
	stream *connect.ClientStream[packhorsev1.CreateStreamRequest]) (
	*connect.Response[packhorsev1.CreateStreamResponse], error) {
	admission, err := s.enterPush()
	if err != nil {
		return nil, err
	}
	defer admission.end()
	if !stream.Receive() {
		return nil, errors.Join(stream.Err(), fault.New(fault.Invalid, "the stream has no message"))
	}
	start := stream.Msg().GetStart()
	if start == nil {
		return nil, fault.InField("start", fault.New(fault.Invalid, "the first message has to have it"))
	}
	d, err := s.newDraft(ctx, start, stream.RequestHeader().Get(callerHeader))
	if err != nil {
		return nil, err
	}
	defer d.blobs.Close()
	for isFirst := true; isFirst || stream.Receive(); isFirst = false {
		m := stream.Msg()
		if !isFirst && m.GetStart() != nil {
			return nil, fault.InField("start", fault.New(fault.Invalid, "only the first message has it"))
		}
		if len(m.GetContent()) > 0 || m.GetContinued() || d.open != nil {
			if err := d.more(m.GetContent(), m.GetContinued()); err != nil {
				return nil, err
			}
		}
		if err := d.add(m.GetChanges()); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	answer, err := d.commit(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&packhorsev1.CreateStreamResponse{Created: answer}), nil
}

// draft is a commit whose changes arrive.
type draft struct {
	*Server
	path    git.RepoPath
	request *packhorsev1.CommitServiceCreateRequest // without changes
	commits storage.NewCommit
	blobs   edit.Blobs
	memory  admit.Holding
	open    *edit.Change // a file whose content continues; nil: there is none
}

// newDraft begins a commit with the changes of its first message.
func (s *Server) newDraft(ctx context.Context, m *packhorsev1.CommitServiceCreateRequest, caller string) (*draft,
	error) {
	path, err := parsePath(m.GetRepository())
	if err != nil {
		return nil, err
	}
	changes := m.GetChanges()
	m.Changes = nil
	d := &draft{Server: s, path: path, request: m, memory: s.Memory.Hold(balance.Caller(caller), freeMemory)}
	c := &d.commits
	if c.Change, err = changeOf(m, caller); err != nil {
		return nil, err
	}
	if c.Target, err = targetOf(m); err != nil {
		return nil, err
	}
	switch m.GetOnMoved() {
	case "", "FAIL":
	case "REAPPLY":
		if c.Target.Reapply = true; c.Target.Expected.IsZero() {
			return nil, fault.InField("on_moved", fault.New(fault.Invalid, "REAPPLY needs expected_head to compare with"))
		}
	default:
		return nil, fault.InField("on_moved", fault.New(fault.Invalid, "%.40q is neither FAIL nor REAPPLY", m.GetOnMoved()))
	}
	if c.Header, err = s.headerOf(m, c.Change.Pusher); err != nil {
		return nil, err
	}
	c.Start, c.AllowEmpty = m.GetStart(), m.GetAllowEmpty()
	format, err := s.Node.Format(ctx, path)
	if err != nil {
		return nil, err
	}
	if len(m.GetParents()) > edit.MaxParents {
		return nil, fault.InField("parents", fault.New(fault.Invalid, "there are %d, and at most %d are allowed",
			len(m.GetParents()), edit.MaxParents))
	}
	for i, text := range m.GetParents() {
		id, err := objectID(text, format)
		if err != nil {
			return nil, fault.InField(fmt.Sprintf("parents[%d]", i), err)
		}
		c.Parents = append(c.Parents, id)
	}
	d.blobs = edit.Blobs{Format: format, Dir: s.Node.Scratch(), Limit: s.Node.MaxChange(), Memory: &d.memory}
	size := 0
	for _, change := range changes {
		size += proto.Size(change)
	}
	if err = d.memory.Grow(int64(size)); err == nil {
		err = d.add(changes)
	}
	if err != nil {
		d.blobs.Close()
		return nil, err
	}
	return d, nil
}

// objectID parses the ID of an object in a repository with a format.
func objectID(text string, format git.ObjectFormat) (git.ObjectID, error) {
	id, err := commitID(text)
	if err == nil && id.Format() != format {
		err = fault.New(fault.Invalid, "object ID %.80q: the IDs of this repository are %s", text, format)
	}
	return id, err
}

// add adds changes.
func (d *draft) add(changes []*packhorsev1.FileChange) error {
	for _, m := range changes {
		if d.open != nil {
			return fault.InField(d.open.Field+".continued", fault.New(fault.Invalid,
				"another change follows in the same message: more content comes with the next message"))
		}
		c, err := d.change(m, fmt.Sprintf("changes[%d]", d.commits.Changes.Len()))
		if err != nil {
			return err
		}
		if err := d.commits.Changes.Add(c); err != nil {
			return err
		}
		switch {
		case m.GetPut().GetContinued():
			d.open = c
		case m.GetPut() != nil && c.ID.IsZero():
			if c.Blob, err = d.blobs.End(); err != nil {
				return err
			}
		}
	}
	return nil
}

// more adds to the content of the open file.
func (d *draft) more(content []byte, continued bool) error {
	if d.open == nil {
		return fault.InField("content", fault.New(fault.Invalid, "no earlier message has a put with continued"))
	}
	_, err := d.blobs.Write(content)
	if err == nil && !continued {
		d.open.Blob, err = d.blobs.End()
		d.open = nil
	}
	return err
}

// change converts a change. The content of a file goes to the blobs.
func (d *draft) change(m *packhorsev1.FileChange, field string) (c *edit.Change, err error) {
	c = &edit.Change{Field: field}
	var raw []byte
	expected, mode, id := "", "", ""
	switch m := m.GetChange().(type) {
	case *packhorsev1.FileChange_Put:
		c.Field += ".put"
		c.Path, raw, expected, mode = m.Put.GetPath(), m.Put.GetRawPath(), m.Put.GetExpectedOid(), m.Put.GetMode()
		id, err = d.source(m.Put, c.Field)
	case *packhorsev1.FileChange_Delete:
		c.Kind, c.Field = edit.Delete, field+".delete"
		c.Path, raw, expected = m.Delete.GetPath(), m.Delete.GetRawPath(), m.Delete.GetExpectedOid()
	case *packhorsev1.FileChange_Move:
		c.Kind, c.Field = edit.Move, field+".move"
		c.Path, c.To, expected = m.Move.GetFrom(), m.Move.GetTo(), m.Move.GetExpectedOid()
	case *packhorsev1.FileChange_Mode:
		c.Kind, c.Field = edit.Mode, field+".mode"
		c.Path, expected, mode = m.Mode.GetPath(), m.Mode.GetExpectedOid(), m.Mode.GetMode()
	case *packhorsev1.FileChange_Submodule:
		c.Field += ".submodule"
		c.Path, raw, expected = m.Submodule.GetPath(), m.Submodule.GetRawPath(), m.Submodule.GetExpectedOid()
		c.Mode = pack.ModeGitlink
		if c.ID, err = objectID(m.Submodule.GetOid(), d.blobs.Format); err != nil {
			err = fault.InField(c.Field+".oid", err)
		}
	default:
		err = fault.InField(field, fault.New(fault.Invalid, "it is empty: set put, delete, move, mode or submodule"))
	}
	if err != nil {
		return nil, err
	}
	if len(raw) > 0 {
		if c.Path != "" {
			return nil, fault.InField(c.Field+".raw_path", fault.New(fault.Invalid, "set either path or raw_path"))
		}
		c.Path = string(raw)
	}
	if c.Expected.Absent = expected == fault.Absent; !c.Expected.Absent && expected != "" {
		if c.Expected.ID, err = objectID(expected, d.blobs.Format); err != nil {
			return nil, fault.InField(c.Field+".expected_oid", err)
		}
	}
	if id != "" {
		if c.ID, err = objectID(id, d.blobs.Format); err != nil {
			return nil, fault.InField(c.Field+".oid", err)
		}
		d.commits.Blobs = append(d.commits.Blobs, c.ID)
	}
	if mode != "" || c.Kind == edit.Mode {
		if c.Mode, err = edit.ParseMode(mode); err != nil {
			return nil, fault.InField(c.Field+".mode", err)
		}
	}
	return c, nil
}

// source writes the content of a file to the blobs, or returns its ID.
func (d *draft) source(m *packhorsev1.PutFile, field string) (id string, err error) {
	switch source := m.GetSource().(type) {
	case *packhorsev1.PutFile_Text:
		_, err = d.blobs.Write([]byte(source.Text))
	case *packhorsev1.PutFile_Content:
		_, err = d.blobs.Write(source.Content)
	case *packhorsev1.PutFile_Oid:
		if id = source.Oid; m.GetContinued() || id == "" {
			err = fault.InField(field+".oid", fault.New(fault.Invalid, "it is empty, or content continues"))
		}
	default:
		if !m.GetContinued() { // most likely a mistake, which would empty the file
			err = fault.InField(field, fault.New(fault.Invalid, "set text, content or oid; text can be empty"))
		}
	}
	return id, err
}

// commit makes the commit.
func (d *draft) commit(ctx context.Context) (*packhorsev1.CommitServiceCreateResponse, error) {
	c := &d.commits
	if d.open != nil {
		return nil, fault.InField(d.open.Field+".continued", fault.New(fault.Invalid, "the content does not continue"))
	}
	if err := c.Changes.Check(); err != nil {
		return nil, err
	}
	if key := d.request.GetIdempotencyKey(); key != "" {
		var err error
		if c.Header.Key, err = edit.NewKey(key, c.Changes.Sum(contentOf(d.request))); err != nil {
			return nil, err
		}
	}
	made, result, err := d.Node.MakeCommit(ctx, d.path, *c)
	if err != nil {
		return nil, err
	}
	return createdMessage(made, result), nil
}

func createdMessage(made edit.Made, result write.Result) *packhorsev1.CommitServiceCreateResponse {
	return &packhorsev1.CommitServiceCreateResponse{
		Commit: made.Commit.String(), Tree: made.Tree.String(), Version: version(result.Version),
		ReappliedTo: oid(made.ReappliedTo), Repeated: made.Repeated, Messages: result.Messages,
	}
}
